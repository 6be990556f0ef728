"""The base class of engines that simulate the masked protocol: rounds, learning from sums, and predictors."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.engines import State
from hushrec.errors import Diverged, LocalProtocolError, ParameterError
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols.configured import BoolArray
from hushrec.protocols.masked.encoding import Table, decode_sum
from hushrec.protocols.masked.learning import learning_of
from hushrec.protocols.masked.plan import Round
from hushrec.protocols.masked.protocol import Masked
from hushrec.simulation.training_problem import AnyProblem


class MaskedRun(ABC):
    """A simulated run of the masked protocol; a subclass defines how the tables of a round are added up."""

    name: ClassVar[str]

    def __init__(self, problem: AnyProblem) -> None:
        self.problem = problem
        self.priced = problem.terms.priced
        self.learning = learning_of(problem.model)
        self.learner = self.learning.make_learner(self.priced.plan, problem.n_users)
        self._latest: tuple[int, Predictor] | None = None  # a round, and the predictor after it

    @abstractmethod
    def sum_tables(self, one: Round, table: Any, present: BoolArray) -> list[Table]:
        """Return, for each block of round `one`, the sum modulo 2³² of all present devices' tables, noise included.

        `table` is the public table before the round; `present` has one flag per user.
        """

    @property
    def round_number(self) -> int:
        return self.learner.round_number

    def run_round(self) -> None:
        """Run one round: the devices that are present send tables; the server decodes the sums and learns from them."""
        if self.round_number >= self.problem.terms.max_rounds:
            raise LocalProtocolError(f"the run is over: all {self.problem.terms.max_rounds} rounds have ended.")
        one, codes = self.priced.plan.rounds[self.round_number], self.priced.codes[self.round_number]
        present = self._protocol.present(self.problem.seed, self.round_number + 1, self.problem.n_users)
        survivors = int(np.count_nonzero(present))
        if survivors < self.priced.cohort.smallest:
            raise ParameterError(
                f"at least {self.priced.cohort.smallest} devices must report in a round, because the noise is sized for"
                f" them, got {survivors} in round {self.round_number + 1}. Lower the option survivors or dropout."
            )
        totals = self.sum_tables(one, self.learner.table(), present)
        sums = {
            block.name: decode_sum(code, total, survivors)
            for block, code, total in zip(one.blocks, codes, totals, strict=True)
        }
        self.learner.learn(sums, survivors)

    def public(self) -> Arrays:
        """Return the arrays of the public table after the last round, by name."""
        return {**vars(self.learner.table()), "round_number": np.array(self.round_number)}

    def predictor(self) -> Predictor:
        """Return the predictor after the last round. Repeated calls return the same object, which caches results."""
        if self._latest is None or self._latest[0] != self.round_number:
            self._latest = self.round_number, self._protocol.make_predictor(self.problem, self.public(), {})
        return self._latest[1]

    def predictor_from(self, arrays: Arrays) -> Predictor:
        return self._protocol.predictor_from(self.problem, arrays)

    def losses(self) -> dict[str, FloatArray]:
        return {}

    def bytes_per_client_round(self) -> float:
        """Return the mean size in bytes of a table over the rounds: 4 bytes per number, zeros included."""
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

    @property
    def _protocol(self) -> Masked:
        protocol: Masked = self.problem.protocol(0)
        return protocol
