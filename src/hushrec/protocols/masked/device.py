"""The device side of model `gp`: computes the blocks of a round from the public table and the person's ratings."""

from collections.abc import Mapping

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.protocols.masked.constants import CONSTANTS
from hushrec.protocols.masked.encoding import Entries
from hushrec.protocols.masked.evaluation import Held
from hushrec.protocols.masked.plan import (
    AUDIENCE,
    BIAS,
    COUNTS,
    EVALUATION,
    FACTORS,
    MOMENTS,
    PRIOR,
    Block,
    curvature_of,
)
from hushrec.protocols.masked.table import PublicTable


def item_block(block: Block, items: IntArray, entries: FloatArray, scores: FloatArray) -> dict[str, Entries]:
    """Return a device's entries of an item block and of its curvature block, by block name.

    `entries` has the rows of `items` in the item block. Under model `gp` all of them are multiples of the vector
    `scores`; under model `audience` they are not, and `scores` is the number 1.
    """
    from hushrec.protocols.masked.blocks import curvature_entries, norm_of  # compiled: imported where it is used

    width = len(entries) // len(items)
    positions = (items[:, None] * width + np.arange(width)).ravel()
    curvature = curvature_entries(norm_of(entries), block.clip, len(items), scores)
    return {block.name: Entries(entries, positions), curvature_of(block.name): Entries(curvature)}


def round_entries(
    blocks: Mapping[str, Block],
    table: PublicTable,
    taste_columns: FloatArray,
    items: IntArray,
    values: FloatArray,
    held: Held,
) -> dict[str, Entries]:
    """Return the entries of each block, by name, for a person who rated `items` with `values`.

    `taste_columns` has one row per item: public attributes that a person may like or dislike. `held` has the held-out
    ratings, which only the evaluation block uses.
    """
    from hushrec.models import gp  # compiled: imported where it is used
    from hushrec.protocols.masked import blocks as block_maths

    found: dict[str, Entries] = {}

    def add_items(name: str, own: FloatArray, weights: FloatArray, scores: FloatArray) -> None:
        entries = block_maths.item_entries(items, own, weights, scores)
        found.update(item_block(blocks[name], items, entries, scores))

    ones = np.ones(len(items))
    if COUNTS in blocks:
        found[COUNTS] = Entries(ones, items)
    if MOMENTS in blocks or AUDIENCE in blocks:
        description = block_maths.describe(
            items, taste_columns, CONSTANTS.profile_spread, CONSTANTS.profile_offset, CONSTANTS.usual_log_profile
        )
        if MOMENTS in blocks:
            found[MOMENTS] = Entries(block_maths.moment_entries(description))
        if AUDIENCE in blocks:
            scores = block_maths.audience_scores(
                description, table.description_centre, table.description_map, CONSTANTS.audience_limit
            )
            add_items(AUDIENCE, ones, table.weights, scores)
    if {BIAS, FACTORS, PRIOR, EVALUATION} & blocks.keys():
        rows, residuals = table.rows[items], values - table.offsets[items]
        mean, covariance = gp.taste_posterior(rows, residuals, 1 / table.variances[items])
        left = gp.held_out_residuals(rows, residuals, mean, covariance)
        if BIAS in blocks:
            add_items(BIAS, left, table.weights, np.ones(1))
        if FACTORS in blocks:
            scores = block_maths.factor_scores(mean, table.directions, CONSTANTS.factor_limit)
            add_items(FACTORS, left, table.factor_weights, scores)
        if PRIOR in blocks:
            found[PRIOR] = Entries(block_maths.prior_entries(mean, covariance))
        if EVALUATION in blocks:
            unseen = held.values - table.offsets[held.items]
            level = block_maths.level_of(residuals)
            found[EVALUATION] = Entries(block_maths.evaluation_entries(table.rows[held.items], unseen, mean, level))
    return found
