"""Laplace noise on rating values, for protocol `isgld`, with which the paper [SDCF] compares its own protocol."""

import math

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError, require
from hushrec.randomness import RandomStream


def perturb_ratings(
    ratings: FloatArray, low: float, high: float, epsilon: float, *, clamp: bool, rng: RandomStream
) -> FloatArray:
    """Return the ratings plus Laplace noise of scale (high − low)/epsilon; `clamp` clips the results to [low, high].

    The density of one noisy value changes by at most a factor exp(epsilon) when its rating changes within
    [low, high]. This protects the value of a rating, not the fact that the rating exists. Clipping is post-processing
    and costs no budget.

    Use this function in protocol `isgld` only. It is no safe defence, because the lowest bits of a floating-point sum
    can reveal the rating ([Mironov2012]).
    """
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ParameterError(f"the rating scale must be finite with low < high, got {low} and {high}.")
    require(0 < epsilon < math.inf, "epsilon", "positive and finite", epsilon)
    if not np.all((ratings >= low) & (ratings <= high)):
        raise ParameterError(f"ratings must lie in [low, high] = [{low}, {high}], the range that sets the noise scale.")
    centered = (rng.random(ratings.shape) - 0.5) + 2.0**-54  # midpoints of the generator's cells, so never ±1/2
    noise = -np.sign(centered) * np.log1p(-2 * np.abs(centered)) * ((high - low) / epsilon)
    noisy: FloatArray = ratings + noise
    return np.clip(noisy, low, high) if clamp else noisy
