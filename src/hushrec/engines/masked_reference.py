"""The masked protocol with one device after the other: entries, integers and noise shares as every device makes them.

Masks cancel in the sum and are left out here; `hushrec.protocols.masked.secagg` runs them.
"""

from typing import Any, ClassVar, NamedTuple

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines import Remark
from hushrec.engines.masked_run import MaskedRun
from hushrec.protocols.configured import BoolArray
from hushrec.protocols.masked.device import Entries
from hushrec.protocols.masked.encoding import Table, add_share, encode_block
from hushrec.protocols.masked.plan import Round
from hushrec.randomness import Purpose, SeededRandomness, Shape
from hushrec.simulation.training_problem import AnyProblem


class Recorded(NamedTuple):
    """What one device drew and made in one round. Private: kept for tests alone."""

    uniforms: FloatArray  # of all blocks, one after the other
    integers: list[IntArray]  # of each block, before noise


class MaskedReferenceEngine(MaskedRun):
    """One device after the other. `recorded[round - 1]` keeps what each one drew, when asked to."""

    name: ClassVar[str] = "reference"

    def __init__(self, problem: AnyProblem, *, remark: Remark | None = None, record: bool = False) -> None:
        super().__init__(problem)
        self.recorded: list[dict[int, Recorded]] | None = [] if record else None

    def sum_tables(self, one: Round, table: Any, present: BoolArray) -> list[Table]:
        codes = self.priced.codes[self.round_number]
        totals = [np.zeros(code.size, np.uint32) for code in codes]
        recorded: dict[int, Recorded] = {}
        for user in np.flatnonzero(present):
            randomness = SeededRandomness(self.problem.seed, int(user))
            rounding = _Recording(randomness.stream(Purpose.TABLE_ROUNDING, self.round_number + 1))
            noise = randomness.stream(Purpose.NOISE_SHARES, self.round_number + 1)
            entries = self.entries(one, table, int(user))
            integers = [
                encode_block(code, own.values, own.positions, rounding=rounding)
                for code, own in zip(codes, entries, strict=True)
            ]
            for total, code, own in zip(totals, codes, integers, strict=True):
                total += add_share(code, own, noise=noise)
            recorded[int(user)] = Recorded(np.concatenate(rounding.drawn), integers)
        if self.recorded is not None:
            self.recorded.append(recorded)
        return totals

    def entries(self, one: Round, table: Any, user: int) -> list[Entries]:
        """What this person's device puts into the blocks of a round, before clipping."""
        problem = self.problem
        own = slice(problem.starts[user], problem.starts[user + 1])
        return self.learning.entries(one.blocks, table, problem.items[own], problem.values[own])


class _Recording:
    """A stream that remembers its uniforms."""

    def __init__(self, stream: np.random.Generator) -> None:
        self._stream, self.drawn = stream, list[FloatArray]()

    def random(self, size: Shape, /) -> FloatArray:
        self.drawn.append(self._stream.random(size))
        return self.drawn[-1]

    def standard_normal(self, size: Shape, /) -> FloatArray:
        return self._stream.standard_normal(size)

    def integers(self, low: int, high: int, size: Shape, /) -> IntArray:
        return self._stream.integers(low, high, size)

    def bytes(self, length: int, /) -> bytes:
        return self._stream.bytes(length)
