"""The interface of a protocol with the options of one run: its terms, its two sides, its costs and its predictor."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.ledger import Ledger
from hushrec.errors import Diverged
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols.parties import DeviceSide, ServerSide, State

BoolArray = npt.NDArray[np.bool_]


class RunTerms(Protocol):
    """The part that the terms of all protocols share; terms are what a server asks of each device for a whole run."""

    @property
    def max_rounds(self) -> int:
        """Largest number of rounds of the run."""


@dataclass(frozen=True, eq=False)
class Fleet:
    """The facts about a simulated run's devices and data that its terms are computed from."""

    n_items: int
    n_ratings: int = field(repr=False)  # of all people, including those who do not take part
    rated_counts: IntArray = field(repr=False)  # (n_active,)
    protocols: Sequence["ConfiguredProtocol"] = field(repr=False)  # one for all devices, or one for each active device
    model: Any
    seed: int


@dataclass(frozen=True, eq=False)
class Spending:
    """The facts about a finished run that its budget statement is computed from.

    `losses` holds the privacy losses measured during the run, such as `value_rho`: one array over the active devices
    for each name.
    """

    rounds: int
    terms: Any
    model: Any
    protocols: Sequence["ConfiguredProtocol"] = field(repr=False)  # one for all devices, or one for each active device
    rated_counts: IntArray = field(repr=False)  # (n_active,)
    losses: Mapping[str, FloatArray] = field(repr=False)


class ConfiguredProtocol(ABC):
    """A protocol with the options of one run. Devices of the same run may have different budgets."""

    name: ClassVar[str]
    phases: ClassVar[tuple[str, ...]]  # of a round, in order
    divergence_advice: ClassVar[str] = ""  # advice for a diverging run, in addition to a smaller step

    @classmethod
    @abstractmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Return the protocol with these options of its declaration; raise `ParameterError` for impossible values."""

    @classmethod
    def network_options(cls, options: Mapping[str, Any], n_items: int, n_devices: int) -> dict[str, Any]:
        """Return the options of a network run, with defaults for those that a simulation derives from its ratings."""
        return dict(options)

    def predicts_new_items(self, model: str) -> bool:
        """Return whether a running run can predict items that join its catalogue without another round."""
        return False

    def asks(self, terms: Any) -> list[str]:
        """Return sentences for the operator's page that say what a run with these terms asks of every device."""
        return [f"Up to {terms.max_rounds:,} rounds."]

    def expected_devices(self, terms: Any) -> int | None:
        """Return the number of devices that these terms are calibrated for; None if the terms do not tell."""
        return None

    def expectation(self, terms: Any, model: str, n_devices: float) -> str | None:
        """Return one sentence about the accuracy to expect with `n_devices` devices; None if it was never measured."""
        return None

    def chosen_options(self) -> dict[str, Any]:
        """Return the options by name, including computed defaults: the fields of this dataclass."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]

    def can_take_part(self, rated_counts: IntArray, n_items: int, model: Any) -> BoolArray:
        """Return which devices take part, given how many items each has rated.

        By default all do, so that taking part reveals nothing about a profile.
        """
        return np.ones(np.shape(rated_counts), dtype=np.bool_)

    @abstractmethod
    def make_terms(self, fleet: Fleet, options: Mapping[str, Any]) -> Any:
        """Return the terms of a run, a `RunTerms`; raise `ParameterError` if a budget is impossible for some device."""

    @abstractmethod
    def statement(self, spending: Spending) -> dict[str, Any]:
        """Return the `budget` of a result: the unit, epsilon, delta and rounds of a run, and what is not covered."""

    @classmethod
    @abstractmethod
    def load_predictor(cls, record: Mapping[str, Any], arrays: Arrays) -> Predictor:
        """Return the predictor stored in a run folder, from its record and the arrays of `model.npz`."""

    # The two sides of a run, and their results --------------------------------------------------------------------

    @abstractmethod
    def make_device(self, terms: Any, model: Any) -> DeviceSide:
        """Return the device side for accepted terms; raise an error for terms that do not fit these budgets."""

    def check_terms(self, terms: Any) -> None:
        """Raise an error for terms that a device with these budgets must not accept; uses no catalogue."""
        return

    @abstractmethod
    def make_server(self, terms: Any, model: Any, seed: int) -> ServerSide:
        """Return the server side of a run, before its first round."""

    def make_network_server(self, terms: Any, model: Any, state: State) -> ServerSide:
        """Return the server side of a network run, whose devices may lie, restored from `state`."""
        side = self.make_server(terms, model, 0)
        side.restore(state)
        return side

    def present(self, seed: int, round_number: int, n_users: int) -> BoolArray:
        """Return whose devices are present in a simulated round, `(n_users,)`: all, unless the protocol drops some."""
        return np.ones(n_users, dtype=np.bool_)

    def joining_costs(self, terms: Any) -> dict[str, float]:
        """Return the most that a run with these terms may charge to a ledger, by unit.

        A person agrees to these costs when joining; a run that needs more must ask the person again.
        """
        return {}

    def limits_at(self, epsilon: float) -> dict[str, float]:
        """Return the limits of a ledger, by unit, for a person who allows this ε for all runs together."""
        return {}

    @abstractmethod
    def make_ledger(self, terms: Any) -> Ledger:
        """Return the ledger of a simulated person, with limits that allow the whole run."""

    def losses(self, ledger: Ledger) -> dict[str, float]:
        """Return the totals of one device's ledger that `statement` needs, by name."""
        return {}

    @abstractmethod
    def ledger_statement(self, ledger: Ledger) -> dict[str, Any]:
        """Return what one device has spent, in which unit, and what that does not cover. Shown to its person only."""

    @abstractmethod
    def make_predictor(self, problem: Any, public: Arrays, private: Mapping[int, State]) -> Predictor:
        """Return the predictor of a simulated run, from the public table and each participant's private state."""

    def predictor_from(self, problem: Any, arrays: Arrays) -> Predictor:
        """Return the predictor rebuilt from a checkpoint's arrays; raise `ValueError` if they fit another problem."""
        return self.load_predictor({}, arrays)

    def failure(self, terms: Any, public: Arrays, round_number: int) -> Diverged:
        """Return the error to raise when a device or the server refuses a message, or a metric is not finite."""
        return Diverged(
            f"training with {self.name} failed in round {round_number}: a device or the server refused a message."
        )
