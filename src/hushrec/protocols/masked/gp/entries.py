"""The entries of a person's blocks under model `gp`, from the public table and the ratings; compiled."""

from typing import NamedTuple

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray
from hushrec.models import gp
from hushrec.protocols.masked import blocks
from hushrec.protocols.masked.blocks import AUDIENCE, BIAS, COUNTS, EVALUATION, FACTORS, MOMENTS, PRIOR


class EntryArrays(NamedTuple):
    """The arrays of the public table, and constants, from which the entries of a person's blocks are computed.

    In the shapes, L is the length of a person's taste, K the number of taste directions in the factor block, n_columns
    the number of taste columns, and n_audience the length of a row of the audience block. A description is the vector
    of `blocks.describe`: one number per taste column, and one for the length of the profile. `shape` has six
    constants: `profile_spread`, `profile_offset` and `usual_log_profile` for `blocks.describe`, `audience_limit` for
    `blocks.audience_scores`, `factor_limit` for `blocks.factor_scores`, and the offset for `blocks.level_of`.
    """

    offsets: FloatArray  # predicted rating of each item for an average taste, (n_items,)
    rows: FloatArray  # item rows x_j; a prediction is offset + x_jᵀ taste, (n_items, L)
    precisions: FloatArray  # 1 / variance of a rating, given the taste, (n_items,)
    weights: FloatArray  # by which the item's row in bias and audience blocks is multiplied, (n_items,)
    factor_weights: FloatArray  # by which the item's row in factor blocks is multiplied, (n_items,)
    directions: FloatArray  # D; factor blocks contain Dᵀ taste, (L, K)
    description_centre: FloatArray  # mean of the descriptions, (n_columns + 1,)
    description_map: FloatArray  # M whitens descriptions: Mᵀ(description − mean), (n_columns + 1, n_audience)
    taste_columns: FloatArray  # public item columns that a person may like or dislike, (n_items, n_columns)
    shape: FloatArray  # (6,)


@njit(cache=True, nogil=True)
def gp_entries(items, values, held_items, held_values, table, clips):  # type: ignore[no-untyped-def]
    """Return a person's entries of the blocks of a round: a list of one array for each kind of block in `blocks.KINDS`.

    The person rated `items` with `values`. The ratings of `held_items` are held out; only the evaluation block uses
    them. `table` has the `EntryArrays`. `clips` has the clip of each kind of block, and 0 for a kind that the round
    does not have; the array of such a kind is empty. The array of an item block has the rows of the rated items only.
    In `blocks.KINDS`, the curvature block of an item block comes directly after it.
    """
    found = [np.empty(0)] * len(clips)
    one, ones = np.ones(1), np.ones(len(items))
    if clips[COUNTS]:
        found[COUNTS] = ones
    if clips[MOMENTS] or clips[AUDIENCE]:
        shape = table.shape
        description = blocks.describe(items, table.taste_columns, shape[0], shape[1], shape[2])
        if clips[MOMENTS]:
            found[MOMENTS] = blocks.moment_entries(description)
        if clips[AUDIENCE]:
            scores = blocks.audience_scores(description, table.description_centre, table.description_map, shape[3])
            entries = blocks.item_entries(items, ones, table.weights, scores)
            found[AUDIENCE] = entries
            found[AUDIENCE + 1] = blocks.curvature_entries(entries, clips[AUDIENCE], len(items), scores)
    if clips[BIAS] or clips[FACTORS] or clips[PRIOR] or clips[EVALUATION]:
        rows, residuals = table.rows[items], values - table.offsets[items]
        mean, covariance = gp.taste_posterior(rows, residuals, table.precisions[items])
        left = gp.held_out_residuals(rows, residuals, mean, covariance)
        if clips[BIAS]:
            entries = blocks.item_entries(items, left, table.weights, one)
            found[BIAS] = entries
            found[BIAS + 1] = blocks.curvature_entries(entries, clips[BIAS], len(items), one)
        if clips[FACTORS]:
            scores = blocks.factor_scores(mean, table.directions, table.shape[4])
            entries = blocks.item_entries(items, left, table.factor_weights, scores)
            found[FACTORS] = entries
            found[FACTORS + 1] = blocks.curvature_entries(entries, clips[FACTORS], len(items), scores)
        if clips[PRIOR]:
            found[PRIOR] = blocks.prior_entries(mean, covariance)
        if clips[EVALUATION]:
            level, unseen = blocks.level_of(residuals, table.shape[5]), held_values - table.offsets[held_items]
            found[EVALUATION] = blocks.evaluation_entries(table.rows[held_items], unseen, mean, level)
    return found
