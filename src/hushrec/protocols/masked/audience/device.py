"""The device side of model `audience`: computes the blocks of a round from the public table and a person's items."""

from collections.abc import Sequence

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.protocols.masked.audience.constants import PROFILE_OFFSET, USUAL_LOG_PROFILE
from hushrec.protocols.masked.audience.table import AudienceTable
from hushrec.protocols.masked.device import check_profile, item_block
from hushrec.protocols.masked.encoding import Entries
from hushrec.protocols.masked.plan import AUDIENCE, COUNTS, MOMENTS, Block


def round_entries(blocks: Sequence[Block], table: AudienceTable, items: IntArray, values: FloatArray) -> list[Entries]:
    """Return this device's entries for each block of a round, before clipping and noise. They are private.

    A person without items gets exact zeros, without any computation. The ratings `values` are checked but not used.
    """
    from hushrec.models import audience as maths  # compiled: imported where it is used
    from hushrec.protocols.masked import blocks as block_maths

    check_profile(items, values, table.n_items)
    if len(items) == 0:
        return [Entries(np.zeros(block.size)) for block in blocks]
    names = {block.name: block for block in blocks}
    found: dict[str, Entries] = {}
    if COUNTS in names:
        found[COUNTS] = Entries(table.count_weights[items], items)
    if MOMENTS in names:
        description = block_maths.describe(items, table.columns, 1.0, PROFILE_OFFSET, USUAL_LOG_PROFILE)
        found[MOMENTS] = Entries(block_maths.moment_entries(description))
    if AUDIENCE in names:
        rows = maths.describe_without_each(items, table.asked)
        entries = block_maths.row_entries(items, table.weights, rows)
        found |= item_block(names[AUDIENCE], items, entries, np.ones(1))
    return [found[name] for name in names]
