"""The table that one device sends in a round: integers with noise, before masking."""

import math
from collections.abc import Sequence

import numpy as np

from hushrec.budget.accountants import TableAccountant
from hushrec.budget.gaussian import own_norm_squared
from hushrec.errors import ParameterError
from hushrec.protocols.masked.encoding import Entries, Table, add_share, encode_block
from hushrec.protocols.masked.price import PricedPlan
from hushrec.randomness import Purpose, Randomness

ATTEMPTS_APART = 2**20  # distance between the stream numbers of two attempts of a round
SMALLEST_FRACTION = 0.5  # of the clips; a table with smaller ones would be mostly noise
_SLACK = 1 + 1e-12  # tolerance for rounding errors when the shares of a plan are added up


def make_table(
    priced: PricedPlan,
    round_number: int,
    blocks: Sequence[Entries],
    spent: TableAccountant,
    *,
    fraction: float = 1.0,
    randomness: Randomness,
    attempt: int = 1,
    sends_zeros: bool = False,
) -> tuple[Table, TableAccountant]:
    """Return a device's table of a round, as integers with noise, and the cost of the run including this table.

    `blocks` has the device's entries of each block. `spent` is the cost of the run so far.
    `fraction` multiplies the largest norm of every block; it is 1, or less for a person whose own budget is smaller
    than the run's. The device may have to reduce it further (`affordable_fraction`). If the run's budget cannot pay, or
    with `sends_zeros`, as in a probe, the table is zeros with full noise: it costs nothing, and nobody can distinguish
    it from other tables. The entries are rounded nevertheless, so that a table of zeros takes as long as any other.
    Every attempt of a round draws from its own random streams.
    """
    codes = priced.codes[round_number - 1]
    if len(blocks) != len(codes):
        raise ParameterError(f"blocks must have {len(codes)} entries in round {round_number}, got {len(blocks)}.")
    own = 0.0 if sends_zeros else affordable_fraction(priced, round_number, spent, fraction)
    after = spent.copy()
    if own:
        after.compose(priced.table_sent(round_number - 1, own))
    rounding = randomness.stream(Purpose.TABLE_ROUNDING, stream_number(round_number, attempt))
    noise = randomness.stream(Purpose.NOISE_SHARES, stream_number(round_number, attempt))
    parts = []
    for code, entries in zip(codes, blocks, strict=True):
        limit = own_norm_squared(code.norm_squared, own or 1.0)
        integers = encode_block(code, *entries, norm_squared=limit, rounding=rounding)
        parts.append(add_share(code, integers if own else np.zeros_like(integers), noise=noise))
    return np.concatenate(parts), after


def affordable_fraction(priced: PricedPlan, round_number: int, spent: TableAccountant, fraction: float = 1.0) -> float:
    """Return the factor by which a device multiplies the largest norm of every block, to pay for a table of this round.

    It is at most `fraction`, which is 1, or less for a person whose own budget is smaller than the run's. `spent` is
    the cost of the run so far. The device may spend fraction² μ² in the run, and keeps enough for one table in each
    later round. So the first table of a round can be paid with the full `fraction`, except in two cases: the device
    used a larger `fraction` in earlier rounds, or a copy of its store may have spent budget (`TablesElsewhere`). A
    table of a repeated attempt is paid out of the reserve, and out of rounds that the device has missed. If the budget
    does not suffice, the result is smaller than `fraction`, or 0 if it would be less than half of `fraction`.
    """
    if priced.is_exact:
        return fraction
    kept = TableAccountant()
    for later in range(round_number, len(priced.codes)):
        kept.compose(priced.table_sent(later, fraction))
    table = TableAccountant()
    table.compose(priced.table_sent(round_number - 1, fraction))
    left = fraction**2 * priced.mu_squared * _SLACK - spent.charged() - kept.charged()
    if not table.charged():  # a fraction so small that no integer but 0 is within the norm
        return 0.0
    if left >= table.charged():
        return fraction
    smaller = fraction * math.sqrt(max(left, 0.0) / table.charged())
    return smaller if smaller >= SMALLEST_FRACTION * fraction else 0.0


def stream_number(round_number: int, attempt: int) -> int:
    """Return the number that selects the random streams of an attempt of a round; it is different for each attempt."""
    return round_number + (attempt - 1) * ATTEMPTS_APART
