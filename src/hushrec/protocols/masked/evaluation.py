"""Accuracy of a masked run, measured by its own rounds on ratings that devices keep out of all other blocks.

A device keeps the rating of an item out of the run if a stream that its name seeds says so: the choice is the same in
every round and depends on no rating. In each round but the first it uploads, for these ratings,

    Σ (min(e², 9) − 1) of the model's errors e,   the same of the bias model,   h/2,

clipped and with noise like every block. The sum over devices gives both mean squared errors; what the noise adds to
them is known. e is the error of the linear part of the model under the table that the rounds before it made; the bias
model is the same table's offset and the person's mean residual Σ y / (h + 3.2). A last round has this block alone, and
measures the finished table.
"""

import math
from typing import NamedTuple

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.protocols.configured import BoolArray
from hushrec.protocols.masked.constants import CONSTANTS
from hushrec.protocols.masked.encoding import DecodedSum
from hushrec.protocols.masked.plan import EVALUATION, Block, Plan, make_plan
from hushrec.protocols.parties import Name
from hushrec.randomness import Purpose, SeededRandomness

HELD_OUT = 0.05  # of the ratings
LARGEST_SQUARED_ERROR = 9.0  # an error of 3 points and more counts as 3
COUNT_UNIT = 0.5
CLIP = 6.0
LEVEL_OFFSET = CONSTANTS.noise / CONSTANTS.level_variance

NETWORK_SHARE = 0.02  # of μ², for all evaluation blocks of a run
READABLE_ERROR = 0.02  # standard error of an RMSE, at most, that noise may cause
USUAL_ROUNDS, USUAL_HELD = 8, 4.0  # of a plan, and of a device: public guesses, for the rule alone


class Held(NamedTuple):
    """A person's ratings that are kept out of the run."""

    items: IntArray
    values: FloatArray


NO_RATINGS = Held(np.empty(0, np.int64), np.empty(0))


class Measured(NamedTuple):
    """Accuracy after a round: root mean squared errors, and what noise adds to each as a standard error."""

    round_number: float
    rmse: float
    rmse_error: float
    bias_rmse: float
    bias_error: float


def with_evaluation(plan: Plan, share: float) -> Plan:
    """Return the plan with evaluation blocks that cost `share` of μ² together, and one more round for the last."""
    block = Block(EVALUATION, (3,), CLIP, share / (1 - share) / len(plan.rounds))
    first, *others = (list(one.blocks) for one in plan.rounds)
    return make_plan([first, *([*blocks, block] for blocks in others), [block]])


def is_readable(devices: int, honest: int, mu: float, share: float = NETWORK_SHARE) -> bool:
    """Return whether the noise, known from public numbers, is small enough to measure an RMSE near 1."""
    deviation = CLIP / (mu * math.sqrt(share / USUAL_ROUNDS)) * math.sqrt(devices / honest)
    return deviation / (2 * USUAL_HELD * devices) <= READABLE_ERROR


def is_held_out(device: Name, items: IntArray, n_items: int) -> BoolArray:
    """Return which of a person's rated items are kept out of the run; none where no other would be left."""
    number = device if isinstance(device, int) else int(device[:16], 16)
    held = SeededRandomness(0, number).stream(Purpose.HELD_OUT).random(n_items)[items] < HELD_OUT
    return held if not held.all() else np.zeros_like(held)


def measured(noisy: DecodedSum, round_number: int) -> Measured:
    """Return what a noisy sum of evaluation blocks says of the table after `round_number` rounds.

    An MSE is 1 + S/N with N the noisy number of ratings. Where N is within three deviations of 0, all are NaN.
    """
    variance = noisy.noise_variance + noisy.rounding_variance
    count = float(noisy.values[2]) / COUNT_UNIT
    if count <= 3 * math.sqrt(variance) / COUNT_UNIT:
        return Measured(round_number, *[math.nan] * 4)
    return Measured(round_number, *_rmse(noisy.values[0], count, variance), *_rmse(noisy.values[1], count, variance))


def _rmse(excess: float, count: float, variance: float) -> tuple[float, float]:
    """Return √(1 + S/N) and its standard error by the delta method: S has the noise's deviation, N twice as much."""
    squared = max(1 + excess / count, 1 / count)
    deviation = math.sqrt(variance) / count * math.sqrt(1 + (excess / count / COUNT_UNIT) ** 2)
    return math.sqrt(squared), deviation / (2 * math.sqrt(squared))
