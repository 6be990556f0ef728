"""The people of a gradient run, or of a part of it, as the kernels take them: profiles, selection, and their reports.

A part counts its users from 0 and keys their streams by their numbers in the whole run: cut into parts in any way,
everybody draws the same, and every block of users sums to the same bits.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

from hushrec.arrays import IntArray
from hushrec.engines.cpu import kernels, pairs
from hushrec.engines.cpu.kernels import Choices, Given, Outcome, Profiles, Rows, Vectors
from hushrec.engines.cpu.layout import (
    fake_ranges,
    make_step,
    make_streams,
    padded,
    profile_caps,
    selection_probabilities,
    thresholds,
    user_stream,
)
from hushrec.engines.cpu.pairs import Pairing
from hushrec.engines.cpu.randomized_response import fill_permanent
from hushrec.engines.gradient import GradientProblem
from hushrec.models.fm import FactorizationMachine
from hushrec.protocols.gradient.device import Draws
from hushrec.protocols.gradient.prediction import initial_user_vectors
from hushrec.randomness import Purpose, SeededRandomness

Value = TypeVar("Value")


class People:
    """Users of one problem or part, cut into blocks by `borders`; methods change nothing but the permanent bits."""

    def __init__(self, problem: GradientProblem, borders: IntArray, dtype: npt.DTypeLike = np.float32) -> None:
        self.problem, self.borders, self._dtype = problem, borders, np.dtype(dtype)
        takes_part = np.isin(np.arange(problem.n_users), problem.active_users)
        items = problem.items.astype(np.uint32)
        self.profiles = Profiles(problem.starts, items, self._training_values(), takes_part)
        self._probabilities = selection_probabilities(problem)
        self.choices = self._empty_choices()
        self._epoch = -1
        self.threads = ThreadPoolExecutor(numba.get_num_threads())  # kept: starting some takes milliseconds

    def initial_vectors(self) -> Rows:
        """Return U before the first round, rows padded."""
        return self.with_constant(padded(self.problem, initial_user_vectors(self.problem), self._dtype))

    def report(
        self, round_number: int, vectors: Vectors, given: Given, pairing: Pairing, sums: Rows, counts: IntArray
    ) -> tuple[Outcome, float]:
        """Add every user's report to its block's sums; return the users' new state and the largest |e| ‖u‖ sent.

        `sums` is `(n_blocks, n_items, width)` and `counts` `(n_blocks, n_items)`.
        """
        outcome = Outcome(vectors.users.copy(), np.zeros(self.problem.n_users))
        streams, step = make_streams(self.problem, round_number), make_step(self.problem, round_number, self._dtype)
        common: tuple[Any, ...] = (self.profiles, self.choices, given, streams, step, vectors, outcome)
        kernel: Any = kernels.report_block
        if self.problem.model.learns_from_pairs:
            common, kernel = (*common[:3], pairing, *common[3:]), pairs.report_block

        def report(block: int, first: int, stop: int) -> float:
            return float(kernel(first, stop, *common, sums[block], counts[block]))

        largest = max(in_threads(self.threads, report, self.borders))
        if isinstance(self.problem.model, FactorizationMachine):
            self.with_constant(outcome.users)  # which is not learned
            squares = np.square(vectors.users, dtype=np.float64)
            outcome.rho[:] *= 1 - squares[:, 0] / squares.sum(axis=1)  # the user's own bias is not sent
        return outcome, largest

    def renew_permanent_bits(self, round_number: int) -> None:
        """Draw B' anew where a permanent epoch begins; a resumed run draws what the epoch began with."""
        problem = self.problem
        epoch = problem.terms.epoch(round_number)
        if self._probabilities is None or epoch == self._epoch:
            return
        first_round = 1 if problem.terms.epoch_rounds is None else epoch * problem.terms.epoch_rounds + 1
        caps = profile_caps(problem)
        flip = thresholds(self._probabilities.prob_randomize / 2)
        stream = user_stream(problem, Purpose.PERMANENT_BITS, first_round)
        starts, items, bits = self.profiles.starts, self.profiles.items, self.choices.bits

        def fill(_: int, first: int, stop: int) -> None:
            fill_permanent(first, stop, starts, items, caps, flip, stream, bits)

        in_threads(self.threads, fill, self.borders)
        self._epoch = epoch

    def forget_permanent_bits(self) -> None:
        """Draw B' anew in the next round, which may be of any epoch."""
        self._epoch = -1

    def pairing(self, round_number: int, draws: Mapping[int, Draws] | None = None) -> Pairing:
        """Return the source of this round's partners: streams, or given draws."""
        problem, nobody = self.problem, np.empty(0, np.uint32)
        own = [draws[user].user_partners for user in sorted(draws)] if draws else []
        selected = [draws[user].selected_partners for user in sorted(draws)] if draws else []
        of_ratings = np.zeros(len(problem.items) if draws else 0, np.uint32)
        if draws and problem.model.learns_from_pairs:
            takes_part = np.isin(np.arange(problem.n_users), list(draws))
            of_ratings[np.repeat(takes_part, problem.rated_counts)] = np.concatenate(own)
        return Pairing(
            user_stream(problem, Purpose.USER_PAIRS, round_number),
            user_stream(problem, Purpose.SELECTED_PAIRS, round_number),
            of_ratings,
            np.concatenate(selected).astype(np.uint32) if selected else nobody,
        )

    def with_constant(self, users: Rows) -> Rows:
        """Return user rows with a 1 appended for a factorization machine; the 1 multiplies an item's base."""
        if isinstance(self.problem.model, FactorizationMachine):
            users[:, self.problem.model.user_width] = 1
        return users

    # Inside ----------------------------------------------------------------------------------------------------

    def _training_values(self) -> Rows:
        """Return the ratings, or what the protocol makes of them with draws from each device's own stream."""
        problem = self.problem
        values = np.zeros(len(problem.values), self._dtype)
        for user in problem.active_users:
            rows = slice(problem.starts[user], problem.starts[user + 1])
            rng = SeededRandomness(problem.seed, problem.first_user + int(user)).stream(Purpose.RATING_NOISE)
            values[rows] = problem.protocol(int(user)).training_values(problem.values[rows], rng=rng)
        return values

    def _empty_choices(self) -> Choices:
        problem = self.problem
        n_words = -(-problem.n_items // 64) if self._probabilities is not None else 0
        bits = np.zeros((problem.n_users, n_words), np.uint64)
        if self._probabilities is None:
            nothing, nowhere = np.zeros(0), np.zeros(0, np.uint64)
            return Choices(bits, nothing, nothing, nowhere, nowhere, nothing)
        zero, one = self._probabilities.prob_send_zero, self._probabilities.prob_send_one
        return Choices(bits, zero, one, thresholds(zero), thresholds(one), fake_ranges(problem))


def in_threads(threads: ThreadPoolExecutor, work: Callable[[int, int, int], Value], borders: IntArray) -> list[Value]:
    """Return the results of `work` on each part that the borders cut, in order.

    Kernels release the interpreter, so that parts run side by side; none is left at work, even by an exception.
    """
    parts = enumerate(pairwise(map(int, borders)))
    running = [threads.submit(work, part, first, stop) for part, (first, stop) in parts]
    try:
        return [part.result() for part in running]
    finally:
        for part in running:
            part.cancel()
        wait(running)
