"""Federated evaluation: the rounds of a masked run of model `gp` measure its accuracy on ratings that devices hold out.

Each device holds out about 5 % of its ratings. A random stream that is seeded by the device's name selects them, so the
choice is the same in every round and does not depend on the ratings. In each round except the first, a device with h
held-out ratings sends an evaluation block of three numbers::

    Σ (min(e², 9) − 1) over the errors e of the model,   the same sum for the bias model,   h/2

The block is clipped and noised like every block. Squared errors are near 1, so subtracting 1 keeps the sums, and with
them the norm that is clipped, small; h is halved for the same reason. The sum over devices gives the mean squared error
of both models, with known standard errors.

The public table of the round has an offset o_j and a row x_j for every item j. The model predicts o_j + x_jᵀd, with the
person's taste d fitted to the n ratings that are not held out. It does not use the nonlinear kernel and the titles,
which only final predictions use. The bias model predicts o_j plus the person's bias Σ y / (n + v/0.25), for the
residuals y = rating − o_j of the same ratings. v is the variance of a rating, given taste and item, and 0.25 that of a
person's bias, so that v/0.25 is 3.2 for ratings with at least five levels.
An additional last round has only this block, and measures the final table.
"""

import math
from typing import NamedTuple

import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.protocols.masked.encoding import DecodedSum
from hushrec.protocols.masked.plan import EVALUATION, Block, Plan, make_plan
from hushrec.protocols.parties import Name
from hushrec.randomness import Purpose, SeededRandomness

HELD_OUT = 0.05  # share of the ratings
LARGEST_SQUARED_ERROR = 9.0  # larger squared errors are clipped to this
COUNT_UNIT = 0.5
LEAST_COUNT = 3.0  # least number of held-out ratings with which an RMSE is stated, in standard deviations of its noise
CLIP = 6.0

NETWORK_SHARE = 0.02  # share of μ² for all evaluation blocks of a run
READABLE_ERROR = 0.02  # largest acceptable standard error of an RMSE due to noise
USUAL_ROUNDS, USUAL_HELD = 8, 4.0  # public guesses for `is_readable`: rounds of a plan, held-out ratings of a device


class Held(NamedTuple):
    """The held-out ratings of one person."""

    items: IntArray
    values: FloatArray

    def __repr__(self) -> str:
        return "Held()"


NO_RATINGS = Held(np.empty(0, np.int64), np.empty(0))


class Measured(NamedTuple):
    """The measured RMSE of the model and of the bias model after `round_number` rounds, with standard errors."""

    round_number: float
    rmse: float
    rmse_error: float  # standard error of `rmse`
    bias_rmse: float  # RMSE of the bias model
    bias_error: float  # standard error of `bias_rmse`


def with_evaluation(plan: Plan, share: float) -> Plan:
    """Return the plan with an evaluation block in every round but the first, and in an additional last round.

    All evaluation blocks together get the fraction `share` of the budget μ².
    """
    block = Block(EVALUATION, (3,), CLIP, share / (1 - share) / len(plan.rounds))
    first, *others = (list(one.blocks) for one in plan.rounds)
    return make_plan([first, *([*blocks, block] for blocks in others), [block]])


def is_readable(devices: int, honest: int, mu: float) -> bool:
    """Return whether noise adds a standard error of at most `READABLE_ERROR` to a measured RMSE near 1.

    Each of `devices` devices adds noise, which is sized so that the noise of `honest` devices suffices for the budget
    `mu`. All arguments are public. The constants `USUAL_ROUNDS` and `USUAL_HELD` stand for the number of rounds and the
    number of held-out ratings per device, which are not known in advance.
    """
    deviation = CLIP / (mu * math.sqrt(NETWORK_SHARE / USUAL_ROUNDS)) * math.sqrt(devices / honest)
    return deviation / (2 * USUAL_HELD * devices) <= READABLE_ERROR


def is_hidden(plan: Plan, devices: int, honest: int, mu: float) -> bool:
    """Return whether noise will probably hide the accuracy that a run with this plan measures (see `measured`).

    The other arguments are those of `is_readable`. Return False for a plan without evaluation blocks.
    """
    shares = [block.share for block in plan.blocks if block.name == EVALUATION]
    if not shares:
        return False
    deviation = CLIP / (mu * math.sqrt(shares[0] * plan.repeats)) * math.sqrt(devices / honest)
    return USUAL_HELD * devices <= LEAST_COUNT * deviation / COUNT_UNIT


def is_held_out(device: Name, items: IntArray, n_items: int) -> BoolArray:
    """Return which of a person's rated items are held out, as a Boolean array; none if the draw selects all of them."""
    number = device if isinstance(device, int) else int(device[:16], 16)
    held = SeededRandomness(0, number).stream(Purpose.HELD_OUT).random(n_items)[items] < HELD_OUT
    return held if not held.all() else np.zeros_like(held)


def measured(noisy: DecodedSum, round_number: int) -> Measured:
    """Return the accuracy of the public table after `round_number` rounds, from the noisy sum of evaluation blocks.

    The MSE is 1 + S/N, where S is the noisy sum of (squared error − 1) and N the noisy number of held-out ratings. Both
    RMSEs and their standard errors are NaN if N is at most `LEAST_COUNT` standard deviations of its noise.
    """
    variance = noisy.noise_variance + noisy.rounding_variance
    count = float(noisy.values[2]) / COUNT_UNIT
    if count <= LEAST_COUNT * math.sqrt(variance) / COUNT_UNIT:
        return Measured(round_number, *[math.nan] * 4)
    return Measured(round_number, *_rmse(noisy.values[0], count, variance), *_rmse(noisy.values[1], count, variance))


def _rmse(excess: float, count: float, variance: float) -> tuple[float, float]:
    """Return the RMSE √(1 + S/N) for S = `excess` and N = `count`, and its standard error by the delta method.

    The noise of S has the given `variance`, and the standard deviation of the noise of N is 1/`COUNT_UNIT` times that
    of S. The squared RMSE is raised to at least 1/N, because noise could make it negative.
    """
    squared = max(1 + excess / count, 1 / count)
    deviation = math.sqrt(variance) / count * math.sqrt(1 + (excess / count / COUNT_UNIT) ** 2)
    return math.sqrt(squared), deviation / (2 * math.sqrt(squared))
