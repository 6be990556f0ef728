"""Compiled loops over all people in a masked round of model `audience`; they call the same functions as a device."""

from typing import NamedTuple

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray
from hushrec.engines.cpu.masked_kernels import (
    AUDIENCE,
    AUDIENCE_CURVATURE,
    COUNTS,
    IN_ORDER,
    MOMENTS,
    ONE_PER_ITEM,
    add_block,
)
from hushrec.models.audience import Description, describe_without_each
from hushrec.protocols.masked import blocks
from hushrec.protocols.masked.audience.constants import PROFILE_OFFSET, USUAL_LOG_PROFILE


class Table(NamedTuple):
    """The arrays of the public table (`AudienceTable`) from which the entries of a person's blocks are computed.

    Counts are weighted by `count_weights`, rows of the audience block by `weights`; `columns` are the columns of the
    moments block, and `asked` has the parameters of the descriptions in the audience block.
    """

    columns: FloatArray
    count_weights: FloatArray
    weights: FloatArray
    asked: Description


@njit(cache=True, nogil=True)
def add_people(first, stop, people, codes, table, stream, given, sums):  # type: ignore[no-untyped-def]
    """Add the integer tables of people `first` … `stop` − 1, without noise, to `sums` (one flat int64 vector).

    `codes` has the encodings of the blocks, and `table` the arrays from which entries are computed. Entries are rounded
    at random: with the uniform numbers in `given` or, if `given` is empty, with draws from `stream`.
    """
    for person in range(first, stop):
        begin, end = people.starts[person], people.starts[person + 1]
        if begin == end or not people.present[person]:
            continue  # an empty profile sends exact zeros
        items = people.items[begin:end]
        state = np.zeros(2, np.int64)  # random blocks used so far, given uniforms used so far
        if codes.wanted[COUNTS]:
            weights = table.count_weights[items]
            add_block(COUNTS, weights, items, ONE_PER_ITEM, person, codes, stream, given, state, sums)
        if codes.wanted[MOMENTS]:
            description = blocks.describe(items, table.columns, 1.0, PROFILE_OFFSET, USUAL_LOG_PROFILE)
            entries = blocks.moment_entries(description)
            add_block(MOMENTS, entries, items, IN_ORDER, person, codes, stream, given, state, sums)
        if codes.wanted[AUDIENCE]:
            rows = describe_without_each(items, table.asked)
            entries = blocks.row_entries(items, table.weights, rows)
            norm = blocks.norm_of(entries)
            add_block(AUDIENCE, entries, items, rows.shape[1], person, codes, stream, given, state, sums)
            curvature = blocks.curvature_entries(norm, codes.clips[AUDIENCE], len(items), np.ones(1))
            add_block(AUDIENCE_CURVATURE, curvature, items, IN_ORDER, person, codes, stream, given, state, sums)
