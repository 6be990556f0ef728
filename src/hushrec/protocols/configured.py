"""A protocol with its options chosen: what settles the terms of a run, says what it cost and reads what it learned."""

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
    """What every protocol's terms have: what a server asks of each device for a whole run."""

    @property
    def max_rounds(self) -> int:
        """How many rounds the run has."""


@dataclass(frozen=True, eq=False)
class Fleet:
    """The devices of a run as far as its terms depend on them."""

    n_items: int
    n_ratings: int = field(repr=False)  # of everybody, those who take no part included
    rated_counts: IntArray = field(repr=False)  # (n_active,)
    protocols: Sequence["ConfiguredProtocol"] = field(repr=False)  # one for all, or one for each active device
    model: Any
    seed: int


@dataclass(frozen=True, eq=False)
class Spending:
    """What the devices of a run did, as far as a budget statement needs it.

    `losses` holds what was measured while it ran, one array over the active devices by name, such as `value_rho`.
    """

    rounds: int
    terms: Any
    model: Any
    protocols: Sequence["ConfiguredProtocol"] = field(repr=False)  # one for all, or one for each active device
    rated_counts: IntArray = field(repr=False)  # (n_active,)
    losses: Mapping[str, FloatArray] = field(repr=False)


class ConfiguredProtocol(ABC):
    """One protocol with the options of one run; devices of a run may differ in their budgets."""

    name: ClassVar[str]
    phases: ClassVar[tuple[str, ...]]  # of a round, in their order
    divergence_advice: ClassVar[str] = ""  # what helps a run that diverges besides a smaller step

    @classmethod
    @abstractmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """The protocol with these options, which its declaration lists; refused where a value is impossible."""

    @classmethod
    def network_options(cls, options: Mapping[str, Any], n_items: int, n_devices: int) -> dict[str, Any]:
        """Return the options of a network run, with defaults where a simulation would count ratings."""
        return dict(options)

    def predicts_new_items(self, model: str) -> bool:
        """Whether items may join the catalogue of a run that its rounds know nothing of."""
        return False

    def asks(self, terms: Any) -> list[str]:
        """What a run of these terms asks of every device, in sentences for the operator's page."""
        return [f"Up to {terms.max_rounds:,} rounds."]

    def expected_devices(self, terms: Any) -> int | None:
        """Return how many devices these terms are made for; None where they do not say."""
        return None

    def expectation(self, terms: Any, model: str, n_devices: float) -> str | None:
        """What a run of so many devices can be expected to reach, in one sentence; None where nobody measured it."""
        return None

    def chosen_options(self) -> dict[str, Any]:
        """Return the options, computed defaults included: the fields of this dataclass."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]

    def can_take_part(self, rated_counts: IntArray, n_items: int, model: Any) -> BoolArray:
        """Which devices take part, by how many items each has rated: all, so that it tells nothing of a profile."""
        return np.ones(np.shape(rated_counts), dtype=np.bool_)

    @abstractmethod
    def make_terms(self, fleet: Fleet, options: Mapping[str, Any]) -> Any:
        """The terms of a run with these devices: a `RunTerms`. Refuses budgets that are impossible for one of them."""

    @abstractmethod
    def statement(self, spending: Spending) -> dict[str, Any]:
        """Unit, epsilon, delta and rounds of a run, and what is not covered: the `budget` of a result."""

    @classmethod
    @abstractmethod
    def load_predictor(cls, record: Mapping[str, Any], arrays: Arrays) -> Predictor:
        """The predictor that a run folder holds: its record, and the arrays of `model.npz`."""

    # One simulated run --------------------------------------------------------------------------------------------

    @abstractmethod
    def make_device(self, terms: Any, model: Any) -> DeviceSide:
        """Return the device side under accepted terms; refuse terms that do not fit these budgets."""

    def check_terms(self, terms: Any) -> None:
        """Refuse terms that a device with these budgets does not accept, as far as they tell without the catalogue."""
        return

    @abstractmethod
    def make_server(self, terms: Any, model: Any, seed: int) -> ServerSide:
        """Return the server side of a run, before its first round."""

    def make_network_server(self, terms: Any, model: Any, state: State) -> ServerSide:
        """Return the server side of a network run that continues from `state`; its devices are not trusted."""
        side = self.make_server(terms, model, 0)
        side.restore(state)
        return side

    def present(self, seed: int, round_number: int, n_users: int) -> BoolArray:
        """Whose devices report in a simulated round: everybody's, unless the protocol lets some be absent."""
        return np.ones(n_users, dtype=np.bool_)

    def joining_costs(self, terms: Any) -> dict[str, float]:
        """Return the most that a run of these terms may charge to a ledger, by unit.

        A person agrees to it before joining.
        """
        return {}

    def limits_at(self, epsilon: float) -> dict[str, float]:
        """Return the limits of a ledger, by unit, for a person who allows this ε in all runs together."""
        return {}

    @abstractmethod
    def make_ledger(self, terms: Any) -> Ledger:
        """The ledger of a simulated person who agrees to the whole run."""

    def losses(self, ledger: Ledger) -> dict[str, float]:
        """Return the totals of one device's ledger that `statement` needs, by name."""
        return {}

    @abstractmethod
    def ledger_statement(self, ledger: Ledger) -> dict[str, Any]:
        """What one device has spent, in which unit, and what that does not cover. For the person alone."""

    @abstractmethod
    def make_predictor(self, problem: Any, public: Arrays, private: Mapping[int, State]) -> Predictor:
        """Everybody's predictions, from what is public and from the private states of those who take part."""

    def predictor_from(self, problem: Any, arrays: Arrays) -> Predictor:
        """The predictor that a checkpoint holds as `Predictor.arrays`; a ValueError where it is of another problem."""
        return self.load_predictor({}, arrays)

    def failure(self, terms: Any, public: Arrays, round_number: int) -> Diverged:
        """Return the error to raise when a party refuses to go on in this round, or a metric is not finite."""
        return Diverged(f"training with {self.name} failed in round {round_number}: a party refused to go on.")
