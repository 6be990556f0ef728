"""Public tables that a malicious server could publish. Devices accept them: every entry is finite and in range."""

from dataclasses import replace
from typing import Any

import numpy as np

from hushrec.protocols.masked.audience.table import AudienceTable
from hushrec.protocols.masked.table import LARGEST_ENTRY

MIDDLE = 3.0  # middle of the scale 1 to 5; residuals below and above it have opposite signs


def aim_at(table: Any, item: int) -> Any:
    """Return a copy of the public table `table` with which a device's report reveals most about its rating of `item`.

    The weight of `item` is the largest that devices accept, and all other weights are 0. A device multiplies
    its row of an item by the item's weight before it clips a bias, factor or audience block. In these blocks only the
    row of `item` is then not zero, and its norm is the clip.

    Under model `audience`, the constant term of people's descriptions is also the largest that devices accept, which
    makes the descriptions long.

    Under model `gp` there are two more changes. Item rows of zeros remove the person's taste from the residuals.
    Offsets in the middle of the scale give low and high ratings residuals of opposite signs, so that the bias blocks
    for a rating of 1 and of 5 differ by twice the clip, and so do the factor blocks.
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
    """Return `table` with every weight set to the largest that devices accept; weighted blocks reach their clips."""
    heavy = np.full(table.n_items, LARGEST_ENTRY)
    if isinstance(table, AudienceTable):
        return replace(table, weights=heavy)
    return replace(table, weights=heavy, factor_weights=heavy)
