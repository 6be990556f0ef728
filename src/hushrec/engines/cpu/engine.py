"""The engine `cpu` for gradient protocols: it simulates all devices in compiled kernels, without an object per device.

Random choices have the same distribution as on devices but are drawn faster. The selection is drawn for 64 items at a
time, or as gaps between selected items. The noise of all gradients of an item is drawn as one Gaussian, and fake errors
by the inverse CDF. If this engine is given the `Draws` that engine `reference` recorded, it computes the same numbers
up to rounding.

The kernels compute dot products of user vectors and item vectors: for single ratings, or for pairs of a rated and an
unrated item (model `bpr`). The prediction of a factorization machine (model `fm`) is the dot product of two longer
rows, which are computed from its vectors (`Items.kernel_rows`, `People.with_constant`). After the round, the item
vectors are updated from the sums of the reports.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines import Remark, State, check_rounds_left
from hushrec.engines.cpu import kernels, pairs
from hushrec.engines.cpu.compilation import CompilationNotice
from hushrec.engines.cpu.items import Items, Known
from hushrec.engines.cpu.kernels import Inputs, Rows, Vectors
from hushrec.engines.cpu.layout import block_borders
from hushrec.engines.cpu.people import People
from hushrec.engines.gradient import GradientEngine, GradientProblem
from hushrec.errors import ParameterError
from hushrec.mechanisms.langevin import langevin_noise
from hushrec.protocols.gradient.device import Draws
from hushrec.protocols.gradient.messages import GradientReport
from hushrec.protocols.gradient.plausible import check_finite, check_gradients, check_item_vectors
from hushrec.randomness import Purpose, SeededRandomness


class RoundState(NamedTuple):
    """The results of the rounds so far that later rounds depend on.

    `ShardedGradientEngine` divides users into parts. Its `users` and `rho` are lists with a reference for each part,
    from which `Crew.get` returns the part's array.
    """

    round_number: int
    items: Rows  # item vectors with padded rows
    users: Any  # user vectors with padded rows, (n_users, width)
    rho: Any  # privacy losses (zCDP), (n_users,)
    numbers_sent: int  # total size of all reports, in numbers


class BlockEngine(GradientEngine):
    """An engine that sums the reports of each block of users, and updates the item vectors from these sums.

    Subclasses compute the sums: `CpuEngine` in its own process, `ShardedGradientEngine` in several workers. Each worker
    has a part of the users, which is one or more blocks.
    """

    _state: RoundState

    def __init__(self, problem: GradientProblem, dtype: npt.DTypeLike, remark: Remark | None) -> None:
        super().__init__(problem)
        self._compilation = CompilationNotice(remark)
        self._items = Items(problem, dtype)

    @abstractmethod
    def _report(self, rows: Rows, draws: Mapping[int, Draws] | None) -> tuple[Any, Any, Rows, IntArray, Known]:
        """Compute all users' reports of the next round. `rows` are the item rows that `Items.kernel_rows` returned.

        Return `users` and `rho` of the next `RoundState`, then the arguments `sums`, `counts` and `known` of
        `Items.move`. In tests, `draws` replace the random draws of the users.
        """

    def _whole(self, stored: Any) -> Any:
        """Return `users` or `rho` of a `RoundState` as one array of all users."""
        return stored

    def _stored(self, array: Any) -> Any:
        """Return an array with one row per user in the form that `RoundState` stores; here, the array itself.

        An engine on several workers stores a list with one reference for each worker's part of the users.
        """
        return array

    @property
    def round_number(self) -> int:
        return self._state.round_number

    @property
    def item_vectors(self) -> FloatArray:
        return self._items.table(self._state.items)

    @property
    def user_vectors(self) -> FloatArray:
        users = self._whole(self._state.users)
        return np.asarray(users[:, : self.problem.model.user_width], np.float64)

    def _advance(self, draws: Mapping[int, Draws] | None = None) -> Known:
        """Run one round; return the gradient noise that was drawn user by user, and the recorded reports.

        The state is replaced only at the end, so that errors and interruptions change nothing.
        """
        check_rounds_left(self)
        state, number = self._state, self.round_number + 1
        check_item_vectors(state.items, self.problem.n_items)
        with self._compilation.listening():
            users, rho, sums, counts, known = self._report(self._items.kernel_rows(state.items), draws)
            moved, n_gradients = self._items.move(number, state.items, sums, counts, known)
        check_finite(number, moved)
        sent = state.numbers_sent + n_gradients * (1 + self.problem.model.item_width)
        self._state = RoundState(number, moved, users, rho, sent)
        return known

    def value_rho(self) -> FloatArray:
        return np.array(self._whole(self._state.rho), np.float64)

    def bytes_per_client_round(self) -> float:
        return 4 * self._state.numbers_sent / (len(self.problem.active_users) * max(self.round_number, 1))

    def state(self) -> State:
        """Return the vectors, privacy losses and counters, without permanent bits, which the seed determines."""
        state = self._state
        return {
            "user_vectors": self._whole(state.users),
            "item_vectors": state.items,
            "round_number": np.array(state.round_number),
            "value_rho": self._whole(state.rho),
            "numbers_sent": np.array(state.numbers_sent),
        }

    def restore(self, state: State) -> None:
        users, items, rho = state["user_vectors"], state["item_vectors"], state["value_rho"]
        n_users, own = self.problem.n_users, self._state.items
        wanted, given = ((n_users, own.shape[1]), own.shape, (n_users,)), (users.shape, items.shape, rho.shape)
        if wanted != given or users.dtype != own.dtype:
            raise ParameterError(
                f"user_vectors, item_vectors and value_rho of state must have the shapes {wanted}, and vectors the type"
                f" {own.dtype}, got {given} and {users.dtype}. Use the state of a run of the same problem."
            )
        vectors = self._stored(np.array(users)), self._stored(np.array(rho, np.float64))
        self._state = RoundState(int(state["round_number"]), np.array(items), *vectors, int(state["numbers_sent"]))


class CpuEngine(BlockEngine):
    """The engine `cpu` for gradient protocols.

    `record_users`, an argument of the constructor, has the users whose reports are recorded. The list `recorded` has a
    dictionary for each round, which maps these users to their reports; users who report no item are left out.
    """

    def __init__(
        self,
        problem: GradientProblem,
        *,
        record_users: Sequence[int] = (),
        dtype: npt.DTypeLike = np.float32,
        remark: Remark | None = None,
    ) -> None:
        super().__init__(problem, dtype, remark)
        self.recorded: list[dict[int, GradientReport]] = []
        self._record_users = _checked_users(problem, record_users)
        self._people = People(problem, block_borders(problem), dtype)
        items, users = self._items.initial_vectors(), self._people.initial_vectors()
        self._state = RoundState(0, items, users, np.zeros(problem.n_users), 0)
        shape = (len(self._people.borders) - 1, problem.n_items, items.shape[1])
        self._sums, self._counts = np.empty(shape, items.dtype), np.empty(shape[:2], np.int64)

    def run_round(self, draws: Mapping[int, Draws] | None = None) -> None:
        """Run one round with new random draws or, in tests, with a given `Draws` for each user who takes part."""
        known = self._advance(draws)
        if self._record_users:
            self.recorded.append(known.reports)

    def _report(self, rows: Rows, draws: Mapping[int, Draws] | None) -> tuple[Any, Any, Rows, IntArray, Known]:
        state, number = self._state, self.round_number + 1
        inputs = self._people.inputs(number, Vectors(state.users, rows), draws)
        known = self._known_noise(inputs, draws)
        outcome, largest = self._people.report(inputs, self._sums, self._counts)
        check_gradients(number, largest)
        check_finite(number, outcome.users)
        return outcome.users, state.rho + outcome.rho, self._sums, self._counts, known

    def _known_noise(self, inputs: Inputs, draws: Mapping[int, Draws] | None) -> Known:
        """Return the gradient noise and the reports of `record_users` in this round.

        With `draws`, return the noise of all users who take part.
        """
        users = sorted(draws) if draws is not None else self._record_users
        round_number, step = self.round_number + 1, inputs.step
        users_before, items_before = (rows[:, : step.n_factors] for rows in (self._state.users, self._state.items))
        known = Known.nothing(inputs.vectors.items)
        report_of = pairs.report_of if self.problem.model.learns_from_pairs else kernels.report_of
        for user in users:
            items, errors = report_of(user, inputs)
            items = items.astype(np.int64)
            if draws is None:
                rng = SeededRandomness(self.problem.seed, user).stream(Purpose.GRADIENT_NOISE, round_number)
                own = langevin_noise((len(items), step.n_factors), step.size, rng=rng)
            else:
                own = draws[user].gradient_noise
            known.noise[items, : own.shape[1]] += own
            known.counts[items] += 1
            if user in self._record_users and len(items):
                direction = self.problem.model.direction(users_before[user].astype(np.float64))
                prior = step.size * items_before[items] * step.item_regularization[: step.n_factors]
                gradients = step.size * step.data_weight * np.outer(errors, direction) - prior
                known.reports[user] = GradientReport(round_number, items, gradients + own)
        return known


def _checked_users(problem: GradientProblem, users: Sequence[int]) -> list[int]:
    active = set(problem.active_users.tolist())
    if not active.issuperset(users):
        others = len(set(users) - active)
        raise ParameterError(f"record_users must hold only users who take part, but {others} do not. Leave them out.")
    return sorted({int(user) for user in users})
