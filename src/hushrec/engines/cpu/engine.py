"""The engine `cpu` for gradient protocols: it simulates all devices in compiled kernels, without an object per device.

Random choices have the same distribution as on devices but are drawn faster. The selection is drawn for 64 items at a
time, or as gaps between selected items. The noise of all gradients of an item is drawn as one Gaussian, and fake errors
by the inverse CDF. If this engine is given the `Draws` that engine `reference` recorded, it computes the same numbers
up to rounding.

The kernels compute dot products of user rows and item rows, for ratings or for pairs. The prediction of a factorization
machine is such a dot product too; its item rows are computed from the item vectors before each round
(`Items.kernel_rows`). After the round, the item vectors are updated from the sums of the reports.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray
from hushrec.engines import Remark, State, check_rounds_left
from hushrec.engines.cpu import kernels, pairs
from hushrec.engines.cpu.compilation import CompilationNotice
from hushrec.engines.cpu.items import NOTHING_KNOWN, Items, Known
from hushrec.engines.cpu.kernels import Inputs, Vectors
from hushrec.engines.cpu.layout import block_borders
from hushrec.engines.cpu.people import People
from hushrec.engines.gradient import GradientEngine, GradientProblem
from hushrec.errors import ParameterError
from hushrec.mechanisms.langevin import langevin_noise
from hushrec.protocols.gradient.device import Draws
from hushrec.protocols.gradient.messages import GradientReport
from hushrec.protocols.gradient.plausible import check_finite, check_gradients, check_item_vectors
from hushrec.randomness import Purpose, SeededRandomness


class _State(NamedTuple):
    """The results of the rounds so far that later rounds depend on."""

    round_number: int
    vectors: Vectors
    rho: FloatArray  # each user's privacy loss (zCDP), (n_users,)
    numbers_sent: int  # total size of all reports, in numbers


class CpuEngine(GradientEngine):
    """The engine `cpu` for gradient protocols.

    The attribute `recorded` has a dictionary for each round, with the reports of the users in `record_users`.
    """

    name: ClassVar[str] = "cpu"

    def __init__(
        self,
        problem: GradientProblem,
        *,
        record_users: Sequence[int] = (),
        dtype: npt.DTypeLike = np.float32,
        remark: Remark | None = None,
    ) -> None:
        super().__init__(problem)
        self.recorded: list[dict[int, GradientReport]] = []
        self._record_users = _checked_users(problem, record_users)
        self._dtype = np.dtype(dtype)
        self._compilation = CompilationNotice(remark)
        self._people = People(problem, block_borders(problem), dtype)
        self._items = Items(problem, dtype)
        start = Vectors(self._people.initial_vectors(), self._items.initial_vectors())
        self._state = _State(0, start, np.zeros(problem.n_users), 0)
        shape = (len(self._people.borders) - 1, problem.n_items, start.items.shape[1])
        self._sums = np.empty(shape, self._dtype)
        self._counts = np.empty(shape[:2], np.int64)

    @property
    def round_number(self) -> int:
        return self._state.round_number

    @property
    def item_vectors(self) -> FloatArray:
        return self._state.vectors.items[:, : self.problem.model.item_width].astype(np.float64)

    @property
    def user_vectors(self) -> FloatArray:
        return self._state.vectors.users[:, : self.problem.model.user_width].astype(np.float64)

    def run_round(self, draws: Mapping[int, Draws] | None = None) -> None:
        """Run one round with new random draws or, in tests, with a given `Draws` for each user who takes part."""
        check_rounds_left(self)
        vectors, number = self._state.vectors, self.round_number + 1
        check_item_vectors(vectors.items, self.problem.n_items)
        with self._compilation.listening():
            rows = Vectors(vectors.users, self._items.kernel_rows(vectors.items))
            self._run(self._people.inputs(number, rows, draws), draws)

    def value_rho(self) -> FloatArray:
        return self._state.rho.copy()

    def bytes_per_client_round(self) -> float:
        n_answers = len(self.problem.active_users) * max(self.round_number, 1)
        return 4 * self._state.numbers_sent / n_answers

    def state(self) -> State:
        """Return the vectors, privacy losses and counters, without permanent bits, which the seed determines."""
        state = self._state
        return {
            "user_vectors": state.vectors.users,
            "item_vectors": state.vectors.items,
            "round_number": np.array(state.round_number),
            "value_rho": state.rho,
            "numbers_sent": np.array(state.numbers_sent),
        }

    def restore(self, state: State) -> None:
        users, items = state["user_vectors"], state["item_vectors"]
        own = self._state.vectors
        shapes = (users.shape, items.shape, state["value_rho"].shape)
        if shapes != (own.users.shape, own.items.shape, self._state.rho.shape) or users.dtype != own.users.dtype:
            raise ParameterError(
                "state must have the shapes and the number type of this problem's vectors. Use a checkpoint of its run."
            )
        self._state = _State(
            int(state["round_number"]),
            Vectors(np.array(users), np.array(items)),
            np.array(state["value_rho"], dtype=np.float64),
            int(state["numbers_sent"]),
        )
        self._people.forget_permanent_bits()

    def _run(self, inputs: Inputs, draws: Mapping[int, Draws] | None) -> None:
        """Compute the state after a round, and only then replace the current state, so that errors change nothing."""
        state, round_number = self._state, self.round_number + 1
        known = self._known_noise(inputs, draws)
        outcome, largest = self._people.report(inputs, self._sums, self._counts)
        check_gradients(round_number, largest)
        moved, n_reports = self._items.move(round_number, state.vectors.items, self._sums, self._counts, known)
        check_finite(round_number, moved, outcome.users)
        self._state = _State(
            round_number,
            Vectors(outcome.users, moved),
            state.rho + outcome.rho,
            state.numbers_sent + n_reports * (1 + self.problem.model.item_width),
        )
        if self._record_users:
            self.recorded.append(known.reports)

    def _known_noise(self, inputs: Inputs, draws: Mapping[int, Draws] | None) -> Known:
        """Return the noise that is drawn user by user: for all users if `draws` are given, else for `record_users`."""
        users = sorted(draws) if draws is not None else self._record_users
        if not len(users):
            return NOTHING_KNOWN
        round_number, step = self.round_number + 1, inputs.step
        users_before, items_before = (rows[:, : step.n_factors] for rows in self._state.vectors)
        noise = np.zeros(inputs.vectors.items.shape)
        counts = np.zeros(len(noise), np.int64)
        reports: dict[int, GradientReport] = {}
        answer_one = pairs.answer_one if self.problem.model.learns_from_pairs else kernels.answer_one
        for user in users:
            items, errors = answer_one(user, inputs)
            items = items.astype(np.int64)
            if draws is None:
                rng = SeededRandomness(self.problem.seed, user).stream(Purpose.GRADIENT_NOISE, round_number)
                own = langevin_noise((len(items), step.n_factors), step.size, rng=rng)
            else:
                own = draws[user].gradient_noise
            noise[items, : own.shape[1]] += own
            counts[items] += 1
            if user in self._record_users and len(items):
                direction = self.problem.model.direction(users_before[user].astype(np.float64))
                prior = step.size * items_before[items] * step.item_regularization[: step.n_factors]
                gradients = step.size * step.data_weight * np.outer(errors, direction) - prior
                reports[user] = GradientReport(round_number, items, gradients + own)
        return Known(noise, counts, reports)


def _checked_users(problem: GradientProblem, users: Sequence[int]) -> list[int]:
    active = set(problem.active_users.tolist())
    if not active.issuperset(users):
        others = len(set(users) - active)
        raise ParameterError(f"record_users must hold only users who take part, but {others} do not. Leave them out.")
    return sorted({int(user) for user in users})
