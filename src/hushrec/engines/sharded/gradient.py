"""The engine for gradient protocols that divides users into parts; a part has some of engine `cpu`'s blocks of users.

The sums of all blocks are added in the same order as in engine `cpu`. User vectors stay with the workers: the vectors
of a part after one round are an argument of its next round.
"""

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines import Remark, State, check_rounds_left
from hushrec.engines.cpu.items import NOTHING_KNOWN, Items
from hushrec.engines.cpu.kernels import Rows, Vectors
from hushrec.engines.cpu.layout import block_borders
from hushrec.engines.cpu.people import People
from hushrec.engines.gradient import GradientEngine, GradientProblem
from hushrec.engines.sharded.crew import Crew, InMemory, MakePart, Part
from hushrec.errors import ParameterError
from hushrec.models.fm import FactorizationMachine
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols.gradient.plausible import check_finite, check_gradients, check_item_vectors
from hushrec.protocols.gradient.prediction import Predictions

DTYPE = np.dtype(np.float32)


@dataclass(frozen=True)
class GradientWorker:
    """A worker for one part of the users. It caches only permanent bits, which can be drawn again from the seed."""

    part: Part
    people: People

    @classmethod
    def make(cls, part: Part, borders: IntArray) -> "GradientWorker":
        return cls(part, People(part.load(), borders, DTYPE))

    @staticmethod
    def predictor(problem: GradientProblem, users: Rows, public: Arrays) -> Predictor:
        """Return the predictor for the users of a part, from their vectors `users` and the public table."""
        own = np.asarray(users[:, : problem.model.user_width], np.float64)
        return Predictions(problem).predictor(own, public["item_vectors"])


def start(worker: GradientWorker) -> tuple[Rows, FloatArray]:
    """Return the vectors of the worker's users before the first round, and their privacy losses, which are zero."""
    return worker.people.initial_vectors(), np.zeros(worker.people.problem.n_users)


def report(worker: GradientWorker, number: int, users: Rows, rho: FloatArray, rows: Rows) -> tuple[Any, ...]:
    """Run round `number` for the users of one part; return their new vectors and what they add to the items' sums.

    `users` are the user vectors, `rho` the privacy losses and `rows` the item vectors before the round. The result is
    one tuple: the new user vectors, the new privacy losses, a pair (whether the new user vectors are finite, the
    largest norm of error times user vector), the number of gradients of each item, and then, for each block of users
    (`People.borders`), the sums of error times user vector by item. The sums stay apart, so that the engine can add
    floating-point numbers in the same order as engine `cpu`.
    """
    people = worker.people
    shape = len(people.borders) - 1, people.problem.n_items, rows.shape[1]
    sums, counts = np.empty(shape, DTYPE), np.empty(shape[:2], np.int64)
    with np.errstate(over="ignore", invalid="ignore"):
        outcome, largest = people.report(people.inputs(number, Vectors(users, rows)), sums, counts)
    finite = bool(np.isfinite(outcome.users).all())
    return outcome.users, rho + outcome.rho, (finite, largest), counts.sum(axis=0), *sums


class _State(NamedTuple):
    """The results of the rounds so far: item vectors here, user vectors and privacy losses with the workers."""

    round_number: int
    items: Rows
    users: list[Any]  # for each part, a reference to its users' vectors; `Crew.get` returns the vectors
    rho: list[Any]  # for each part, a reference to its users' privacy losses
    numbers_sent: int  # total size of all reports, in numbers


