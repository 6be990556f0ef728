"""Compiled loops over all people in a masked round of model `gp`: entries of blocks, rounding and integer sums.

Entries and integers are computed by the same functions as on a device (`hushrec.protocols.masked.blocks`,
`hushrec.models.gp`, `hushrec.protocols.masked.rounding`). Sums of integers do not depend on their order, so that
results are bit-identical for any number of threads.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines.cpu.philox import Stream, draw_block
from hushrec.models import gp
from hushrec.protocols.masked import blocks
from hushrec.protocols.masked.rounding import round_block

# Index of each kind of block in `Codes`. NumPy integers, because Numba would compile anew for each Python integer.
COUNTS, MOMENTS, AUDIENCE, AUDIENCE_CURVATURE, BIAS, BIAS_CURVATURE, FACTORS, FACTORS_CURVATURE, PRIOR, EVALUATION = (
    np.arange(10)
)
KINDS = 10
IN_ORDER, ONE_PER_ITEM = np.int64(0), np.int64(1)  # special values of `width` in `add_block`

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


class People(NamedTuple):
    """The ratings of all people; person i has the entries `starts[i]` … `starts[i + 1]` − 1 of `items` and `values`."""

    starts: IntArray  # (n_people + 1,)
    items: IntArray  # ascending for each person
    values: FloatArray  # from 1 to 5
    present: npt.NDArray[np.bool_]  # whose devices report in this round, (n_people,)
    held_starts: IntArray  # of the ratings that devices hold out to measure accuracy, in the same form
    held_items: IntArray
    held_values: FloatArray


class Codes(NamedTuple):
    """How the blocks of a round are encoded as integers; every array is indexed by the kind of block."""

    wanted: npt.NDArray[np.bool_]  # whether the round has a block of this kind, (KINDS,), like all fields
    clips: FloatArray  # C, the clip in the plan
    scales: FloatArray  # 1/γ, for the grid γ
    clip_units: FloatArray  # the clip in grid units; lower if people's own budget is smaller than the run's
    limits: IntArray  # the largest squared norm of the integers: Δ², or less for a smaller budget
    offsets: IntArray  # position of the block's first entry in the table of the round


class Table(NamedTuple):
    """The arrays of the public table, and constants, from which the entries of a person's blocks are computed.

    In the shapes, L is the length of a person's taste, K the number of taste directions in the factor block, n_columns
    the number of taste columns, and n_audience the length of a row of the audience block. A description is the vector
    of `blocks.describe`: one number per taste column, and one for the length of the profile.
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
    # Five constants: profile_spread, profile_offset and usual_log_profile, which are arguments of `blocks.describe`;
    # audience_limit, of `blocks.audience_scores`; factor_limit, of `blocks.factor_scores`
    shape: FloatArray


class Given(NamedTuple):
    """The uniform numbers that devices drew for random rounding. Both arrays are empty if the engine draws its own."""

    starts: IntArray  # those of person i begin at `starts[i]`, (n_people + 1,)
    uniforms: FloatArray  # person after person; for each person, in the order in which `add_people` adds the blocks


class Target(NamedTuple):
    """How the entries of blocks are rounded to integers, and where the integers are added."""

    codes: Codes
    stream: Stream  # random numbers for rounding, if `given` is empty
    given: Given
    sums: IntArray  # one vector for all blocks of a round


@njit(cache=True, nogil=True)
def add_people(first, stop, people, table, target):  # type: ignore[no-untyped-def]
    """Add the integer tables of people `first` … `stop` − 1, without noise, to the sums of `target`.

    `table` has the arrays from which entries are computed.
    """
    codes = target.codes
    for person in range(first, stop):
        begin, end = people.starts[person], people.starts[person + 1]
        if begin == end or not people.present[person]:
            continue  # an empty profile sends exact zeros
        items = people.items[begin:end]
        state = np.zeros(2, np.int64)  # random blocks used so far, given uniforms used so far
        if codes.wanted[COUNTS]:
            add_block(COUNTS, np.ones(len(items)), items, ONE_PER_ITEM, person, target, state)
        if codes.wanted[MOMENTS] or codes.wanted[AUDIENCE]:
            _add_description(items, person, table, target, state)
        if codes.wanted[BIAS] or codes.wanted[FACTORS] or codes.wanted[PRIOR] or codes.wanted[EVALUATION]:
            values = people.values[begin:end]
            held = slice(people.held_starts[person], people.held_starts[person + 1])
            unseen = people.held_items[held], people.held_values[held]
            _add_taste(items, values, unseen, person, table, target, state)


