"""`ConfiguredProtocol`, the interface of a protocol with the options of one run, and the arguments of its methods."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Self

import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.budget.ledger import Ledger
from hushrec.errors import Diverged, ParameterError
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols.parties import DeviceSide, ServerSide, State


@dataclass(frozen=True, eq=False)
class Fleet:
    """The facts from which `make_terms` computes the terms of a run. For a network run, the counts are estimates."""

    n_items: int
    n_ratings: int = field(repr=False)  # including those of people who do not take part
    rated_counts: IntArray = field(repr=False)  # (n_active,) number of ratings of each device that takes part
    protocols: Sequence["ConfiguredProtocol"] = field(repr=False)  # one for each of these devices, or one for all
    model: Any
    seed: int


@dataclass(frozen=True, eq=False)
class Spending:
    """The facts about a run from which `ConfiguredProtocol.statement` computes what the run has cost."""

    rounds: int
    terms: Any
    model: Any
    protocols: Sequence["ConfiguredProtocol"] = field(repr=False)  # one for each device that took part, or one for all
    rated_counts: IntArray = field(repr=False)  # (n_active,) number of ratings of each of these devices
    losses: Mapping[str, FloatArray] = field(repr=False)  # (n_active,) privacy losses measured during the run, by name


@dataclass(frozen=True)
class LedgerStatement:
    """What the reports of one device have cost so far, over all its runs. Only the device's person may see it."""

    unit: str  # what the cost is about, such as a person's whole profile
    spent: float  # ε
    rounds: int | None  # rounds that were charged, under `masked` with each attempt; None if they are not counted
    limit: float | None = None  # the most ε that the person allows for all runs together; None: no limit
    delta: float = 0.0  # δ of `spent` and `limit`
    sentences: Sequence[str] = ()  # what `spent` means, in plain words for the person
    not_covered: Sequence[str] = ()
    fixed: str | None = None  # a sentence that says why the person's options can no longer change; None if they can
    own_epsilon: float | None = None  # the largest ε that the person lets one run cost; None if they chose none
    own_delta: float | None = None  # δ of `own_epsilon`; None before the person has joined a run
    charged: str | None = None  # what `rounds` counts, in words, such as "15 tables sent"; None: rounds
    numbers: Mapping[str, Any] = field(default_factory=dict)  # further numbers of this protocol, by name

    def to_dict(self) -> dict[str, Any]:
        """Return all fields except `numbers`, and the entries of `numbers`, in one dictionary."""
        entries: dict[str, Any] = {**vars(self), **self.numbers}
        del entries["numbers"]
        return entries


@dataclass(frozen=True)
class PrivacyLevel:
    """A budget that the device page offers to a person, with what it means in words."""

    name: str
    level: float  # the number by which `ConfiguredProtocol.options_at` finds the level
    epsilon: float  # ε of all rounds together
    welcome: str  # one sentence about the level, for a person who is about to join
    words: Sequence[str]  # sentences about the level
    confirm: str  # what the person agrees to by choosing the level
    in_use: bool = False
    is_asked: bool = False  # whether the person typed this level instead of choosing an offered one


