"""Bayesian personalized ranking: a rated item should score above an unrated one.

This is SD-BPRMF of [SDCF], section 4.2, after [Rendle2009]. It learns from one-class data: from which
items a person rated, not from the values. For a pair of a rated item j and an unrated item j', the loss is

    −ln σ(x) + ½ u Λ_u uᵀ + ½ v Λ_v vᵀ,     x = u v_jᵀ − u v_j'ᵀ.

With s = 1 / (1 + exp(x)), the negative gradient of the first term is s u for v_j, −s u for v_j' and s (v_j − v_j') for
u. So the model is matrix factorization with the error +s for the rated item and −s for the unrated one.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from hushrec.arrays import FloatArray
from hushrec.models.mf import MatrixFactorization
from hushrec.randomness import RandomStream


@dataclass(frozen=True)
class PairwiseRanking(MatrixFactorization):
    """Model `bpr`: matrix factorization that is trained on pairs of a rated and an unrated item."""

    name: ClassVar[str] = "bpr"
    learns_from_pairs: ClassVar[bool] = True

    def initial_vectors(self, count: int, *, rng: RandomStream) -> FloatArray:
        """Return initial vectors `(count, n_factors)`, uniform on (0, 0.3); [SDCF] does not specify any."""
        return 0.3 * rng.random((count, self.n_factors))

    def errors(self, values: FloatArray, scores: FloatArray) -> FloatArray:
        """Return the error s = 1 / (1 + exp(x)) of each pair of a rated and an unrated item.

        `scores` has x, the score of the rated item minus that of the unrated item. `values` is not used.
        """
        return np.asarray(expit(-scores))

    def selected_errors(
        self, is_rated: npt.NDArray[np.bool_], user_vector: FloatArray, item_rows: FloatArray, partner_rows: FloatArray
    ) -> FloatArray:
        """Return the error of each selected item in its pair: +s if the item is rated, −s if it is unrated.

        s = 1 / (1 + exp(x)), where x is the score of the pair's rated item minus that of its unrated item. `item_rows`
        are the vectors of the selected items, `partner_rows` those of the other items of the pairs. The signs are those
        of Lemma 2 in [SDCF]. Departs from the sentence before that lemma, which swaps them.
        """
        sign = np.where(is_rated, 1.0, -1.0)
        return np.asarray(sign * expit(-sign * self.predict(user_vector, item_rows - partner_rows)))
