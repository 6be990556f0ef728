"""A plausibility test for the sums of model `gp` against false tables: a sum must not be longer than honest ones are.

`encoding.is_plausible` only bounds the norm of a sum over n devices by n Δ, so that a false table of that length
passes. Counts and the results of earlier rounds give a tighter bound. A person's rows of an item block are multiples of
one vector q, and clipping multiplies them by a factor c. The curvature block of the same round gives M and M₂, the
means of c qqᵀ and c² qqᵀ over all ratings. For an item j with n_j ratings and weight ω_j, row j of the sum is

    y_j = n_j ω_j M θ_j + sampling + noise,     E‖y‖² = Σ_j (n_j ω_j)² ‖M‖² τ_j² + Σ_j n_j ω_j² v tr(M₂) + d s².

θ_j is what the public table does not yet explain about item j. Its variance τ_j² is a public constant or, for item
effects after their first estimate, the posterior variance. *Sampling* is the part of the row that depends on which
people rated the item; v is the variance of one rating's contribution to it. d is the size of the block, and s the
standard deviation of the noise. The squared norm of the noise may exceed its expectation d s² by `DEVIATIONS` standard
deviations, and the first two terms may be larger by the factor `SLACK`. The decision uses a noisy sum and public
numbers only, so it costs no budget.
"""

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.protocols.masked.encoding import DecodedSum
from hushrec.protocols.masked.plan import AUDIENCE, BIAS, COUNTS, FACTORS
from hushrec.protocols.masked.sums import TINY, deviation_of

if TYPE_CHECKING:
    from hushrec.protocols.masked.gp.server import GpLearner

SLACK = 4.0  # allowed factor above the expected squared norm, except for noise
DEVIATIONS = 6.0  # allowed standard deviations of the noise
EFFECT_VARIANCE = 0.36  # variance of an item's effect before the first estimate, in squared rating points
LOADING_VARIANCE = 0.1  # variance of an item's coefficient for a direction of taste
AUDIENCE_VARIANCE = 1.0  # variance of the mean description of an item's people


def surprise(learner: "GpLearner", sums: Mapping[str, DecodedSum], survivors: int) -> float:
    """Return the largest ratio, over the blocks of a round, of a sum's size to its largest plausible value.

    `sums` has the decoded sums by block name, over `survivors` devices, before the learner has learned from them. For
    sums of honest devices, the result exceeds 1 only by chance (`DEVIATIONS`), or if ratings are far from the priors
    (`SLACK`).
    """
    found = [counts_surprise(sums[COUNTS], survivors)] if COUNTS in sums else []
    share = survivors / learner.devices
    names = [name for name in (AUDIENCE, BIAS, FACTORS) if name in sums]
    found += [_block_surprise(learner, name, sums, share) for name in names]
    return max(found, default=0.0)


def counts_surprise(noisy: DecodedSum, survivors: int) -> float:
    """Return how implausible the noisy counts over n = `survivors` devices are: the larger of two ratios.

    For sums of honest devices, both exceed 1 only by chance (`DEVIATIONS`). One is how far a single count is outside
    0 … n, the other is the sum of the squares of all negative counts. Each is divided by the largest value that noise
    explains. If nobody rated any of d items, noise of deviation s alone gives the sum of squares the mean d s²/2 and
    the variance 5 d s⁴/4.
    """
    outside = float(np.maximum(noisy.values - survivors, -noisy.values).max())
    below = float(np.sum(np.minimum(noisy.values, 0) ** 2))
    size, deviation = noisy.values.size, deviation_of(noisy)
    energy = deviation**2 * (size / 2 + DEVIATIONS * math.sqrt(1.25 * size))
    return max(outside / (DEVIATIONS * deviation + TINY), below / (energy + TINY))


def _block_surprise(learner: "GpLearner", name: str, sums: Mapping[str, DecodedSum], share: float) -> float:
    """Return the squared norm of the sum of item block `name`, divided by its largest plausible value.

    `share` is the number of devices in the sums, divided by the number of devices of the run.
    """
    learned, noisy, rows = learner.learned, sums[name].values, learner.item_sum(name, sums, share)
    counts, weights = share * learned.counts, learner.item_weights(name)  # n_j, ω_j
    variances: FloatArray | float = AUDIENCE_VARIANCE if name == AUDIENCE else LOADING_VARIANCE  # τ_j²
    if name == BIAS:
        variances = learned.effect_variances if len(learned.estimates) else EFFECT_VARIANCE
    rating_variance = AUDIENCE_VARIANCE if name == AUDIENCE else learner.noise  # v
    width = noisy.size // len(counts) / len(rows.mean_weight)  # an audience block has one weight for all columns
    signal = width * float(np.sum((counts * weights) ** 2 * variances)) * float(np.sum(rows.mean_weight**2))
    sampling = width * rating_variance * float(np.sum(counts * weights**2)) * float(np.trace(rows.squared_weight))
    noise = deviation_of(sums[name]) ** 2 * (noisy.size + DEVIATIONS * math.sqrt(2 * noisy.size))
    return float(noisy @ noisy) / (noise + SLACK * (signal + sampling))
