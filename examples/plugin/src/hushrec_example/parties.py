"""The device's and the server's side of `one-rating`, its messages, and what a report costs.

A device draws one of its ratings, writes its distance from the middle of the scale, from −2 to 2, and a 1 into an empty
table, and adds Laplace noise to every cell. Another profile changes at most two rows, by at most 2 + 1 each, so the
table moves by at most 6 in the sum of absolute values, and noise of scale 6/ε makes the report ε-private.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.budget.accountants import Accountant
from hushrec.budget.ledger import Ledger
from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.messages import Address, Table, crosses
from hushrec.models.predictor import Arrays
from hushrec.protocols.configured import ConfiguredProtocol, Fleet, LedgerStatement, Spending
from hushrec.protocols.parties import DeviceSide, Private, Report, RoundOver, ServerSide, State
from hushrec_example.means import MeanPredictor

UNIT = "one-rating"  # of the ledger; the entry point of `ProfileAccountant` has the same name
PROTECTED = "one person's whole profile replaced by another"
NOT_COVERED = ["that a device takes part, and when"]
SENSITIVITY = 6.0
MIDDLE = 3.0  # of the scale 1 to 5, on which every device works
CHOICE, NOISE = 1000, 1001  # random streams: numbers from 1000 on are free for plug-ins


@crosses("one-rating.question", largest=1_000)
@dataclass(frozen=True)
class Question:
    """The server's message that asks a device for its table."""

    n_items: int


@crosses("one-rating.tally", largest=10_000_000)
@dataclass(frozen=True, eq=False)
class Tally:
    """Distance from the middle and number of ratings by item, `(n_items, 2)`, with noise."""

    numbers: Annotated[FloatArray, Table] = field(repr=False)


@crosses("one-rating.terms", largest=1_000)
@dataclass(frozen=True)
class Terms:
    """The terms that every device accepts: one round, and the number of rows of the table."""

    n_items: int
    max_rounds: int = 1

    def agrees_with(self, accepted: "Terms") -> bool:
        return self == accepted


@dataclass(frozen=True)
class Told:
    """The event that a device sent one table."""

    unit: ClassVar[str] = UNIT
    epsilon: float


@dataclass(slots=True)
class ProfileAccountant(Accountant):
    """The total ε of all tables, by basic composition."""

    unit: ClassVar[str] = UNIT
    tables: int = 0
    total: float = 0.0

    def compose(self, event: Any) -> None:
        self.tables += 1
        self.total += event.epsilon

    def charged(self) -> float:
        return self.total


class OneRatingDevice(DeviceSide):
    """The device's side: sends one table with noise; without ratings, noise alone."""

    def __init__(self, epsilon: float, terms: Terms) -> None:
        self.epsilon, self.terms = epsilon, terms

    def n_items(self, state: State) -> int:
        return self.terms.n_items

    def report(self, private: Private, address: Address, message: Any) -> Report:
        if not isinstance(message, Question) or message.n_items != self.terms.n_items:
            raise RemoteProtocolError("n_items of a message must be that of the accepted terms, but it differs.")
        table = np.zeros((self.terms.n_items, 2))
        if len(private.items):
            draw = private.randomness.stream(CHOICE, address.round_number).random(1)[0]
            chosen = int(draw * len(private.items))
            table[private.items[chosen]] = private.values[chosen] - MIDDLE, 1
        uniform = private.randomness.stream(NOISE, address.round_number).random(table.shape) - 0.5
        noise = -np.sign(uniform) * np.log1p(-2 * np.abs(uniform)) * SENSITIVITY / self.epsilon
        return Report(Tally(table + noise), private.state, (Told(self.epsilon),))

    def predict(self, private: Private, public: Arrays) -> FloatArray:
        return np.asarray(public["means"])


class OneRatingServer(ServerSide):
    """The server's side: adds up the tables, and publishes a mean rating for every item."""

    phases = ("tally",)

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._sums = np.zeros((terms.n_items, 2))

    @property
    def terms(self) -> Terms:
        return self._terms

    @property
    def public(self) -> Arrays:
        distance, number = self._sums.T
        means = MIDDLE + np.clip(distance / np.maximum(number, 1), -2, 2)
        return {"sums": self._sums, "means": np.where(number > 1, means, MIDDLE)}

    def restore(self, public: Arrays) -> None:
        self._sums = np.array(public["sums"])

    def open(self, round_number: int, attempt: int, members: Any) -> Any:
        return dict.fromkeys(members, Question(self._terms.n_items))

    def check(self, address: Address, sender: Any, message: Any) -> None:
        if not isinstance(message, Tally) or message.numbers.shape != self._sums.shape:
            raise RemoteProtocolError("a report must be a table with one row of 2 numbers for each item.")

    def close(self, address: Address, reports: Any) -> Any:
        self._sums = sum((tally.numbers for _, tally in reports), start=np.zeros_like(self._sums))
        return RoundOver()


@dataclass(frozen=True)
class OneRating(ConfiguredProtocol):
    """The protocol with its only option, ε."""

    name: ClassVar[str] = "one-rating"
    phases: ClassVar[tuple[str, ...]] = ("tally",)

    epsilon: float

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "OneRating":
        if not options["epsilon"] > 0:
            raise ParameterError(f"epsilon must be positive, got {options['epsilon']}.")
        return cls(options["epsilon"])

    def make_terms(self, fleet: Fleet, options: Mapping[str, Any]) -> Terms:
        return Terms(fleet.n_items)

    def statement(self, spending: Spending) -> dict[str, Any]:
        return {
            "unit": f"{PROTECTED}, over the whole run",
            "epsilon": self.epsilon * spending.rounds,
            "delta": 0.0,
            "rounds": spending.rounds,
            "not_covered": NOT_COVERED,
        }

    @classmethod
    def load_predictor(cls, record: Mapping[str, Any], arrays: Arrays) -> MeanPredictor:
        return MeanPredictor(arrays["means"])

    def make_device(self, terms: Terms, model: Any) -> OneRatingDevice:
        return OneRatingDevice(self.epsilon, terms)

    def make_server(self, terms: Terms, model: Any, seed: int) -> OneRatingServer:
        return OneRatingServer(terms)

    def joining_costs(self, terms: Terms) -> dict[str, float]:
        return {UNIT: self.epsilon * terms.max_rounds}

    def limits_at(self, epsilon: float) -> dict[str, float]:
        return {UNIT: epsilon}

    def ledger_statement(self, ledger: Ledger) -> LedgerStatement:
        spent = ledger[UNIT]
        return LedgerStatement(
            unit=f"{PROTECTED}, over all runs so far",
            spent=spent.charged(),
            limit=ledger.limit(UNIT),
            rounds=spent.tables,
            not_covered=NOT_COVERED,
        )

    def make_predictor(self, problem: Any, public: Arrays, private: Mapping[int, State]) -> MeanPredictor:
        return MeanPredictor(public["means"])
