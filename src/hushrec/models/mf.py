"""Matrix factorization: a rating is the inner product of a user vector and an item vector.

The model of [SDCF], section 2.2, in the Bayesian form of its section 2.3, with one rating's loss

    ½ e² + ½ u Λ_u uᵀ + ½ v Λ_v vᵀ,     e = r − u vᵀ,

Λ diagonal. Everything here is plain maths on arrays: no privacy, no messages, no loop over clients.
Gradients point *downhill* (they are added), and the data term alone is multiplied by `data_weight`.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from hushrec.randomness import FloatArray, IntArray, RandomStream

MEAN_REGULARIZATION = 0.01  # Gamma(shape 1, rate 100)


@dataclass(frozen=True)
class MatrixFactorization:
    """The settings of the model, and its equations."""

    name: ClassVar[str] = "mf"
    one_class: ClassVar[bool] = False

    n_factors: int

    @property
    def user_width(self) -> int:
        """Numbers in a user vector."""
        return self.n_factors

    @property
    def item_width(self) -> int:
        """Numbers in an item vector."""
        return self.n_factors

    def initial_vectors(self, count: int, *, rng: RandomStream) -> FloatArray:
        """`(count, n_factors)` start values, uniform on (0, 0.3 √(50 / n_factors)), so that a product is near 1.1.

        Departs from [SDCF], which gives no start: around zero it takes tens of rounds to break symmetry.
        """
        return rng.random((count, self.n_factors)) * (0.3 * math.sqrt(50 / self.n_factors))

    def draw_regularization(self, *, rng: RandomStream) -> FloatArray:
        """The diagonal of Λ, one draw of Gamma(1, rate 100) per factor and run ([SDCF], section 4.1)."""
        return -MEAN_REGULARIZATION * np.log1p(-rng.random(self.n_factors))

    def predict(self, user_vector: FloatArray, item_vectors: FloatArray) -> FloatArray:
        """Predicted ratings of the given items: V u."""
        return np.asarray(item_vectors @ user_vector)

    def predict_pairs(
        self, user_vectors: FloatArray, item_vectors: FloatArray, users: IntArray, items: IntArray
    ) -> FloatArray:
        """Predicted ratings of (user, item) pairs, the same maths for many users at once."""
        return np.asarray(np.einsum("nk,nk->n", user_vectors[users], item_vectors[items]))

    def item_gradients(
        self,
        errors: FloatArray,
        user_vector: FloatArray,
        item_vectors: FloatArray,
        regularization: FloatArray,
        *,
        data_weight: float,
    ) -> FloatArray:
        """Downhill gradients with respect to the item vectors: N e u − v Λ_v, one row per item.

        Departs from [SDCF], eq. (5): the sign there is that of the uphill gradient, which Algorithm 2 then
        subtracts, so that the error would grow; and the data term is multiplied by N, without which
        the step sizes of the paper move nothing.
        """
        return data_weight * np.outer(errors, user_vector) - item_vectors * regularization

    def user_gradient(
        self,
        errors: FloatArray,
        user_vector: FloatArray,
        item_vectors: FloatArray,
        regularization: FloatArray,
        *,
        data_weight: float,
    ) -> FloatArray:
        """Downhill gradient with respect to the user vector, averaged over the rated items: N mean(e v) − u Λ_u."""
        return data_weight * (errors @ item_vectors) / len(errors) - user_vector * regularization

    def move_items(self, item_vectors: FloatArray, sums: FloatArray, counts: IntArray) -> FloatArray:
        """Each item moves by the mean of what was received for it; an item nobody reported stays.

        Departs from [SDCF], Algorithm 2, which divides by one count of all reports.
        """
        return item_vectors + sums / np.maximum(counts, 1)[:, None]
