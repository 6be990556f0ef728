"""What a trained model predicts, whatever it is made of: metrics, patience, run folders and lists ask nothing else."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.cold import ColdStart
from hushrec.models.mf import MatrixFactorization

PREDICTED_AT_ONCE = 4096  # pairs whose vectors fit into the cache: four times as fast as all of ML-1M's at once

Arrays = dict[str, npt.NDArray[Any]]


class ProfilePredictions(NamedTuple):
    """What one profile predicts for every item."""

    scores: FloatArray  # what lists are sorted by, (n_items,)
    predicted: FloatArray | None = None  # ratings on the scale 1 to 5, (n_items,); None of a model that ranks
    deviations: FloatArray | None = None  # of these, (n_items,); None of a model that has none


class Predictor(Protocol):
    """Everybody's predictions after one round. It does not change when training goes on.

    A class that inherits from this one may leave out what its model does not have.
    """

    def predict(self, users: IntArray, items: IntArray) -> FloatArray:
        """Predicted ratings of (user, item) pairs on the scale 1 to 5; bare scores of a model that ranks."""

    def scores(self, users: IntArray) -> FloatArray:
        """What lists are sorted by, `(len(users), n_items)`: larger is better."""

    def likeness(self, item: int) -> FloatArray:
        """Return how alike each item is to the given one, `(n_items,)`, from -1 to 1; reasons name the most alike."""

    def deviations(self, user: int) -> FloatArray | None:
        """Standard deviation of each predicted rating of one user, `(n_items,)`; None of a model that has none."""
        return None

    def released_support(self) -> FloatArray | None:
        """How many ratings each item has, as far as the protocol released it, `(n_items,)`; None: it did not."""
        return None

    def of_profile(self, items: IntArray, values: FloatArray) -> ProfilePredictions | None:
        """Return predictions for somebody who is not a user of the run; None of a model that must train with them.

        `items` rise; `values` are on the scale 1 to 5, and a model that ranks does not look at them.
        """
        return None

    def arrays(self) -> Arrays:
        """Return all arrays that rebuild this predictor, by name, for `model.npz` and checkpoints."""


@dataclass(frozen=True, eq=False)
class VectorPredictor(Predictor):
    """Products of user vectors and item vectors: `mf`, `bpr` and `fm`."""

    model: MatrixFactorization
    user_vectors: FloatArray = field(repr=False)  # (n_users, user_width)
    item_vectors: FloatArray = field(repr=False)  # (n_items + n_side_rows, item_width)
    cold: ColdStart | None = field(default=None, repr=False)  # where the model has a fallback

    @cached_property
    def _rows(self) -> FloatArray:
        return self.model.item_rows(self.item_vectors)

    def predict(self, users: IntArray, items: IntArray) -> FloatArray:
        found = np.empty(len(users))
        for start in range(0, len(users), PREDICTED_AT_ONCE):
            part = slice(start, start + PREDICTED_AT_ONCE)
            found[part] = self.model.predict_pairs(self.user_vectors, self._rows, users[part], items[part])
        return found if self.cold is None else self.cold.settle_pairs(found, self._rows, users, items)

    def scores(self, users: IntArray) -> FloatArray:
        found = self.model.predict_all(self.user_vectors[users], self._rows)
        return found if self.cold is None else self.cold.settle_table(found, self._rows, users)

    def likeness(self, item: int) -> FloatArray:
        return cosine_likeness(self._rows, item)

    def arrays(self) -> Arrays:
        attributes = getattr(self.model, "attributes", None)
        own: Arrays = {"user_vectors": self.user_vectors, "item_vectors": self.item_vectors}
        own |= {} if attributes is None else {"attributes": attributes}
        return own | ({} if self.cold is None else vars(self.cold))


def cold_start_of(arrays: Arrays) -> ColdStart | None:
    """Return the fallback that `VectorPredictor.arrays` kept; None where there is none."""
    return ColdStart(arrays["own_means"], arrays["untouched"]) if "own_means" in arrays else None


def cosine_likeness(vectors: FloatArray, item: int) -> FloatArray:
    """Return how alike each item is to the given one, `(n_items,)`."""
    return np.asarray(likeness_between(vectors, [item], range(len(vectors)))[0])


def likeness_between(vectors: FloatArray, items: Sequence[int], others: Sequence[int]) -> FloatArray:
    """Return how alike items are to others, `(len(items), len(others))`: cosines of their vectors, off the mean of all.

    Without the mean taken off all would be alike, since every vector first says that ratings are positive.
    """
    mean = vectors.mean(axis=0)
    units = []
    for chosen in (items, others):
        rows = vectors[list(chosen)] - mean
        norms = np.linalg.norm(rows, axis=1)
        units.append(rows / np.where(norms > 0, norms, 1)[:, None])
    return np.asarray(units[0] @ units[1].T)
