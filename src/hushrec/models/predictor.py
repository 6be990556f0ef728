"""The interface of a trained model (`Predictor`), and its implementation for models of user and item vectors."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.cold import ColdStart
from hushrec.models.mf import MatrixFactorization

PREDICTED_AT_ONCE = 4096  # pairs per batch: their vectors fit into the CPU cache, four times as fast as one large batch

Arrays = dict[str, npt.NDArray[Any]]


class ProfilePredictions(NamedTuple):
    """The predictions of every item for one person, who need not have taken part in training."""

    scores: FloatArray  # recommendation lists are sorted by these, (n_items,)
    predicted: FloatArray | None = None  # ratings on the scale 1 to 5, (n_items,); None for a model that ranks
    deviations: FloatArray | None = None  # standard deviation of ratings around `predicted`, (n_items,); or None


class Predictor(Protocol):
    """A trained model, which predicts for every user of a run.

    A predictor keeps the state of the model after one round: further training does not change its predictions.
    """

    def predict(self, users: IntArray, items: IntArray) -> FloatArray:
        """Return the predicted ratings of (user, item) pairs on the scale 1 to 5; scores for a model that ranks."""

    def scores(self, users: IntArray) -> FloatArray:
        """Return the scores by which recommendation lists are sorted, `(len(users), n_items)`; larger is better."""

    @property
    def compares_items(self) -> bool:
        """Whether the model knows enough of the items to compare them; if not, `likeness` means nothing."""
        return True

    def likeness(self, item: int) -> FloatArray:
        """Return the similarity of every item to `item`, `(n_items,)`, from −1 to 1, for explanations."""

    def likeness_between(self, items: IntArray, others: IntArray) -> FloatArray:
        """Return the similarities of `items` and `others`, `(len(items), len(others))`, as `likeness` defines them."""
        return np.array([self.likeness(int(item))[others] for item in items]).reshape(len(items), len(others))

    @property
    def estimates_deviations(self) -> bool:
        """Whether the model has `deviations`, without computing them."""
        return type(self).deviations is not Predictor.deviations

    def deviations(self, user: int) -> FloatArray | None:
        """Return the standard deviations of a user's own ratings around the predicted ones, `(n_items,)`.

        None if the model does not estimate them.
        """
        return None

    def released_support(self) -> FloatArray | None:
        """Return the number of people who rated each item, as the public table estimates it from noisy sums.

        The shape is `(n_items,)`. None if the public table has no counts.
        """
        return None

    def of_profile(self, items: IntArray, values: FloatArray) -> ProfilePredictions | None:
        """Return predictions for a person with these ratings, who need not be a user of the run.

        None if the model can predict only for people who took part in training. `items` are in ascending order;
        `values` are on the scale 1 to 5, and a model that ranks ignores them.
        """
        return None

    def arrays(self) -> Arrays:
        """Return all arrays from which this predictor can be rebuilt, by name, for `model.npz` and checkpoints."""


@dataclass(frozen=True, eq=False)
class VectorPredictor(Predictor):
    """The predictor of models `mf`, `bpr` and `fm`, from user vectors and item vectors."""

    model: MatrixFactorization
    user_vectors: FloatArray = field(repr=False)  # (n_users, user_width)
    item_vectors: FloatArray = field(repr=False)  # (n_items + n_side_rows, item_width)
    cold: ColdStart | None = field(default=None, repr=False)  # predicts for unseen people and items; None: no fallback

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
        return np.asarray(likeness_between(self._rows, [item], range(len(self._rows)))[0])

    def arrays(self) -> Arrays:
        attributes = getattr(self.model, "attributes", None)
        own: Arrays = {"user_vectors": self.user_vectors, "item_vectors": self.item_vectors}
        own |= {} if attributes is None else {"attributes": attributes}
        return own | ({} if self.cold is None else vars(self.cold))


def cold_start_of(arrays: Arrays) -> ColdStart | None:
    """Return the `ColdStart` in the arrays of a `VectorPredictor`, or None if they contain none."""
    return ColdStart(arrays["own_means"], arrays["untouched"]) if "own_means" in arrays else None


def likeness_between(
    vectors: FloatArray, items: Sequence[int] | IntArray, others: Sequence[int] | IntArray
) -> FloatArray:
    """Return the cosine similarities of `items` and `others`, which are row numbers of the item vectors `vectors`.

    The shape is `(len(items), len(others))`. The mean of all vectors is subtracted first. Otherwise all items would be
    similar, because the largest component of every vector expresses that ratings are positive.
    """
    mean = vectors.mean(axis=0)
    units = []
    for chosen in (items, others):
        rows = vectors[list(chosen)] - mean
        norms = np.linalg.norm(rows, axis=1)
        units.append(rows / np.where(norms > 0, norms, 1)[:, None])
    return np.asarray(units[0] @ units[1].T)
