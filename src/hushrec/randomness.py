"""Random streams: seeded ones for simulation, and cryptographic ones for real devices.

Randomness is always an argument: no code of hushrec draws from a module-level generator.

*Simulated* devices use `SeededRandomness`: counter-based streams keyed by (seed, purpose, round, user), so that neither
the order of reports nor the number of threads changes a result.

*Real* devices use `SystemRandomness`: ChaCha20 streams, each with a new key from the operating system. They take no
seed, and do not use NumPy's generators.
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
    """The purpose of a random stream, which is part of a seeded stream's key. Values are never reused or renumbered.

    Numbers from 1000 on are free for plug-ins, which give them to `Randomness.stream` as plain integers.
    """

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
    """The interface of a random generator, as mechanisms use it: `numpy.random.Generator` or `SystemStream`."""

    def random(self, size: Shape, /) -> FloatArray:
        """Return numbers that are uniform on [0, 1)."""

    def standard_normal(self, size: Shape, /) -> FloatArray:
        """Return normal numbers with mean 0 and variance 1."""

    def integers(self, low: int, high: int, size: Shape, /) -> IntArray:
        """Return integers that are uniform on low, …, high − 1."""

    def bytes(self, length: int, /) -> bytes:
        """Return uniform random bytes."""


class Randomness(Protocol):
    """A source of random streams, one per purpose (a `Purpose` or a plug-in's number) and round, for one device."""

    def stream(self, purpose: int, round_number: int = 0) -> RandomStream: ...


class SeededRandomness:
    """A source of streams keyed by (seed, purpose, round, user), for simulation only."""

    def __init__(self, seed: int, user: int = 0) -> None:
        if not 0 <= seed < 2**64:
            raise ParameterError(f"seed must be in [0, 2^64), got {seed}.")
        self._seed = seed
        self._user = user

    def stream(self, purpose: int, round_number: int = 0) -> np.random.Generator:
        """Return a Philox stream whose key is (seed, purpose).

        The upper half of its counter starts at (round, user), and the lower half at 0.
        """
        key = np.array([self._seed, purpose], dtype=np.uint64)
        counter = np.array([0, 0, round_number, self._user], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=key, counter=counter))


class SystemRandomness:
    """A source of streams with keys from the operating system, for real devices. No seed can be given."""

    def stream(self, purpose: int, round_number: int = 0) -> "SystemStream":
        """Return a new stream with a fresh key; the arguments are ignored."""
        return SystemStream()


class SystemStream:
    """A cryptographic random generator: draws from a ChaCha20 stream whose key is used only once."""

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
        """Return normal numbers: the inverse CDF at random midpoints of 2^52 equal intervals of [0, 1]."""
        words = self._words(int(np.prod(size)))
        return np.asarray(ndtri(((words >> np.uint64(12)) + 0.5) * 2.0**-52)).reshape(size)

    def integers(self, low: int, high: int, size: Shape, /) -> IntArray:
        """Return integers uniform on low, …, high − 1, up to a bias below (high − low) / 2^53."""
        if not low < high <= low + 2**32:
            raise ParameterError(f"high must be above low, by at most 2^32, got a difference of {high - low}.")
        return low + np.floor(self.random(size) * (high - low)).astype(np.int64)
