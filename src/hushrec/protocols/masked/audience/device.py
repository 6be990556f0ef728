"""The device side of model `audience`: computes the blocks of a round from the public table and a person's items."""

from collections.abc import Mapping

import numpy as np

from hushrec.arrays import IntArray
from hushrec.protocols.masked.audience.constants import PROFILE_OFFSET, USUAL_LOG_PROFILE
from hushrec.protocols.masked.audience.table import AudienceTable
from hushrec.protocols.masked.device import item_block
from hushrec.protocols.masked.encoding import Entries
from hushrec.protocols.masked.plan import AUDIENCE, COUNTS, MOMENTS, Block


def round_entries(blocks: Mapping[str, Block], table: AudienceTable, items: IntArray) -> dict[str, Entries]:
    """Return the entries of each block, by name, for a person who chose `items`."""
    from hushrec.models import audience as maths  # compiled: imported where it is used
    from hushrec.protocols.masked import blocks as block_maths

    found: dict[str, Entries] = {}
    if COUNTS in blocks:
        found[COUNTS] = Entries(table.count_weights[items], items)
    if MOMENTS in blocks:
        description = block_maths.describe(items, table.columns, 1.0, PROFILE_OFFSET, USUAL_LOG_PROFILE)
        found[MOMENTS] = Entries(block_maths.moment_entries(description))
    if AUDIENCE in blocks:
        rows = maths.describe_without_each(items, table.asked)
        entries = block_maths.row_entries(items, table.weights, rows)
        found |= item_block(blocks[AUDIENCE], items, entries, np.ones(1))
    return found
