"""The plan of a masked run: which blocks a device uploads in which round, and what part of the budget each one gets.

A block b is one array per device with Euclidean norm at most C_b, its *clip*. Its share f_b of μ² sizes the noise of
the sum: σ_b = C_b / (μ √f_b). Gaussian mechanisms compose by adding (C_b / σ_b)² = f_b μ², so the shares of a plan add
up to 1 and the whole run costs μ². A plan is fixed and published before the first round.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hushrec.errors import ParameterError


@dataclass(frozen=True)
class Block:
    """One array that every device uploads in a round: its name, shape, clip C_b and share of μ²."""

    name: str
    shape: tuple[int, ...]
    clip: float
    share: float

    def __post_init__(self) -> None:
        if not self.shape or any(length < 1 for length in self.shape):
            raise ParameterError(f"shape of block {self.name} must hold positive lengths, got {self.shape}.")
        if not 0 < self.clip < math.inf:
            raise ParameterError(f"clip of block {self.name} must be positive and finite, got {self.clip}.")
        if not 0 < self.share <= 1:
            raise ParameterError(f"share of block {self.name} must be above 0 and at most 1, got {self.share}.")

    @property
    def size(self) -> int:
        """Numbers in the block."""
        return math.prod(self.shape)


@dataclass(frozen=True)
class Round:
    """The blocks that a device uploads together, as one vector."""

    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        names = [block.name for block in self.blocks]
        if not names or len(set(names)) != len(names):
            raise ParameterError(f"a round must have at least one block, each with its own name, got {names}.")

    @property
    def size(self) -> int:
        """Numbers in the upload of one device."""
        return sum(block.size for block in self.blocks)


@dataclass(frozen=True)
class Plan:
    """All rounds of a run. The shares of all blocks add up to 1. `str(plan)` is a table."""

    rounds: tuple[Round, ...]

    def __post_init__(self) -> None:
        total = math.fsum(block.share for block in self.blocks)
        if abs(total - 1) > 1e-9:
            raise ParameterError(f"shares of a plan must add up to 1, got {total}.")

    @property
    def blocks(self) -> Iterator[Block]:
        """Every block, in the order of the rounds."""
        return (block for one in self.rounds for block in one.blocks)

    def __str__(self) -> str:
        """Return the plan as a table: round, block, shape, clip, share of μ²."""
        rows = [("round", "block", "numbers", "clip", "share of μ²")]
        for number, one in enumerate(self.rounds, start=1):
            rows += [
                (str(number), block.name, " × ".join(map(str, block.shape)), f"{block.clip:g}", f"{block.share:.1%}")
                for block in one.blocks
            ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def make_plan(rounds: list[list[Block]]) -> Plan:
    """Return the plan of these rounds; shares may add up to any number and are scaled to add up to 1."""
    total = math.fsum(block.share for blocks in rounds for block in blocks)
    scaled = [
        Round(tuple(Block(block.name, block.shape, block.clip, block.share / total) for block in blocks))
        for blocks in rounds
    ]
    return Plan(tuple(scaled))
