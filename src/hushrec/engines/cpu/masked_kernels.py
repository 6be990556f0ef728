"""Compiled loops over all people in a masked round: entries of blocks, rounding and integer sums.

Entries and integers are computed by the same functions as on a device (`gp_entries` or `audience_entries`,
and `round_block`). Sums of integers do not depend on their order, so that results are bit-identical for any number of
threads.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines.cpu.philox import Stream, draw_block
from hushrec.protocols.masked.audience.entries import audience_entries
from hushrec.protocols.masked.blocks import KINDS
from hushrec.protocols.masked.gp.entries import gp_entries
from hushrec.protocols.masked.plan import ITEM_BLOCKS
from hushrec.protocols.masked.rounding import round_block

IS_ITEM_BLOCK = np.array([name in ITEM_BLOCKS for name in KINDS])

_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


class People(NamedTuple):
    """The ratings of all people; person i has the entries `starts[i]` … `starts[i + 1]` − 1 of `items` and `values`."""

    starts: IntArray  # (n_people + 1,)
    items: IntArray  # ascending for each person
    values: FloatArray  # from 1 to 5
    present: npt.NDArray[np.bool_]  # whether the person's device reports in this round, (n_people,)
    held_starts: IntArray  # these three: the ratings that devices hold out to measure accuracy, in the same form
    held_items: IntArray
    held_values: FloatArray


class Codes(NamedTuple):
    """The encoding of the blocks of a round as integers; every array has one entry per kind of block (`KINDS`)."""

    clips: FloatArray  # C, the clip in the plan; 0 if the round has no block of this kind
    scales: FloatArray  # 1/γ, for the grid γ
    clip_units: FloatArray  # the clip in grid units; lower if people's own budget is smaller than the run's
    limits: IntArray  # the largest squared norm of the integers: Δ², or less for a smaller budget
    offsets: IntArray  # position of the block's first entry in the table of the round


class Given(NamedTuple):
    """The uniform numbers that devices drew for random rounding. Both arrays are empty if the engine draws its own."""

    starts: IntArray  # those of person i begin at `starts[i]`, (n_people + 1,)
    uniforms: FloatArray  # person after person; for each person, block after block


class Target(NamedTuple):
    """The rules by which entries of blocks are rounded to integers, and the sums to which the integers are added."""

    codes: Codes
    stream: Stream  # random numbers for rounding, if `given` is empty
    given: Given
    sums: IntArray  # one vector for all blocks of a round


@njit(cache=True, nogil=True)
def add_people(first, stop, people, table, target):  # type: ignore[no-untyped-def]
    """Add the integer tables of people `first` … `stop` − 1, without noise, to `target.sums`, under model `gp`.

    `people` has the ratings of all people, `table` the `EntryArrays` of the model, and `target` the rules for rounding.
    """
    for person in range(first, stop):
        begin, end = people.starts[person], people.starts[person + 1]
        if begin == end or not people.present[person]:
            continue  # the device is absent, or its table is all zeros
        items, held = people.items[begin:end], slice(people.held_starts[person], people.held_starts[person + 1])
        unseen = people.held_items[held], people.held_values[held]
        entries = gp_entries(items, people.values[begin:end], unseen[0], unseen[1], table, target.codes.clips)
        _add_blocks(entries, items, person, target)


@njit(cache=True, nogil=True)
def add_choosers(first, stop, people, table, target):  # type: ignore[no-untyped-def]
    """Add the integer tables of people `first` … `stop` − 1 to `target.sums`, without noise, under model `audience`.

    `table` has the arrays for model `audience`; `add_people` explains the other arguments.
    """
    for person in range(first, stop):
        begin, end = people.starts[person], people.starts[person + 1]
        if begin == end or not people.present[person]:
            continue
        items = people.items[begin:end]
        _add_blocks(audience_entries(items, table, target.codes.clips), items, person, target)


@njit(cache=True, nogil=True)
def _add_blocks(blocks, items, person, target):  # type: ignore[no-untyped-def]
    """Round one person's entries of each block, and add them to the sums of `target`.

    `blocks` is a list of the entries, as `gp_entries` returns it. `person` is the person's number.
    """
    codes, given, sums = target.codes, target.given, target.sums
    n_drawn, n_given = 0, 0  # random blocks and given uniforms used so far
    for kind in range(len(blocks)):
        if not codes.clips[kind]:
            continue
        entries = blocks[kind]
        count = len(entries)
        uniforms = np.empty(count)
        if len(given.starts):
            start = given.starts[person] + n_given
            for k in range(count):
                uniforms[k] = given.uniforms[start + k]
            n_given += count
        else:
            n_drawn = _fill_uniforms(target.stream, person, n_drawn, uniforms)
        rounded = np.empty(count, np.int64)
        round_block(entries, uniforms, codes.scales[kind], codes.clip_units[kind], codes.limits[kind], rounded)
        offset = codes.offsets[kind]
        if IS_ITEM_BLOCK[kind]:
            width = count // len(items)
            for i in range(len(items)):
                place = offset + np.int64(items[i]) * width
                for k in range(width):
                    sums[place + k] += rounded[i * width + k]
        else:
            for k in range(count):
                sums[offset + k] += rounded[k]


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
