"""The scale that models work on, 1 to 5, and the way there and back from a file's or a person's own.

Unmapped, a scale of 0 to 100 would make the paper's step size diverge.
"""

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray

LOWEST, HIGHEST = 1.0, 5.0
MOST_STARS = 10  # of a form


def to_unit(values: npt.ArrayLike, low: float, high: float) -> FloatArray:
    """Map low..high to 1..5."""
    share = (np.asarray(values, dtype=np.float64) - low) / (high - low)
    return np.asarray(LOWEST + share * (HIGHEST - LOWEST))


def from_unit(values: npt.ArrayLike, low: float, high: float) -> FloatArray:
    """Map 1..5 to low..high."""
    share = (np.asarray(values, dtype=np.float64) - LOWEST) / (HIGHEST - LOWEST)
    return np.asarray(low + share * (high - low))


def form_values(low: float, high: float) -> FloatArray:
    """Return the ratings that a form offers: whole steps where ten stars are enough, else halves, else five values."""
    steps = next((n for n in (high - low, 2 * (high - low)) if n.is_integer() and n < MOST_STARS), 4)
    return np.linspace(low, high, int(steps) + 1)


def error_from_unit(error: npt.ArrayLike, low: float, high: float) -> FloatArray:
    """Map an error on the scale 1 to 5 to one on low..high."""
    return np.asarray(error, dtype=np.float64) * ((high - low) / (HIGHEST - LOWEST))
