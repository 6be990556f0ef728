"""Laplace noise on rating values, for protocol `isgld`, with which the paper [SDCF] compares its own protocol."""

import math

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError, require
from hushrec.randomness import RandomStream
from hushrec.scale import HIGHEST, LOWEST


def perturb_ratings(ratings: FloatArray, epsilon: float, *, clamp: bool, rng: RandomStream) -> FloatArray:
    """Return ratings on the scale 1 to 5 plus Laplace noise of scale 4/epsilon; `clamp` clips the results to 1 to 5.

    The density of one noisy value changes by at most a factor exp(epsilon) if its rating changes to another one on the
    scale. This protects the value of a rating, not the fact that the rating exists. Clipping is post-processing and
    costs no budget.

    Use this function in protocol `isgld` only. It is no safe defence, because the lowest bits of a floating-point sum
    can reveal the rating ([Mironov2012]).
    """
    require(0 < epsilon < math.inf, "epsilon", "positive and finite", epsilon)
    if not np.all((ratings >= LOWEST) & (ratings <= HIGHEST)):
        raise ParameterError(
            f"ratings must be from {LOWEST:g} to {HIGHEST:g}, the range that sets the noise, but some are not. Map them"
            " to this scale first."
        )
    centered = (rng.random(ratings.shape) - 0.5) + 2.0**-54  # midpoints of the generator's cells, so never ±1/2
    noise = -np.sign(centered) * np.log1p(-2 * np.abs(centered)) * ((HIGHEST - LOWEST) / epsilon)
    noisy: FloatArray = ratings + noise
    return np.clip(noisy, LOWEST, HIGHEST) if clamp else noisy
