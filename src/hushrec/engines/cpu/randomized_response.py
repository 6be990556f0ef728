"""Two-stage randomized response for compiled kernels, with the distribution of `mechanisms.randomized_response`.

An item is selected with probability p if its permanent bit is 0, and with probability q if it is 1: it is selected if a
uniform number of 53 bits is below that probability. If p or q is large, the uniform number and the probability are
compared bit by bit, highest first, for 64 items at once. The first bit that differs decides, so that ten random words
decide almost all of 64 items. If p and q are small, candidates are drawn with probability max(p, q), by geometric gaps
between them. A candidate is then kept with probability p / max(p, q) or q / max(p, q), depending on its permanent bit.
"""

import math

import numpy as np
from numba import njit

from hushrec.engines.cpu.normal import open_uniform
from hushrec.engines.cpu.philox import FIRST_BLOCK, draw_block, fill_words

BITS = 53  # precision of a uniform number, as in NumPy
SPARSE = 0.02  # smaller probabilities are drawn by geometric gaps
TOGETHER = 4  # number of items that `list_items` writes for each word without a test

_ONE = np.uint64(1)
_ZERO = np.uint64(0)
_WORD = np.uint64(64)
_PAIRS, _FOURS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _EVERY_BYTE = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)
_CHUNK = 64  # random words drawn at a time; even
_JOINT = 10  # number of highest bits that are compared for all items together; even
_REST_BLOCK, _SUBSET_BLOCK = np.int64(2**30), np.int64(2**31)  # far beyond the blocks that other draws use


@njit(inline="always")
def threshold(probability):  # type: ignore[no-untyped-def]
    """Return a probability times 2^53 as `uint64`, rounded up, so that the probability never becomes smaller."""
    return np.uint64(np.ceil(probability * 2.0**BITS))


@njit(cache=True)
def respond(stream, user, bits, prob_zero, prob_one, words, out):  # type: ignore[no-untyped-def]
    """Draw a random bit for each item into `out`, which packs 64 items into a word.

    The bit is 1 with probability `prob_one` if the item's bit in `bits` is 1, and with probability `prob_zero`
    otherwise. `words` is working memory of `scratch_words` words.
    """
    if_zero, if_one = threshold(prob_zero), threshold(prob_one)
    n_words = len(bits)
    undecided, random = words[:n_words], words[n_words : (_JOINT + 1) * n_words]
    fill_words(stream, user, FIRST_BLOCK, random)
    _compare_first_bits(bits, if_zero, if_one, random, undecided, out)
    _compare_rest(stream, user, bits, if_zero, if_one, undecided, out)


@njit(cache=True)
def _compare_first_bits(bits, if_zero, if_one, random, undecided, out):  # type: ignore[no-untyped-def]
    """Compare the `_JOINT` highest bits of each item's uniform number and probability, for 64 items at a time.

    The probabilities `if_zero` and `if_one` are multiples of 2^-53. Set the bit in `out` of each selected item, and the
    bit in `undecided` of each item whose compared bits are equal.
    """
    for place in range(len(bits)):
        ones = bits[place]
        drawn = _chance(ones, if_zero, if_one, BITS)  # the digit of weight 1 is set if the probability is 1
        lanes = ~drawn
        for step in range(_JOINT):
            chance, word = _chance(ones, if_zero, if_one, BITS - 1 - step), random[step * len(bits) + place]
            drawn |= lanes & chance & ~word
            lanes &= ~(chance ^ word)
        out[place] = drawn
        undecided[place] = lanes


@njit(inline="always")
def _chance(ones, if_zero, if_one, weight):  # type: ignore[no-untyped-def]
    """Return bit number `weight` (the lowest is 0) of the probabilities of 64 items, as one word.

    The probability of an item, in multiples of 2^-53, is `if_one` if its bit in `ones` is 1, else `if_zero`.
    """
    place = np.uint64(weight)
    return (ones & (_ZERO - ((if_one >> place) & _ONE))) | (~ones & (_ZERO - ((if_zero >> place) & _ONE)))


@njit(cache=True)
def _compare_rest(stream, user, bits, if_zero, if_one, undecided, out):  # type: ignore[no-untyped-def]
    """Decide the items whose bit in `undecided` is 1, which `_compare_first_bits` left undecided.

    For these items, compare the remaining lower bits of the uniform number and of the item's probability. Set the bit
    in `out` of each selected item. An item is not selected if all bits are equal.
    """
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
    """Return the number of working-memory words that draws for 64 · `n_words` items need."""
    return max((_JOINT + 1) * n_words, _CHUNK)


@njit(cache=True)
def count_ones(word):  # type: ignore[no-untyped-def]
    """Return the number of bits that are 1 in a `uint64`."""
    word = word - ((word >> _ONE) & _PAIRS)
    word = (word & _FOURS) + ((word >> np.uint64(2)) & _FOURS)
    word = (word + (word >> np.uint64(4))) & _BYTES
    return np.int64((word * _EVERY_BYTE) >> np.uint64(56))


@njit(cache=True)
def lowest_bit(word):  # type: ignore[no-untyped-def]
    """Return the position of the lowest bit that is 1 in a `uint64`; 64 if all bits are 0."""
    return np.uint64(count_ones((word & (~word + _ONE)) - _ONE))


@njit(cache=True)
def list_items(bits, n_items, items):  # type: ignore[no-untyped-def]
    """Write the numbers of the items whose bit is set into `items`, ascending; return how many there are.

    For each word, at least `TOGETHER` entries are written even if fewer bits are set, and the next word overwrites the
    surplus: this is faster than a branch that is often mispredicted. `items` must have room for that many extra
    entries.
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
    """Draw the items that a user reports, write them to `items`, ascending, and return the number of items.

    The method is fast for small probabilities: it draws the gaps between candidates from a geometric distribution, and
    then keeps or drops each candidate at random. An item is selected with probability `prob_one` if its permanent bit
    in `bits` is 1, otherwise with `prob_zero`. `words` is working memory of `scratch_words` words.
    """
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
    """Draw the permanent bits of users `first_user` … `stop_user` − 1 into `bits`, which has one row per user.

    User i rated the items `items[starts[i]:starts[i + 1]]`; the row of a user without ratings is left unchanged. The
    bit of an item is 1 if the user rated it, and 0 otherwise; it is then flipped with probability `flip[i]`. If a user
    rated more than `caps[i]` items, only `caps[i]` of them, chosen at random, count as rated.
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
    """Choose `cap` random items of `rated`, or all if there are fewer, and set their bits in `truth` to 1.

    The method is selection sampling. `truth` packs 64 items into a word, and `words` is working memory.
    """
    fill_words(stream, user, _SUBSET_BLOCK, words[: (len(rated) + 1) // 2 * 2])
    wanted = min(cap, len(rated))
    for place in range(len(rated)):
        if open_uniform(words[place]) * (len(rated) - place) < wanted:
            item = np.uint64(rated[place])
            truth[item // _WORD] |= _ONE << (item % _WORD)
            wanted -= 1
