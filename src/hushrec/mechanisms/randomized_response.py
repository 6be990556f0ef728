"""Two-stage randomized response over the items of one client: which items a report is about.

[SDCF], section on the existence of ratings, after RAPPOR [Erlingsson2014]. The privacy of both stages is derived in
docs/proofs.md, the probabilities come from `budget.calibrate`.
"""

import numpy as np
import numpy.typing as npt

from hushrec.arrays import IntArray
from hushrec.errors import ParameterError
from hushrec.randomness import RandomStream

BoolArray = npt.NDArray[np.bool_]


def permanent_bits(rated_items: IntArray, n_items: int, prob_randomize: float, *, rng: RandomStream) -> BoolArray:
    """Return B', `(n_items,)`: each item's bit, 1 if rated, replaced by a coin with probability f = `prob_randomize`.

    Drawn as a flip with probability f/2, which is the same. A uniform draw is a multiple of 2^-53, so a flip has
    probability f/2 rounded *up* to one: the cost is never above that of Theorem 1.

    Step 2 of docs/data-flow.md, once per permanent epoch. The bits never leave the device.
    """
    if not 0 <= prob_randomize <= 1:
        raise ParameterError(f"prob_randomize must be in [0, 1], got {prob_randomize}.")
    if len(rated_items) and not (rated_items.min() >= 0 and rated_items.max() < n_items):
        raise ParameterError(f"rated_items must lie in [0, n_items = {n_items}).")
    bits = np.zeros(n_items, dtype=np.bool_)
    bits[rated_items] = True
    return bits ^ (rng.random(n_items) < prob_randomize / 2)


def instantaneous_items(bits: BoolArray, prob_send_zero: float, prob_send_one: float, *, rng: RandomStream) -> IntArray:
    """Return the selected items S^t, sorted: with probability q where the permanent bit is 1, p where it is 0.

    Theorem 2. Step 2 of docs/data-flow.md, every round; of the selection stage, only this leaves the device.
    """
    if not (0 <= prob_send_zero <= 1 and 0 <= prob_send_one <= 1):
        raise ParameterError("prob_send_zero and prob_send_one must be in [0, 1].")
    return np.flatnonzero(rng.random(len(bits)) < np.where(bits, prob_send_one, prob_send_zero))
