"""Two-stage randomized response for kernels, 64 items at a time: the same law as `mechanisms.randomized_response`.

An item is drawn where a uniform number of 53 bits lies below its probability. Dense choices compare the two bit by
bit, highest first, for the 64 items of a word at once: a comparison is settled at the first bit that differs, so
that ten random words decide almost all of 64 items. Sparse choices take geometric gaps at the larger of the two
probabilities and thin what they hit.
"""

import math

import numpy as np
from numba import njit

from hushrec.engines.cpu.normal import open_uniform
from hushrec.engines.cpu.philox import FIRST_BLOCK, draw_block, fill_words

BITS = 53  # of a uniform number, as in NumPy
SPARSE = 0.02  # probabilities below it are drawn by gaps
TOGETHER = 4  # items of a word that are listed without a look at how many there are

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_WORD = np.uint64(64)
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _EVERY_BYTE = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_CHUNK = 64  # random words drawn at a time; even
_JOINT = 10  # highest bits that are compared for all items together; even
_REST_BLOCK, _SUBSET_BLOCK = np.int64(2**30), np.int64(2**31)  # far behind the blocks that come first


def threshold(probability: float) -> np.uint64:
    """Return the probability as a multiple of 2^-53, rounded up: a permanent bit is never flipped too rarely."""
    return np.uint64(math.ceil(probability * 2.0**BITS))


@njit(cache=True)
def respond(stream, user, bits, if_zero, if_one, words, out):  # type: ignore[no-untyped-def]
    """Set a bit for each item with the probability that belongs to its bit in `bits`; 64 items to a word.

    `if_zero`, `if_one` are multiples of 2^-53 (`threshold`), `words` is scratch (`scratch_words`).
    """
    n_words = len(bits)
    undecided, random = words[:n_words], words[n_words : (_JOINT + 1) * n_words]
    fill_words(stream, user, FIRST_BLOCK, random)
    _compare_first_bits(bits, if_zero, if_one, random, undecided, out)
    _compare_rest(stream, user, bits, if_zero, if_one, undecided, out)


@njit(cache=True)
def _compare_first_bits(bits, if_zero, if_one, random, undecided, out):  # type: ignore[no-untyped-def]
    """Compare the `_JOINT` highest bits of uniform numbers and probabilities, for all items together."""
    for place in range(len(bits)):
        ones = bits[place]
        drawn = _chance(ones, if_zero, if_one, BITS)  # the bit of weight 1 of a probability: certainty
        lanes = ~drawn
        for step in range(_JOINT):
            chance, word = _chance(ones, if_zero, if_one, BITS - 1 - step), random[step * len(bits) + place]
            drawn |= lanes & chance & ~word
            lanes &= ~(chance ^ word)
        out[place] = drawn
        undecided[place] = lanes


@njit(inline="always")
def _chance(ones, if_zero, if_one, weight):  # type: ignore[no-untyped-def]
    """Return one binary digit of each item's probability, packed 64 items to a word."""
    place = np.uint64(weight)
    return (ones & (_ZERO - ((if_one >> place) & _ONE))) | (~ones & (_ZERO - ((if_zero >> place) & _ONE)))


@njit(cache=True)
def _compare_rest(stream, user, bits, if_zero, if_one, undecided, out):  # type: ignore[no-untyped-def]
    """Settle the few comparisons that the highest bits left open, word by word."""
    block = _REST_BLOCK
    for place in range(len(bits)):
        weight = BITS - _JOINT
        while undecided[place] != _ZERO and weight > 0:
            words = draw_block(stream, user, block)
            block += 1
            for word in words:
                weight -= 1
                if weight >= 0:
                    chance = _chance(bits[place], if_zero, if_one, weight)
                    out[place] |= undecided[place] & chance & ~word
                    undecided[place] &= ~(chance ^ word)


@njit(cache=True)
def scratch_words(n_words):  # type: ignore[no-untyped-def]
    """Return how much scratch a choice among 64 n_words items needs."""
    return max((_JOINT + 1) * n_words, _CHUNK)


