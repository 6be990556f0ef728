"""Errors for selected items that were not rated: Theorem 3 of [SDCF].

Departs from Theorem 3: it is one-sided, so these fakes carry no guarantee (docs/proofs.md).
"""

import math

import numpy as np
from scipy.special import log_ndtr, ndtri_exp

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError
from hushrec.randomness import RandomStream

_NARROW = 1e-4  # in deviations: the normal density is an exponential across it, to 5e-9


def fake_errors(count: int, mean: float, deviation: float, bound: float, *, rng: RandomStream) -> FloatArray:
    """Return `count` draws from N(mean, deviation²) truncated to [−bound, bound]; never outside.

    `bound` comes from `budget.calibrate.fake_error_bound`: ∞ gives the normal itself, 0 gives zeros. A deviation
    of 0 (one rating), or lost in the rounding of the mean, gives the mean. Otherwise, by symmetry for mean ≥ 0, the
    inverse CDF in log space::

        ln Φ(x) = ln Φ(b) + ln(1 − u (1 − Φ(a)/Φ(b))),   a, b = (∓bound − mean)/deviation,   error = mean + deviation x

    Rejection would stall when the interval is narrow or far from the mean.
    """
    if not (math.isfinite(mean) and 0 <= deviation < math.inf and bound >= 0):
        raise ParameterError("mean and deviation must be finite, and deviation and bound not negative.")
    if bound == 0 or abs(mean) >= 1e15 * deviation:
        return np.full(count, min(max(mean, -bound), bound))
    if bound == math.inf:
        return mean + deviation * rng.standard_normal(count)
    draw = _narrow_errors if bound < _NARROW * deviation else _wide_errors
    errors = draw(abs(mean) / deviation, bound / deviation, rng.random(count)) * deviation
    return np.clip(errors if mean >= 0 else -errors, -bound, bound)


def _wide_errors(center: float, half_width: float, uniform: FloatArray) -> FloatArray:
    """Return draws of N(center, 1) on [−half_width, half_width], decreasing in `uniform`."""
    lower, upper = log_ndtr((-half_width - center, half_width - center))
    return np.asarray(center + ndtri_exp(upper + np.log1p(uniform * np.expm1(lower - upper))))


def _narrow_errors(center: float, half_width: float, uniform: FloatArray) -> FloatArray:
    """Return the same where the density is ∝ exp(center x): x = s + ln(1 − u (1 − exp(−2 k)))/center, k = center s."""
    slope = center * half_width
    if slope < 1e-9:
        return half_width * (1 - 2 * uniform)
    return np.asarray(half_width * (1 + np.log1p(uniform * np.expm1(-2 * slope)) / slope))
