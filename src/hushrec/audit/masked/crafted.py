"""Public tables that a malicious server could publish. Devices accept them: every entry is finite and in range."""

from dataclasses import replace
from typing import Any

import numpy as np

from hushrec.protocols.masked.audience.table import AudienceTable
from hushrec.protocols.masked.table import LARGEST_ENTRY

MIDDLE = 3.0  # middle of the scale 1 to 5; residuals below and above it have opposite signs


def aim_at(table: Any, item: int) -> Any:
    """Return a public table with all weight on one item, so that weighted blocks hold only its row, at the clip.

    Under model `gp`, rows of zeros remove the person's taste. Offsets in the middle of the scale give low and high
    ratings opposite signs, so that the reports for a rating of 1 and of 5 differ by twice the clip.
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
    """Return a public table with the largest weights on all items, so that every weighted block reaches its clip."""
    heavy = np.full(table.n_items, LARGEST_ENTRY)
    if isinstance(table, AudienceTable):
        return replace(table, weights=heavy)
    return replace(table, weights=heavy, factor_weights=heavy)