@njit(cache=True)
def count_ones(word):  # type: ignore[no-untyped-def]
    """Return how many ones a `uint64` has, by adding neighbours: bits, pairs, fours, and then the eight bytes."""
    word = word - ((word >> _ONE) & _PAIRS)
    word = (word & _FOURS) + ((word >> np.uint64(2)) & _FOURS)
    word = (word + (word >> np.uint64(4))) & _BYTES
    return np.int64((word * _EVERY_BYTE) >> np.uint64(56))


@njit(cache=True)
def lowest_bit(word):  # type: ignore[no-untyped-def]
    """Return the place of the lowest one of a `uint64`; 64 where there is none."""
    return np.uint64(count_ones((word & (~word + _ONE)) - _ONE))


@njit(cache=True)
def list_items(bits, n_items, items):  # type: ignore[no-untyped-def]
    """Write the numbers of the items whose bit is set, in rising order; return how many.

    Of each word the first `TOGETHER` are written whether they are there or not, because most words have about as
    many, and a wrong guess of a loop's end costs more than what it saves: `items` has that much room behind the last.
    """
    count = 0
    for place in range(len(bits)):
        word = bits[place]
        behind = np.int64(64 * (place + 1) - n_items)
        if behind > 0:
            word &= ~_ZERO >> np.uint64(behind)
        n_ones, first = count_ones(word), np.uint64(place) * _WORD
        for number in range(TOGETHER):
            items[count + number] = first + lowest_bit(word)
            word &= word - _ONE
        for number in range(TOGETHER, n_ones):
            items[count + number] = first + lowest_bit(word)
            word &= word - _ONE
        count += n_ones
    return count


@njit(cache=True)
def select_sparse(stream, user, bits, n_items, prob_zero, prob_one, words, items):  # type: ignore[no-untyped-def]
    """Write S^t by geometric gaps at the larger probability and thin the hits; return how many items remain."""
    rate = max(prob_zero, prob_one)
    if rate == 0.0:
        return 0
    per_log = 1.0 / math.log1p(-rate)
    keep_zero, keep_one = prob_zero / rate, prob_one / rate
    count, used, block = 0, _CHUNK, FIRST_BLOCK
    item = -1.0
    while True:
        if used == _CHUNK:
            fill_words(stream, user, block, words[:_CHUNK])
            used, block = 0, block + _CHUNK // 2
        item += 1.0 + math.floor(math.log(open_uniform(words[used])) * per_log)
        if item >= n_items:
            return count
        place = np.uint64(item)
        keep = keep_one if (bits[place // _WORD] >> (place % _WORD)) & _ONE else keep_zero
        if open_uniform(words[used + 1]) < keep:
            items[count] = place
            count += 1
        used += 2


@njit(cache=True, nogil=True)
def fill_permanent(first_user, stop_user, starts, items, caps, flip, stream, bits):  # type: ignore[no-untyped-def]
    """Fill in B' of users with ratings: an item's bit, 1 if rated, flipped with probability f/2 = `flip`.

    Of more than `caps[user]` rated items, as many as that, chosen at random, count as rated.
    """
    for user in range(first_user, stop_user):
        rated = items[starts[user] : starts[user + 1]]
        if len(rated) == 0:
            continue
        words = np.empty(max(scratch_words(bits.shape[1]), len(rated) + 1), np.uint64)
        truth = np.zeros(bits.shape[1], np.uint64)
        _mark_rated(rated, caps[user], stream, user, words, truth)
        respond(stream, user, truth, flip[user], flip[user], words, bits[user])
        for place in range(bits.shape[1]):
            bits[user, place] ^= truth[place]


@njit(cache=True)
def _mark_rated(rated, cap, stream, user, words, truth):  # type: ignore[no-untyped-def]
    """Set the bits of up to `cap` rated items, every choice of that many equally likely (selection sampling)."""
    fill_words(stream, user, _SUBSET_BLOCK, words[: (len(rated) + 1) // 2 * 2])
    wanted = min(cap, len(rated))
    for place in range(len(rated)):
        if open_uniform(words[place]) * (len(rated) - place) < wanted:
            item = np.uint64(rated[place])
            truth[item // _WORD] |= _ONE << (item % _WORD)
            wanted -= 1
