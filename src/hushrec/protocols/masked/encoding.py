"""From a block of real numbers to integers modulo 2³² and back, after [Kairouz2021].

A device clips its block to norm C, divides by the grid γ = C/q, rounds stochastically, and adds its share of discrete
Gaussian noise. Rounding lengthens a vector. With probability 1 − β its squared integer norm stays at most::

    Δ² = ⌈q² + d/4 + √(2 ln 1/β) (q + √d/2)⌉,    β = 10⁻³

and a device whose integers are longer truncates them toward zero, which no draw can lengthen. So Δ² holds *always*, and
the budget is priced with it; everything before the last check of the integers may be wrong without cost in privacy.

The grid is as fine as 2³² allows: n devices must sum up without a wrap, n Δ + 10 √(nV) < 2³¹. A wrap would cost
accuracy, never privacy.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.events import BlockSent
from hushrec.budget.gaussian import Cohort, own_norm_squared, share_variance, summing_distance
from hushrec.errors import ParameterError
from hushrec.protocols.masked.noise import discrete_gaussian
from hushrec.randomness import RandomStream

Table = npt.NDArray[np.uint32]

BETA = 1e-3  # how often an honest device truncates, at most
FINEST_CLIP = 2**16  # grid units of the clip: finer grids gain nothing
LARGEST_ROUNDING_COST = 1.25  # Δ/q: beyond, the grid is too coarse to be worth its budget
_HALF_RANGE = 2**31
_DEVIATION = math.sqrt(2 * math.log(1 / BETA))


@dataclass(frozen=True)
class BlockCode:
    """How one block is written in integers: public, the same for every device of a run."""

    size: int  # d, numbers in the block
    clip: float  # C
    clip_units: int  # q = C/γ
    norm_squared: int  # Δ², in squared grid units
    share_variance: int  # V, of one device's noise, in squared grid units; 0 without a budget

    @property
    def grid(self) -> float:
        """γ = C/q."""
        return self.clip / self.clip_units

    def event(self, cohort: Cohort, fraction: float = 1.0) -> BlockSent:
        """Return what a device that uses `fraction` of the norm releases, in a sum of at least the smallest cohort."""
        distance = 0.0
        if self.share_variance:
            per_number = cohort.honest * discrete_gaussian(self.share_variance).distance
            distance = self.size * (per_number + summing_distance(self.share_variance, cohort.honest))
        return BlockSent(own_norm_squared(self.norm_squared, fraction), self.share_variance, cohort.honest, distance)


def code_block(size: int, clip: float, share: float, *, mu: float, cohort: Cohort) -> BlockCode:
    """Return the finest code, up to 2¹⁶ grid units, in which the whole cohort sums up without a wrap.

    `share` of μ² is what the block may cost. A block that is so large, or a cohort so large, that rounding would
    lengthen its vector by more than a quarter is refused.
    """
    coarse, fine = 0, FINEST_CLIP + 1  # `coarse` fits, `fine` does not
    while fine - coarse > 1:
        units = (coarse + fine) // 2
        coarse, fine = (units, fine) if _fits(units, size, share, mu, cohort) else (coarse, units)
    limit = norm_bound(coarse, size) if coarse else 0
    if coarse == 0 or limit > (LARGEST_ROUNDING_COST * coarse) ** 2:
        raise ParameterError(
            f"devices must be few enough for sums modulo 2^32 of blocks of {size} numbers, got {cohort.devices}. "
            "Split the cohort."
        )
    return BlockCode(size, float(clip), coarse, limit, share_variance(limit, mu, share, cohort))


def norm_bound(clip_units: float, size: int) -> int:
    """Return Δ² = ⌈q² + d/4 + √(2 ln 1/β)(q + √d/2)⌉."""
    return math.ceil(clip_units**2 + size / 4 + _DEVIATION * (clip_units + math.sqrt(size) / 2))


def _fits(units: int, size: int, share: float, mu: float, cohort: Cohort) -> bool:
    limit = norm_bound(units, size)
    noise = math.sqrt(cohort.devices * share_variance(limit, mu, share, cohort))
    return cohort.devices * (math.isqrt(limit) + 1) + 10 * noise < _HALF_RANGE


def clip_of_norm(code: BlockCode, norm_squared: int) -> float:
    """Return the clip, in grid units, of a device whose integers may have squared norm `norm_squared`.

    The largest x with x² + d/4 + √(2 ln 1/β)(x + √d/2) ≤ `norm_squared`, at most q; 0 where there is none. It keeps
    truncation rare for a person with a budget of their own.
    """
    constant = code.size / 4 + _DEVIATION * math.sqrt(code.size) / 2
    discriminant = _DEVIATION**2 / 4 + norm_squared - constant
    return min(max(math.sqrt(max(discriminant, 0.0)) - _DEVIATION / 2, 0.0), float(code.clip_units))


def encode_block(
    code: BlockCode,
    values: FloatArray,
    positions: IntArray | None = None,
    *,
    norm_squared: int | None = None,
    rounding: RandomStream,
) -> IntArray:
    """Return the integers of one block before noise, shape (size,). Private: only `add_share` may see them.

    `values` are the block's entries at `positions`, or all of it; entries elsewhere are exact zeros and stay zeros.
    `norm_squared` is the person's own bound, at most that of the code. The integers are measured last, without
    overflow, and are zeros if they are too long after all.
    """
    from hushrec.protocols.masked.rounding import round_block  # compiled: Numba is imported where it is used

    limit = code.norm_squared if norm_squared is None else min(norm_squared, code.norm_squared)
    entries = np.ascontiguousarray(values, dtype=np.float64).ravel()
    if positions is None and len(entries) != code.size:
        raise ParameterError(f"values must be {code.size} numbers, got {len(entries)}.")
    rounded = np.empty(len(entries), dtype=np.int64)
    round_block(entries, rounding.random(len(entries)), 1 / code.grid, clip_of_norm(code, limit), limit, rounded)
    table = np.zeros(code.size, dtype=np.int64)
    table[slice(None) if positions is None else positions] = rounded
    return table if exact_norm_squared(table) <= limit else np.zeros_like(table)


def exact_norm_squared(integers: IntArray) -> int:
    """Return Σ z² without overflow, for any 64-bit integers."""
    largest = max(int(integers.max(initial=0)), -int(integers.min(initial=0)))
    if largest**2 * max(len(integers), 1) < 2**63:
        return int(np.dot(integers, integers))
    return sum(int(number) ** 2 for number in integers)


def add_share(code: BlockCode, integers: IntArray, *, noise: RandomStream) -> Table:
    """Return the integers with this device's share of the noise, modulo 2³²: what may be masked and sent."""
    shares = discrete_gaussian(code.share_variance).draw(code.size, rng=noise)
    return (integers + shares).astype(np.uint32)


