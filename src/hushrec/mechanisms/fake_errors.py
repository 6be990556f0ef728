"""Fake prediction errors for items that a device reports without having rated them: Theorem 3 of [SDCF].

Theorem 3 bounds the probability ratio in one direction only, so fake errors carry no privacy guarantee
(docs/proofs.md).
"""

import math

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError
from hushrec.randomness import RandomStream

_NARROW = 1e-4  # standard deviations; across a narrower interval the normal density is exponential to within 5e-9


def fake_errors(count: int, mean: float, deviation: float, bound: float, *, rng: RandomStream) -> FloatArray:
    """Return `count` draws from N(mean, deviation²) truncated to [−bound, bound].

    `bound` comes from `budget.calibrate.fake_error_bound`: ∞ gives the untruncated normal, 0 gives zeros. A deviation
    of 0 (a person with one rating), or one below the rounding of the mean, gives the mean, clipped to the bounds.
    Every other case inverts the CDF in log space, with the sign flipped where the mean is negative::

        ln Φ(x) = ln Φ(b) + ln(1 − u (1 − Φ(a)/Φ(b))),   a, b = (∓bound − mean)/deviation,   error = mean + deviation x

    Rejection sampling would stall when the interval is narrow or far from the mean.
    """
    if not (math.isfinite(mean) and 0 <= deviation < math.inf and bound >= 0):
        raise ParameterError("mean and deviation must be finite, and deviation and bound must not be negative.")
    if bound == 0 or abs(mean) >= 1e15 * deviation:
        return np.full(count, min(max(mean, -bound), bound))
    if bound == math.inf:
        return mean + deviation * rng.standard_normal(count)
    draw = _narrow_errors if bound < _NARROW * deviation else _wide_errors
    errors = draw(abs(mean) / deviation, bound / deviation, rng.random(count)) * deviation
    return np.clip(errors if mean >= 0 else -errors, -bound, bound)


def _wide_errors(center: float, half_width: float, uniform: FloatArray) -> FloatArray:
    """Map uniform draws to draws of N(center, 1) truncated to [−half_width, half_width], by the inverse CDF."""
    lower, upper = log_ndtr((-half_width - center, half_width - center))
    return np.asarray(center + ndtri_exp(upper + np.log1p(uniform * np.expm1(lower - upper))))


def _narrow_errors(center: float, half_width: float, uniform: FloatArray) -> FloatArray:
    """Map uniform draws as `_wide_errors` does, for an interval so narrow that the density is ∝ exp(center x).

    With s = `half_width` and k = center s: x = s + ln(1 − u (1 − exp(−2 k)))/center, or uniform where k is tiny.
    """
    slope = center * half_width
    if slope < 1e-9:
        return half_width * (1 - 2 * uniform)
    return np.asarray(half_width * (1 + np.log1p(uniform * np.expm1(-2 * slope)) / slope))
