"""One device's part of a masked round: from the public table and its own ratings to the entries of every block."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.protocols.masked.constants import CONSTANTS, Constants
from hushrec.protocols.masked.evaluation import COUNT_UNIT, LARGEST_SQUARED_ERROR, LEVEL_OFFSET, NO_RATINGS, Held
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

LOWEST, HIGHEST = 1.0, 5.0  # of a rating, once it is mapped


class Entries(NamedTuple):
    """The entries of one block that are not zero: where they are in the flattened block, or None for all of it."""

    values: FloatArray
    positions: IntArray | None


def check_profile(items: IntArray, values: FloatArray, n_items: int) -> None:
    """Refuse a profile that is no map from items of the catalogue to ratings: an item twice would be priced once."""
    if len(items) != len(values) or np.any(np.diff(items) <= 0):
        raise ParameterError("items of a profile must be rising, each named once, with one rating each.")
    if len(items) and not (items[0] >= 0 and items[-1] < n_items):
        raise ParameterError(f"items of a profile must be among the {n_items} of the catalogue.")
    if not np.all((values >= LOWEST) & (values <= HIGHEST)):
        raise ParameterError(f"ratings of a profile must lie in {LOWEST:g} to {HIGHEST:g}.")


def round_entries(
    blocks: Sequence[Block],
    table: PublicTable,
    taste_columns: FloatArray,
    items: IntArray,
    values: FloatArray,
    held: Held = NO_RATINGS,
    constants: Constants = CONSTANTS,
) -> list[Entries]:
    """Return what this device puts into each block of a round, before clipping. Private.

    `held` are ratings that only the evaluation block is made of. An empty profile gives exact zeros, before any formula
    is evaluated.
    """
    from hushrec.models import gp  # compiled: imported where it is used
    from hushrec.protocols.masked import blocks as block_maths

    check_profile(items, values, table.n_items)
    if len(taste_columns) != table.n_items:
        raise RemoteProtocolError(f"taste columns must have one row for each of the {table.n_items} items.")
    if len(items) == 0:
        return [Entries(np.zeros(block.size), None) for block in blocks]
    names = [block.name for block in blocks]
    found: dict[str, Entries] = {}

    def add_items(name: str, own: FloatArray, weights: FloatArray, scores: FloatArray) -> None:
        entries = block_maths.item_entries(items, own, weights, scores)
        places = (items[:, None] * len(scores) + np.arange(len(scores))).ravel()
        found[name] = Entries(entries, places)
        clip = next(block.clip for block in blocks if block.name == name)
        curvature = block_maths.curvature_entries(block_maths.norm_of(entries), clip, len(items), scores)
        found[curvature_of(name)] = Entries(curvature, None)

    ones = np.ones(len(items))
    if COUNTS in names:
        found[COUNTS] = Entries(ones, items)
    if MOMENTS in names or AUDIENCE in names:
        description = block_maths.describe(
            items, taste_columns, constants.profile_spread, constants.profile_offset, constants.usual_log_profile
        )
        if MOMENTS in names:
            found[MOMENTS] = Entries(block_maths.moment_entries(description), None)
        if AUDIENCE in names:
            scores = block_maths.audience_scores(
                description, table.description_centre, table.description_map, constants.audience_limit
            )
            add_items(AUDIENCE, ones, table.weights, scores)
    if {BIAS, FACTORS, PRIOR, EVALUATION} & set(names):
        rows, residuals = table.rows[items], values - table.offsets[items]
        mean, covariance = gp.taste_posterior(rows, residuals, 1 / table.variances[items])
        left = gp.held_out_residuals(rows, residuals, mean, covariance)
        if BIAS in names:
            add_items(BIAS, left, table.weights, np.ones(1))
        if FACTORS in names:
            scores = block_maths.factor_scores(mean, table.directions, constants.factor_limit)
            add_items(FACTORS, left, table.factor_weights, scores)
        if PRIOR in names:
            found[PRIOR] = Entries(block_maths.prior_entries(mean, covariance), None)
        if EVALUATION in names:
            unseen = held.values - table.offsets[held.items]
            level = block_maths.level_of(residuals, LEVEL_OFFSET)
            entries = block_maths.evaluation_entries(
                table.rows[held.items], unseen, mean, level, LARGEST_SQUARED_ERROR, COUNT_UNIT
            )
            found[EVALUATION] = Entries(entries, None)
    return [found[name] for name in names]
