"""The plan of a masked run: the blocks that a device sends in each round, and the share of the budget for each block.

A block b is one array per device, with Euclidean norm at most C_b, its *clip*. Its share f_b of μ² determines the noise
of the sum: σ_b = C_b / (μ √f_b). Gaussian mechanisms compose by adding (C_b / σ_b)² = f_b μ². The shares of a plan add
up to 1, so the whole run costs μ². A plan is fixed and published before the first round.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from hushrec.errors import ParameterError, require


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
        """The number of entries of the block."""
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
        """The number of entries of a table: those of all blocks."""
        return sum(block.size for block in self.blocks)


@dataclass(frozen=True)
class Plan:
    """The list of rounds of a masked run. The shares of all blocks add up to 1."""

    rounds: tuple[Round, ...]

    def __post_init__(self) -> None:
        total = math.fsum(block.share for block in self.blocks)
        if abs(total - 1) > 1e-9:
            raise ParameterError(f"shares of a plan must add up to 1, got {total}.")

    @property
    def blocks(self) -> Iterator[Block]:
        """An iterator over the blocks of all rounds, in order."""
        return (block for one in self.rounds for block in one.blocks)

    @property
    def holds_out(self) -> bool:
        """Whether devices hold out some of their ratings, because the plan has `EVALUATION` blocks."""
        return any(block.name == EVALUATION for block in self.blocks)


def make_plan(rounds: list[list[Block]]) -> Plan:
    """Return the plan of these rounds, with the shares of all blocks divided by their sum."""
    total = math.fsum(block.share for blocks in rounds for block in blocks)
    scaled = [
        Round(tuple(Block(block.name, block.shape, block.clip, block.share / total) for block in blocks))
        for blocks in rounds
    ]
    return Plan(tuple(scaled))


# Names of blocks. An item block holds rows value · ω_j · q of rated items; its curvature block records the effect of
# clipping on it.
COUNTS, MOMENTS, AUDIENCE, BIAS, FACTORS, PRIOR = "counts", "moments", "audience", "bias", "factors", "prior"
EVALUATION = "evaluation"  # squared errors on held-out ratings, and their number

CURVATURE_CLIP = 20.0  # times the clip C of its item block and √K: a person with h ratings adds about C √(hK)
LARGE_FLEET = 3_000.0  # devices · μ² from which audience and factor columns gain more than they cost
VAST_FLEET = 60_000.0  # devices · μ² from which more factors do
FAINT_COUNTS = 400.0  # devices · μ below which noise hides what is popular from few devices unless counts get more
COUNTS_SHARE, FAINT_COUNTS_SHARE = 0.08, 0.14  # of small plans, before scaling: 19 % of the budget, and 29 %
FEWEST_FOR_COLUMNS = 300  # devices; with fewer, learned columns overfit the few ratings even without noise
AUDIENCE_COLUMNS = 7
FACTOR_ROUNDS = 2  # which together get half of the budget
FACTOR_COLUMNS, VAST_FACTOR_COLUMNS = 5, 8


def curvature_of(name: str) -> str:
    """Return the name of the curvature block that belongs to the item block called `name`.

    A curvature block tells the server how much clipping has scaled down the rows of the item block.
    """
    return f"{name} curvature"


def prior_size(length: int) -> int:
    """Return the number of entries of a mean and the upper triangle of a covariance, for vectors of this length."""
    return length + length * (length + 1) // 2


def fleet_strength(devices: int, mu: float) -> float:
    """Return devices · μ², which measures how precisely a run learns about an item rated by a given fraction of people.

    The number of items does not matter: each item has its own noise, and items that nobody rates cost nothing.
    """
    return devices * mu**2


def knows_attributes(plan: Plan) -> bool:
    """Return whether a plan of `choose_plan` was made for a catalogue with attributes, judged by its block sizes."""
    sizes = {block.name: block.size for block in reversed(list(plan.blocks))}  # the first of each name
    return sizes[MOMENTS] > prior_size(1) if MOMENTS in sizes else sizes[PRIOR] > prior_size(3)


def choose_plan(devices: int, n_items: int, n_taste: int, mu: float) -> Plan:
    """Return the plan for this number of devices, items and taste columns at the budget μ; all arguments are public.

    Every run learns counts, item biases and the prior of people's tastes. A run with at least `FEWEST_FOR_COLUMNS`
    devices and devices · μ² of at least `LARGE_FLEET` also learns audience columns in one round and factor columns in
    two. A run with fewer than `FEWEST_FOR_COLUMNS` devices spends more of the budget on counts if devices · μ, to which
    the signal-to-noise ratio of a count is proportional, is below `FAINT_COUNTS`.
    """
    strength = fleet_strength(devices, mu)
    length = n_taste + 3  # quality, attributes, popularity, level
    has_few = devices < FEWEST_FOR_COLUMNS
    if strength < LARGE_FLEET or has_few:
        is_faint = has_few and devices * mu < FAINT_COUNTS
        return _small_plan(n_items, length, FAINT_COUNTS_SHARE if is_faint else COUNTS_SHARE)
    factors = VAST_FACTOR_COLUMNS if strength >= VAST_FLEET else FACTOR_COLUMNS
    return _large_plan(n_items, n_taste, length, factors)


def _small_plan(n_items: int, length: int, counts_share: float) -> Plan:
    rounds = [[Block(COUNTS, (n_items,), 4.0, counts_share)]]
    rounds += [_item_blocks(BIAS, n_items, 1, 3.0, share) for share in (0.06, 0.12, 0.13)]
    return make_plan([*rounds, [_prior_block(length, 0.02)]])


def _large_plan(n_items: int, n_taste: int, length: int, factors: int) -> Plan:
    description = n_taste + 1
    audience = min(AUDIENCE_COLUMNS, description)
    rounds = [
        [Block(COUNTS, (n_items,), 8.0, 0.08), Block(MOMENTS, (prior_size(description),), 15.0, 0.01)],
        [*_item_blocks(AUDIENCE, n_items, audience, 5.0, 0.15), *_item_blocks(BIAS, n_items, 1, 5.0, 0.06)],
        _item_blocks(BIAS, n_items, 1, 5.0, 0.25),
    ]
    length += audience
    for _ in range(FACTOR_ROUNDS):
        directions = min(factors, length - 1)  # the level is not a direction of taste
        columns = _item_blocks(FACTORS, n_items, directions + 1, 5.0, 0.5 / FACTOR_ROUNDS)
        rounds += [[_prior_block(length, 0.01)], columns]
        length += directions
    return make_plan([*rounds, [_prior_block(length, 0.02)]])


def _item_blocks(name: str, n_items: int, width: int, clip: float, share: float) -> list[Block]:
    """Return an item block of `width` numbers per item, with this `clip` and `share` of μ², and its curvature block."""
    curvature = Block(curvature_of(name), (width * (width + 1),), CURVATURE_CLIP * math.sqrt(width) * clip, 0.004)
    return [Block(name, (n_items, width), clip, share), curvature]


def _prior_block(length: int, share: float) -> Block:
    return Block(PRIOR, (prior_size(length),), 12.0, share)
