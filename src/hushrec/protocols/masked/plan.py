"""The plan of a masked run: the blocks that a device sends in each round, and the share of the budget for each block.

A block b is one array per device, with Euclidean norm at most C_b, its *clip*. Its share f_b of μ² determines the noise
of the sum: σ_b = C_b / (μ √f_b). Gaussian mechanisms compose by adding (C_b / σ_b)² = f_b μ². The shares of a plan add
up to 1, so the whole run costs μ². A plan is fixed and published before the first round.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hushrec.errors import ParameterError, require

MOST_REPEATS = 16  # rounds of a group: the terms of a run must fit into one message


@dataclass(frozen=True)
class Block:
    """One array that every device sends in a round: its name, shape, clip (largest Euclidean norm) and share of μ²."""

    name: str
    shape: tuple[int, ...]
    clip: float
    share: float

    def __post_init__(self) -> None:
        if not self.shape or any(length < 1 for length in self.shape):
            raise ParameterError(f"shape of block {self.name} must consist of positive lengths, got {self.shape}.")
        require(0 < self.clip < math.inf, f"clip of block {self.name}", "positive and finite", self.clip)
        require(0 < self.share <= 1, f"share of block {self.name}", "above 0 and at most 1", self.share)

    @property
    def size(self) -> int:
        return math.prod(self.shape)


@dataclass(frozen=True)
class Round:
    """The blocks of one round, which a device sends together as one table."""

    blocks: tuple[Block, ...]

    def __post_init__(self) -> None:
        names = [block.name for block in self.blocks]
        if not names or len(set(names)) != len(names):
            raise ParameterError(f"a round must have at least one block, and distinct block names, got {names}.")

    @property
    def size(self) -> int:
        return sum(block.size for block in self.blocks)


@dataclass(frozen=True)
class Plan:
    """The list of rounds of a masked run. The shares of all blocks add up to 1.

    The list consists of groups of `repeats` equal rounds. The server learns from the mean of the sums of a group.
    """

    rounds: tuple[Round, ...]
    repeats: int = 1

    def __post_init__(self) -> None:
        require(1 <= self.repeats <= MOST_REPEATS, "repeats", f"from 1 to {MOST_REPEATS}", self.repeats)
        groups = [self.rounds[start : start + self.repeats] for start in range(0, len(self.rounds), self.repeats)]
        if any(len(group) != self.repeats or len(set(group)) > 1 for group in groups):
            raise ParameterError(
                f"rounds of a plan must be groups of {self.repeats} equal rounds (repeats), but a group of the"
                f" {len(self.rounds)} rounds is shorter or has rounds that differ."
            )
        total = math.fsum(block.share for block in self.blocks)
        if abs(total - 1) > 1e-9:
            raise ParameterError(f"shares of a plan must add up to 1, got {total}.")

    @property
    def blocks(self) -> Iterator[Block]:
        return (block for one in self.rounds for block in one.blocks)

    @property
    def holds_out(self) -> bool:
        """Whether devices hold out some of their ratings, because the plan has `EVALUATION` blocks."""
        return any(block.name == EVALUATION for block in self.blocks)

    def groups_until(self, round_number: int) -> tuple[Round, ...]:
        """Return one round of each group, up to the group of round `round_number`, which counts from 1."""
        return self.rounds[: round_number : self.repeats]

    def repeated(self, repeats: int) -> "Plan":
        """Return this plan with each round replaced by `repeats` rounds, which share its budget.

        Noise in the mean of their sums has the same variance as in the sum of the round that they replace.
        """
        rounds = (Round(tuple(replace(b, share=b.share / repeats) for b in one.blocks)) for one in self.rounds)
        return Plan(tuple(one for one in rounds for _ in range(repeats)), repeats)


def make_plan(rounds: list[list[Block]]) -> Plan:
    """Return the plan of these rounds, with the shares of all blocks divided by their sum."""
    total = math.fsum(block.share for blocks in rounds for block in blocks)
    scaled = [
        Round(tuple(Block(block.name, block.shape, block.clip, block.share / total) for block in blocks))
        for blocks in rounds
    ]
    return Plan(tuple(scaled))


# Names of blocks. `docs/notation.md` says what each contains.
COUNTS, MOMENTS, AUDIENCE, BIAS, FACTORS, PRIOR = "counts", "moments", "audience", "bias", "factors", "prior"
ITEM_BLOCKS = (COUNTS, AUDIENCE, BIAS, FACTORS)  # the blocks with a row for each item
EVALUATION = "evaluation"  # squared errors on held-out ratings, and their number


def curvature_of(name: str) -> str:
    """Return the name of the curvature block that belongs to the item block called `name`.

    A curvature block tells the server how much clipping has scaled down the rows of the item block.
    """
    return f"{name} curvature"


def prior_size(length: int) -> int:
    """Return the number of entries of a mean and the upper triangle of a covariance, for vectors of this length."""
    return length + length * (length + 1) // 2
