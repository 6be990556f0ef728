"""Two-stage randomized response for kernels, 64 items at a time: the same law as `mechanisms.randomized_response`.

An item is drawn where a uniform number of 53 bits lies below its probability. Dense choices compare the two bit by
bit, highest first, for the 64 items of a word at once: a comparison is settled at the first bit that differs, so
that eight random words decide 64 items on average. Sparse choices take geometric gaps at the larger of the two
probabilities and thin what they hit.
"""

import math

import numpy as np
from numba import njit

from hushrec.engines.normal import open_uniform
from hushrec.engines.philox import fill_words

BITS = 53  # of a uniform number, as in NumPy
SPARSE = 0.02  # probabilities below it are drawn by gaps

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_WORD = np.uint64(64)
_CHUNK = 512  # random words drawn at a time; even
_SUBSET_BLOCK = 2**31  # far behind the blocks that the bits themselves use


def threshold(probability: float) -> np.uint64:
    """The probability as a multiple of 2^-53, rounded up: a permanent bit is never flipped too rarely."""
    return np.uint64(math.ceil(probability * 2.0**BITS))


@njit(cache=True)
def lowest_bit(word):  # type: ignore[no-untyped-def]
    """The place of the lowest one of a word that is not zero."""
    return _count_ones((word & (~word + _ONE)) - _ONE)


@njit(cache=True)
def _count_ones(word):  # type: ignore[no-untyped-def]
    word = word - ((word >> np.uint64(1)) & np.uint64(0x5555555555555555))
    word = (word & np.uint64(0x3333333333333333)) + ((word >> np.uint64(2)) & np.uint64(0x3333333333333333))
    word = (word + (word >> np.uint64(4))) & np.uint64(0x0F0F0F0F0F0F0F0F)
    return (word * np.uint64(0x0101010101010101)) >> np.uint64(56)


@njit(cache=True)
def respond(stream, user, bits, if_zero, if_one, words, out):  # type: ignore[no-untyped-def]
    """For each item of `bits`, a one with the probability that goes with its bit; 64 items to a word.

    `if_zero`, `if_one` are multiples of 2^-53 (`threshold`), `words` is scratch of `_CHUNK` words.
    """
    used, block = _CHUNK, 0
    for place in range(len(bits)):
        ones = bits[place]
        # The bit of weight 1 of a probability is set for certainty alone.
        drawn = (ones if if_one >> np.uint64(BITS) else _ZERO) | (~ones if if_zero >> np.uint64(BITS) else _ZERO)
        open_lanes = ~drawn
        weight = np.uint64(BITS)
        while open_lanes != _ZERO and weight > _ZERO:
            weight -= _ONE
            if used == _CHUNK:
                fill_words(stream, user, block, words[:_CHUNK])
                used, block = 0, block + _CHUNK // 2
            random = words[used]
            used += 1
            chance = (ones & (_ZERO - ((if_one >> weight) & _ONE))) | (~ones & (_ZERO - ((if_zero >> weight) & _ONE)))
            drawn |= open_lanes & chance & ~random
            open_lanes &= ~(chance ^ random)
        out[place] = drawn


@njit(cache=True)
def list_items(bits, n_items, items):  # type: ignore[no-untyped-def]
    """Writes the numbers of the items whose bit is set, rising; returns how many."""
    count = 0
    for place in range(len(bits)):
        word = bits[place]
        while word != _ZERO:
            item = np.uint64(place) * _WORD + lowest_bit(word)
            if item >= n_items:
                break
            items[count] = item
            count += 1
            word &= word - _ONE
    return count


@njit(cache=True)
def select_sparse(stream, user, bits, n_items, prob_zero, prob_one, words, items):  # type: ignore[no-untyped-def]
    """S^t by geometric gaps at the larger probability, each hit kept with its own share of it; returns how many."""
    rate = max(prob_zero, prob_one)
    if rate == 0.0:
        return 0
    per_log = 1.0 / math.log1p(-rate)
    keep_zero, keep_one = prob_zero / rate, prob_one / rate
    count, used, block = 0, _CHUNK, 0
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
    """B' of these users, where they have ratings: the bit of an item, 1 if rated, flipped with probability f/2, `flip`.

    Of more than `caps[user]` rated items, as many as that, chosen at random, count as rated.
    """
    for user in range(first_user, stop_user):
        rated = items[starts[user] : starts[user + 1]]
        if len(rated) == 0:
            continue
        words = np.empty(max(_CHUNK, len(rated) + 1), np.uint64)
        truth = np.zeros(bits.shape[1], np.uint64)
        _mark_rated(rated, caps[user], stream, user, words, truth)
        respond(stream, user, truth, flip[user], flip[user], words, bits[user])
        for place in range(bits.shape[1]):
            bits[user, place] ^= truth[place]


@njit(cache=True)
def _mark_rated(rated, cap, stream, user, words, truth):  # type: ignore[no-untyped-def]
    """Sets the bits of up to `cap` rated items, every choice of that many equally likely (selection sampling)."""
    fill_words(stream, user, _SUBSET_BLOCK, words[: (len(rated) + 1) // 2 * 2])
    wanted = min(cap, len(rated))
    for place in range(len(rated)):
        if open_uniform(words[place]) * (len(rated) - place) < wanted:
            item = np.uint64(rated[place])
            truth[item // _WORD] |= _ONE << (item % _WORD)
            wanted -= 1
