"""The plan of model `audience`, which has one or two passes of two rounds.

A *description* is a vector that summarizes the items that one person chose. The first round of a pass measures the mean
and covariance (moments) of the numbers from which descriptions are computed. The second measures the *audience* of each
item, the mean description of the people who chose it. Both rounds of the first pass also count how many people chose
each item. The second pass needs many devices, and a budget that is not too small for their number. A run that is too
small for its catalogue has no pass, and only counts.
"""

import math

from hushrec.protocols.masked.audience.constants import FEWEST_COLUMNS
from hushrec.protocols.masked.gp.plan import FEWEST_FOR_COLUMNS, fleet_strength
from hushrec.protocols.masked.plan import AUDIENCE, COUNTS, MOMENTS, Block, Plan, curvature_of, make_plan, prior_size

FEW_COLUMNS, MORE_COLUMNS, TWO_PASSES = 0.0, 120.0, 1_600.0  # smallest fleet strength for each of the three plans
WIDTHS = {FEW_COLUMNS: (4,), MORE_COLUMNS: (6,), TWO_PASSES: (16, 12)}  # numbers per item in each pass's audience block
LONG_CATALOGUE = 0.06  # devices · μ per item below which a run learns counts only; noise hides audiences there
COUNTS_CLIP, MOMENTS_CLIP, AUDIENCE_CLIP = 3.0, 6.0, 5.0
CURVATURE_CLIP = 12.0  # times the clip C of the audience block; a person with h items sends about C √(h/K)


def choose_plan(devices: int, n_items: int, n_taste: int, mu: float) -> Plan:
    """Return the plan for this number of devices, items and taste columns at the budget μ; all arguments are public.

    With fewer than `FEWEST_FOR_COLUMNS` devices, the plan has only one pass: a second one would overfit the few people,
    even without noise. With fewer than `LONG_CATALOGUE` devices · μ per item, it has counts only: so little is known
    about each item that audiences would be noise, and lists worse than those of the most popular items.
    """
    most = math.inf if devices >= FEWEST_FOR_COLUMNS else MORE_COLUMNS
    strength = min(fleet_strength(devices, mu), most)
    widths = WIDTHS[max(start for start in WIDTHS if start <= strength)]
    columns = max(n_taste, FEWEST_COLUMNS)  # random columns are added to too few taste columns
    first, share = min(widths[0], columns + 1), 0.4 if len(widths) == 1 else 0.2
    if devices * mu < LONG_CATALOGUE * n_items:
        return make_plan([[Block(COUNTS, (n_items,), COUNTS_CLIP, own)] for own in (0.2, 0.4)])
    rounds = [
        [Block(COUNTS, (n_items,), COUNTS_CLIP, 0.2), _moments(columns)],
        [Block(COUNTS, (n_items,), COUNTS_CLIP, share), *_audience(n_items, first, share)],
    ]
    if len(widths) == 2:
        later = first + n_taste + 1
        rounds += [[_moments(later)], _audience(n_items, min(widths[1], later + 1), 0.6)]
    return make_plan(rounds)


def _moments(width: int) -> Block:
    """Return the moments block, from which the server learns the mean and covariance of one vector per person.

    The vector has `width` + 1 entries: the shrunken mean of `width` item columns over the person's items, and the log
    of the number of these items, less a constant.
    """
    return Block(MOMENTS, (prior_size(width + 1),), MOMENTS_CLIP, 0.05)


def _audience(n_items: int, width: int, share: float) -> list[Block]:
    """Return an audience block of `width` numbers per item, with this `share` of μ², and its curvature block.

    Clipping multiplies the audience block of a person with h items by some c ≤ 1. The person's curvature block has two
    entries: c h, and c² h times a constant.
    """
    curvature = Block(curvature_of(AUDIENCE), (2,), CURVATURE_CLIP * AUDIENCE_CLIP, 0.02)
    return [Block(AUDIENCE, (n_items, width), AUDIENCE_CLIP, share), curvature]
