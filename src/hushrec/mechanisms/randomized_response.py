"""Two-stage randomized response, by which a device selects the items that it reports in a round.

The method is that of [SDCF], section on the existence of ratings, which adapts RAPPOR [Erlingsson2014]. docs/proofs.md
derives the privacy cost of both stages; `budget.calibrate` computes their probabilities.
"""

import numpy as np

from hushrec.arrays import BoolArray, IntArray
from hushrec.errors import ParameterError, require
from hushrec.randomness import RandomStream


def permanent_bits(rated_items: IntArray, n_items: int, prob_randomize: float, *, rng: RandomStream) -> BoolArray:
    """Return the permanent bits, `(n_items,)`: the bits that say which items are rated, with random ones flipped.

    Theorem 1 of [SDCF]: with probability f = `prob_randomize` a fair coin replaces a bit, which is the same as
    flipping the bit with probability f/2. Uniform draws are multiples of 2^-53, so the real flip probability is f/2
    rounded *up* to a multiple of 2^-53, and the privacy cost is at most that of the theorem.

    A device calls this function once in each permanent epoch (step S2 of docs/data-flow.md). The bits never leave the
    device.
    """
    require(0 <= prob_randomize <= 1, "prob_randomize", "in [0, 1]", prob_randomize)
    if len(rated_items) and not (rated_items.min() >= 0 and rated_items.max() < n_items):
        raise ParameterError(f"rated_items must be at least 0 and below n_items = {n_items}, but one is not.")
    bits = np.zeros(n_items, dtype=np.bool_)
    bits[rated_items] = True
    return bits ^ (rng.random(n_items) < prob_randomize / 2)


def instantaneous_items(bits: BoolArray, prob_send_zero: float, prob_send_one: float, *, rng: RandomStream) -> IntArray:
    """Return the items that a device reports in one round, in ascending order.

    Theorem 2 of [SDCF]: each item is selected independently, with probability q = `prob_send_one` if its permanent bit
    is 1 and p = `prob_send_zero` if the bit is 0. A device calls this function in every round (step S2 of
    docs/data-flow.md). The selected items leave the device; the permanent bits do not.
    """
    if not (0 <= prob_send_zero <= 1 and 0 <= prob_send_one <= 1):
        raise ParameterError("prob_send_zero and prob_send_one, which are private, must be in [0, 1].")
    return np.flatnonzero(rng.random(len(bits)) < np.where(bits, prob_send_one, prob_send_zero))
