"""The engine `cpu` for the masked protocol: it adds up all devices' integers, and draws the noise of the sum once.

On a network, each of n devices adds noise of its own. The sum of these has almost the distribution of one draw with n
times the variance; `summed_noise(…).distance` bounds the statistical distance of the two. All other computations are
the same as on devices (`hushrec.protocols.masked.device_table`): with the random numbers that devices drew for
rounding, the integers are identical.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

import numba
import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.budget.gaussian import own_norm_squared
from hushrec.engines import Remark, State, check_rounds_left
from hushrec.engines.cpu import masked_kernels as kernels
from hushrec.engines.cpu.compilation import CompilationNotice
from hushrec.engines.cpu.masked_kernels import Codes, Given, People, Target
from hushrec.engines.cpu.philox import make_stream
from hushrec.errors import Diverged, ParameterError
from hushrec.models.gaussian_process import Ratings
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols.masked.audience.table import AudienceTable
from hushrec.protocols.masked.blocks import KINDS
from hushrec.protocols.masked.encoding import BlockCode, Table, clip_of_norm, decode_sum
from hushrec.protocols.masked.evaluation import NO_RATINGS, is_held_out
from hushrec.protocols.masked.learning import learning_of
from hushrec.protocols.masked.noise import summed_noise
from hushrec.protocols.masked.plan import Round
from hushrec.protocols.masked.protocol import Masked
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.simulation.training_problem import AnyProblem

TASKS_PER_THREAD = 4

NOTHING_GIVEN = Given(np.empty(0, np.int64), np.empty(0))


class MaskedPeople:
    """The people of a masked run, or a contiguous part of them. Compiled loops over their ratings run in threads."""

    def __init__(self, problem: AnyProblem) -> None:
        self.problem = problem
        self._used, self._held = _parts(problem)

    def sum_integers(
        self,
        number: int,
        one: Round,
        codes: Sequence[BlockCode],
        table: Any,
        present: BoolArray,
        given: Given = NOTHING_GIVEN,
    ) -> IntArray:
        """Return the sum, before noise, of these people's integer tables in round `number`, all blocks in one vector.

        `one` is the round in the plan, `codes` has the encodings of its blocks, and `table` is the public table before
        the round. `present` has one flag per person: whether the device reports. In tests, `given` has the uniform
        numbers that decide the rounding; by default they are drawn from the seed.
        """
        problem = self.problem
        people = People(*self._used, present, *self._held)
        stream = make_stream(problem.seed, Purpose.TABLE_ROUNDING, number, problem.first_user)
        encodings = _encodings(one, codes, problem.protocol(0).fraction(problem.terms))
        add_people = kernels.add_choosers if isinstance(table, AudienceTable) else kernels.add_people
        public = learning_of(problem.model).entry_arrays(table)
        threads = numba.get_num_threads()
        borders = even_work(people.starts, TASKS_PER_THREAD * threads)

        def add(task: int) -> IntArray:
            sums = np.zeros(one.size, np.int64)
            add_people(borders[task], borders[task + 1], people, public, Target(encodings, stream, given, sums))
            return sums

        total = np.zeros(one.size, np.int64)
        with ThreadPoolExecutor(threads) as pool:
            for sums in pool.map(add, range(len(borders) - 1)):
                total += sums
        return total

    def predictor(self, users: None, public: Arrays) -> Predictor:
        """Return the predictor for these people; `users` is not used."""
        made: Predictor = self.problem.protocol(0).make_predictor(self.problem, public, {})
        return made


class CpuMaskedEngine:
    """The engine `cpu` for the masked protocol. Engines that divide people into parts override `_add_people`."""

    def __init__(self, problem: AnyProblem, *, remark: Remark | None = None) -> None:
        self.problem = problem
        self.priced = problem.terms.priced
        self.learning = learning_of(problem.model)
        self.learner = self.learning.make_learner(self.priced.plan, problem.n_users)
        self._latest: tuple[int, Predictor] | None = None  # a round, and the predictor after it
        self._compilation = CompilationNotice(remark)
        left_out = self.learning.columns.n_left_out
        if remark is not None and left_out:
            remark(
                f"the items file makes more columns than are used: {left_out} that vary least, such as a number times a"
                " category, are left out"
            )

    @property
    def round_number(self) -> int:
        return self.learner.round_number

    def run_round(self) -> None:
        """Run one round: the devices that are present send tables; the server decodes the sums and learns from them."""
        check_rounds_left(self)
        one, codes = self.priced.plan.rounds[self.round_number], self.priced.codes[self.round_number]
        present = self._protocol.present(self.problem.seed, self.round_number + 1, self.problem.n_users)
        survivors = int(np.count_nonzero(present))
        if survivors < self.priced.cohort.smallest:
            raise ParameterError(
                f"the number of devices that report in a round must be at least {self.priced.cohort.smallest}, for"
                f" which the noise is sized, got {survivors} in round {self.round_number + 1}. Lower the option"
                " dropout, or the option survivors (the fraction of the devices for which the noise is sized)."
            )
        totals = self.sum_tables(one, self.learner.table(), present)
        sums = {
            block.name: decode_sum(code, total, survivors)
            for block, code, total in zip(one.blocks, codes, totals, strict=True)
        }
        self.learner.learn(sums, survivors)

    def public(self) -> Arrays:
        """Return the arrays of the public table after the latest round, by name, and the entry `round_number`."""
        return {**vars(self.learner.table()), "round_number": np.array(self.round_number)}

    def predictor(self) -> Predictor:
        """Return the predictor after the latest round. Repeated calls return the same object, which caches results."""
        if self._latest is None or self._latest[0] != self.round_number:
            self._latest = self.round_number, self._protocol.make_predictor(self.problem, self.public(), {})
        return self._latest[1]

    def predictor_from(self, arrays: Arrays) -> Predictor:
        return self._protocol.predictor_from(self.problem, arrays)

    def losses(self) -> dict[str, FloatArray]:
        return {}

    def bytes_per_client_round(self) -> float:
        """Return the size of one device's table in bytes, averaged over the rounds; every number takes 4 bytes."""
        rounds = self.priced.plan.rounds
        return float(4 * sum(one.size for one in rounds) / len(rounds))

    def failure(self, round_number: int) -> Diverged:
        return self._protocol.failure(self.problem.terms, self.learner.state(), round_number)

    def state(self) -> State:
        """Return the state of the server's learner; simulated devices have no state."""
        return self.learner.state()

    def restore(self, state: State) -> None:
        self.learner.restore(state)
        self._latest = None

    def sum_tables(self, one: Round, table: Any, present: BoolArray) -> list[Table]:
        """Return, for each block of round `one`, the sum modulo 2³² of all present devices' integers, noise included.

        `table` is the public table before the round; `present` has one flag per person.
        """
        number = self.round_number + 1
        codes = self.priced.codes[self.round_number]
        survivors = int(np.count_nonzero(present))
        sums = self.sum_integers(one, codes, table, present)
        rng = SeededRandomness(self.problem.seed).stream(Purpose.SUMMED_NOISE, number)
        noisy = [
            own + summed_noise(code.share_variance, survivors).draw(code.size, rng=rng)
            for own, code in zip(sums, codes, strict=True)
        ]
        return [integers.astype(np.uint32) for integers in noisy]

    def sum_integers(
        self, one: Round, codes: Sequence[BlockCode], table: Any, present: BoolArray, given: Given = NOTHING_GIVEN
    ) -> list[IntArray]:
        """Return, for each block, the sum of all present devices' integers before noise, which no real server sees.

        `MaskedPeople.sum_integers` explains the arguments.
        """
        with self._compilation.listening():
            total = self._add_people(one, codes, table, present, given)
        ends = np.cumsum([block.size for block in one.blocks])
        return np.split(total, ends[:-1])

    @cached_property
    def _people(self) -> MaskedPeople:
        return MaskedPeople(self.problem)

    def _add_people(
        self, one: Round, codes: Sequence[BlockCode], table: Any, present: BoolArray, given: Given
    ) -> IntArray:
        return self._people.sum_integers(self.round_number + 1, one, codes, table, present, given)

    @property
    def _protocol(self) -> Masked:
        protocol: Masked = self.problem.protocol(0)
        return protocol


