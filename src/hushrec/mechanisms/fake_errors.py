"""Fake prediction errors for items that a device reports without having rated them: Theorem 3 of [SDCF].

Fake errors carry no privacy guarantee. Theorem 3 bounds the density of fake errors divided by that of real errors, but
not the inverse ratio, which a guarantee needs as well (docs/proofs.md).
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

    `bound` comes from `budget.calibrate.fake_error_bound`: ∞ gives the untruncated normal, 0 gives zeros. If the
    deviation is 0 (a person with one rating) or below 1e-15 |mean|, every draw is the mean, clipped to the bounds.
    Otherwise, with a finite bound, the CDF Φ of the normal distribution is inverted in log space, for uniform u in
    [0, 1) and a mean that is not negative (for a negative mean, the signs of the mean and of the draws are flipped)::

        ln Φ(x) = ln Φ(b) + ln(1 − u (1 − Φ(a)/Φ(b))),   a, b = (∓bound − mean)/deviation,   error = mean + deviation x

    Rejection sampling would need too many draws when the interval is narrow or far from the mean.
    """
    if not (math.isfinite(mean) and 0 <= deviation < math.inf and bound >= 0):
        raise ParameterError(
            "mean and deviation, which are private, must be finite, and deviation and bound must not be negative."
        )
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
    """Map uniform draws to draws of N(center, 1) truncated to a narrow interval [−half_width, half_width].

    Across a narrow interval the density at x is proportional to exp(center x). With s = `half_width` and k = center s,
    the inverse CDF is x = s + ln(1 − u (1 − exp(−2k)))/center for a uniform u; for k below 1e-9, x is uniform.
    """
    slope = center * half_width
    if slope < 1e-9:
        return half_width * (1 - 2 * uniform)
    return np.asarray(half_width * (1 + np.log1p(uniform * np.expm1(-2 * slope)) / slope))
