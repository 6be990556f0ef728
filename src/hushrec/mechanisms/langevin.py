"""The noise of stochastic gradient Langevin dynamics, which a device adds to its reports and to its user vector."""

import math

from hushrec.arrays import FloatArray
from hushrec.errors import require
from hushrec.randomness import RandomStream, Shape


def langevin_noise(shape: Shape, step_size: float, *, rng: RandomStream) -> FloatArray:
    """Return draws of N(0, η_t), with *variance* η_t = `step_size`: the noise of Algorithm 1 of [SDCF].

    Devices draw it in step S4 of docs/data-flow.md. The noise protects almost nothing, because error times vector
    is multiplied by the data weight, which is roughly the number of gradients that all devices send in a round.
    `budget.events.gradient_rho` computes the privacy loss that remains.
    """
    require(0 <= step_size < math.inf, "step_size", "finite and not negative", step_size)
    return math.sqrt(step_size) * rng.standard_normal(shape)
