"""What a device accepts once, when it joins a masked run: the priced plan, and the rules of secure aggregation.

The digest of the terms is in every announcement, so that a later change to a block, a clip, the noise, the smallest
cohort or the number of neighbours is seen by every device before it reports.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hushrec.errors import RemoteProtocolError
from hushrec.protocols.masked.encoding import BlockCode
from hushrec.protocols.masked.plan import Block
from hushrec.protocols.masked.price import PricedPlan
from hushrec.protocols.masked.secagg.primitives import TERMS_LABEL, digest
from hushrec.protocols.masked.secagg.roster import Rules


@dataclass(frozen=True)
class MaskedTerms:
    """Everything that a run asks of every device; public, and the same for all."""

    priced: PricedPlan
    rules: Rules

    def __post_init__(self) -> None:
        """Refuse terms that contradict themselves or cost more than they say.

        The price is computed here from the codes, whoever made them.
        """
        priced, cohort = self.priced, self.priced.cohort
        shapes = [[block.size for block in one.blocks] for one in priced.plan.rounds]
        if shapes != [[code.size for code in codes] for codes in priced.codes]:
            raise RemoteProtocolError("terms must have one code for each block of the plan, of the same size.")
        if (self.rules.smallest, self.rules.most_corrupt) != (cohort.smallest, cohort.most_corrupt):
            raise RemoteProtocolError("terms must have the same smallest cohort for the noise and for the rules.")
        if not priced.accountant().epsilon(priced.delta) <= priced.epsilon * (1 + 1e-9):
            raise RemoteProtocolError(f"terms must cost at most the epsilon that they name, {priced.epsilon:g}.")

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of all numbers and names, in the order of the fields."""
        return digest(TERMS_LABEL, *self._parts())

    def table_size(self, round_number: int) -> int:
        """Return how many integers a table of this round has; rounds count from 1."""
        if not 1 <= round_number <= len(self.priced.codes):
            raise RemoteProtocolError(f"round must be in 1 to {len(self.priced.codes)}, got {round_number}.")
        return sum(code.size for code in self.priced.codes[round_number - 1])

    def _parts(self) -> Iterator[bytes]:
        priced, cohort = self.priced, self.priced.cohort
        yield struct.pack(">3d", priced.epsilon, priced.delta, priced.reserve)
        yield struct.pack(">I2d", cohort.devices, cohort.survivors, cohort.corrupt)
        rules = self.rules
        yield struct.pack(">4I", rules.smallest, rules.most_corrupt, rules.neighbours, rules.threshold)
        yield struct.pack(">I", len(priced.codes))
        for one, codes in zip(priced.plan.rounds, priced.codes, strict=True):
            yield struct.pack(">I", len(codes))
            for block, code in zip(one.blocks, codes, strict=True):
                yield _block_bytes(block, code)


def _block_bytes(block: Block, code: BlockCode) -> bytes:
    """Return name, shape, clip, share, and the code's units, squared norm and variance; lengths before what varies."""
    name = block.name.encode()
    return b"".join(
        (
            struct.pack(">I", len(name)),
            name,
            struct.pack(f">{1 + len(block.shape)}I", len(block.shape), *block.shape),
            struct.pack(">3d", block.clip, block.share, code.clip),
            struct.pack(">IQQ", code.clip_units, code.norm_squared, code.share_variance),
        )
    )
