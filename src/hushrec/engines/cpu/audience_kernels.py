"""Compiled loops over all people in a masked round of model `audience`; they call the same functions as a device."""

from typing import NamedTuple

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray
from hushrec.engines.cpu import masked_kernels as kernels
from hushrec.models.audience import Description, describe_without_each
from hushrec.protocols.masked import blocks
from hushrec.protocols.masked.audience.constants import PROFILE_OFFSET, USUAL_LOG_PROFILE


class Table(NamedTuple):
    """The arrays of the public table (`AudienceTable`) from which the entries of a person's blocks are computed."""

    columns: FloatArray  # item columns that the moments block summarizes, (n_items, n_columns)
    count_weights: FloatArray  # what a person adds to the counts block for an item, (n_items,)
    weights: FloatArray  # factors of the rows of the audience block, (n_items,)
    asked: Description  # parameters of the description that devices must send in the audience block


@njit(cache=True, nogil=True)
def add_people(first, stop, people, codes, table, stream, given, sums):  # type: ignore[no-untyped-def]
    """Add the integer tables of people `first` … `stop` − 1, without noise, to `sums` (one flat int64 vector).

    The arguments are those of `masked_kernels.add_people`: the ratings of all `people`, the encodings `codes` of the
    blocks, the public table, and the source of uniform numbers for rounding, `given` or else `stream`.
    """
    for person in range(first, stop):
        begin, end = people.starts[person], people.starts[person + 1]
        if begin == end or not people.present[person]:
            continue  # an empty profile sends exact zeros
        items = people.items[begin:end]
        state = np.zeros(2, np.int64)  # random blocks used so far, given uniforms used so far
        if codes.wanted[kernels.COUNTS]:
            weights = table.count_weights[items]
            kernels.add_block(
                kernels.COUNTS, weights, items, kernels.ONE_PER_ITEM, person, codes, stream, given, state, sums
            )
        if codes.wanted[kernels.MOMENTS]:
            description = blocks.describe(items, table.columns, 1.0, PROFILE_OFFSET, USUAL_LOG_PROFILE)
            entries = blocks.moment_entries(description)
            kernels.add_block(
                kernels.MOMENTS, entries, items, kernels.IN_ORDER, person, codes, stream, given, state, sums
            )
        if codes.wanted[kernels.AUDIENCE]:
            rows = describe_without_each(items, table.asked)
            entries = blocks.row_entries(items, table.weights, rows)
            norm = blocks.norm_of(entries)
            kernels.add_block(
                kernels.AUDIENCE, entries, items, rows.shape[1], person, codes, stream, given, state, sums
            )
            curvature = blocks.curvature_entries(norm, codes.clips[kernels.AUDIENCE], len(items), np.ones(1))
            kernels.add_block(
                kernels.AUDIENCE_CURVATURE,
                curvature,
                items,
                kernels.IN_ORDER,
                person,
                codes,
                stream,
                given,
                state,
                sums,
            )
