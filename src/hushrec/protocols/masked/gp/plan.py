"""The plan of a masked run with model `gp`, chosen from public numbers."""

import math
from collections.abc import Sequence

from hushrec.protocols.masked.plan import (
    AUDIENCE,
    BIAS,
    COUNTS,
    FACTORS,
    MOMENTS,
    PRIOR,
    Block,
    Plan,
    Round,
    curvature_of,
    make_plan,
    prior_size,
)

CURVATURE_CLIP = 20.0  # times C √K, for an item block of K columns and clip C; a person with h ratings sends C √(hK)
LARGE_FLEET = 3_000.0  # devices · μ² from which audience and factor columns gain more than they cost
MEDIUM_FLEET = 150.0  # the same, if the catalogue is so short that devices · μ per item is at least `SHORT_CATALOGUE`
SHORT_CATALOGUE = 3.0
FEW_RATINGS = 65.0  # ratings · μ per item below which a catalogue does not count as short
LONG_PROFILE = 65.0  # ratings per person; with a shorter mean, `LARGE_FLEET` is larger in proportion to its square
SHORT_PROFILE = 25.0  # ratings per person; a shorter mean lowers the clips of item blocks, because tables are shorter
VAST_FLEET = 60_000.0  # devices · μ² from which more factor columns gain more than they cost
FAINT_COUNTS = 400.0  # devices · μ below which a small fleet spends more on counts, or noise hides what is popular
COUNTS_SHARE, FAINT_COUNTS_SHARE = 0.08, 0.14  # of small plans, before scaling: 19 % of the budget, and 29 %
FEWEST_FOR_COLUMNS = 300  # devices; with fewer, learned columns overfit the few ratings even without noise
AUDIENCE_COLUMNS = 7
FACTOR_ROUNDS = 2  # which together get half of the budget
FACTOR_COLUMNS, VAST_FACTOR_COLUMNS = 5, 8


def fleet_strength(devices: int, mu: float) -> float:
    """Return devices · μ²: it measures how precisely a run learns about an item that a given share of people rated."""
    return devices * mu**2


def knows_attributes(plan: Plan) -> bool:
    """Return whether a plan of `choose_plan` was made for a catalogue with attributes, judged by its block sizes."""
    sizes = {block.name: block.size for block in reversed(list(plan.blocks))}  # the first of each name
    return sizes[MOMENTS] > prior_size(1) if MOMENTS in sizes else sizes[PRIOR] > prior_size(3)


def taste_length(n_taste: int, rounds: Sequence[Round]) -> int:
    """Return the length of a person's taste after `rounds`, for this number of taste columns.

    A taste has one entry for each taste column, three for the columns quality, log-popularity and 1, and one for each
    audience or factor column that the server has learned in `rounds`.
    """
    blocks = [block for one in rounds for block in one.blocks]
    audience = sum(block.shape[-1] for block in blocks if block.name == AUDIENCE)
    factors = sum(block.shape[-1] - 1 for block in blocks if block.name == FACTORS)  # the last column is the level's
    return n_taste + 3 + audience + factors


def choose_plan(devices: int, n_items: int, n_taste: int, mu: float, ratings_per_person: float = math.inf) -> Plan:
    """Return the plan for this number of devices, items and taste columns at the budget μ; all arguments are public.

    Every run learns counts, item effects and the prior of people's tastes. A run with at least `FEWEST_FOR_COLUMNS`
    devices also learns audience columns in one round and factor columns in two, if devices · μ² is at least
    `LARGE_FLEET`, or `MEDIUM_FLEET` if the catalogue is short: the fewer items there are, the more people rate each of
    them, while the noise in an item's row stays the same. A run with fewer than `FEWEST_FOR_COLUMNS` devices spends
    more of the budget on counts if devices · μ, to which the signal-to-noise ratio of a count is proportional, is below
    `FAINT_COUNTS`.

    `ratings_per_person` is the mean number of ratings of a person, infinite if it is not known. The shorter profiles
    are, the more devices it takes until columns gain more than they cost: a mean h below `LONG_PROFILE` multiplies
    `LARGE_FLEET` by (`LONG_PROFILE` / h)², and a catalogue counts as short only if ratings · μ per item is at least
    `FEW_RATINGS`. If h is below `SHORT_PROFILE`, the clips of item blocks are lowered in proportion to √h, as the norms
    of tables are.
    """
    length = n_taste + 3  # quality, attributes, popularity, level
    has_few = devices < FEWEST_FOR_COLUMNS
    strength, per_item = fleet_strength(devices, mu), devices * mu / n_items
    is_short = per_item >= SHORT_CATALOGUE and per_item * ratings_per_person >= FEW_RATINGS
    least = MEDIUM_FLEET if is_short else LARGE_FLEET / min(1.0, ratings_per_person / LONG_PROFILE) ** 2
    norm = min(1.0, math.sqrt(ratings_per_person / SHORT_PROFILE))
    if has_few or strength < least:
        is_faint = has_few and devices * mu < FAINT_COUNTS
        return _small_plan(n_items, length, FAINT_COUNTS_SHARE if is_faint else COUNTS_SHARE, norm)
    factors = VAST_FACTOR_COLUMNS if strength >= VAST_FLEET else FACTOR_COLUMNS
    return _large_plan(n_items, n_taste, length, factors, norm)


def _small_plan(n_items: int, length: int, counts_share: float, norm: float) -> Plan:
    rounds = [[Block(COUNTS, (n_items,), 4.0 * norm, counts_share)]]
    rounds += [_item_blocks(BIAS, n_items, 1, 3.0 * norm, share) for share in (0.06, 0.12, 0.13)]
    return make_plan([*rounds, [_prior_block(length, 0.02)]])


def _large_plan(n_items: int, n_taste: int, length: int, factors: int, norm: float) -> Plan:
    description, clip = n_taste + 1, 5.0 * norm
    audience = min(AUDIENCE_COLUMNS, description)
    rounds = [
        [Block(COUNTS, (n_items,), 8.0 * norm, 0.08), Block(MOMENTS, (prior_size(description),), 15.0, 0.01)],
        [*_item_blocks(AUDIENCE, n_items, audience, clip, 0.15), *_item_blocks(BIAS, n_items, 1, clip, 0.06)],
        _item_blocks(BIAS, n_items, 1, clip, 0.25),
    ]
    length += audience
    for _ in range(FACTOR_ROUNDS):
        directions = min(factors, length - 1)  # the level is not a direction of taste
        columns = _item_blocks(FACTORS, n_items, directions + 1, clip, 0.5 / FACTOR_ROUNDS)
        rounds += [[_prior_block(length, 0.01)], columns]
        length += directions
    return make_plan([*rounds, [_prior_block(length, 0.02)]])


def _item_blocks(name: str, n_items: int, width: int, clip: float, share: float) -> list[Block]:
    """Return an item block of `width` numbers per item, with this `clip` and `share` of μ², and its curvature block."""
    curvature = Block(curvature_of(name), (width * (width + 1),), CURVATURE_CLIP * math.sqrt(width) * clip, 0.004)
    return [Block(name, (n_items, width), clip, share), curvature]


def _prior_block(length: int, share: float) -> Block:
    return Block(PRIOR, (prior_size(length),), 12.0, share)