def _parts(problem: AnyProblem) -> tuple[Ratings, Ratings]:
    """Return the ratings that the run learns from, and the ratings that devices hold out to measure accuracy."""
    if not problem.terms.priced.plan.holds_out:
        none = Ratings(np.zeros_like(problem.starts), *NO_RATINGS)
        return Ratings(problem.starts, problem.items, problem.values), none
    held = np.zeros(len(problem.items), dtype=np.bool_)
    for user in range(problem.n_users):
        own = slice(problem.starts[user], problem.starts[user + 1])
        held[own] = is_held_out(problem.first_user + user, problem.items[own], problem.n_items)
    return _only(problem, ~held), _only(problem, held)


def _only(problem: AnyProblem, wanted: BoolArray) -> Ratings:
    before = np.concatenate([[0], np.cumsum(wanted)])
    return Ratings(before[problem.starts], problem.items[wanted], problem.values[wanted])


def _encodings(one: Round, codes: Sequence[BlockCode], fraction: float) -> Codes:
    """Return the encoding of the blocks of round `one` for the kernels; `codes` has the encoding of each block.

    `fraction` multiplies the largest norm of every block's integers; it is below 1 for people whose own budget is
    smaller than the run's.
    """
    rows = [(0.0, 1.0, 1.0, 0, 0)] * len(KINDS)
    offset = 0
    for block, code in zip(one.blocks, codes, strict=True):
        limit = own_norm_squared(code.norm_squared, fraction)
        rows[KINDS.index(block.name)] = (block.clip, 1 / code.grid, clip_of_norm(code, limit), limit, offset)
        offset += block.size
    return Codes(*map(np.array, zip(*rows, strict=True)))


def even_work(starts: IntArray, n_tasks: int) -> IntArray:
    """Divide people into at most `n_tasks` tasks with about equal numbers of ratings.

    Return the first person of each task, and at the end the number of people. The ratings of person i begin at
    `starts[i]`.
    """
    cuts = np.searchsorted(starts, starts[-1] * np.arange(1, n_tasks) / n_tasks)
    return np.unique(np.concatenate([[0], cuts, [len(starts) - 1]])).astype(np.int64)
