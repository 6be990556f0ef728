"""The entries of a person's blocks under model `audience`, from the public table and the items; compiled."""

from typing import NamedTuple

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray
from hushrec.models.audience import Description, describe_without_each
from hushrec.protocols.masked import blocks
from hushrec.protocols.masked.audience.constants import PROFILE_OFFSET, USUAL_LOG_PROFILE
from hushrec.protocols.masked.blocks import AUDIENCE, COUNTS, MOMENTS


class EntryArrays(NamedTuple):
    """The arrays of the public table (`AudienceTable`) from which the entries of a person's blocks are computed."""

    columns: FloatArray  # item columns that the moments block summarizes, (n_items, n_columns)
    count_weights: FloatArray  # a person's entry of each rated item in the counts block, (n_items,)
    weights: FloatArray  # by which a person's rows of the audience block are multiplied, (n_items,)
    description: Description  # parameters of the descriptions that the audience block adds up


@njit(cache=True, nogil=True)
def audience_entries(items, table, clips):  # type: ignore[no-untyped-def]
    """Return a person's entries of the blocks of a round: a list of one array for each kind of block in `blocks.KINDS`.

    The person chose `items`. `table` has the `EntryArrays`. `clips` has the clip of each kind of block, and 0 for a
    kind that the round does not have; the array of such a kind is empty. The array of an item block has the rows of the
    chosen items only.
    """
    found = [np.empty(0)] * len(clips)
    if clips[COUNTS]:
        found[COUNTS] = table.count_weights[items]
    if clips[MOMENTS]:
        description = blocks.describe(items, table.columns, 1.0, PROFILE_OFFSET, USUAL_LOG_PROFILE)
        found[MOMENTS] = blocks.moment_entries(description)
    if clips[AUDIENCE]:
        entries = blocks.row_entries(items, table.weights, describe_without_each(items, table.description))
        curvature = blocks.curvature_entries(entries, clips[AUDIENCE], len(items), np.ones(1))
        found[AUDIENCE], found[AUDIENCE + 1] = entries, curvature
    return found
