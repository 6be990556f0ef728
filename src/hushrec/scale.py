"""The scale 1 to 5, on which all models work, and conversions between it and the scale of a file or a person.

On a scale such as 0 to 100, training with the paper's step size would diverge.
"""

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray

LOWEST, HIGHEST = 1.0, 5.0
MOST_STARS = 10  # values of a rating form


def to_unit(values: npt.ArrayLike, low: float, high: float) -> FloatArray:
    """Map values linearly from the scale low..high to 1..5."""
    share = (np.asarray(values, dtype=np.float64) - low) / (high - low)
    return np.asarray(LOWEST + share * (HIGHEST - LOWEST))


def from_unit(values: npt.ArrayLike, low: float, high: float) -> FloatArray:
    """Map values linearly from the scale 1..5 to low..high."""
    share = (np.asarray(values, dtype=np.float64) - LOWEST) / (HIGHEST - LOWEST)
    return np.asarray(low + share * (high - low))


def form_values(low: float, high: float) -> FloatArray:
    """Return the values that a rating form offers, from `low` to `high`.

    The step is 1 if steps of 1 end at `high` and give at most ten values. Otherwise it is ½, on the same conditions. If
    neither is possible, the result is five evenly spaced values.
    """
    steps = next((n for n in (high - low, 2 * (high - low)) if n.is_integer() and n < MOST_STARS), 4)
    return np.linspace(low, high, int(steps) + 1)
