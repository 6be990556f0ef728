"""The device side of a gradient run on engine `cpu`: ratings, selections and reports of all people or a part of them.

A part counts its users from 0 but keys their random streams by their numbers in the whole run. Therefore the draws of
every user, and the summed reports of every block of users, are bit-identical however people are divided into parts.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import pairwise
from typing import TypeVar

import numba
import numpy as np
import numpy.typing as npt

from hushrec.arrays import IntArray
from hushrec.engines.cpu import kernels, layout, pairs
from hushrec.engines.cpu.kernels import Choices, Inputs, Outcome, Profiles, Rows, Vectors
from hushrec.engines.cpu.randomized_response import fill_permanent
from hushrec.engines.gradient import GradientProblem, profile_caps, selection_probabilities, user_epsilon_g
from hushrec.models.fm import FactorizationMachine
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols.gradient.device import Draws
from hushrec.protocols.gradient.prediction import Predictions, initial_user_vectors
from hushrec.randomness import Purpose, SeededRandomness

Value = TypeVar("Value")


class People:
    """The users of a problem or of a part, divided into blocks at `borders`. Only their permanent bits change later."""

    def __init__(self, problem: GradientProblem, borders: IntArray, dtype: npt.DTypeLike = np.float32) -> None:
        self.problem, self.borders, self._dtype = problem, borders, np.dtype(dtype)
        items = problem.items.astype(np.uint32)
        self.profiles = Profiles(problem.starts, items, self._training_values(), problem.takes_part)
        self._probabilities = selection_probabilities(problem)
        self.choices = self._empty_choices()
        self._epoch = -1
        self.threads = ThreadPoolExecutor(numba.get_num_threads())  # kept, because starting threads takes milliseconds

    def initial_vectors(self) -> Rows:
        """Return the user vectors before the first round, padded with zeros to the width that kernels need."""
        return self.with_constant(layout.padded(self.problem, initial_user_vectors(self.problem), self._dtype))

    def inputs(self, round_number: int, vectors: Vectors, draws: Mapping[int, Draws] | None = None) -> Inputs:
        """Return the inputs of the kernels for one round.

        `draws` has the random draws of every user who takes part; tests take them from engine `reference`. With None,
        the kernels make their own.
        """
        problem = self.problem
        self._renew_permanent_bits(round_number)
        return Inputs(
            self.profiles,
            self.choices,
            layout.given_draws(problem, draws),
            layout.make_streams(problem, round_number),
            layout.make_step(problem, round_number, self._dtype),
            vectors,
        )

    def report(self, inputs: Inputs, sums: Rows, counts: IntArray) -> tuple[Outcome, float]:
        """Compute the reports of all users in one round, and sum them up for each block of users.

        The gradient of a reported item contains e u, its error times the user vector. `sums`, of shape
        `(n_blocks, n_items, width)`, is filled with each item's sum of e u; `counts`, of shape `(n_blocks, n_items)`,
        with its number of gradients. Return the new user vectors with the privacy losses of this round, and the largest
        norm |e| ‖u‖ over all reported items. This norm is ∞ if a number is not finite.
        """
        before = inputs.vectors.users
        outcome = Outcome(before.copy(), np.zeros(self.problem.n_users))
        kernel = pairs.report_block if self.problem.model.learns_from_pairs else kernels.report_block

        def report(block: int, first: int, stop: int) -> float:
            return float(kernel(first, stop, inputs, outcome, sums[block], counts[block]))

        largest = max(in_threads(self.threads, report, self.borders))
        if isinstance(self.problem.model, FactorizationMachine):
            self.with_constant(outcome.users)  # the constant is not learned
            squares = np.square(before, dtype=np.float64)
            outcome.rho[:] *= 1 - squares[:, 0] / squares.sum(axis=1)  # the user's own bias is not sent
        return outcome, largest

    def predictor(self, users: Rows, public: Arrays) -> Predictor:
        """Return the predictor for these people, from their padded user vectors `users` and the public table."""
        own = np.asarray(users[:, : self.problem.model.user_width], np.float64)
        return Predictions(self.problem).predictor(own, public["item_vectors"])

    def _renew_permanent_bits(self, round_number: int) -> None:
        """Draw the permanent bits of this round's epoch from the seed, unless they have been drawn."""
        problem = self.problem
        epoch = problem.terms.epoch(round_number)
        if self._probabilities is None or epoch == self._epoch:
            return
        first_round = 1 if problem.terms.epoch_rounds is None else epoch * problem.terms.epoch_rounds + 1
        caps = profile_caps(problem)
        flip = self._probabilities.prob_randomize / 2
        stream = layout.user_stream(problem, Purpose.PERMANENT_BITS, first_round)
        starts, items, bits = self.profiles.starts, self.profiles.items, self.choices.bits
        self._epoch = -1  # until all bits are drawn

        def fill(_: int, first: int, stop: int) -> None:
            fill_permanent(first, stop, starts, items, caps, flip, stream, bits)

        in_threads(self.threads, fill, self.borders)
        self._epoch = epoch

    def with_constant(self, users: Rows) -> Rows:
        """Set the column after the user vectors to 1 for model `fm`, in place, and return `users`.

        The column multiplies the term of a prediction that depends on the item alone, which only model `fm` has.
        """
        if isinstance(self.problem.model, FactorizationMachine):
            users[:, self.problem.model.user_width] = 1
        return users

    def _training_values(self) -> Rows:
        """Return the values that devices train on: ratings, in `isgld` with Laplace noise from each user's stream."""
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
            return Choices(bits, np.zeros(0), np.zeros(0), np.zeros(0))
        return Choices(
            bits, self._probabilities.prob_send_zero, self._probabilities.prob_send_one, user_epsilon_g(problem)
        )


def in_threads(threads: ThreadPoolExecutor, work: Callable[[int, int, int], Value], borders: IntArray) -> list[Value]:
    """Call `work(index, first, stop)` in threads, for each range `first` … `stop` − 1 between consecutive `borders`.

    Return the results in the order of the ranges; `index` counts the ranges from 0. Kernels release the GIL, so that
    calls run in parallel. No call is still running when this function returns or raises.
    """
    ranges = enumerate(pairwise(map(int, borders)))
    running = [threads.submit(work, index, first, stop) for index, (first, stop) in ranges]
    try:
        return [call.result() for call in running]
    finally:
        for call in running:
            call.cancel()
        wait(running)
