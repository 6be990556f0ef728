"""The device side of model `audience`: computes the blocks of a round from the public table and a person's items."""

from collections.abc import Sequence

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.protocols.masked.audience.constants import PROFILE_OFFSET, USUAL_LOG_PROFILE
from hushrec.protocols.masked.audience.table import AudienceTable
from hushrec.protocols.masked.device import check_profile
from hushrec.protocols.masked.encoding import Entries
from hushrec.protocols.masked.plan import AUDIENCE, COUNTS, MOMENTS, Block, curvature_of


def round_entries(blocks: Sequence[Block], table: AudienceTable, items: IntArray, values: FloatArray) -> list[Entries]:
    """Return this device's entries for each block of a round, before clipping and noise. They are private.

    A person without items gets exact zeros, without any computation. The ratings `values` are checked but not used.
    """
    from hushrec.models import audience as maths  # compiled: imported where it is used
    from hushrec.protocols.masked import blocks as block_maths

    check_profile(items, values, table.n_items)
    if len(items) == 0:
        return [Entries(np.zeros(block.size)) for block in blocks]
    clips = {block.name: block.clip for block in blocks}
    found: dict[str, Entries] = {}
    if COUNTS in clips:
        found[COUNTS] = Entries(table.count_weights[items], items)
    if MOMENTS in clips:
        description = block_maths.describe(items, table.columns, 1.0, PROFILE_OFFSET, USUAL_LOG_PROFILE)
        found[MOMENTS] = Entries(block_maths.moment_entries(description))
    if AUDIENCE in clips:
        rows = maths.describe_without_each(items, table.asked)
        entries = block_maths.row_entries(items, table.weights, rows)
        places = (items[:, None] * rows.shape[1] + np.arange(rows.shape[1])).ravel()
        found[AUDIENCE] = Entries(entries, places)
        norm = block_maths.norm_of(entries)
        curvature = block_maths.curvature_entries(norm, clips[AUDIENCE], len(items), np.ones(1))
        found[curvature_of(AUDIENCE)] = Entries(curvature)
    return [found[block.name] for block in blocks]
