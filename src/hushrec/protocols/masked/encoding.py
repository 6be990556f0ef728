"""The conversion of a block of d real numbers to integers modulo 2³² and back, after [Kairouz2021].

A device clips its block to norm C, divides it by the grid γ = C/q, rounds stochastically, and adds discrete Gaussian
noise of variance V. Rounding can increase the norm. With probability 1 − β the squared norm of the integers is at
most::

    Δ² = ⌈q² + d/4 + √(2 ln 1/β) (q + √d/2)⌉,    β = 10⁻³

If the integers are longer, the device truncates toward zero instead of rounding, which cannot exceed the clip. So the
bound Δ² *always* holds, and the budget is priced with it. The norm of the integers is checked last, so that a mistake
in an earlier step cannot harm privacy.

The grid is as fine as arithmetic modulo 2³² allows, up to q = 2¹⁶: the sum over n devices must not overflow,
n Δ + 10 √(nV) < 2³¹. An overflow would harm accuracy, never privacy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.events import BlockSent
from hushrec.budget.gaussian import Cohort, own_norm_squared, share_variance, summing_distance
from hushrec.errors import ParameterError
from hushrec.protocols.masked.noise import discrete_gaussian, distance_of
from hushrec.protocols.masked.plan import Block
from hushrec.randomness import RandomStream

Table = npt.NDArray[np.uint32]

BETA = 1e-3  # largest probability that an honest device truncates
FINEST_CLIP = 2**16  # largest q, in grid units; finer grids gain nothing
LARGEST_ROUNDING_COST = 1.25  # largest Δ/q; with a coarser grid rounding costs too much budget
_HALF_RANGE = 2**31
_DEVIATION = math.sqrt(2 * math.log(1 / BETA))


@dataclass(frozen=True)
class BlockCode:
    """The public parameters with which every device of a run converts one block to integers and adds noise."""

    size: int  # d, number of entries of the block
    clip: float  # C
    clip_units: int  # q = C/γ
    norm_squared: int  # Δ², in squared grid units
    share_variance: int  # V, variance of one device's noise, in squared grid units; 0 in a run without noise

    @property
    def grid(self) -> float:
        """The grid γ = C/q: the real number that one unit of the integers stands for."""
        return self.clip / self.clip_units

    def event(self, cohort: Cohort, fraction: float) -> BlockSent:
        """Return the budget event of a device that sends this block; only the noise of honest devices counts.

        `fraction` multiplies the largest norm of the block; it is below 1 for a person with a smaller budget.
        """
        distance = 0.0
        if self.share_variance:
            per_number = cohort.honest * distance_of(self.share_variance)
            distance = self.size * (per_number + summing_distance(self.share_variance, cohort.honest))
        return BlockSent(own_norm_squared(self.norm_squared, fraction), self.share_variance, cohort.honest, distance)


def code_block(block: Block, *, mu: float, cohort: Cohort) -> BlockCode:
    """Return the `BlockCode` of a block with the finest grid for which the sum over a whole cohort does not overflow.

    `mu` is the budget μ of all blocks of the plan together. The clip has at most 2¹⁶ grid units. Raise `ParameterError`
    if the block or the cohort is so large that rounding could increase the norm by more than a quarter.
    """
    size, share = block.size, block.share
    coarse, fine = 0, FINEST_CLIP + 1  # `coarse` fits, `fine` does not
    while fine - coarse > 1:
        units = (coarse + fine) // 2
        coarse, fine = (units, fine) if _fits(units, size, share, mu, cohort) else (coarse, units)
    limit = norm_bound(coarse, size) if coarse else 0
    if coarse == 0 or limit > (LARGEST_ROUNDING_COST * coarse) ** 2:
        raise ParameterError(
            f"cohort must have fewer than {cohort.devices} devices to add up blocks of {size} numbers modulo 2^32"
            " without overflow. Split the cohort."
        )
    return BlockCode(size, float(block.clip), coarse, limit, share_variance(limit, mu, share, cohort))


def norm_bound(clip_units: float, size: int) -> int:
    """Return Δ², the bound on the squared norm of a block's integers: ⌈q² + d/4 + √(2 ln 1/β)(q + √d/2)⌉.

    q is `clip_units` and d is `size`. Stochastic rounding stays within the bound with probability 1 − β.
    """
    return math.ceil(clip_units**2 + size / 4 + _DEVIATION * (clip_units + math.sqrt(size) / 2))


def _fits(units: int, size: int, share: float, mu: float, cohort: Cohort) -> bool:
    limit = norm_bound(units, size)
    noise = math.sqrt(cohort.devices * share_variance(limit, mu, share, cohort))
    return cohort.devices * (math.isqrt(limit) + 1) + 10 * noise < _HALF_RANGE


def clip_of_norm(code: BlockCode, norm_squared: int) -> float:
    """Return the clip, in grid units, for a device whose integers may have a squared norm of at most `norm_squared`.

    `norm_squared` is below `code.norm_squared` for a person whose budget is smaller than the run's. The result is the
    largest x up to `code.clip_units` with `norm_bound(x, code.size)` ≤ `norm_squared`, or 0 if there is none. With this
    clip, the device rarely has to truncate.
    """
    constant = code.size / 4 + _DEVIATION * math.sqrt(code.size) / 2
    discriminant = _DEVIATION**2 / 4 + norm_squared - constant
    return min(max(math.sqrt(max(discriminant, 0.0)) - _DEVIATION / 2, 0.0), float(code.clip_units))


class Entries(NamedTuple):
    """A device's entries of one block: `values` at `positions` of the flattened block, and zeros elsewhere."""

    values: FloatArray
    positions: IntArray | None = None  # None if `values` is the whole block

    def __repr__(self) -> str:
        return "Entries()"


