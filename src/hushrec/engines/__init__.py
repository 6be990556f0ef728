"""Engines drive clients and a server through rounds; every engine speaks the same protocols."""

from collections.abc import Callable
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray
from hushrec.client import SMALL_SHARE, SMALLEST_ITEM_NORM
from hushrec.engines.limits import check_start, too_short
from hushrec.errors import Diverged, ParameterError, RemoteProtocolError
from hushrec.protocols.gradient import Isgld
from hushrec.simulation.problem import Problem

Remark = Callable[[str], None]
DEFAULT_ENGINE = "cpu"

State = dict[str, npt.NDArray[np.generic]]


class Engine(Protocol):
    """What training asks of an engine."""

    name: ClassVar[str]
    problem: Problem

    @property
    def round_number(self) -> int:
        """The last round that was run."""

    @property
    def item_vectors(self) -> FloatArray:
        """V, `(n_items, item_width)`: public."""

    @property
    def user_vectors(self) -> FloatArray:
        """U, `(n_users, user_width)`: private to each user, joined here because this is a simulation."""

    def run_round(self) -> None:
        """One round: every active user answers, the server moves the items."""

    def value_rho(self) -> FloatArray:
        """The zCDP loss of the gradient values that each user has sent so far, `(n_users,)`."""

    def bytes_per_client_round(self) -> float:
        """Mean size of what one client sent in a round, as indices of 4 bytes and numbers of 4."""

    def state(self) -> State:
        """Everything that the rounds to come depend on, as named arrays."""

    def restore(self, state: State) -> None:
        """Continues from a state, bit for bit as if there had been no interruption."""


def make_engine(name: str, problem: Problem, *, remark: Remark | None = None) -> Engine:
    """The engine of that name. Imports it only now. `remark` hears what a person should know, such as a wait."""
    check_start(problem)
    with np.errstate(over="ignore", invalid="ignore"):  # what is beyond the engine's numbers, the first round refuses
        return _make_engine(name, problem, remark)


def _make_engine(name: str, problem: Problem, remark: Remark | None) -> Engine:
    if name == "cpu":
        from hushrec.engines.cpu.engine import CpuEngine

        return CpuEngine(problem, remark=remark)
    if name == "reference":
        from hushrec.engines.reference import ReferenceEngine

        return ReferenceEngine(problem)
    if name == "gpu":
        try:
            from hushrec.engines.gpu.engine import GpuEngine
        except ModuleNotFoundError as error:
            raise ParameterError(f"engine gpu needs {error.name}, which is not installed: pip install torch.") from None
        return GpuEngine(problem)
    raise ParameterError(f"engine must be cpu, gpu or reference, got {name}.")


def play_round(engine: Engine) -> None:
    """One round of any engine. What a party refuses in it means that training went astray, and how is what is said."""
    round_number = engine.round_number + 1
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused
            engine.run_round()
    except RemoteProtocolError as error:
        with np.errstate(over="ignore", invalid="ignore"):
            shrank = too_short(engine.item_vectors, engine.problem.n_items)
        raise (collapsed if shrank else diverged)(engine.problem, round_number) from error


def collapsed(problem: Problem, round_number: int) -> Diverged:
    """Too many items came near zero, where errors would be ratings: clients stop."""
    return Diverged(
        f"training with {problem.protocol(0).name} ended in round {round_number}: over {SMALL_SHARE:.0%} of the item"
        f" vectors are shorter than {SMALLEST_ITEM_NORM:g} at step {problem.terms.step:g}, and no device answers those."
        " Raise factors, or change the step."
    )


def diverged(problem: Problem, round_number: int) -> Diverged:
    """What went astray, when, and what to do."""
    protocol = problem.protocol(0)
    advice = "Lower the step, or raise epsilon." if isinstance(protocol, Isgld) else "Lower the step."
    return Diverged(
        f"training with {protocol.name} diverged in round {round_number}: its numbers grew beyond all bounds at step"
        f" {problem.terms.step:g}. {advice}"
    )
