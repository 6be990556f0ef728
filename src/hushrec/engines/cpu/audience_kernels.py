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
    """The arrays of the public table (`AudienceTable`) from which the entries of a person's blocks are computed."""

    columns: FloatArray  # item columns that the moments block summarizes, (n_items, n_columns)
    count_weights: FloatArray  # a person's entry of each rated item in the counts block, (n_items,)
    weights: FloatArray  # by which a person's rows of the audience block are multiplied, (n_items,)
    asked: Description  # parameters of the descriptions that the audience block adds up


@njit(cache=True, nogil=True)
def add_people(first, stop, people, table, target):  # type: ignore[no-untyped-def]
    """Add the integer tables of people `first` … `stop` − 1, without noise, to `target.sums`.

    `people` has the ratings of all people, `table` the arrays from which the entries of blocks are computed, and
    `target` (`masked_kernels.Target`) the rules for rounding. `masked_kernels.add_people` does the same for model `gp`.
    """
    wanted = target.codes.wanted
    for person in range(first, stop):
        begin, end = people.starts[person], people.starts[person + 1]
        if begin == end or not people.present[person]:
            continue  # an empty profile sends exact zeros
        items = people.items[begin:end]
        state = np.zeros(2, np.int64)  # random blocks used so far, given uniforms used so far
        if wanted[COUNTS]:
            add_block(COUNTS, table.count_weights[items], items, ONE_PER_ITEM, person, target, state)
        if wanted[MOMENTS]:
            description = blocks.describe(items, table.columns, 1.0, PROFILE_OFFSET, USUAL_LOG_PROFILE)
            add_block(MOMENTS, blocks.moment_entries(description), items, IN_ORDER, person, target, state)
        if wanted[AUDIENCE]:
            rows = describe_without_each(items, table.asked)
            entries = blocks.row_entries(items, table.weights, rows)
            norm = blocks.norm_of(entries)
            add_block(AUDIENCE, entries, items, rows.shape[1], person, target, state)
            curvature = blocks.curvature_entries(norm, target.codes.clips[AUDIENCE], len(items), np.ones(1))
            add_block(AUDIENCE_CURVATURE, curvature, items, IN_ORDER, person, target, state)