class ConfiguredProtocol(ABC):
    """A protocol with the options of one run or of one device; devices of the same run may have different budgets."""

    name: ClassVar[str]
    phases: ClassVar[tuple[str, ...]]  # of a round, in order
    divergence_advice: ClassVar[str] = ""  # advice for a diverging run, in addition to a smaller step
    takes_own_level: ClassVar[bool] = False  # whether a person may also type a privacy level
    pauses_for_level: ClassVar[bool] = False  # whether a device stops taking part before its privacy level changes

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> Self:
        """Return the protocol with these options (name → value); raise `ParameterError` if a value is impossible."""
        return cls(**{entry.name: options.get(entry.name) for entry in fields(cls)})  # type: ignore[arg-type]

    @classmethod
    def network_options(cls, options: Mapping[str, Any], n_items: int, n_devices: int) -> dict[str, Any]:
        """Return the options of a network run, with defaults for options that simulations compute from ratings."""
        return dict(options)

    def predicts_new_items(self, model: str) -> bool:
        """Return whether devices can predict items that join the catalogue during a run, without another round."""
        return False

    def asks(self, terms: Any) -> list[str]:
        """Return sentences for the operator's page that say what a run with these terms requires of every device."""
        return ["One round." if terms.max_rounds == 1 else f"Up to {terms.max_rounds:,} rounds."]

    def expected_devices(self, terms: Any) -> int | None:
        """Return the number of devices that the noise or step of these terms is calibrated for; None if unknown."""
        return None

    def most_corrupt(self, terms: Any) -> int:
        """Return the largest number of corrupt devices that these terms protect against; 0 by default."""
        return 0

    def expectation(self, terms: Any, model: str, n_devices: float) -> str | None:
        """Return sentences about the accuracy to expect of this model with `n_devices` devices under these terms.

        Return None if no accuracy was measured for this model and these terms.
        """
        return None

    def notices(self, terms: Any) -> list[str]:
        """Return notices about these terms for the operator, who starts a server; empty by default."""
        return []

    def chosen_options(self) -> dict[str, Any]:
        """Return the options by name, with defaults filled in; they are the fields of this dataclass."""
        return {entry.name: getattr(self, entry.name) for entry in fields(self)}  # type: ignore[arg-type]

    def can_take_part(self, rated_counts: IntArray, n_items: int, model: Any) -> BoolArray:
        """Return whether each device takes part, given its number of ratings; the shape is that of `rated_counts`.

        By default all devices take part, so that taking part reveals nothing about the ratings.
        """
        return np.ones(np.shape(rated_counts), dtype=np.bool_)

    @abstractmethod
    def make_terms(self, fleet: Fleet, options: Mapping[str, Any]) -> Any:
        """Return the terms of a run, an object with a field or property `max_rounds`.

        `options` has the values of the run's options by name, such as `step`. Raise `ParameterError` if an option or
        budget is impossible.
        """

    @abstractmethod
    def statement(self, spending: Spending) -> dict[str, Any]:
        """Return the entry `budget` of a run's result: unit, epsilon, delta, rounds, and what is not covered."""

    @classmethod
    @abstractmethod
    def load_predictor(cls, record: Mapping[str, Any], arrays: Arrays) -> Predictor:
        """Return the predictor that a run folder stores: `record` is its `run.json`, `arrays` its `model.npz`."""

    # The two sides of a run, and their results --------------------------------------------------------------------

    @abstractmethod
    def make_device(self, terms: Any, model: Any) -> DeviceSide:
        """Return the device's side of a run.

        Raise `ParameterError` or `RemoteProtocolError` for terms that a device with these options must not accept.
        """

    def table_width(self, terms: Any) -> int:
        """Return about how many numbers the public table has for each item.

        From this number, a device estimates the size of the table, and refuses a run whose table is too large. A
        protocol whose public table has long rows must override this method.
        """
        return 1

    def check_terms(self, terms: Any) -> None:
        """Raise `ParameterError` for terms that a device with these options must not accept.

        Unlike `make_device`, this method needs no model, so that a device can call it before it has the catalogue.
        """
        return

    @abstractmethod
    def make_server(self, terms: Any, model: Any, seed: int) -> ServerSide:
        """Return the server's side of a simulated run, before its first round."""

    def make_network_server(self, terms: Any, model: Any, state: State) -> ServerSide:
        """Return the server's side of a network run, restored from `state`; its devices may be hostile."""
        side = self.make_server(terms, model, 0)
        side.restore(state)
        return side

    def present(self, seed: int, round_number: int, n_users: int) -> BoolArray:
        """Return which users' devices are present in a simulated round, `(n_users,)`; all by default."""
        return np.ones(n_users, dtype=np.bool_)

    def joining_costs(self, terms: Any) -> dict[str, float]:
        """Return the largest cost, by unit of the ledger, that a person agrees to by joining a run with these terms."""
        return {}

    def limits_at(self, epsilon: float) -> dict[str, float]:
        """Return the limits to set in a ledger, by unit, for a person who allows this ε for all runs together."""
        return {}

    def make_ledger(self, terms: Any) -> Ledger:
        """Return an empty ledger for a simulated person, with limits that allow the whole run."""
        return Ledger(**self.joining_costs(terms))

    def losses(self, ledger: Ledger) -> dict[str, float]:
        """Return the privacy losses of one device that `statement` needs, by name, read from the device's ledger."""
        return {}

    def own_budget(self, terms: Any) -> tuple[float | None, float | None]:
        """Return `own_epsilon` and `own_delta` of `LedgerStatement` for a run with these terms.

        `terms` is None before the person has joined a run. Both results are None for a protocol in which a person
        cannot limit the ε of one run.
        """
        return None, None

    @abstractmethod
    def ledger_statement(self, ledger: Ledger) -> LedgerStatement:
        """Return what one device has spent, in numbers and in words."""

    def describe_report(self, terms: Any, round_number: int, message: Any) -> list[str] | None:
        """Return sentences that explain a report on the person's page.

        Return None if the page shows the report's items and numbers themselves instead.
        """
        return [f"Round {round_number}: one report of protocol {self.name}."]

    def privacy_levels(self, terms: Any, n_rated: int, own: str | None = None) -> list[PrivacyLevel]:
        """Return the privacy levels that a person's page offers, by ascending ε; empty if the protocol has none.

        `n_rated` is the number of the person's ratings. `own` is a level that the person typed, if any; raise
        `ParameterError` if it is impossible.
        """
        return []

    def options_at(self, level: float, terms: Any) -> dict[str, Any]:
        """Return the person's options at a privacy level, by name; None as a value stands for the option's default.

        Raise `ParameterError` if the level is not offered.
        """
        raise ParameterError(f"level must be left out: protocol {self.name} has no privacy levels.")

    @abstractmethod
    def make_predictor(self, problem: Any, public: Arrays, private: Mapping[int, State]) -> Predictor:
        """Return the predictor of a simulated run.

        `public` has the arrays of the public table. `private` has the state of each device that takes part, by user.
        """

    def predictor_from(self, problem: Any, arrays: Arrays) -> Predictor:
        """Return the predictor from a checkpoint's arrays; raise `ValueError` if they do not fit the problem."""
        return self.load_predictor({}, arrays)

    def failure(self, terms: Any, public: Arrays, round_number: int) -> Diverged:
        """Return the error to raise if training fails in this round.

        Training fails if a device or the server refuses a message, or if a metric of the model is not finite. `public`
        has the arrays that the server has learned so far.
        """
        return Diverged(
            f"training with {self.name} failed in round {round_number}: a device or the server refused a message, or a"
            " metric is not finite."
        )
