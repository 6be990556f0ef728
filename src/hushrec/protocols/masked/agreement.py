"""A plausibility test against false tables, which compares the sums of each cohort with those of the other cohorts.

Devices are assigned to cohorts at random, so the sums of honest cohorts differ only by chance. Let a be the sum of a
block over the n devices of one cohort, b its sum over the n′ devices of all other cohorts, and r = n/n′. If all devices
are honest, the difference a − r b has mean 0, and its expected squared norm has two parts: the noise contributes a
known variance v for each entry, and the differences between people contribute at most n (1 + r) E‖x‖², where x is one
person's block.

A random squared norm with expectation E that is spread over at least k directions exceeds

    bound(E, k) = E (1 + 5 √(2/k) + 25/k)

with probability at most about exp(−25/2). (`DEVIATIONS` is 5.) The test therefore allows a squared norm of d entries up
to bound(v d, d) for the noise, plus bound(n (1 + r) E‖x‖², k) for people who differ in k directions. It is applied to:

- all entries of a block without a row per item. Clipping bounds E‖x‖² by C², where C is the clip, and k = 1.
- each row of an item block, with k = 1. Let ω_j be the weight by which devices multiply item j's row. In a block of
  counts, one person's entry for the item is between 0 and ω_j, so its mean square is at most ω_j times its mean, which
  the other cohorts estimate. In other item blocks, the squared norm C² is distributed over items in proportion to n_j
  ω_j², up to a factor `SLACK`, where n_j is the number of ratings. Both estimates assume `RARE` more ratings of an item
  than were counted.
- the rows of the 2, 4, 8, … most popular items together, and all rows of an item block, to detect a table that is false
  for many items. Here k is the number of rows, but at most `DIRECTIONS`. For counts, popularity is a + b, whose noise
  is independent of the noise of a − r b.

The decision uses noisy sums only, so it costs no budget.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.protocols.masked.encoding import DecodedSum, add_sums
from hushrec.protocols.masked.learning import Learner
from hushrec.protocols.masked.plan import COUNTS, ITEM_BLOCKS

FEWEST_COHORTS = 3  # if only two cohorts differ, it is unknown which of them is false
DEVIATIONS = 5.0  # allowed standard deviations
DIRECTIONS = 5  # smallest number of directions in which whole profiles differ
SLACK = 4.0  # allowed factor above the expected mean square of a row
RARE = 9.0  # people who may have rated an item in addition to those counted


def disagreements(
    learner: Learner[Any], sums: Sequence[Mapping[str, DecodedSum]], survivors: Sequence[int]
) -> list[float]:
    """Return for each cohort how far its sums differ from those of the other cohorts, relative to what is plausible.

    The number is the largest ratio of a squared norm to its bound, over all tests of this module. It is at most 1 if
    all devices are honest, except with the small probability in the module's docstring. `sums` has each cohort's sums
    by block name, and `survivors` the number of devices that each cohort's sums are over.
    """
    found = []
    for cohort, devices in zip(sums, survivors, strict=True):
        others = sum(survivors) - devices
        rest = add_sums([other for other in sums if other is not cohort])
        found.append(max(_disagreement(learner, name, cohort[name], rest[name], devices, others) for name in cohort))
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
    """Return a bound on the mean squared norm, over people, of each item's row in block `name`, `(n_items,)`.

    `means` is the mean of the block over the `devices` devices of the other cohorts.
    """
    weights, counts = learner.item_weights(name), learner.learned.counts
    if name == COUNTS:
        return np.asarray(weights * (np.maximum(means, 0.0) + RARE * weights / devices))
    ratings = (counts + RARE) * weights**2
    return np.asarray(SLACK * learner.block(name).clip ** 2 * ratings / (counts * weights**2).sum())
