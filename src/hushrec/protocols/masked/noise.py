"""Discrete Gaussian noise on the integers: P(x) ∝ exp(−x²/2V) for an integer V [Canonne2020].

A draw inverts the cumulative distribution, which is a table of 256-bit numbers built in integer arithmetic. No
floating-point number is involved, and the statistical distance from the exact distribution is known (`distance_of`). A
variance V too large for one table is split as V = V₁ + B²V₂. If x₁ and x₂ have the variances V₁ and V₂, the
probabilities of x₁ + B x₂ are those of variance V within a factor of (1 + θ)/(1 − θ), where θ = `smoothing_error(v)`
for v = 1/(1/V₂ + B²/V₁), which is at least 8. For the same reason (docs/proofs.md, "Discrete noise"), the sum of n
devices' draws of variance V is distributed nearly like one draw of variance nV, which simulations use.
"""

import decimal
import functools
import math
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hushrec.arrays import IntArray
from hushrec.budget.gaussian import SMALLEST_SHARE_VARIANCE, SMOOTHING_VARIANCE, smoothing_error, summing_distance
from hushrec.errors import ParameterError
from hushrec.randomness import RandomStream

Words = npt.NDArray[np.uint64]

LARGEST_VARIANCE = 2**62
LARGEST_TABLE_VARIANCE = 2**18  # a table of 18,434 entries
RADIX = 64  # B
_LOWEST_PART = 2 * SMOOTHING_VARIANCE * RADIX**2  # V₁ is at least this
_BITS = 256  # precision of a cumulative probability
_WORK_BITS = 320  # precision of the numbers that a table is built from
_GUIDE_BITS = 14
_DEVIATIONS = 18  # a table covers this number of standard deviations on both sides


class _Table(NamedTuple):
    """Ascending 256-bit thresholds. A draw is `lowest` plus the number of thresholds ≤ a uniform 256-bit number."""

    lowest: int
    high: Words  # the upper 64 bits of the thresholds, (n,)
    low: Words  # the lower 192 bits, (n, 3), most significant word first
    guide: IntArray  # the number of thresholds below each multiple of 2²⁵⁶/2¹⁴, (2¹⁴ + 1,)


@dataclass(frozen=True)
class DiscreteGaussian:
    """A sampler of the discrete Gaussian with this variance. `discrete_gaussian` makes and caches samplers."""

    variance: int
    distance: float  # upper bound on the statistical distance of one draw from the exact distribution
    _tables: tuple[_Table, ...] = field(repr=False)  # one per part of a split variance; empty for variance 0

    def draw(self, size: int, /, *, rng: RandomStream) -> IntArray:
        total = np.zeros(size, dtype=np.int64)
        for digit, table in enumerate(self._tables):
            total += RADIX**digit * _invert(table, size, rng)
        return total


def summed_noise(share_variance: int, devices: int) -> DiscreteGaussian:
    """Return a sampler of the sum of the noise of `devices` devices, each of variance `share_variance`.

    Simulations use it to draw the noise of all devices at once.
    """
    if share_variance == 0 or devices == 0:
        return discrete_gaussian(0)
    law = discrete_gaussian(share_variance * devices)
    shares = devices * distance_of(share_variance)
    return replace(law, distance=law.distance + shares + summing_distance(share_variance, devices))


@functools.lru_cache(maxsize=64)
def discrete_gaussian(variance: int) -> DiscreteGaussian:
    """Return the sampler for this variance, which must be 0 (every draw is 0) or from 16 to 2⁶².

    A variance V too large for one table is split as V = V₁ + B²V₂, with B = 64 and V₁ ≥ 16 B². A draw is then
    x₁ + B x₂, where x₁ and x₂ are draws of variance V₁ and V₂. V₂ is at least 16, and is split again while it is too
    large.
    """
    return DiscreteGaussian(variance, distance_of(variance), tuple(map(_build_table, _parts_of(variance))))


def distance_of(variance: int) -> float:
    """Return an upper bound on the statistical distance of one draw with this variance from the exact distribution.

    Each table's distance has three parts. Truncation to −m … m adds at most 2 exp(−(m + 1)²/2V), since the distribution
    is sub-Gaussian. Rounding every threshold down changes each of 2m + 1 probabilities by less than 2⁻²⁵⁶. The errors
    of the weights, below 2⁻²⁹⁰, are covered by one more unit of 2⁻²⁵⁶. Each split adds at most 4 θ.
    """
    parts = _parts_of(variance)
    tables = (
        2 * math.exp(-((m + 1) ** 2) / (2 * v)) + (2 * m + 2) * 2.0**-_BITS for v in parts for m in [_limit_of(v)]
    )
    return sum(tables) + 4 * max(len(parts) - 1, 0) * smoothing_error(SMOOTHING_VARIANCE)


