"""Public tables of a server that cheats. Devices accept them: every entry is finite and within range."""

from dataclasses import replace
from typing import Any

import numpy as np

from hushrec.protocols.masked.audience.table import AudienceTable
from hushrec.protocols.masked.table import LARGEST_ENTRY

MIDDLE = 3.0  # of the scale 1 to 5: what lies below and above it has opposite signs


def aim_at(table: Any, item: int) -> Any:
    """Return the table with all weight on one item, so that every row block is about it alone and at its clip.

    Under `gp`, rows of zeros leave no taste, and offsets in the middle of the scale give low and high ratings opposite
    signs: a rating of 1 and one of 5 are two clips apart.
    """
    one = np.zeros(table.n_items)
    one[item] = LARGEST_ENTRY
    if isinstance(table, AudienceTable):
        return replace(table, weights=one, asked_base=np.full_like(table.asked_base, LARGEST_ENTRY))
    return replace(
        table,
        weights=one,
        factor_weights=one,
        rows=np.zeros_like(table.rows),
        offsets=np.full_like(table.offsets, MIDDLE),
    )


def lengthen(table: Any) -> Any:
    """Return the table with the largest weights on all items, so that every row block is at its clip."""
    heavy = np.full(table.n_items, LARGEST_ENTRY)
    if isinstance(table, AudienceTable):
        return replace(table, weights=heavy)
    return replace(table, weights=heavy, factor_weights=heavy)