class ShardedGradientEngine(GradientEngine):
    """The engine `cpu` for gradient protocols with the users divided into parts of one or more blocks."""

    name: ClassVar[str] = "cpu"

    def __init__(
        self, problem: GradientProblem, crew: Crew, make_part: MakePart | None = None, *, remark: Remark | None = None
    ) -> None:
        super().__init__(problem)
        self.crew = crew
        blocks = block_borders(problem)
        n_blocks = len(blocks) - 1
        n_parts = min(n_blocks, crew.n_parts(int(problem.starts[-1])))
        cuts = np.arange(n_parts + 1) * n_blocks // n_parts  # the blocks have about equal work
        self.borders = blocks[cuts]
        self._blocks = np.diff(cuts)
        parts = make_part or (lambda first, stop: InMemory(problem.part(first, stop)))
        crew.start(
            GradientWorker.make,
            [(parts(int(blocks[a]), int(blocks[b])), blocks[a : b + 1] - blocks[a]) for a, b in pairwise(cuts)],
        )
        self._items = Items(problem, DTYPE)
        begun = [crew.ask(part, start, n_results=2) for part in range(n_parts)]
        self._state = _State(0, self._items.initial_vectors(), [own[0] for own in begun], [own[1] for own in begun], 0)

    @property
    def round_number(self) -> int:
        return self._state.round_number

    @property
    def item_vectors(self) -> FloatArray:
        return self._items.table(self._state.items)

    @property
    def user_vectors(self) -> FloatArray:
        users = self._gathered(self._state.users)
        return np.asarray(users[:, : self.problem.model.user_width], np.float64)

    @property
    def users_of_parts(self) -> list[Any]:
        """For each part, a reference to the vectors of its users, with padded rows; `Crew.get` returns the vectors."""
        return self._state.users

    def public(self) -> Arrays:
        """Return the item vectors after the latest round, by name."""
        return {"item_vectors": self.item_vectors}

    def run_round(self) -> None:
        """Run one round; the state is replaced only at the end, so that an interruption changes nothing."""
        state, number, crew = self._state, self.round_number + 1, self.crew
        check_rounds_left(self)
        check_item_vectors(state.items, self.problem.n_items)
        rows = crew.share(self._items.kernel_rows(state.items))
        asked = [
            crew.ask(part, report, number, state.users[part], state.rho[part], rows, n_results=4 + n_blocks)
            for part, n_blocks in enumerate(self._blocks.tolist())
        ]
        checks = [crew.get(own[2]) for own in asked]
        check_gradients(number, max(largest for _, largest in checks))
        counts = sum(crew.get(own[3]) for own in asked)
        sums = self._added_up([block for own in asked for block in own[4:]])
        moved, n_reports = self._items.move(number, state.items, sums[None], counts[None], NOTHING_KNOWN)
        check_finite(number, moved, np.array([0.0 if finite else np.nan for finite, _ in checks]))
        sent = state.numbers_sent + n_reports * (1 + self.problem.model.item_width)
        self._state = _State(number, moved, [own[0] for own in asked], [own[1] for own in asked], sent)

    def value_rho(self) -> FloatArray:
        return np.asarray(self._gathered(self._state.rho), np.float64)

    def bytes_per_client_round(self) -> float:
        return 4 * self._state.numbers_sent / (len(self.problem.active_users) * max(self.round_number, 1))

    def state(self) -> State:
        """Return the same arrays as engine `cpu`, without permanent bits, which workers draw again from the seed."""
        state = self._state
        return {
            "user_vectors": self._gathered(state.users),
            "item_vectors": state.items,
            "round_number": np.array(state.round_number),
            "value_rho": self._gathered(state.rho),
            "numbers_sent": np.array(state.numbers_sent),
        }

    def restore(self, state: State) -> None:
        users, items, own = state["user_vectors"], state["item_vectors"], self._state
        shapes = (len(users), items.shape, users.shape[1], state["value_rho"].shape)
        if shapes != (self.problem.n_users, own.items.shape, own.items.shape[1], (self.problem.n_users,)):
            raise ParameterError("state must have the shapes of this problem's vectors. Use a checkpoint of its run.")
        cuts = self.borders[1:-1]
        self._state = _State(
            int(state["round_number"]),
            np.array(items, DTYPE),
            [self.crew.share(np.array(part, DTYPE)) for part in np.split(users, cuts)],
            [self.crew.share(np.array(part, np.float64)) for part in np.split(state["value_rho"], cuts)],
            int(state["numbers_sent"]),
        )

    def _gathered(self, parts: list[Any]) -> Any:
        return np.concatenate([self.crew.get(part) for part in parts])

    def _added_up(self, blocks: list[Any]) -> Rows:
        """Return the sum over all blocks, in the order of the blocks and in the precision of engine `cpu`."""
        wide = isinstance(self.problem.model, FactorizationMachine)
        total: Rows = np.array(self.crew.get(blocks[0]), np.float64 if wide else np.float32)
        for block in blocks[1:]:
            total += self.crew.get(block)
        return total
