"""Philox4x32-10 for compiled kernels: the counter-based generator of Salmon, Moraes, Dror and Shaw (SC 2011).

A stream is keyed by (seed, purpose, round, user), as everywhere in hushrec: the Philox key is the seed, and the counter
holds the number of the block, the user, the round and the purpose, 32 bits each. A block has 128 random bits. It
depends on its key and counter and on no other block, so that the compiler can compute several at once.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from hushrec.errors import ParameterError

Words = npt.NDArray[np.uint64]

_MULTIPLY_0, _MULTIPLY_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0 = tuple(np.uint64(0x9E3779B9 * number) for number in range(10))  # added to the key, round by round
_WEYL_1 = tuple(np.uint64(0xBB67AE85 * number) for number in range(10))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
FIRST_BLOCK = np.int64(0)  # typed: `fill_words` is compiled once for all blocks


class Stream(NamedTuple):
    """The key of the random streams of one purpose and round. Every field is a `uint64` that holds 32 bits."""

    seed_low: np.uint64
    seed_high: np.uint64
    purpose: np.uint64
    round_number: np.uint64
    first_user: np.uint64  # number, in the whole run, of the user that a kernel counts as 0


def make_stream(seed: int, purpose: int, round_number: int, first_user: int = 0) -> Stream:
    """Return the key of the streams of one purpose and round; `draw_block` adds the user.

    A kernel that runs a part of the users counts its users from 0. `first_user` is the number of the part's first user
    in the whole run, so that a user's stream does not depend on how users are divided into parts.
    """
    if not 0 <= seed < 2**64:
        raise ParameterError(f"seed must be in [0, 2^64), got {seed}.")
    parts = (seed % 2**32, seed >> 32, purpose, round_number, first_user)
    return Stream(*(np.uint64(part) for part in parts))


@njit(inline="always")
def philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """Return one random block, two 64-bit words, from a counter of four 32-bit words and a key of two.

    Every argument is a `uint64` whose lower half is used. The ten rounds are written out, because the compiler
    vectorizes a loop over blocks only if it contains no other loop.
    """
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0, k1)
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _WEYL_0[1], k1 + _WEYL_1[1])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _WEYL_0[2], k1 + _WEYL_1[2])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _WEYL_0[3], k1 + _WEYL_1[3])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _WEYL_0[4], k1 + _WEYL_1[4])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _WEYL_0[5], k1 + _WEYL_1[5])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _WEYL_0[6], k1 + _WEYL_1[6])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _WEYL_0[7], k1 + _WEYL_1[7])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _WEYL_0[8], k1 + _WEYL_1[8])
    c0, c1, c2, c3 = _round(c0, c1, c2, c3, k0 + _WEYL_0[9], k1 + _WEYL_1[9])
    return (c0 & _LOW) | (c1 << _HALF), (c2 & _LOW) | (c3 << _HALF)


@njit(inline="always")
def _round(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    product_0, product_1 = _MULTIPLY_0 * (c0 & _LOW), _MULTIPLY_1 * (c2 & _LOW)
    return (product_1 >> _HALF) ^ c1 ^ k0, product_1, (product_0 >> _HALF) ^ c3 ^ k1, product_0


@njit(inline="always")
def draw_block(stream, user, block):  # type: ignore[no-untyped-def]
    """Return block number `block` of this user's stream: two random 64-bit words."""
    number = stream.first_user + np.uint64(user)
    return philox(np.uint64(block), number, stream.round_number, stream.purpose, stream.seed_low, stream.seed_high)


@njit(cache=True)
def fill_words(stream, user, first_block, words):  # type: ignore[no-untyped-def]
    """Fill `words`, of even length, with random words of this user's stream, from block `first_block` on.

    The first half of `words` gets the first word of each block, and the second half the second word.
    """
    half = len(words) // 2
    for block in range(half):
        words[block], words[half + block] = draw_block(stream, user, first_block + block)