class DecodedSum(NamedTuple):
    """One block's noisy sum over the survivors, as real numbers, and the variance that is known of it."""

    values: FloatArray  # (size,)
    noise_variance: float  # survivors · V γ²
    rounding_variance: float  # survivors · γ²/4, at most


def decode_sum(code: BlockCode, total: Table, survivors: int) -> DecodedSum:
    """Return the real numbers that a sum modulo 2³² of the tables of `survivors` devices stands for.

    Centred to −2³¹ … 2³¹ − 1 and multiplied by γ.
    """
    if total.shape != (code.size,):
        raise ParameterError(f"total must be {code.size} integers, got shape {total.shape}.")
    values = np.asarray(total, dtype=np.uint32).view(np.int32).astype(np.float64) * code.grid
    return DecodedSum(values, survivors * code.share_variance * code.grid**2, survivors * code.grid**2 / 4)


def add_decoded(parts: Sequence[DecodedSum]) -> DecodedSum:
    """Return the sum over several cohorts of one block: numbers and variances add up."""
    columns = zip(*parts, strict=True)
    return DecodedSum(*(sum(column[1:], start=column[0]) for column in columns))


def split_table(codes: Sequence[BlockCode], table: Table) -> list[Table]:
    """Return the blocks of a round's table, one after the other."""
    if table.shape != (sum(code.size for code in codes),):
        raise ParameterError(f"table must be {sum(code.size for code in codes)} integers, got shape {table.shape}.")
    return np.split(table, np.cumsum([code.size for code in codes])[:-1])


def is_plausible(code: BlockCode, total: Table, survivors: int) -> bool:
    """Tell whether tables of honest devices can have this sum: ‖sum‖ ≤ n Δ + √(nV) (√d + 8).

    Honest noise is longer than its last part with probability below exp(−32). A hostile table of arbitrary integers is
    not: it is far longer. The decision is made on the noisy sum and costs no privacy.
    """
    length = float(np.linalg.norm(np.asarray(total, dtype=np.uint32).view(np.int32).astype(np.float64)))
    noise = math.sqrt(survivors * code.share_variance) * (math.sqrt(code.size) + 8)
    return length <= survivors * math.sqrt(code.norm_squared) + noise
