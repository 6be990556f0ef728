"""The interfaces of the two sides of a protocol: the device and the server in one phase of a round, without I/O.

A round is a fixed list of phases. In each phase the server puts one message into the inbox of every device that it
asks; the device answers with one report or none. When a phase closes, the server computes from the reports the messages
of the next phase, ends the round, or starts it again as another attempt.

    server   open ──▶ inbox of phase 1 ──▶ close ──▶ inbox of phase 2 ──▶ … ──▶ close ──▶ RoundOver or NextAttempt
    device            report ───────────────────▶ report ──▶ …

`Client` and `Server` are the state machines, which enforce the order of messages. The classes here are the computations
of a protocol.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray, IntArray, WordArray
from hushrec.budget.events import Event
from hushrec.budget.ledger import Ledger
from hushrec.errors import LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import LARGEST_TABLE, Address
from hushrec.models.predictor import Arrays
from hushrec.randomness import Randomness, RandomStream

Name = int | str  # the name of a device: its user number in a simulation, its id in a network run
State = Arrays  # the arrays that one side stores, by name
Inbox = Mapping[Name, Any]  # the message of the open phase for each device that may report


# The device ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Membership:
    """A device's membership in a run: the run's id, the server's public key, and the device's own name and key."""

    run_id: str
    server_key: bytes  # public Ed25519 key, as it was when the device joined
    device: Name
    secret: bytes = field(repr=False)  # private Ed25519 key of the device


@dataclass(frozen=True, eq=False)
class Private:
    """The private data of a device, which it never sends: its ratings, protocol state, ledger and membership."""

    items: IntArray = field(repr=False)  # rated items in ascending order
    values: FloatArray = field(repr=False)  # their ratings on the scale 1 to 5
    state: State = field(repr=False)
    randomness: Randomness = field(repr=False)
    ledger: Ledger = field(default_factory=Ledger, repr=False)  # read only; `Client` charges it
    membership: Membership | None = field(default=None, repr=False)  # None before the device has joined
    public: Arrays | None = field(default=None, repr=False)  # the last public table that the device accepted


@dataclass(frozen=True, eq=False)
class Report:
    """The result of a device's phase: a message, the new state, and the events to charge before the message leaves."""

    message: Any | None  # None: nothing is sent in this phase
    state: State = field(repr=False)  # replaces the device's state
    events: tuple[Event, ...] = field(default=(), repr=False)
    draws: Any = field(default=None, repr=False)  # the random choices, for engines that record them


class DeviceSide(ABC):
    """The device side of a protocol under accepted terms. An instance is stateless: all data is in `Private`."""

    def new_state(self, randomness: Randomness) -> State:
        """Return the state of a device before its first round; empty unless the protocol needs one."""
        return {}

    @abstractmethod
    def n_items(self, state: State) -> int:
        """Return the number of items in the catalogue, as this device last heard of it."""

    def takes_part(self, private: Private) -> bool:
        """Return whether this device reports at all. By default it does, whatever its profile."""
        return True

    @abstractmethod
    def report(self, private: Private, address: Address, message: Any, draws: Any = None) -> Report:
        """Return the report on one message of the server; raise `RemoteProtocolError` if the message breaks the terms.

        `draws` replaces the random choices in tests.
        """

    @abstractmethod
    def predict(self, private: Private, public: Arrays) -> FloatArray:
        """Return the predictions for all items from the public table, on the scale 1 to 5 but not clipped to it."""

    order: str | None = None  # one sentence on how lists are sorted, if not by the predictions alone

    def rank(self, public: Arrays, predictions: FloatArray) -> FloatArray:
        """Return the scores of all items that lists are sorted by: larger is better."""
        return predictions

    def has_learned(self, public: Arrays) -> bool:
        """Return whether the public table already holds information about the items."""
        return True

    def popularity(self, public: Arrays) -> FloatArray | None:
        """Return how much people like each item, `(n_items,)`; None if the protocol does not publish that."""
        return None

    def likeness(self, private: Private, public: Arrays, items: IntArray, others: IntArray) -> FloatArray | None:
        """Return the similarity of `items` to `others`, `(len(items), len(others))`, for explanations.

        None if the protocol publishes nothing from which items can be compared.
        """
        return None

    def published(self, message: Any) -> Arrays | None:
        """Return the public arrays that a message carries for predictions; None if it carries none."""
        return None

    @property
    def predicts_new_items(self) -> bool:
        """Whether this device can predict items that joined the catalogue after the run was created."""
        return False

    def lacks(self, private: Private, message: Any) -> bool:
        """Return whether this device must fetch a newer public table before it can report on this message."""
        return False

    def spent(self, state: State) -> dict[str, float]:
        """Return how much of `ConfiguredProtocol.joining_costs` this run has spent so far, by unit."""
        return {}

    def rest(self, state: State) -> State:
        """Return the state without the secrets of an attempt, for a device that knows that no attempt is open."""
        return state

    def check_public(self, public: Arrays) -> None:
        """Raise `RemoteProtocolError` for a public table that an honest run cannot have: here, non-finite numbers."""
        for name, array in public.items():
            if not np.all(np.isfinite(array)):
                raise RemoteProtocolError(
                    f"the public table of a run must hold finite numbers only, but {name} does not."
                    " Do not use the results of this server."
                )

    def begin_again(self, private: Private, reported: int) -> tuple[State, list[Event]]:
        """Return the state for a device that joins again with a new key, and the events to charge first.

        `reported` is the last round in which the old key reported.
        """
        return private.state, []

    def stored_values(self, values: FloatArray, private: Private, batch: int) -> tuple[FloatArray, list[Event]]:
        """Return the values to store for new ratings, and the budget events of using them.

        `batch` counts the calls, so that each call draws its own randomness.
        """
        return values, []


