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

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines import Remark, State
from hushrec.engines.cpu import kernels, pairs
from hushrec.engines.cpu.compilation import CompilationNotice
from hushrec.engines.cpu.items import NOTHING_KNOWN, Items, Known
from hushrec.engines.cpu.kernels import Given, Step, Streams, Vectors
from hushrec.engines.cpu.layout import block_borders, given_draws, make_step, make_streams
from hushrec.engines.cpu.pairs import Pairing
from hushrec.engines.cpu.people import People
from hushrec.engines.gradient import GradientEngine, GradientProblem
from hushrec.errors import LocalProtocolError, ParameterError
from hushrec.mechanisms.langevin import langevin_noise
from hushrec.protocols.gradient.device import Draws
from hushrec.protocols.gradient.messages import GradientReport
from hushrec.protocols.gradient.plausible import check_finite, check_gradients, check_item_vectors
from hushrec.randomness import Purpose, SeededRandomness


class _State(NamedTuple):
    """The results of the rounds so far that later rounds depend on.

    `rho` is each user's privacy loss (zCDP), and `numbers_sent` the total size of all reports, in numbers.
    """

    round_number: int
    vectors: Vectors
    rho: FloatArray  # (n_users,)
    numbers_sent: int


class CpuEngine(GradientEngine):
    """The engine `cpu` for gradient protocols: Numba kernels over blocks of users.

    For the users in `record_users`, `recorded[round - 1]` holds the reports that a server would receive, by user.
    `dtype` is the number type of vectors and sums.
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
        terms = self.problem.terms
        if self.round_number >= terms.max_rounds:
            raise LocalProtocolError(f"the run is over: all {terms.max_rounds} rounds have ended.")
        check_item_vectors(self.round_number + 1, self._state.vectors.items, self.problem.n_items)
        with self._compilation.listening():
            round_number = self.round_number + 1
            self._people.renew_permanent_bits(round_number)
            pairing = self._people.pairing(round_number, draws)
            self._run(round_number, given_draws(self.problem, draws), pairing, draws)

    def value_rho(self) -> FloatArray:
        return self._state.rho.copy()

    def bytes_per_client_round(self) -> float:
        n_answers = len(self.problem.active_users) * max(self.round_number, 1)
        return 4 * self._state.numbers_sent / n_answers

    def state(self) -> State:
        """Return the vectors, privacy losses and counters; permanent bits are drawn again from the seed."""
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

    # Private helpers -------------------------------------------------------------------------------------------

    def _run(self, round_number: int, given: Given, pairing: Pairing, draws: Mapping[int, Draws] | None) -> None:
        """Compute the state after a round, and only then replace the current state, so that errors change nothing."""
        state = self._state
        vectors = Vectors(state.vectors.users, self._items.kernel_rows(state.vectors.items))
        known = self._known_noise(round_number, given, pairing, vectors, draws)
        outcome, largest = self._people.report(round_number, vectors, given, pairing, self._sums, self._counts)
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

    # Recording -------------------------------------------------------------------------------------------------

    def _known_noise(
        self, round_number: int, given: Given, pairing: Pairing, vectors: Vectors, draws: Mapping[int, Draws] | None
    ) -> Known:
        """Return the noise of individual reports: of all users if `draws` are given, else of `record_users`.

        `given` and `pairing` are `draws` in the form that kernels take; without `draws`, they let the kernels draw.
        """
        users = sorted(draws) if draws is not None else self._record_users
        if not len(users):
            return NOTHING_KNOWN
        step, streams = make_step(self.problem, round_number, self._dtype), make_streams(self.problem, round_number)
        noise = np.zeros(vectors.items.shape)
        counts = np.zeros(len(noise), np.int64)
        reports: dict[int, GradientReport] = {}
        for user in users:
            items, errors = self._answer_of(user, streams, given, pairing, vectors)
            gradients = self._gradients_of(user, items, errors, step)
            own = self._noise_of(user, round_number, len(items), step) if draws is None else draws[user].gradient_noise
            noise[items, : own.shape[1]] += own
            counts[items] += 1
            if user in self._record_users and len(items):
                reports[user] = GradientReport(round_number, items, gradients + own)
        return Known(noise, counts, reports)

    def _answer_of(
        self, user: int, streams: Streams, given: Given, pairing: Pairing, vectors: Vectors
    ) -> tuple[IntArray, FloatArray]:
        """Return the items that one user reports in the open round, and their errors, as the kernel computes them."""
        profiles, choices = self._people.profiles, self._people.choices
        begin, end = profiles.starts[user], profiles.starts[user + 1]
        rated, values = profiles.items[begin:end], profiles.values[begin:end]
        own = (vectors.users[user], vectors.items)
        if self.problem.model.learns_from_pairs:
            found = pairs.answer_one(user, begin, rated, choices, given, pairing, streams, *own)
        else:
            found = kernels.answer_one(user, rated, values, choices, given, streams, *own)
        return found[0].astype(np.int64), found[1]

    def _gradients_of(self, user: int, items: IntArray, errors: FloatArray, step: Step) -> FloatArray:
        """Return the gradients that this user sends for these items, before noise."""
        width, vectors = step.n_factors, self._state.vectors
        direction = self.problem.model.direction(vectors.users[user, :width].astype(np.float64))
        prior = step.size * vectors.items[items, :width] * step.item_regularization[:width]
        return step.size * step.data_weight * np.outer(errors, direction) - prior

    def _noise_of(self, user: int, round_number: int, count: int, step: Step) -> FloatArray:
        rng = SeededRandomness(self.problem.seed, user).stream(Purpose.GRADIENT_NOISE, round_number)
        return langevin_noise((count, step.n_factors), step.size, rng=rng)


def _checked_users(problem: GradientProblem, users: Sequence[int]) -> list[int]:
    active = set(problem.active_users.tolist())
    if not active.issuperset(users):
        others = len(set(users) - active)
        raise ParameterError(f"record_users must hold only users who take part, but {others} do not. Leave them out.")
    return sorted({int(user) for user in users})
