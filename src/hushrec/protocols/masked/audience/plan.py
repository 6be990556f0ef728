"""The plan of model `audience`, which has one or two passes of two rounds.

The first round of a pass measures the mean and covariance of people's descriptions (moments), the second the audience
of each item. Both rounds of the first pass also count how many people chose each item. The second pass needs many
devices or a large budget.
"""

from hushrec.protocols.masked.audience.constants import FEWEST_COLUMNS
from hushrec.protocols.masked.plan import (
    AUDIENCE,
    COUNTS,
    MOMENTS,
    Block,
    Plan,
    curvature_of,
    fleet_strength,
    make_plan,
    prior_size,
)

FEW_COLUMNS, MORE_COLUMNS, TWO_PASSES = 0.0, 120.0, 1_600.0  # smallest fleet strength for each of the three plans
WIDTHS = {FEW_COLUMNS: (4,), MORE_COLUMNS: (6,), TWO_PASSES: (16, 12)}  # columns of the audience block of each pass
COUNTS_CLIP, MOMENTS_CLIP, AUDIENCE_CLIP = 3.0, 6.0, 5.0
CURVATURE_CLIP = 12.0  # times the clip of the audience block: a person with h items adds about C √(h/K)


def first_columns(n_taste: int) -> int:
    """Return the length of a person's description in the first pass, which is the first two rounds of the plan.

    `n_taste` is the number of taste columns of an item.
    """
    return max(n_taste, FEWEST_COLUMNS)


def choose_plan(devices: int, n_items: int, n_taste: int, mu: float) -> Plan:
    """Return the plan for this number of devices, items and taste columns at the budget μ; all arguments are public."""
    strength = fleet_strength(devices, mu)
    widths = WIDTHS[max(start for start in WIDTHS if start <= strength)]
    columns = first_columns(n_taste)
    first, share = min(widths[0], columns + 1), 0.4 if len(widths) == 1 else 0.2
    rounds = [
        [Block(COUNTS, (n_items,), COUNTS_CLIP, 0.2), _moments(columns)],
        [Block(COUNTS, (n_items,), COUNTS_CLIP, share), *_audience(n_items, first, share)],
    ]
    if len(widths) == 2:
        later = first + n_taste + 1
        rounds += [[_moments(later)], _audience(n_items, min(widths[1], later + 1), 0.6)]
    return make_plan(rounds)


def _moments(width: int) -> Block:
    """Return the block from which the server learns the mean and covariance of people's vectors.

    A person's vector has `width` + 1 entries: the shrunken mean of `width` columns over the person's items, and the log
    of the number of these items, less a constant.
    """
    return Block(MOMENTS, (prior_size(width + 1),), MOMENTS_CLIP, 0.05)


def _audience(n_items: int, width: int, share: float) -> list[Block]:
    """Return an audience block of `width` columns, with this `share` of μ², and its curvature block.

    Clipping multiplies the audience block of a person with h items by some c ≤ 1. The person's curvature block has two
    entries: c h, and c² h times a constant.
    """
    curvature = Block(curvature_of(AUDIENCE), (2,), CURVATURE_CLIP * AUDIENCE_CLIP, 0.02)
    return [Block(AUDIENCE, (n_items, width), AUDIENCE_CLIP, share), curvature]