def encode_block(
    code: BlockCode,
    values: FloatArray,
    positions: IntArray | None = None,
    *,
    norm_squared: int | None = None,
    rounding: RandomStream,
) -> IntArray:
    """Return the integers of one block before noise, `(size,)`. They are private: pass them to `add_share` only.

    `values` are the block's entries at `positions`, or all entries if that is None; all other entries are zero.
    `norm_squared` is the bound on the squared norm of this person's integers, by default that of the code. If the final
    integers exceed it, all of them are set to zero.
    """
    from hushrec.protocols.masked.rounding import round_block  # compiled: Numba is imported where it is used

    limit = code.norm_squared if norm_squared is None else min(norm_squared, code.norm_squared)
    entries = np.ascontiguousarray(values, dtype=np.float64).ravel()
    if positions is None and len(entries) != code.size:
        raise ParameterError(f"values must have {code.size} entries, got {len(entries)}.")
    rounded = np.empty(len(entries), dtype=np.int64)
    round_block(entries, rounding.random(len(entries)), 1 / code.grid, clip_of_norm(code, limit), limit, rounded)
    table = np.zeros(code.size, dtype=np.int64)
    table[slice(None) if positions is None else positions] = rounded
    return table if exact_norm_squared(table) <= limit else np.zeros_like(table)


def exact_norm_squared(integers: IntArray) -> int:
    """Return the sum of the squares of 64-bit integers, exact also if it does not fit into 64 bits."""
    largest = max(int(integers.max(initial=0)), -int(integers.min(initial=0)))
    if largest**2 * max(len(integers), 1) < 2**63:
        return int(np.dot(integers, integers))
    return sum(int(number) ** 2 for number in integers)


def add_share(code: BlockCode, integers: IntArray, *, noise: RandomStream) -> Table:
    """Return the integers of one block plus this device's discrete Gaussian noise, modulo 2³², ready to be masked."""
    shares = discrete_gaussian(code.share_variance).draw(code.size, rng=noise)
    return (integers + shares).astype(np.uint32)


class DecodedSum(NamedTuple):
    """The noisy sum of one block over the survivors, as real numbers, and the variance of each entry's error."""

    values: FloatArray  # (size,)
    noise_variance: float  # survivors · share_variance · grid²
    rounding_variance: float  # an upper bound: survivors · grid²/4


def decode_sum(code: BlockCode, total: Table, survivors: int) -> DecodedSum:
    """Return the sum modulo 2³² of one block over `survivors` devices as signed integers times the grid."""
    if total.shape != (code.size,):
        raise ParameterError(f"total must have shape ({code.size},), got {total.shape}.")
    values = np.asarray(total, dtype=np.uint32).view(np.int32).astype(np.float64) * code.grid
    return DecodedSum(values, survivors * code.share_variance * code.grid**2, survivors * code.grid**2 / 4)


def add_sums(sums: Sequence[Mapping[str, DecodedSum]]) -> dict[str, DecodedSum]:
    """Return the sum of each block over several cohorts, by block name; the variances are added up as well.

    `sums` has the decoded sums of each cohort.
    """
    found = {}
    for name in sums[0]:
        columns = zip(*(own[name] for own in sums), strict=True)
        found[name] = DecodedSum(*(sum(column[1:], start=column[0]) for column in columns))
    return found


def mean_sums(sums: Sequence[Mapping[str, DecodedSum]]) -> dict[str, DecodedSum]:
    """Return the mean of each block over the sums of several equal rounds, by block name, with its variances."""
    n = len(sums)
    return {
        name: DecodedSum(total.values / n, total.noise_variance / n**2, total.rounding_variance / n**2)
        for name, total in add_sums(sums).items()
    }


def split_table(codes: Sequence[BlockCode], table: Table) -> list[Table]:
    """Return the blocks of a round's table, in the order of `codes`."""
    ends = np.cumsum([code.size for code in codes])
    if table.shape != (ends[-1],):
        raise ParameterError(f"table must have shape ({ends[-1]},), got {table.shape}.")
    return np.split(table, ends[:-1])


def is_plausible(code: BlockCode, total: Table, survivors: int) -> bool:
    """Return whether n = `survivors` honest devices can have this sum of a block: ‖sum‖ ≤ n Δ + √(nV) (√d + 8).

    Δ², V and d are `norm_squared`, `share_variance` and `size` of the code. The noise of honest devices exceeds the
    last term with probability below exp(−32). A false table of arbitrary integers makes the sum far longer. The
    decision uses only the noisy sum, so it costs no budget.
    """
    length = float(np.linalg.norm(np.asarray(total, dtype=np.uint32).view(np.int32).astype(np.float64)))
    noise = math.sqrt(survivors * code.share_variance) * (math.sqrt(code.size) + 8)
    return length <= survivors * math.sqrt(code.norm_squared) + noise