# The server ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundOver:
    """The result of `ServerSide.close` when the round has ended and the public table is updated."""


@dataclass(frozen=True)
class NextAttempt:
    """The result of `ServerSide.close` when the round must start again; `reason` is shown to the operator."""

    reason: str
    members: Collection[Name]  # the devices that the next attempt asks


class ServerSide(ABC):
    """The server side of a protocol: it turns the reports of a phase into messages or, at the end, a public table."""

    phases: tuple[str, ...]
    n_expected: int | None = None
    run_id: str = ""
    secret: bytes = b""

    @property
    @abstractmethod
    def terms(self) -> Any:
        """The terms that every device has accepted."""

    @property
    @abstractmethod
    def public(self) -> Arrays:
        """All arrays that the rounds so far have published, by name."""

    @property
    def state(self) -> State:
        """The arrays that a restart between rounds needs: the public ones, unless the protocol keeps more."""
        return self.public

    @abstractmethod
    def restore(self, state: State) -> None:
        """Continue from a saved `state`."""

    def sign_as(self, run_id: str, secret: bytes) -> None:
        """Set the run's id and the server's private Ed25519 key, before the first round."""
        self.run_id, self.secret = run_id, secret

    @property
    def fewest_devices(self) -> int:
        """Number of devices that must be present to open a round, and must report to close its first phase."""
        return 1

    def choose_members(self, members: Collection[Name]) -> Collection[Name]:
        """Return the members that a round asks; called once per round, before its first attempt."""
        return members

    @property
    def largest_report(self) -> int:
        """Largest size in bytes of a report of the open phase on the wire, including its envelope."""
        return LARGEST_TABLE

    @property
    def concern(self) -> str | None:
        """One sentence that warns the operator about the public table, or None."""
        return None

    @property
    def progress(self) -> str | None:
        """One sentence about the progress of the open round, in addition to its phase, or None."""
        return None

    @property
    def accuracy(self) -> list[dict[str, float]]:
        """The accuracy that rounds of this run measured: one dict of numbers each, with key `round`; may be empty."""
        return []

    @property
    def can_skip_rounds(self) -> bool:
        """Whether training can do without the reports of some rounds; otherwise no round's result may be lost."""
        return True

    @property
    def can_grow(self) -> bool:
        """Whether items may join the catalogue between two rounds."""
        return False

    def add_items(self, count: int, *, rng: RandomStream) -> None:
        """Append `count` items to the catalogue; items are never removed."""
        raise ParameterError("items cannot be added to a run of this protocol. Start a new run.")

    def expect(self, n_devices: int) -> None:
        """Set how many members will probably report in the next round; in a network run, those seen lately."""
        self.n_expected = n_devices

    @abstractmethod
    def open(self, round_number: int, attempt: int, members: Collection[Name]) -> Inbox:
        """Start an attempt of a round; return the messages of its first phase."""

    @abstractmethod
    def check(self, address: Address, sender: Name, message: Any) -> None:
        """Raise `RemoteProtocolError` for a message that does not fit the open phase; do not store the message."""

    def addend(self, address: Address, sender: Name, message: Any) -> tuple[int, WordArray] | None:
        """Return (number of a sum, integers) if the message matters only through its addend in a sum modulo 2³².

        Callers may then add the integers of all messages with the same sum number and pass the total to `take_sum`.
        None if the message itself is needed.
        """
        return None

    def take_sum(self, address: Address, senders: Collection[Name], total: WordArray) -> None:
        """Accept the total of these senders' addends to one sum, instead of their messages, before `close`."""
        raise LocalProtocolError("take_sum must be called only in a phase whose reports are added up.")

    @abstractmethod
    def close(self, address: Address, reports: Iterable[tuple[Name, Any]]) -> Inbox | RoundOver | NextAttempt:
        """Close the open phase with these reports, sorted by sender; return the next messages or the end's result."""
