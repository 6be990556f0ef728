"""Record a training run of `masked`: the public tables that the server publishes, and the noisy sums that it sees."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.protocols.masked.encoding import BlockCode, Table, encode_block
from hushrec.protocols.masked.learning import Learning
from hushrec.protocols.masked.plan import Block, Round
from hushrec.randomness import RandomStream
from hushrec.simulation.training_problem import AnyProblem

Profile = tuple[IntArray, FloatArray]  # items in increasing order, and ratings on 1 to 5
# The tables of one device in a run, as integers before noise: a sparse vector for each block of `SeenRun.blocks`.
PersonTables = list["csr_array[Any]"]


class SeenBlock(NamedTuple):
    """One block of one round: its encoding (`code`), the noise in its sum, and the number of devices (`survivors`)."""

    round_number: int
    block: Block
    code: BlockCode
    noise: IntArray  # the sum minus everybody's integers, (size,)
    survivors: int

    @property
    def variance(self) -> float:
        """The variance that the sum's noise has by the protocol, in squared grid units; 0 without noise."""
        return float(self.survivors * self.code.share_variance)


class SeenRound(NamedTuple):
    """One round: its entry in the plan (`one`), the public table that devices received, and the recorded blocks."""

    one: Round
    table: Any
    blocks: tuple[SeenBlock, ...]


@dataclass(frozen=True, eq=False)
class SeenRun:
    """All rounds of one recorded run."""

    rounds: tuple[SeenRound, ...] = field(repr=False)
    learning: Learning = field(repr=False)  # the public algorithm with which devices compute their tables

    @property
    def blocks(self) -> list[SeenBlock]:
        return [block for one in self.rounds for block in one.blocks]

    def only(self, *names: str) -> "SeenRun":
        """Return the run restricted to the rounds with a block of one of these names; a round keeps all its blocks."""
        kept = [one for one in self.rounds if {block.name for block in one.one.blocks} & set(names)]
        return SeenRun(tuple(kept), self.learning)

    def with_tables(self, change: Callable[[Any], Any]) -> "SeenRun":
        """Return the run with `change` applied to every public table, as a malicious server could publish them."""
        return SeenRun(tuple(one._replace(table=change(one.table)) for one in self.rounds), self.learning)

    def with_codes(self, codes: Sequence[Sequence[BlockCode]]) -> "SeenRun":
        """Return the run with these encodings of its blocks; `codes` has one sequence of `BlockCode` per round."""
        rounds = [
            one._replace(blocks=tuple(b._replace(code=code) for b, code in zip(one.blocks, own, strict=True)))
            for one, own in zip(self.rounds, codes, strict=True)
        ]
        return SeenRun(tuple(rounds), self.learning)

    def tables(self, profile: Profile, *, rng: RandomStream) -> PersonTables:
        """Return the tables of a device with this profile in all rounds, rounded to integers and without noise."""
        found = []
        for seen in self.rounds:
            entries = self.learning.entries(seen.one.blocks, seen.table, *profile)
            for block, own in zip(seen.blocks, entries, strict=True):
                found.append(csr_array(encode_block(block.code, *own, rounding=rng)))
        return found


def difference_of(first: PersonTables, second: PersonTables) -> PersonTables:
    """Return `first` minus `second`, block by block."""
    return [one - other for one, other in zip(first, second, strict=True)]


class _WatchedEngine(CpuMaskedEngine):
    """The training engine of `masked`, which also records each round's public table and the noise in its sums."""

    def __init__(self, problem: AnyProblem) -> None:
        super().__init__(problem)
        self.seen: list[SeenRound] = []

    def sum_tables(self, one: Round, table: Any, present: BoolArray) -> list[Table]:
        codes, number = self.priced.codes[self.round_number], self.round_number + 1
        totals = super().sum_tables(one, table, present)
        exact = self.sum_integers(one, codes, table, present)
        survivors = int(np.count_nonzero(present))
        sums = zip(totals, exact, strict=True)
        noise = [(total - own.astype(np.uint32)).view(np.int32).astype(np.int64) for total, own in sums]  # modulo 2³²
        parts = zip(one.blocks, codes, noise, strict=True)
        blocks = tuple(SeenBlock(number, *part, survivors) for part in parts)
        self.seen.append(SeenRound(one, table, blocks))
        return totals


def watch(problem: AnyProblem) -> tuple[SeenRun, CpuMaskedEngine]:
    """Train for all rounds; return the recorded run and the trained engine."""
    engine = _WatchedEngine(problem)
    for _ in range(problem.terms.max_rounds):
        engine.run_round()
    return SeenRun(tuple(engine.seen), engine.learning), engine
