"""The terms of a masked run, which a device accepts when it joins: the plan with its noise, and the masking rules.

Every announcement contains the hash of the terms. So a device notices a later change to a block, a clip, the noise, the
smallest cohort or the number of neighbours before it reports.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from hushrec.budget.gaussian import SMALLEST_SHARE_VARIANCE, require_delta
from hushrec.errors import RemoteProtocolError
from hushrec.messages import LARGEST_TABLE
from hushrec.protocols.masked.encoding import FINEST_CLIP, BlockCode
from hushrec.protocols.masked.noise import LARGEST_VARIANCE
from hushrec.protocols.masked.price import PricedPlan
from hushrec.protocols.masked.secagg.primitives import TERMS_LABEL, digest
from hushrec.protocols.masked.secagg.roster import Rules


@dataclass(frozen=True)
class MaskedTerms:
    """The public terms of a masked run: the plan with its noise, and the rules of secure aggregation."""

    priced: PricedPlan
    rules: Rules

    def __post_init__(self) -> None:
        """Raise `RemoteProtocolError` for terms that are inconsistent or cost more than their epsilon.

        The cost is computed here from the noise in the terms, so that a device need not trust the server's claim.
        """
        priced, cohort = self.priced, self.priced.cohort
        blocks = [[(block.size, block.clip) for block in one.blocks] for one in priced.plan.rounds]
        if not blocks or blocks != [[(code.size, code.clip) for code in codes] for codes in priced.codes]:
            raise RemoteProtocolError(
                "codes must match the blocks of the plan: one for each block, with the same size and clip. The"
                " device does not join."
            )
        if not 0 <= priced.reserve < 1:
            raise RemoteProtocolError(f"reserve must be at least 0 and below 1, got {priced.reserve}.")
        largest = max(4 * one.size for one in priced.plan.rounds)
        if largest > LARGEST_TABLE:
            raise RemoteProtocolError(f"tables of the plan must have at most {LARGEST_TABLE} bytes, got {largest}.")
        codes = (code for own in priced.codes for code in own)
        for block, code in zip(priced.plan.blocks, codes, strict=True):
            _check_code(block.name, code, 0 if priced.is_exact else SMALLEST_SHARE_VARIANCE)
        require_delta(priced.delta, cohort.devices)
        if (self.rules.smallest, self.rules.most_corrupt) != (cohort.smallest, cohort.most_corrupt):
            raise RemoteProtocolError(
                "rules must have the smallest cohort and the corrupt devices that the noise is sized for,"
                f" {cohort.smallest} and {cohort.most_corrupt}, got {self.rules.smallest} and"
                f" {self.rules.most_corrupt}. The device does not join."
            )
        if not priced.accountant().epsilon(priced.delta) <= priced.epsilon * (1 + 1e-9):
            raise RemoteProtocolError(
                f"terms must cost at most their epsilon, {priced.epsilon:g}, but they cost more. The device does"
                " not join."
            )

    @property
    def max_rounds(self) -> int:
        return len(self.priced.plan.rounds)

    @property
    def n_items(self) -> int:
        """The number of items: the length of the first block of every plan, which has a count for each item."""
        return self.priced.plan.rounds[0].blocks[0].shape[0]

    @cached_property
    def most_colluding(self) -> int:
        """The largest number of corrupt devices in a cohort with which masks still hide each honest device's table."""
        return self.rules.most_colluding(self.priced.cohort.devices)

    def honest_among(self, corrupt: int) -> int:
        """Return the smallest number of honest devices in a sum if `corrupt` devices of its cohort are corrupt."""
        rules = replace(self.rules, most_corrupt=corrupt)
        return rules.smallest - corrupt - rules.most_omitted(self.priced.cohort.devices)

    def check_omitted(self) -> None:
        """Raise `RemoteProtocolError` if a server could leave out more tables of a sum than the noise allows for."""
        cohort = self.priced.cohort
        possible = self.rules.most_omitted(cohort.devices)
        if cohort.omitted < possible:
            raise RemoteProtocolError(
                f"the noise must be sized for sums without {possible} of the smallest cohort's tables, which too few"
                f" neighbours ({self.rules.neighbours}) let a server leave out, got {cohort.omitted}. The device does"
                " not join."
            )

    def agrees_with(self, accepted: "MaskedTerms") -> bool:
        """Return whether these terms equal the accepted ones; no field may change during a run."""
        return self == accepted

    @cached_property
    def digest(self) -> bytes:
        """The SHA-256 of all numbers and names in the terms, in a fixed order."""
        return digest(TERMS_LABEL, *self._parts())

    def table_size(self, round_number: int) -> int:
        """Return the number of integers in a round's table; raise `RemoteProtocolError` if there is no such round."""
        if not 1 <= round_number <= len(self.priced.codes):
            raise RemoteProtocolError(f"round_number must be from 1 to {len(self.priced.codes)}, got {round_number}.")
        return sum(code.size for code in self.priced.codes[round_number - 1])

    def _parts(self) -> Iterator[bytes]:
        priced, cohort = self.priced, self.priced.cohort
        yield struct.pack(">3d", priced.epsilon, priced.delta, priced.reserve)
        yield struct.pack(">I2dI", cohort.devices, cohort.survivors, cohort.corrupt, cohort.omitted)
        rules = self.rules
        yield struct.pack(">4I", rules.smallest, rules.most_corrupt, rules.neighbours, rules.threshold)
        yield struct.pack(">2I", len(priced.codes), priced.plan.repeats)
        for one, codes in zip(priced.plan.rounds, priced.codes, strict=True):
            yield struct.pack(">I", len(codes))
            for block, code in zip(one.blocks, codes, strict=True):
                name = block.name.encode()
                yield struct.pack(">I", len(name)) + name
                yield struct.pack(f">{1 + len(block.shape)}I", len(block.shape), *block.shape)
                yield struct.pack(">3d", block.clip, block.share, code.clip)
                yield struct.pack(">IQQ", code.clip_units, code.norm_squared, code.share_variance)


def _check_code(name: str, code: BlockCode, least_variance: int) -> None:
    in_range = least_variance <= code.share_variance <= LARGEST_VARIANCE and 1 <= code.norm_squared < 2**63
    if not (in_range and 1 <= code.clip_units <= FINEST_CLIP):
        raise RemoteProtocolError(
            f"block {name} must have a share_variance from {least_variance} to 2^62, a norm_squared from 1 to 2^63 - 1"
            f" and clip_units from 1 to {FINEST_CLIP}, got {code.share_variance}, {code.norm_squared} and"
            f" {code.clip_units}. The device does not join."
        )
