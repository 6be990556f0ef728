"""Engines run all devices of a training on this machine. What training asks of them, whatever the protocol."""

from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray
from hushrec.errors import Diverged, RemoteProtocolError
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols import find_protocol
from hushrec.simulation.training_problem import AnyProblem

Remark = Callable[[str], None]
DEFAULT_ENGINE = "cpu"

State = dict[str, npt.NDArray[np.generic]]


class Engine(Protocol):
    """What training asks of an engine. It is made from a problem and a `remark`, called with sentences for people."""

    name: ClassVar[str]

    @property
    def problem(self) -> AnyProblem:
        """What is trained."""

    @property
    def round_number(self) -> int:
        """The last round that was run; the problem's terms say how many there are."""

    def run_round(self) -> None:
        """Run one round: every device that takes part reports, the server learns from it."""

    def predictor(self) -> Predictor:
        """Return what is predicted after the last round. It stays as it is when training goes on."""

    def predictor_from(self, arrays: Arrays) -> Predictor:
        """Return the predictor that `Predictor.arrays` described; refused where it is of another problem."""

    def losses(self) -> dict[str, FloatArray]:
        """Return what the budget statement measures while it runs, by name, `(n_users,)` each."""

    def bytes_per_client_round(self) -> float:
        """Return the mean size of what one device sent in a round, as indices of 4 bytes and numbers of 4."""

    def failure(self, round_number: int) -> Diverged:
        """Return the error to raise when a party refuses to go on in this round, or a metric is not finite."""

    def state(self) -> State:
        """Return everything that the rounds to come depend on, as named arrays."""

    def restore(self, state: State) -> None:
        """Continues from a state, bit for bit as if there had been no interruption."""


def make_engine(name: str, problem: AnyProblem, *, remark: Remark | None = None) -> Engine:
    """Return the engine of that name, if the problem's protocol has one. Imports it only now."""
    with np.errstate(over="ignore", invalid="ignore"):  # what is beyond the engine's numbers, the first round refuses
        return find_protocol(problem.protocol(0).name).engine(name)(problem, remark=remark)  # type: ignore[no-any-return]


def train_all_rounds(name: str, problem: AnyProblem) -> Engine:
    """Return an engine of that name that has run every round of the problem's terms."""
    engine = make_engine(name, problem)
    while engine.round_number < problem.terms.max_rounds:
        run_round(engine)
    return engine


def run_round(engine: Engine) -> None:
    """Run one round of any engine; a refusal by one of the parties means that training diverged."""
    round_number = engine.round_number + 1
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
            engine.run_round()
    except RemoteProtocolError as error:
        raise engine.failure(round_number) from error
