"""The interface of engines, which simulate all devices and the server of a run, and functions that run an engine."""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray
from hushrec.errors import Diverged, LocalProtocolError, RemoteProtocolError
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols import find_protocol
from hushrec.simulation.training_problem import AnyProblem

Remark = Callable[[str], None]
DEFAULT_ENGINE = "cpu"

State = dict[str, npt.NDArray[np.generic]]


class Engine(Protocol):
    """A simulation of all devices and the server of one run.

    It is made from a training problem and an optional function `remark`, which shows a message to the user.
    """

    @property
    def problem(self) -> AnyProblem:
        """The training problem: everybody's ratings, the model, the protocol and the terms of the run."""

    @property
    def round_number(self) -> int:
        """Number of rounds run so far."""

    def run_round(self) -> None:
        """Run one round: every device that takes part reports, and the server learns from the reports."""

    def predictor(self) -> Predictor:
        """Return the predictor made from the state after the latest round; later rounds do not change it."""

    def predictor_from(self, arrays: Arrays) -> Predictor:
        """Rebuild a predictor from what its method `arrays` returned; raise `ValueError` if a shape is wrong."""

    def losses(self) -> dict[str, FloatArray]:
        """Return the privacy losses that were measured during the run, by name; each is an array `(n_users,)`.

        Gradient protocols measure `value_rho`, the ρ (zCDP) of the gradient values. Protocol `masked` measures nothing.
        """

    def bytes_per_client_round(self) -> float:
        """Return the mean size in bytes of what one device sends in a round, at 4 bytes per index and per number.

        Under `masked`, engine `reference` counts the reports of all phases, and the other engines the table alone.
        """

    def failure(self, round_number: int) -> Diverged:
        """Return the error to raise if a message is refused in this round, or a metric is not finite after it."""

    def state(self) -> State:
        """Return everything that later rounds depend on, as arrays by name, for a checkpoint."""

    def restore(self, state: State) -> None:
        """Continue from a state that `state` returned.

        Later results equal the results of an uninterrupted run, bit for bit on a CPU. On a GPU they may differ by
        rounding, because a GPU adds some numbers in a varying order.
        """


def make_engine(name: str, problem: AnyProblem, *, remark: Remark | None = None) -> Engine:
    """Return a new engine for the problem; raise `ParameterError` if its protocol has no engine called `name`."""
    with np.errstate(over="ignore", invalid="ignore"):  # the first round refuses numbers that overflow here
        return find_protocol(problem.protocol(0).name).engine(name)(problem, remark=remark)  # type: ignore[no-any-return]


def check_rounds_left(engine: Engine) -> None:
    """Raise `LocalProtocolError` if the engine has run all rounds of the problem's terms."""
    max_rounds = engine.problem.terms.max_rounds
    if engine.round_number >= max_rounds:
        raise LocalProtocolError(
            f"round {engine.round_number + 1} cannot run, because the run has {max_rounds} rounds and all have ended."
            " Train a new run with more rounds."
        )


def run_round(engine: Engine) -> None:
    """Run one round of the engine; re-raise a refusal by a device or the server as `Diverged`."""
    round_number = engine.round_number + 1
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # numbers that overflow are refused
            engine.run_round()
    except RemoteProtocolError as error:
        raise engine.failure(round_number) from error
