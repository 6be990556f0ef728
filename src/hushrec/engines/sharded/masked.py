"""The engine for the masked protocol that divides people into parts, and adds up the integer sums of the parts."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np

from hushrec.arrays import BoolArray, IntArray
from hushrec.engines import Remark
from hushrec.engines.cpu.masked import CpuMaskedEngine, MaskedPeople, even_work
from hushrec.engines.cpu.masked_kernels import Given
from hushrec.engines.sharded.crew import Crew, MakePart, Part, Worker
from hushrec.protocols.masked.encoding import BlockCode
from hushrec.protocols.masked.plan import Round
from hushrec.simulation.training_problem import AnyProblem


def _make_worker(part: Part) -> Worker:
    return Worker(part, MaskedPeople(part.load()))


def sum_integers(
    worker: Worker, number: int, one: Round, codes: Sequence[BlockCode], table: Any, present: BoolArray
) -> IntArray:
    """Return the sum, before noise, of the integer tables of the worker's people in round `number`.

    `MaskedPeople.sum_integers` explains the arguments.
    """
    found: IntArray = worker.people.sum_integers(number, one, codes, table, present)
    return found


class ShardedMaskedEngine(CpuMaskedEngine):
    """The engine `cpu` for the masked protocol with the people divided into parts, each run by a worker."""

    users_of_parts: ClassVar[None] = None  # under `masked` there are no user vectors

    def __init__(self, problem: AnyProblem, crew: Crew, make_part: MakePart, *, remark: Remark | None = None) -> None:
        super().__init__(problem, remark=remark)
        self.crew = crew
        self.borders = even_work(problem.starts, crew.n_parts(int(problem.starts[-1])))
        crew.start(_make_worker, [(make_part(int(a), int(b)),) for a, b in pairwise(self.borders)])

    def _add_people(
        self, one: Round, codes: Sequence[BlockCode], table: Any, present: BoolArray, given: Given
    ) -> IntArray:
        crew, number = self.crew, self.round_number + 1
        public = crew.share(table)
        asked = [
            crew.ask(part, sum_integers, number, one, codes, public, present[first:stop])
            for part, (first, stop) in enumerate(pairwise(self.borders))
        ]
        total = np.zeros(one.size, np.int64)
        for sums in asked:
            total += crew.get(sums)
        return total
