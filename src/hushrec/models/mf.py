"""Matrix factorization: a rating is the inner product of a user vector and an item vector.

The model of [SDCF], section 2.2, in the Bayesian form of its section 2.3. The loss of one rating r is

    ½ e² + ½ u Λ_u uᵀ + ½ v Λ_v vᵀ,     e = r − u vᵀ,

with diagonal Λ. This module is plain maths on arrays: no privacy, no messages, no loop over devices. Gradients point
*downhill*: a step adds them. Only the data term is multiplied by `data_weight`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import ParameterError
from hushrec.randomness import RandomStream

MEAN_REGULARIZATION = 0.01  # Gamma(shape 1, rate 100)


@dataclass(frozen=True)
class MatrixFactorization:
    """Model `mf`, matrix factorization with `n_factors` factors: initial values, predictions and gradients.

    With `fallback`, people and items without ratings get cold-start predictions (`models.cold`). `bpr` and `fm` are
    subclasses, so that protocols and engines handle all three models alike.
    """

    name: ClassVar[str] = "mf"
    learns_from_pairs: ClassVar[bool] = False  # True: trained on pairs of a rated and an unrated item

    n_factors: int
    fallback: bool = field(default=False, kw_only=True)  # whether `ColdStart` predicts for unseen people and items

    def __post_init__(self) -> None:
        if self.n_factors < 1:
            raise ParameterError(f"n_factors must be at least 1, got {self.n_factors}.")

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        return cls(options["factors"], fallback=not options.get("no_fallback", True))

    @property
    def user_width(self) -> int:
        return self.n_factors

    @property
    def item_width(self) -> int:
        return self.user_width

    @property
    def n_side_rows(self) -> int:
        """The number of rows that follow the items in the public table: none for this model."""
        return 0

    def initial_items(self, n_items: int, *, rng: RandomStream) -> FloatArray:
        """Return the public table of item vectors before the first round, `(n_items + n_side_rows, item_width)`."""
        return self.initial_vectors(n_items, rng=rng)

    def initial_vectors(self, count: int, *, rng: RandomStream) -> FloatArray:
        """Return initial vectors `(count, n_factors)`, uniform on (0, 0.3 √(50 / n_factors)).

        The product of two such vectors is near 1.1. [SDCF] does not specify initial values; values around zero would
        take tens of rounds to break the symmetry.
        """
        return rng.random((count, self.n_factors)) * (0.3 * math.sqrt(50 / self.n_factors))

    def draw_regularization(self, *, rng: RandomStream) -> FloatArray:
        """Return prior precisions, the diagonal of Λ: a Gamma(1, rate 100) draw per factor ([SDCF], section 4.1)."""
        return -MEAN_REGULARIZATION * np.log1p(-rng.random(self.n_factors))

    def item_rows(self, table: FloatArray) -> FloatArray:
        """Return the item rows from which ratings are predicted, `(n_items, item_width)`: here, the item vectors."""
        return table

    def direction(self, user_vector: FloatArray) -> FloatArray:
        """Return the user vector, whose product with an item's error is the data term of the item's gradient."""
        return user_vector

    def item_directions(self, item_rows: FloatArray) -> FloatArray:
        """Return the item vectors, whose products with the errors are the data terms of the user's gradient."""
        return item_rows

    def errors(self, values: FloatArray, scores: FloatArray) -> FloatArray:
        """Return the error of every rated item: its rating in `values` minus its predicted rating in `scores`."""
        return values - scores

    def predict(self, user_vector: FloatArray, item_rows: FloatArray) -> FloatArray:
        """Return the predicted rating of each item: the product of its row and the user vector."""
        return np.asarray(item_rows @ user_vector)

    def predict_pairs(
        self, user_vectors: FloatArray, item_rows: FloatArray, users: IntArray, items: IntArray
    ) -> FloatArray:
        """Return the predicted rating of each pair (`users[k]`, `items[k]`), `(len(users),)`.

        `users` and `items` are row numbers of `user_vectors` and `item_rows`.
        """
        return np.asarray(np.einsum("nk,nk->n", user_vectors[users], item_rows[items]))

    def predict_all(self, user_vectors: FloatArray, item_rows: FloatArray) -> FloatArray:
        """Return the predicted ratings of every item for every given user, `(n_users, n_items)`."""
        return np.asarray(user_vectors @ item_rows.T)

    def item_gradients(
        self,
        errors: FloatArray,
        user_vector: FloatArray,
        item_vectors: FloatArray,
        regularization: FloatArray,
        *,
        data_weight: float,
    ) -> FloatArray:
        """Return the downhill gradients of the item vectors v, one row per item: N e u − v Λ_v.

        N is `data_weight`, e the error, u the user vector and Λ_v the regularization. Departs from [SDCF], eq. (5), in
        two ways. The sign there, together with Algorithm 2, would make the error grow. And the data term is multiplied
        by N, without which the step sizes of the paper have no effect.
        """
        return data_weight * np.outer(errors, self.direction(user_vector)) - item_vectors * regularization

    def user_gradient(
        self,
        errors: FloatArray,
        user_vector: FloatArray,
        item_rows: FloatArray,
        regularization: FloatArray,
        *,
        data_weight: float,
    ) -> FloatArray:
        """Return the downhill gradient of the user vector u: N mean(e v) − u Λ_u.

        N is `data_weight`, the mean is over the rated items, e is an item's error, v its row of `item_directions`, and
        Λ_u the regularization.
        """
        return data_weight * (errors @ self.item_directions(item_rows)) / len(errors) - user_vector * regularization

    def move_items(self, table: FloatArray, sums: FloatArray, counts: IntArray, prior: FloatArray) -> FloatArray:
        """Return the public table with the mean of each item's gradients added; items without gradients do not change.

        `sums` `(n_items, item_width)` has the sum of each item's gradients in a round's reports, and `counts`
        `(n_items,)` their number. Devices have multiplied the gradients by the step size. `prior`, the step size times
        the regularization, is not used here, because the gradients contain the prior term. Departs from [SDCF],
        Algorithm 2, which divides by one count of all gradients.
        """
        return table + sums / np.maximum(counts, 1)[:, None]
