"""How far a sum is from what model `gp` can expect of honest devices: what a hostile table has to hide in.

The norm of a sum is at most n Δ, and a hostile table of that length hides in it (`encoding.is_plausible`). Counts and
what earlier rounds learned tell more. With n_j ratings of item j, weight ω_j, and M the mean of c qqᵀ over ratings that
the curvature block of the same round has, an item block's row is

    y_j = n_j ω_j M θ_j + sampling + noise,     E‖y‖² = Σ_j (n_j ω_j)² ‖M‖² τ_j² + Σ_j n_j ω_j² v tr(M₂) + d s²,

θ_j what is left of the item, of variance τ_j²: a public guess in the first round that measures it, later the posterior
variance. Noise has its known energy up to a few deviations; the rest may be `SLACK` times as large as expected. A
decision on a noisy sum and public numbers costs no budget.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.protocols.masked.encoding import DecodedSum
from hushrec.protocols.masked.plan import AUDIENCE, BIAS, COUNTS, FACTORS
from hushrec.protocols.masked.sums import TINY, ItemSum, deviation_of

if TYPE_CHECKING:
    from hushrec.protocols.masked.server import GpLearner

SLACK = 4.0  # of the part of the energy that is not noise
DEVIATIONS = 6.0  # of the noise
EFFECT_VARIANCE = 0.36  # of what is left of an item before anything is known of it, in squared rating points
LOADING_VARIANCE = 0.1  # of how it depends on a taste
AUDIENCE_VARIANCE = 1.0  # of the mean description of its people


def surprise(learner: "GpLearner", sums: Mapping[str, DecodedSum], survivors: int) -> float:
    """Return how far the sums of the next round are from what honest devices make: at most 1 for those."""
    found = [counts_surprise(sums[COUNTS], survivors)] if COUNTS in sums else []
    share = survivors / learner.devices
    for name in (AUDIENCE, BIAS, FACTORS):
        if name in sums:
            rows, weights = learner.item_sum(name, sums, share), learner.item_weights(name)
            counts = share * learner.learned.counts
            found.append(block_surprise(sums[name], rows, counts, weights, *_left(learner, name)))
    return max(found, default=0.0)


def _left(learner: "GpLearner", name: str) -> tuple[FloatArray, float]:
    """Return the variances τ_j² of what an item block measures, and v of one rating's value."""
    learned, ones = learner.learned, np.ones(learner.item_columns.n_items)
    if name == AUDIENCE:
        return AUDIENCE_VARIANCE * ones, AUDIENCE_VARIANCE
    if name == FACTORS:
        return LOADING_VARIANCE * ones, learner.constants.noise
    known = len(learned.estimates) > 0
    return learned.effect_variances if known else EFFECT_VARIANCE * ones, learner.constants.noise


def counts_surprise(noisy: DecodedSum, survivors: int) -> float:
    """Return how far counts lie outside 0 … n: one by one, and by the energy of those below 0.

    Noise alone, on items that nobody rated, has the energy d s²/2 below 0, with the variance 5 d s⁴/4.
    """
    outside = float(np.maximum(noisy.values - survivors, -noisy.values).max())
    below = float(np.sum(np.minimum(noisy.values, 0) ** 2))
    size, deviation = noisy.values.size, deviation_of(noisy)
    energy = deviation**2 * (size / 2 + DEVIATIONS * math.sqrt(1.25 * size))
    return max(outside / (DEVIATIONS * deviation + TINY), below / (energy + TINY))


def block_surprise(
    noisy: DecodedSum, rows: ItemSum, counts: FloatArray, weights: FloatArray, variances: FloatArray, own: float
) -> float:
    """Return ‖y‖² of an item block as a part of what it may be."""
    size, columns = noisy.values.size, noisy.values.size // len(counts)
    width = columns / len(rows.mean_weight)  # an audience block has one weight for all its columns, or one each
    signal = width * float(np.sum((counts * weights) ** 2 * variances)) * float(np.sum(rows.mean_weight**2))
    sampling = width * own * float(np.sum(counts * weights**2)) * float(np.trace(rows.squared_weight))
    noise = deviation_of(noisy) ** 2 * (size + DEVIATIONS * math.sqrt(2 * size))
    return float(noisy.values @ noisy.values) / (noise + SLACK * (signal + sampling))
