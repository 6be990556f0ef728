"""Initial vectors and predictors for simulated runs of the gradient protocols."""

from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray
from hushrec.models.cold import ColdStart, own_means
from hushrec.models.predictor import VectorPredictor
from hushrec.randomness import Purpose, SeededRandomness


def initial_item_vectors(problem: Any) -> FloatArray:
    """Return the public item vectors before the first round, `(n_items + n_side_rows, item_width)`."""
    rng = SeededRandomness(problem.seed).stream(Purpose.ITEM_VECTORS)
    return np.asarray(problem.model.initial_items(problem.n_items, rng=rng))


def initial_user_vectors(problem: Any) -> FloatArray:
    """Return the user vectors before the first round, `(n_users, user_width)`, each drawn from its user's stream."""
    users = range(problem.first_user, problem.first_user + problem.n_users)
    streams = (SeededRandomness(problem.seed, user).stream(Purpose.USER_VECTOR) for user in users)
    return np.concatenate([problem.model.initial_vectors(1, rng=rng) for rng in streams])


class Predictions:
    """A factory for predictors of one training problem, which computes once what all its predictors need."""

    def __init__(self, problem: Any) -> None:
        self._problem = problem

    def predictor(self, user_vectors: FloatArray, item_vectors: FloatArray) -> VectorPredictor:
        """Return the predictor for these user and item vectors.

        If the model's `fallback` is true, the user's mean rating predicts items whose vectors no report has changed.
        """
        model, n_items = self._problem.model, self._problem.n_items
        cold = None
        if model.fallback:
            moved = item_vectors[:n_items].astype(np.float32) != self._first_vectors
            cold = ColdStart(self._own_means, ~moved.any(axis=1))
        return VectorPredictor(model, user_vectors, item_vectors, cold)

    @cached_property
    def _own_means(self) -> FloatArray:
        return own_means(self._problem.starts, self._problem.values)

    @cached_property
    def _first_vectors(self) -> npt.NDArray[np.float32]:
        """The item vectors before the first round, in float32, the lowest precision that an engine uses."""
        return initial_item_vectors(self._problem)[: self._problem.n_items].astype(np.float32)
