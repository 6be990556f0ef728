"""All clients at once on the processor's cores: every model and protocol without an object per client.

It uses what is equal in distribution and what an observer of the sums could not tell apart: items are chosen 64 at a
time or by geometric gaps, the summed noise of an item is one Gaussian, fakes come from the inverse CDF. Fed with
the `Draws` that `reference` recorded, it computes the same numbers to rounding.

The kernels know products of rows, ratings or pairs. A factorization machine is a product too: of (w, u², u³, 1) and
(1, e_1, e_2, base), so that its rows are made before a round, and its public columns move after.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple, TypeVar

import numba
import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.engines import Remark, State
from hushrec.engines.cpu import kernels, pairs
from hushrec.engines.cpu.compilation import CompilationNotice
from hushrec.engines.cpu.kernels import Choices, Given, Outcome, Profiles, Rows, Step, Streams, Vectors
from hushrec.engines.cpu.layout import (
    block_borders,
    even_borders,
    fake_ranges,
    given_draws,
    profile_caps,
    selection_probabilities,
    thresholds,
)
from hushrec.engines.cpu.pairs import Pairing
from hushrec.engines.cpu.philox import Stream, make_stream
from hushrec.engines.cpu.randomized_response import fill_permanent
from hushrec.engines.gradient import GradientEngine, GradientProblem
from hushrec.errors import LocalProtocolError, ParameterError
from hushrec.mechanisms.langevin import langevin_noise
from hushrec.models.fm import FactorizationMachine
from hushrec.protocols.gradient.device import Draws
from hushrec.protocols.gradient.messages import GradientReport
from hushrec.protocols.gradient.plausible import check_finite, check_gradients, check_item_vectors
from hushrec.protocols.gradient.prediction import initial_item_vectors, initial_user_vectors
from hushrec.randomness import Purpose, SeededRandomness

REGISTER_BYTES = 64


Value = TypeVar("Value")


class _State(NamedTuple):
    """Everything that the rounds to come depend on."""

    round_number: int
    vectors: Vectors
    rho: FloatArray  # (n_users,)
    numbers_sent: int


class _Known(NamedTuple):
    """Noise that is known one report at a time: its sum and its number of reports per item, and recorded reports."""

    noise: FloatArray  # (n_items, width), or nothing
    counts: IntArray  # (n_items,), or nothing
    reports: dict[int, GradientReport]


class CpuEngine(GradientEngine):
    """Numba kernels over blocks of users.

    `record_users` keeps what the server would see of these users, one `GradientReport` each, in
    `recorded[round - 1]`. `dtype` is the type of vectors and sums.
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
        start = Vectors(
            self._with_constant(self._padded(initial_user_vectors(problem))),
            self._padded(initial_item_vectors(problem)),
        )
        self._state = _State(0, start, np.zeros(problem.n_users), 0)
        takes_part = np.isin(np.arange(problem.n_users), problem.active_users)
        items = problem.items.astype(np.uint32)
        self._profiles = Profiles(problem.starts, items, self._training_values(), takes_part)
        self._probabilities = selection_probabilities(problem)
        self._choices = self._empty_choices()
        self._epoch = -1
        self._borders = block_borders(problem)
        shape = (len(self._borders) - 1, problem.n_items, start.items.shape[1])
        self._sums = np.empty(shape, self._dtype)
        self._counts = np.empty(shape[:2], np.int64)
        self._threads = ThreadPoolExecutor(numba.get_num_threads())  # kept: starting some takes milliseconds

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
        """Run one round on own draws, or on given ones (one `Draws` for each user who takes part)."""
        terms = self.problem.terms
        if self.round_number >= terms.max_rounds:
            raise LocalProtocolError(f"all {terms.max_rounds} rounds of the terms are over.")
        check_item_vectors(self.round_number + 1, self._state.vectors.items, self.problem.n_items)
        with self._compilation.listening():
            round_number = self.round_number + 1
            self._renew_permanent_bits(round_number)
            self._play(round_number, given_draws(self.problem, draws), self._pairing(round_number, draws), draws)

    def value_rho(self) -> FloatArray:
        return self._state.rho.copy()

    def bytes_per_client_round(self) -> float:
        n_answers = len(self.problem.active_users) * max(self.round_number, 1)
        return 4 * self._state.numbers_sent / n_answers

    def state(self) -> State:
        """Return the vectors and the totals; permanent bits follow from the seed."""
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
            raise ParameterError("this state is of another problem, or of vectors of another type.")
        self._state = _State(
            int(state["round_number"]),
            Vectors(np.array(users), np.array(items)),
            np.array(state["value_rho"], dtype=np.float64),
            int(state["numbers_sent"]),
        )
        self._epoch = -1

    # Inside ----------------------------------------------------------------------------------------------------

    def _play(self, round_number: int, given: Given, pairing: Pairing, draws: Mapping[int, Draws] | None) -> None:
        """Compute the round beside the current state, then switch to it: an interruption changes nothing."""
        step, streams, state = self._step(round_number), self._streams(round_number), self._state
        vectors = Vectors(state.vectors.users, self._kernel_rows())
        known = self._known_noise(round_number, step, streams, given, pairing, vectors, draws)
        outcome, largest = self._report(step, streams, given, pairing, vectors)
        check_gradients(round_number, largest)
        derives = isinstance(self.problem.model, FactorizationMachine)
        moved, n_reports = (self._derive_moves if derives else self._move)(step, streams, known)
        check_finite(round_number, moved, outcome.users)
        self._state = _State(
            round_number,
            Vectors(outcome.users, moved),
            state.rho + outcome.rho,
            state.numbers_sent + n_reports * (1 + self.problem.model.item_width),
        )
        if self._record_users:
            self.recorded.append(known.reports)

    def _report(
        self, step: Step, streams: Streams, given: Given, pairing: Pairing, vectors: Vectors
    ) -> tuple[Outcome, float]:
        """Add every user's report to its block's sums; return the users' new state and the largest |e| ‖u‖ sent."""
        outcome = Outcome(vectors.users.copy(), np.zeros(self.problem.n_users))
        common: tuple[Any, ...] = (self._profiles, self._choices, given, streams, step, vectors, outcome)
        kernel: Any = kernels.report_block
        if self.problem.model.learns_from_pairs:
            common, kernel = (*common[:3], pairing, *common[3:]), pairs.report_block

        def report(block: int, first: int, stop: int) -> float:
            return float(kernel(first, stop, *common, self._sums[block], self._counts[block]))

        largest = max(self._in_threads(report, self._borders))
        if isinstance(self.problem.model, FactorizationMachine):
            self._with_constant(outcome.users)  # which is not learned
            squares = np.square(vectors.users, dtype=np.float64)
            outcome.rho[:] *= 1 - squares[:, 0] / squares.sum(axis=1)  # the user's own bias is not sent
        return outcome, largest

    def _move(self, step: Step, streams: Streams, known: _Known) -> tuple[Rows, int]:
        """Return the new item vectors, and how many reports moved them."""
        items = self._state.vectors.items
        moved = np.empty_like(items)
        common = (self._sums, self._counts, step, streams.item_noise, known.noise, known.counts, items, moved)

        def move(_: int, first: int, stop: int) -> int:
            return int(kernels.move_items(first, stop, *common))

        return moved, sum(self._in_threads(move, even_borders(len(moved))))

    def _derive_moves(self, step: Step, streams: Streams, known: _Known) -> tuple[Rows, int]:
        """Return the new public table of a factorization machine from the sum of each item's reports."""
        problem, width = self.problem, self.problem.model.item_width
        table = self.item_vectors
        counts = self._counts.sum(axis=0)
        total = self._sums.sum(axis=0, dtype=np.float64)  # Σ e (w, u², u³, 1)
        data = step.size * step.data_weight * np.concatenate([total[:, width : width + 1], total[:, 1:width]], axis=1)
        unknown = counts - known.counts if len(known.counts) else counts
        noise = kernels.item_normals(streams.item_noise, problem.n_items, width)
        noise *= np.sqrt(step.size * unknown)[:, None]
        if len(known.counts):
            noise += known.noise[:, :width]
        prior = step.size * problem.terms.item_regularization
        sums = data - counts[:, None] * prior * table[: problem.n_items] + noise
        return self._padded(problem.model.move_items(table, sums, counts, prior)), int(counts.sum())

    def _kernel_rows(self) -> Rows:
        """Return what predictions need of the items, as the kernels multiply it: V, or (1, e_1, e_2, base)."""
        model = self.problem.model
        if not isinstance(model, FactorizationMachine):
            return self._state.vectors.items
        rows = model.item_rows(self.item_vectors)
        return self._padded(np.concatenate([np.ones((len(rows), 1)), rows[:, 1:], rows[:, :1]], axis=1))

    def _with_constant(self, users: Rows) -> Rows:
        """Return user rows with a 1 appended for a factorization machine; the 1 multiplies an item's base."""
        if isinstance(self.problem.model, FactorizationMachine):
            users[:, self.problem.model.user_width] = 1
        return users

    def _pairing(self, round_number: int, draws: Mapping[int, Draws] | None) -> Pairing:
        """Return the source of this round's partners: streams, or given draws."""
        nobody = np.empty(0, np.uint32)
        own = [draws[user].user_partners for user in sorted(draws)] if draws else []
        selected = [draws[user].selected_partners for user in sorted(draws)] if draws else []
        of_ratings = np.zeros(len(self.problem.items) if draws else 0, np.uint32)
        if draws and self.problem.model.learns_from_pairs:
            takes_part = np.isin(np.arange(self.problem.n_users), list(draws))
            of_ratings[np.repeat(takes_part, self.problem.rated_counts)] = np.concatenate(own)
        return Pairing(
            self._stream(Purpose.USER_PAIRS, round_number),
            self._stream(Purpose.SELECTED_PAIRS, round_number),
            of_ratings,
            np.concatenate(selected).astype(np.uint32) if selected else nobody,
        )

    def _step(self, round_number: int) -> Step:
        terms = self.problem.terms
        return Step(
            n_factors=self.problem.model.item_width,
            size=terms.step_size(round_number),
            data_weight=terms.data_weight,
            user_regularization=self._padded(terms.user_regularization[None, :])[0],
            item_regularization=self._padded(terms.item_regularization[None, :])[0],
        )

    def _streams(self, round_number: int) -> Streams:
        purposes = (Purpose.SELECTION, Purpose.FAKE_ERRORS, Purpose.USER_NOISE, Purpose.SUMMED_NOISE)
        return Streams(*(self._stream(purpose, round_number) for purpose in purposes))

    def _stream(self, purpose: Purpose, round_number: int) -> Stream:
        return make_stream(self.problem.seed, purpose, round_number)

    def _padded(self, rows: FloatArray) -> Rows:
        """Return rows padded with zeros to whole registers."""
        per_register = REGISTER_BYTES // self._dtype.itemsize
        n_numbers = self.problem.model.item_width + isinstance(self.problem.model, FactorizationMachine)
        width = -(-n_numbers // per_register) * per_register
        padded = np.zeros((len(rows), width), self._dtype)
        padded[:, : rows.shape[1]] = rows
        return padded

    def _training_values(self) -> Rows:
        """Return the ratings, or what the protocol makes of them with draws from each device's own stream."""
        problem = self.problem
        values = np.zeros(len(problem.values), self._dtype)
        for user in problem.active_users:
            rows = slice(problem.starts[user], problem.starts[user + 1])
            rng = SeededRandomness(problem.seed, int(user)).stream(Purpose.RATING_NOISE)
            values[rows] = problem.protocol(int(user)).training_values(problem.values[rows], rng=rng)
        return values

    # Permanent bits --------------------------------------------------------------------------------------------

    def _empty_choices(self) -> Choices:
        problem = self.problem
        n_users = problem.n_users
        n_words = -(-problem.n_items // 64) if self._probabilities is not None else 0
        bits = np.zeros((n_users, n_words), np.uint64)
        if self._probabilities is None:
            nothing, nowhere = np.zeros(0), np.zeros(0, np.uint64)
            return Choices(bits, nothing, nothing, nowhere, nowhere, nothing)
        zero, one = self._probabilities.prob_send_zero, self._probabilities.prob_send_one
        return Choices(bits, zero, one, thresholds(zero), thresholds(one), fake_ranges(problem))

    def _renew_permanent_bits(self, round_number: int) -> None:
        """Draw B' anew where a permanent epoch begins; a resumed run draws what the epoch began with."""
        problem = self.problem
        epoch = problem.terms.epoch(round_number)
        if self._probabilities is None or epoch == self._epoch:
            return
        first_round = 1 if problem.terms.epoch_rounds is None else epoch * problem.terms.epoch_rounds + 1
        caps = profile_caps(problem)
        flip = thresholds(self._probabilities.prob_randomize / 2)
        stream = self._stream(Purpose.PERMANENT_BITS, first_round)
        starts, items, bits = self._profiles.starts, self._profiles.items, self._choices.bits

        def fill(_: int, first: int, stop: int) -> None:
            fill_permanent(first, stop, starts, items, caps, flip, stream, bits)

        self._in_threads(fill, self._borders)
        self._epoch = epoch

    def _in_threads(self, work: Callable[[int, int, int], Value], borders: IntArray) -> list[Value]:
        """Return the results of `work` on each part that the borders cut, in order.

        Kernels release the interpreter, so that parts run side by side; none is left at work, even by an exception.
        """
        parts = enumerate(pairwise(map(int, borders)))
        running = [self._threads.submit(work, part, first, stop) for part, (first, stop) in parts]
        try:
            return [part.result() for part in running]
        finally:
            for part in running:
                part.cancel()
            wait(running)

    # Recording -------------------------------------------------------------------------------------------------

    def _known_noise(
        self,
        round_number: int,
        step: Step,
        streams: Streams,
        given: Given,
        pairing: Pairing,
        vectors: Vectors,
        draws: Mapping[int, Draws] | None,
    ) -> _Known:
        """Return the noise that is known report by report: of all users if draws are given, else of recorded users."""
        users = sorted(draws) if draws is not None else self._record_users
        if not len(users):
            return _Known(np.empty((0, 0)), np.empty(0, np.int64), {})
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
        return _Known(noise, counts, reports)

    def _answer_of(
        self, user: int, streams: Streams, given: Given, pairing: Pairing, vectors: Vectors
    ) -> tuple[IntArray, FloatArray]:
        """Return one user's items in the next round and their errors: what the kernel will sum."""
        begin, end = self._profiles.starts[user], self._profiles.starts[user + 1]
        rated, values = self._profiles.items[begin:end], self._profiles.values[begin:end]
        own = (vectors.users[user], vectors.items)
        if self.problem.model.learns_from_pairs:
            found = pairs.answer_one(user, begin, rated, self._choices, given, pairing, streams, *own)
        else:
            found = kernels.answer_one(user, rated, values, self._choices, given, streams, *own)
        return found[0].astype(np.int64), found[1]

    def _gradients_of(self, user: int, items: IntArray, errors: FloatArray, step: Step) -> FloatArray:
        """Return what this user sends for these items, before noise."""
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
        raise ParameterError("record_users must be users with training ratings.")
    return sorted({int(user) for user in users})
