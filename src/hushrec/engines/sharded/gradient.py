"""The engine for gradient protocols that divides users into parts, each run by a worker.

Engine `cpu` sums over blocks of users; a part consists of one or more of these blocks. The sums of all blocks are added
in the order of engine `cpu`. User vectors stay with the workers: the engine only holds a reference to the vectors of
each part, and passes the reference to the part's next round.
"""

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines import Remark
from hushrec.engines.cpu.engine import BlockEngine, RoundState
from hushrec.engines.cpu.items import Known
from hushrec.engines.cpu.kernels import Rows, Vectors
from hushrec.engines.cpu.layout import block_borders
from hushrec.engines.cpu.people import People
from hushrec.engines.gradient import GradientProblem
from hushrec.engines.sharded.crew import Crew, MakePart, Part, Worker
from hushrec.models.fm import FactorizationMachine
from hushrec.models.predictor import Arrays
from hushrec.protocols.gradient.device import Draws
from hushrec.protocols.gradient.plausible import check_finite, check_gradients

DTYPE = np.dtype(np.float32)


def _make_worker(part: Part, borders: IntArray) -> Worker:
    return Worker(part, People(part.load(), borders, DTYPE))


def start(worker: Worker) -> tuple[Rows, FloatArray]:
    """Return the vectors of the worker's users before the first round, and zero as each user's privacy loss ρ."""
    return worker.people.initial_vectors(), np.zeros(worker.people.problem.n_users)


def report(worker: Worker, number: int, users: Rows, rho: FloatArray, rows: Rows) -> tuple[Any, ...]:
    """Run round `number` for the users of one part; return their new vectors and the sums of their reports.

    `users` are the user vectors, `rho` is each user's privacy loss ρ, and `rows` are the item rows of
    `Items.kernel_rows`, all before the round. The result is one tuple: the new user vectors, the new privacy losses, a
    pair (whether the new user vectors are finite, the largest norm of error times user vector), the number of gradients
    of each item, and then, for each block of users (`People.borders`), the sums of error times user vector by item. The
    sums stay apart, so that the engine can add floating-point numbers in the same order as engine `cpu`.
    """
    people = worker.people
    shape = len(people.borders) - 1, people.problem.n_items, rows.shape[1]
    sums, counts = np.empty(shape, DTYPE), np.empty(shape[:2], np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        outcome, largest = people.report(people.inputs(number, Vectors(users, rows)), sums, counts)
    finite = bool(np.isfinite(outcome.users).all())
    return outcome.users, rho + outcome.rho, (finite, largest), counts.sum(axis=0), *sums


class ShardedGradientEngine(BlockEngine):
    """The variant of engine `cpu` for gradient protocols that divides the users into parts, one per worker.

    A part consists of one or more groups of consecutive users.
    """

    def __init__(
        self, problem: GradientProblem, crew: Crew, make_part: MakePart, *, remark: Remark | None = None
    ) -> None:
        super().__init__(problem, DTYPE, remark)
        self.crew = crew
        blocks = block_borders(problem)
        n_blocks = len(blocks) - 1
        n_parts = min(n_blocks, crew.n_parts(int(problem.starts[-1])))
        cuts = np.arange(n_parts + 1) * n_blocks // n_parts  # the blocks have about equal work
        self.borders = blocks[cuts]
        self._blocks = np.diff(cuts)
        crew.start(
            _make_worker,
            [(make_part(int(blocks[a]), int(blocks[b])), blocks[a : b + 1] - blocks[a]) for a, b in pairwise(cuts)],
        )
        begun = [crew.ask(part, start, n_results=2) for part in range(n_parts)]
        self._state = RoundState(
            0, self._items.initial_vectors(), [own[0] for own in begun], [own[1] for own in begun], 0
        )

    @property
    def users_of_parts(self) -> list[Any]:
        """For each part, a reference to its user vectors; `Crew.get` returns the vectors, padded with zeros."""
        return list(self._state.users)

    def public(self) -> Arrays:
        """Return the public table after the latest round: a dict with one entry, `item_vectors`."""
        return {"item_vectors": self.item_vectors}

    def run_round(self) -> None:
        self._advance()

    def _report(self, rows: Rows, draws: Mapping[int, Draws] | None) -> tuple[Any, Any, Rows, IntArray, Known]:
        state, number, crew = self._state, self.round_number + 1, self.crew
        shared = crew.share(rows)
        asked = [
            crew.ask(part, report, number, state.users[part], state.rho[part], shared, n_results=4 + n_blocks)
            for part, n_blocks in enumerate(self._blocks.tolist())
        ]
        checks = [crew.get(own[2]) for own in asked]
        check_gradients(number, max(largest for _, largest in checks))
        check_finite(number, np.array([0.0 if finite else np.nan for finite, _ in checks]))
        counts = sum(crew.get(own[3]) for own in asked)
        sums = self._added_up([block for own in asked for block in own[4:]])
        return [own[0] for own in asked], [own[1] for own in asked], sums[None], counts[None], Known.nothing(rows)

    def _whole(self, stored: Any) -> Any:
        return np.concatenate([self.crew.get(part) for part in stored])

    def _stored(self, array: Any) -> Any:
        return [self.crew.share(part) for part in np.split(array, self.borders[1:-1])]

    def _added_up(self, blocks: list[Any]) -> Rows:
        """Return each item's sum of error times user vector over all blocks of users, `(n_items, width)`.

        `blocks` has a reference to the sums of each block. They are added in this order and in the precision of engine
        `cpu`.
        """
        wide = isinstance(self.problem.model, FactorizationMachine)
        total: Rows = np.array(self.crew.get(blocks[0]), np.float64 if wide else np.float32)
        for block in blocks[1:]:
            total += self.crew.get(block)
        return total
