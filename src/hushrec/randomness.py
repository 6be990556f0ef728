"""Where every random number comes from.

Randomness is an argument everywhere: nothing in hushrec draws from a module-level generator.

*Simulated* clients use `SeededRandomness`: counter-based streams keyed (seed, purpose, round, user), so
that neither the order in which clients answer nor the number of threads changes a result.

*Real* devices use `SystemRandomness`: a ChaCha20 stream whose key comes from the operating system,
fresh for every stream. It takes no seed, and no NumPy generator is involved.
"""

import builtins
import enum
import os
from typing import Protocol

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import ParameterError

Shape = int | tuple[int, ...]


class Purpose(enum.IntEnum):
    """What a stream is used for; part of its key. Values are never reused or renumbered."""

    SPLIT = 1
    REGULARIZATION = 2
    ITEM_VECTORS = 3
    USER_VECTOR = 4
    PERMANENT_BITS = 5
    SELECTION = 6
    FAKE_ERRORS = 7
    GRADIENT_NOISE = 8
    USER_NOISE = 9
    RATING_NOISE = 10
    USER_PAIRS = 11
    SELECTED_PAIRS = 12
    SYNTHETIC = 13
    SUMMED_NOISE = 14
    TABLE_ROUNDING = 15
    NOISE_SHARES = 16
    ABSENCE = 17
    ITEM_SIGNS = 18
    MASK_KEYS = 19
    MASK_SHARES = 20
    SIMULATED_KEYS = 21
    COHORTS = 22
    HELD_OUT = 23


class RandomStream(Protocol):
    """The draws that mechanisms use. `numpy.random.Generator` has them; so has `SystemStream`."""

    def random(self, size: Shape, /) -> FloatArray:
        """Uniform on [0, 1)."""

    def standard_normal(self, size: Shape, /) -> FloatArray:
        """Normal with mean 0 and variance 1."""

    def integers(self, low: int, high: int, size: Shape, /) -> IntArray:
        """Uniform on low, …, high − 1."""

    def bytes(self, length: int, /) -> bytes:
        """Uniform bytes."""


class Randomness(Protocol):
    """Gives one stream per purpose and round. A client holds one of these."""

    def stream(self, purpose: Purpose, round_number: int = 0) -> RandomStream: ...


class SeededRandomness:
    """Streams keyed (seed, purpose, round, user), for simulation only."""

    def __init__(self, seed: int, user: int = 0) -> None:
        if not 0 <= seed < 2**64:
            raise ParameterError(f"seed must be in [0, 2^64), got {seed}.")
        self._seed = seed
        self._user = user

    def stream(self, purpose: Purpose, round_number: int = 0) -> np.random.Generator:
        """A Philox stream: the key holds seed and purpose, the counter's upper half round and user.

        Two streams with different keys never overlap: each would have to draw 2^128 blocks first.
        """
        key = np.array([self._seed, purpose], dtype=np.uint64)
        counter = np.array([0, 0, round_number, self._user], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class SystemRandomness:
    """Streams keyed by the operating system, for real devices. Takes no seed on purpose."""

    def stream(self, purpose: Purpose, round_number: int = 0) -> "SystemStream":
        return SystemStream()


class SystemStream:
    """Uniform, normal and integer draws from ChaCha20 under a key that is used once."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms  # simulations do without it

        algorithm = algorithms.ChaCha20(os.urandom(32), os.urandom(16))
        self._keystream = Cipher(algorithm, mode=None).encryptor()

    def __repr__(self) -> str:
        return "SystemStream()"

    def _words(self, count: int) -> npt.NDArray[np.uint64]:
        return np.frombuffer(self.bytes(8 * count), dtype="<u8").astype(np.uint64)

    def bytes(self, length: int, /) -> bytes:
        return self._keystream.update(builtins.bytes(length))

    def random(self, size: Shape, /) -> FloatArray:
        words = self._words(int(np.prod(size)))
        return ((words >> np.uint64(11)).astype(np.float64) * 2.0**-53).reshape(size)

    def standard_normal(self, size: Shape, /) -> FloatArray:
        """Inverse CDF at the midpoints of 2^52 cells, so that 0 and 1 cannot come up."""
        words = self._words(int(np.prod(size)))
        return np.asarray(ndtri(((words >> np.uint64(12)) + 0.5) * 2.0**-52)).reshape(size)

    def integers(self, low: int, high: int, size: Shape, /) -> IntArray:
        """Multiplies a 53-bit uniform by the span; the bias is below span / 2^53."""
        if not low < high <= low + 2**32:
            raise ParameterError(f"integers needs low < high <= low + 2^32, got a span of {high - low}.")
        return low + np.floor(self.random(size) * (high - low)).astype(np.int64)
