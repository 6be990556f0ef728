"""A plausibility test that compares the sum of one cohort with the sums of the others, against hostile tables.

Cohorts are drawn at random, so that the sums of honest cohorts differ by chance alone. Let y be the sum of a block over
n devices, y′ that of the other cohorts, over n′ devices, and r = n/n′. If all devices are honest, y − r y′ has mean 0,
noise of a known variance v in each number, and a contribution of at most n (1 + r) E‖x‖² to its squared norm from the
differences between people, where x is the block of one person's table. A squared norm with expectation T that is spread
over at least k directions exceeds

    T (1 + z √(2/k) + z²/k)

with probability of at most about exp(−z²/2). So d numbers of a block must not exceed the sum of two such bounds: one
for the noise, with T = v d and k = d, and one for people, with T = n (1 + r) E‖x‖² and the directions in which they
differ. The test is applied to:

- The whole block, with E‖x‖² ≤ C², the clip. All people may differ in the same direction.
- Each row of an item block. A count is from 0 to ω_j, so that its mean square is at most ω_j times its mean, which is
  estimated from the other cohorts. In other blocks the squared norm C² that clipping leaves is spread over items in
  proportion to n_j ω_j², up to the factor `SLACK`. `RARE` more people than were counted may have rated an item.
- The 2, 4, 8, … most popular items together, to detect a table that is false for many items. Whole profiles differ in
  at least `DIRECTIONS` directions. In a round of counts the items are sorted by y + y′, whose noise is independent of
  that of y − r y′.

The decision uses noisy sums only, so it costs no budget.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.protocols.masked.encoding import DecodedSum, add_decoded
from hushrec.protocols.masked.learner import Learner
from hushrec.protocols.masked.plan import AUDIENCE, BIAS, COUNTS, FACTORS

FEWEST_COHORTS = 3  # if only two cohorts differ, it is unknown which of them is false
DEVIATIONS = 5.0  # z
DIRECTIONS = 5  # smallest number of directions in which whole profiles differ
SLACK = 4.0  # allowed factor above the expected mean square of a row
RARE = 9.0  # people who may have rated an item in addition to those counted
ITEM_BLOCKS = (COUNTS, AUDIENCE, BIAS, FACTORS)


def disagreements(
    learner: Learner[Any], sums: Sequence[Mapping[str, DecodedSum]], survivors: Sequence[int]
) -> list[float]:
    """Return for each cohort how implausible its sums are beside those of the others: at most 1 if all are honest."""
    found = []
    for cohort, devices in zip(sums, survivors, strict=True):
        rest = [other for other in sums if other is not cohort]
        pairs = {name: (own, add_decoded([other[name] for other in rest])) for name, own in cohort.items()}
        others = sum(survivors) - devices
        found.append(max(_disagreement(learner, name, *pair, devices, others) for name, pair in pairs.items()))
    return found


def _disagreement(
    learner: Learner[Any], name: str, own: DecodedSum, rest: DecodedSum, devices: int, others: int
) -> float:
    block, ratio = learner.block(name), devices / others
    squares = (own.values - ratio * rest.values) ** 2
    noise = own.noise_variance + own.rounding_variance + ratio**2 * (rest.noise_variance + rest.rounding_variance)
    people = devices * (1 + ratio)
    if name not in ITEM_BLOCKS:
        return float(squares.sum() / (_bound(noise * block.size, block.size) + _bound(people * block.clip**2, 1)))
    width, rows = block.size // block.shape[0], squares.reshape(block.shape[0], -1).sum(axis=1)
    spread = _row_spread(learner, name, rest.values / others, others)
    alone = rows / (_bound(noise * width, width) + _bound(people * spread, 1))
    order = np.argsort(-(own.values + rest.values if name == COUNTS else learner.learned.counts), kind="stable")
    firsts = np.append(2 ** np.arange(1, (len(rows) - 1).bit_length()), len(rows))  # 2, 4, 8, … and all
    varied = np.minimum(np.cumsum(spread[order])[firsts - 1], block.clip**2)
    limits = _bound(noise * width * firsts, width * firsts) + _bound(people * varied, np.minimum(firsts, DIRECTIONS))
    return float(max(alone.max(), (np.cumsum(rows[order])[firsts - 1] / limits).max()))


def _bound(expected: Any, directions: Any) -> Any:
    return expected * (1 + DEVIATIONS * np.sqrt(2 / directions) + DEVIATIONS**2 / directions)


def _row_spread(learner: Learner[Any], name: str, means: FloatArray, devices: int) -> FloatArray:
    """Return an upper bound on the mean square, over people, of each item's row of a block, `(n_items,)`."""
    weights, counts = learner.item_weights(name), learner.learned.counts
    if name == COUNTS:
        return np.asarray(weights * (np.maximum(means, 0.0) + RARE * weights / devices))
    ratings = (counts + RARE) * weights**2
    return np.asarray(SLACK * learner.block(name).clip ** 2 * ratings / (counts * weights**2).sum())
