"""A model: matrix factorization whose errors are clipped to one star, so that single odd ratings matter less.

Its loss is Huber's: e²/2 up to |e| = 1, |e| − 1/2 beyond; the gradient is e clipped to [−1, 1].
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.models import ModelDeclaration
from hushrec.models.mf import MatrixFactorization
from hushrec.options import Option

ROBUST = ModelDeclaration(
    "robust",
    "ratings, with errors clipped to one star",
    "rating",
    (
        Option("factors", int, "Numbers in each vector.", 8),
        Option("step", float, "First step size times the number of ratings.", 2.0),
    ),
    "hushrec_example.model:RobustFactorization",
    spoken_by=("plain", "isgld"),
    engines=("reference",),  # other engines compute the gradients of hushrec's own models only
)


@dataclass(frozen=True)
class RobustFactorization(MatrixFactorization):
    """Matrix factorization with Huber's loss."""

    name: ClassVar[str] = "robust"

    def errors(self, values: FloatArray, scores: FloatArray) -> FloatArray:
        """Return r − u vᵀ, clipped to one star."""
        return np.clip(values - scores, -1, 1)
