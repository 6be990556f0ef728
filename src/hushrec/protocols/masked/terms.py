"""What a device accepts once, when it joins a masked run: the priced plan, and the rules of secure aggregation.

The digest of the terms is in every announcement, so that a later change to a block, a clip, the noise, the smallest
cohort or the number of neighbours is seen by every device before it reports.
"""

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from hushrec.budget.gaussian import SMALLEST_SHARE_VARIANCE, require_delta
from hushrec.errors import RemoteProtocolError
from hushrec.messages import LARGEST_TABLE
from hushrec.protocols.masked.encoding import FINEST_CLIP, BlockCode
from hushrec.protocols.masked.noise import LARGEST_VARIANCE
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
        blocks = [[(block.size, block.clip) for block in one.blocks] for one in priced.plan.rounds]
        if not blocks or blocks != [[(code.size, code.clip) for code in codes] for codes in priced.codes]:
            raise RemoteProtocolError("terms must have one code for each block of the plan, of the same size and clip.")
        if max(4 * one.size for one in priced.plan.rounds) > LARGEST_TABLE:
            raise RemoteProtocolError(f"a table must have at most {LARGEST_TABLE} bytes.")
        if not all(_is_possible(code, priced.epsilon) for codes in priced.codes for code in codes):
            raise RemoteProtocolError("codes of the terms must have a grid, a norm and noise that devices can draw.")
        require_delta(priced.delta, cohort.devices)
        if (self.rules.smallest, self.rules.most_corrupt) != (cohort.smallest, cohort.most_corrupt):
            raise RemoteProtocolError("terms must have the same smallest cohort for the noise and for the rules.")
        if not priced.accountant().epsilon(priced.delta) <= priced.epsilon * (1 + 1e-9):
            raise RemoteProtocolError(f"terms must cost at most the epsilon that they name, {priced.epsilon:g}.")

    @property
    def max_rounds(self) -> int:
        """How many rounds the plan has."""
        return len(self.priced.plan.rounds)

    @property
    def n_items(self) -> int:
        """Length of the catalogue: the first block of every plan counts the ratings of each item."""
        return self.priced.plan.rounds[0].blocks[0].shape[0]

    def agrees_with(self, accepted: "MaskedTerms") -> bool:
        """Whether these are the terms that were accepted: nothing in them may change."""
        return self == accepted

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


def _is_possible(code: BlockCode, epsilon: float) -> bool:
    """Whether a device can round to this grid, hold the norm and draw the noise; without noise only at ε = ∞."""
    smallest = 0 if epsilon == math.inf else SMALLEST_SHARE_VARIANCE
    in_range = smallest <= code.share_variance <= LARGEST_VARIANCE and 1 <= code.norm_squared < 2**63
    return in_range and 1 <= code.clip_units <= FINEST_CLIP


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
