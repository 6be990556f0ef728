"""Philox4x32-10 for kernels: the counter-based generator of Salmon, Moraes, Dror and Shaw (SC 2011), in Numba.

A stream is keyed (seed, purpose, round, user), as everywhere in hushrec: the key is the seed, and the counter holds
the number of the block, the user, the round and the purpose, 32 bits each. A block is 128 random bits.
Blocks depend on nothing but their counter, so the compiler computes several at once.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import njit

from hushrec.errors import ParameterError

Words = npt.NDArray[np.uint64]

_MULTIPLY_0, _MULTIPLY_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL_0, _WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
N_ROUNDS = 10


class Stream(NamedTuple):
    """Names one stream; every field is a `uint64` that holds 32 bits."""

    seed_low: np.uint64
    seed_high: np.uint64
    purpose: np.uint64
    round_number: np.uint64


def make_stream(seed: int, purpose: int, round_number: int) -> Stream:
    """The streams of one purpose and round; the user is added where words are drawn."""
    if not 0 <= seed < 2**64:
        raise ParameterError(f"seed must be in [0, 2^64), got {seed}.")
    parts = (seed % 2**32, seed >> 32, purpose, round_number)
    return Stream(*(np.uint64(part) for part in parts))


@njit(cache=True)
def philox(c0, c1, c2, c3, k0, k1):  # type: ignore[no-untyped-def]
    """One block: four words of 32 bits, each in a `uint64`, from a counter of four words and a key of two."""
    for _ in range(N_ROUNDS):
        product_0, product_1 = _MULTIPLY_0 * c0, _MULTIPLY_1 * c2
        c0, c1, c2, c3 = (
            (product_1 >> _HALF) ^ c1 ^ k0,
            product_1 & _LOW,
            (product_0 >> _HALF) ^ c3 ^ k1,
            product_0 & _LOW,
        )
        k0, k1 = (k0 + _WEYL_0) & _LOW, (k1 + _WEYL_1) & _LOW
    return c0, c1, c2, c3


@njit(cache=True)
def fill_words(stream, user, first_block, words):  # type: ignore[no-untyped-def]
    """Fills `words` (an even number of `uint64`) from the stream of this user, from block `first_block` on."""
    owner, start = np.uint64(user), np.uint64(first_block)
    for block in range(len(words) // 2):
        c0, c1, c2, c3 = philox(
            start + np.uint64(block),
            owner,
            stream.round_number,
            stream.purpose,
            stream.seed_low,
            stream.seed_high,
        )
        words[2 * block] = c0 | (c1 << _HALF)
        words[2 * block + 1] = c2 | (c3 << _HALF)