def _parts_of(variance: int) -> list[int]:
    """Return the variances of the tables from which a draw is made; none for variance 0."""
    if variance == 0:
        return []
    if not SMALLEST_SHARE_VARIANCE <= variance <= LARGEST_VARIANCE:
        raise ParameterError(
            f"variance must be 0, or from {SMALLEST_SHARE_VARIANCE} to 2^62 squared grid units, got {variance}."
        )
    parts: list[int] = []
    rest = variance
    while rest > LARGEST_TABLE_VARIANCE:
        parts.append(_LOWEST_PART + rest % RADIX**2)
        rest = (rest - parts[-1]) // RADIX**2
    return [*parts, rest]


def _limit_of(variance: int) -> int:
    """Return m, the largest absolute value in the table of a variance: about 18 √V."""
    return math.isqrt(_DEVIATIONS**2 * variance) + 1


def _invert(table: _Table, size: int, rng: RandomStream) -> IntArray:
    """Return `size` draws: `lowest` plus the number of thresholds ≤ U, each for a new uniform 256-bit number U.

    The first 14 bits of U select an entry of the guide. If no threshold begins with these bits, the entry is the number
    of thresholds ≤ U; otherwise bisection finds this number. The lower 192 bits of U are drawn only if its upper 64
    bits equal those of a threshold.
    """
    words = np.frombuffer(rng.bytes(8 * size), dtype="<u8").astype(np.uint64)
    part = words >> np.uint64(64 - _GUIDE_BITS)
    found: IntArray = table.guide[part]
    several = np.flatnonzero(found != table.guide[part + np.uint64(1)])
    found[several] = np.searchsorted(table.high, words[several], side="left")
    for tie in np.flatnonzero(table.high[np.minimum(found, len(table.high) - 1)] == words):
        last = np.searchsorted(table.high, words[tie], side="right")
        low = np.frombuffer(rng.bytes(24), dtype="<u8").tolist()
        found[tie] += sum(threshold <= low for threshold in table.low[found[tie] : last].tolist())
    return found + table.lowest


def _build_table(variance: int) -> _Table:
    """Return the thresholds ⌊2²⁵⁶ P(X ≤ x)⌋ for x = −m … m − 1, with X truncated to −m … m, where m is `_limit_of`."""
    limit = _limit_of(variance)
    weights = _weights(variance, limit)
    total = weights[0] + 2 * sum(weights[1:])
    thresholds = []
    below = 0
    for x in range(-limit, limit):
        below += weights[abs(x)]
        thresholds.append((below << _BITS) // total)
    raw = b"".join(threshold.to_bytes(_BITS // 8, "big") for threshold in thresholds)
    words = np.frombuffer(raw, dtype=">u8").astype(np.uint64).reshape(-1, _BITS // 64)
    high = words[:, 0].copy()
    starts = np.arange(2**_GUIDE_BITS, dtype=np.uint64) << np.uint64(64 - _GUIDE_BITS)
    guide = np.append(np.searchsorted(high, starts, side="left"), len(high)).astype(np.int64)
    return _Table(-limit, high, words[:, 1:].copy(), guide)


def _weights(variance: int, limit: int) -> list[int]:
    """Return w(x) = exp(−x²/2V) for x = 0 … limit and V = `variance`, as fixed-point integers of 320 fractional bits.

    w(x + 1) = w(x) q^(2x + 1) with q = exp(−1/2V). Each product is truncated to a multiple of 2⁻³²⁰, so that the error
    of w(x) is less than 2 (x + 1)² such units, which is below 2⁻²⁹⁰ for every table here.
    """
    with decimal.localcontext() as context:
        context.prec = 120
        base = (decimal.Decimal(-1) / (2 * variance)).exp()
        ratio = int(base * (1 << _WORK_BITS))
    step = (ratio * ratio) >> _WORK_BITS
    weights = [1 << _WORK_BITS]
    for _ in range(limit):
        weights.append((weights[-1] * ratio) >> _WORK_BITS)
        ratio = (ratio * step) >> _WORK_BITS
    return weights
