"""The noise of stochastic gradient Langevin dynamics, added by the client to what it sends and to its own vector."""

import math

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError
from hushrec.randomness import RandomStream, Shape


def langevin_noise(shape: Shape, step_size: float, *, rng: RandomStream) -> FloatArray:
    """Return draws of N(0, η_t), with the *variance* η_t = `step_size`: the noise of Algorithm 1 of [SDCF].

    Step 4 of docs/data-flow.md. Next to gradients scaled by the number of ratings it hides nothing: what it is worth
    is recorded by `budget.events.gradient_rho`.
    """
    if not 0 <= step_size < math.inf:
        raise ParameterError(f"step_size must be finite and not negative, got {step_size}.")
    return math.sqrt(step_size) * rng.standard_normal(shape)