@njit(cache=True, nogil=True)
def _add_description(items, person, table, target, state):  # type: ignore[no-untyped-def]
    codes, shape = target.codes, table.shape
    description = blocks.describe(items, table.taste_columns, shape[0], shape[1], shape[2])
    if codes.wanted[MOMENTS]:
        entries = blocks.moment_entries(description)
        add_block(MOMENTS, entries, items, IN_ORDER, person, target, state)
    if codes.wanted[AUDIENCE]:
        scores = blocks.audience_scores(description, table.description_centre, table.description_map, shape[3])
        ones = np.ones(len(items))
        _add_items(AUDIENCE, items, ones, table.weights, scores, person, target, state)


@njit(cache=True, nogil=True)
def _add_taste(items, values, unseen, person, table, target, state):  # type: ignore[no-untyped-def]
    codes, rows = target.codes, np.empty((len(items), table.rows.shape[1]))
    residuals, precisions = np.empty(len(items)), np.empty(len(items))
    for i in range(len(items)):
        for k in range(rows.shape[1]):
            rows[i, k] = table.rows[items[i], k]
        residuals[i] = values[i] - table.offsets[items[i]]
        precisions[i] = table.precisions[items[i]]
    mean, covariance = gp.taste_posterior(rows, residuals, precisions)
    if codes.wanted[BIAS] or codes.wanted[FACTORS]:
        left = gp.held_out_residuals(rows, residuals, mean, covariance)
        if codes.wanted[BIAS]:
            one = np.ones(1)
            _add_items(BIAS, items, left, table.weights, one, person, target, state)
        if codes.wanted[FACTORS]:
            scores = blocks.factor_scores(mean, table.directions, table.shape[4])
            _add_items(FACTORS, items, left, table.factor_weights, scores, person, target, state)
    if codes.wanted[PRIOR]:
        entries = blocks.prior_entries(mean, covariance)
        add_block(PRIOR, entries, items, IN_ORDER, person, target, state)
    if codes.wanted[EVALUATION]:
        held_items, held_values = unseen
        entries = blocks.evaluation_entries(
            table.rows[held_items],
            held_values - table.offsets[held_items],
            mean,
            blocks.level_of(residuals),
        )
        add_block(EVALUATION, entries, items, IN_ORDER, person, target, state)


@njit(cache=True, nogil=True)
def _add_items(kind, items, values, weights, scores, person, target, state):  # type: ignore[no-untyped-def]
    """Add one person's item block of this `kind`, and then its curvature block, to the sums of `target`.

    The row of item j is the vector `scores`, which is the same for all items of the person, times the item's entry of
    `values` times weights[j]. `add_block` explains the other arguments.
    """
    entries = blocks.item_entries(items, values, weights, scores)
    norm = blocks.norm_of(entries)
    add_block(kind, entries, items, len(scores), person, target, state)
    curvature = blocks.curvature_entries(norm, target.codes.clips[kind], len(items), scores)
    add_block(kind + 1, curvature, items, IN_ORDER, person, target, state)


@njit(cache=True, nogil=True)
def add_block(kind, entries, items, width, person, target, state):  # type: ignore[no-untyped-def]
    """Round one person's entries of a block of this `kind` to integers, and add them to the sums of `target`.

    `person` is the person's number. With `width` 0 the entries are added in order; otherwise each item of `items` has
    `width` entries, added at its row. `state` has two counts of what this person's rounding has used so far, and is
    updated: 128-bit outputs of the random stream, and numbers of `target.given`.
    """
    count, codes, given, sums = len(entries), target.codes, target.given, target.sums
    uniforms = np.empty(count)
    if len(given.starts):
        start = given.starts[person] + state[1]
        for k in range(count):
            uniforms[k] = given.uniforms[start + k]
        state[1] += count
    else:
        state[0] = _fill_uniforms(target.stream, person, state[0], uniforms)
    rounded = np.empty(count, np.int64)
    round_block(entries, uniforms, codes.scales[kind], codes.clip_units[kind], codes.limits[kind], rounded)
    offset = codes.offsets[kind]
    if width == 0:
        for k in range(count):
            sums[offset + k] += rounded[k]
    else:
        for i in range(len(items)):
            place = offset + np.int64(items[i]) * width
            for k in range(width):
                sums[place + k] += rounded[i * width + k]


@njit(cache=True, nogil=True)
def _fill_uniforms(stream, person, block, out):  # type: ignore[no-untyped-def]
    """Fill `out` with uniform multiples of 2⁻³² in [0, 1), four from each 128-bit block of the random stream.

    `block` is the number of the first block to use. Return the number of the next unused block.
    """
    count = len(out)
    for place in range(0, count, 4):
        first, second = draw_block(stream, person, block)
        block += 1
        out[place] = (first & _LOW) * 2.0**-32
        if place + 1 < count:
            out[place + 1] = (first >> _HALF) * 2.0**-32
        if place + 2 < count:
            out[place + 2] = (second & _LOW) * 2.0**-32
        if place + 3 < count:
            out[place + 3] = (second >> _HALF) * 2.0**-32
    return block
