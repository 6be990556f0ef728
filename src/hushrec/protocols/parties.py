"""The two sides of a protocol: what its device and its server do in one phase of a round. Neither does any I/O.

A round is a fixed list of phases. In each, the server has a message for every device that it asks, in that device's
inbox; the device answers it with one report, or with none. When a phase closes, the server makes the messages of the
next one out of the reports, ends the round, or begins it again as another attempt.

    server   open ──▶ inbox of phase 1 ──▶ close ──▶ inbox of phase 2 ──▶ … ──▶ close ──▶ RoundOver or NextAttempt
    device            report ───────────────────▶ report ──▶ …

`Client` and `Server` hold the state machines: who may speak when. These classes hold the maths of a protocol.
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

Name = int | str  # what a transport calls a device
State = Arrays  # what one side keeps, by name
Inbox = Mapping[Name, Any]  # the message of the open phase for every device that may answer it


# The device ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Membership:
    """What a device that joined a run knows besides its terms: the run, the server's key, its own name and key."""

    run_id: str
    server_key: bytes  # Ed25519, public: as it was when the device joined
    device: Name
    secret: bytes = field(repr=False)  # Ed25519, of the device


@dataclass(frozen=True, eq=False)
class Private:
    """What a device knows and never sends, beside what is public.

    Its ratings on the scale 1 to 5, what its protocol keeps, what it has spent, and its place in the run.
    """

    items: IntArray = field(repr=False)  # rated, rising
    values: FloatArray = field(repr=False)
    state: State = field(repr=False)
    randomness: Randomness = field(repr=False)
    ledger: Ledger = field(default_factory=Ledger, repr=False)  # to look at; `Client` charges it
    membership: Membership | None = field(default=None, repr=False)  # None before it has joined
    public: Arrays | None = field(default=None, repr=False)  # the last public state that it took


@dataclass(frozen=True, eq=False)
class Report:
    """What a device does in one phase: the ledger is charged with the events before the message leaves."""

    message: Any | None  # None: nothing is sent in this phase
    state: State = field(repr=False)  # what the device keeps from now on
    events: tuple[Event, ...] = field(default=(), repr=False)
    draws: Any = field(default=None, repr=False)  # its random choices, for engines that record them


class DeviceSide(ABC):
    """What a protocol's device does under accepted terms. It has no memory of its own: `Private` is all of it."""

    def new_state(self, randomness: Randomness) -> State:
        """What a device keeps before its first round: nothing, unless the protocol needs something."""
        return {}

    @abstractmethod
    def n_items(self, state: State) -> int:
        """How many items the catalogue has, as far as this device has heard."""

    def takes_part(self, private: Private) -> bool:
        """Whether this device reports at all: always, unless the protocol lets that depend on the profile."""
        return True

    @abstractmethod
    def report(self, private: Private, address: Address, message: Any, draws: Any = None) -> Report:
        """Answer one message of the server; refuse it where it breaks the terms. `draws` replaces chance in tests."""

    @abstractmethod
    def predict(self, private: Private, public: Arrays) -> FloatArray:
        """Predictions for all items, on the scale 1 to 5 but not bound to it, from what the server published."""

    order: str | None = None  # how lists are sorted, in one sentence, where that is not by the predictions alone

    def rank(self, public: Arrays, predictions: FloatArray) -> FloatArray:
        """What lists of unrated items are sorted by, for all items: larger is better."""
        return predictions

    def has_learned(self, public: Arrays) -> bool:
        """Whether a public state tells anything about the items yet."""
        return True

    def popularity(self, public: Arrays) -> FloatArray | None:
        """How much people like each item, for all items, as far as that is public; None where it is not."""
        return None

    def published(self, message: Any) -> Arrays | None:
        """Return the public arrays in a message that predictions need; None if it has none."""
        return None

    @property
    def predicts_new_items(self) -> bool:
        """Whether this device predicts for items that joined the catalogue after the run was made."""
        return False

    def lacks(self, private: Private, message: Any) -> bool:
        """Return whether this device must fetch another public state before it can report on this message."""
        return False

    def spent(self, state: State) -> dict[str, float]:
        """What this run has used so far, by unit, of what `ConfiguredProtocol.joining_costs` asked for."""
        return {}

    def rest(self, state: State) -> State:
        """Return the state without the secrets of an attempt, for a device that knows that none is open."""
        return state

    def check_public(self, public: Arrays) -> None:
        """Refuse a public state that no honest run of these terms has: here, one with a number that is not finite."""
        if not all(np.all(np.isfinite(array)) for array in public.values()):
            raise RemoteProtocolError("what a server publishes must be finite numbers.")

    def begin_again(self, private: Private, reported: int) -> tuple[State, list[Event]]:
        """Return the state under a new key, and what to pay first; the old key last reported in round `reported`."""
        return private.state, []

    def stored_values(self, values: FloatArray, private: Private, batch: int) -> tuple[FloatArray, list[Event]]:
        """Return the values to keep of new ratings, and the events that using them will cost.

        `batch` counts the calls.
        """
        return values, []


# The server ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundOver:
    """The round has ended, and what is public has moved."""


@dataclass(frozen=True)
class NextAttempt:
    """The round has to begin again; `reason` is for the operator."""

    reason: str
    members: Collection[Name]  # whom the next attempt asks


class ServerSide(ABC):
    """What a protocol's server does with the reports of a phase. Its `public` state moves at the end of a round."""

    phases: tuple[str, ...]
    n_expected: int | None = None
    run_id: str = ""
    secret: bytes = b""

    @property
    @abstractmethod
    def terms(self) -> Any:
        """What every device accepted."""

    @property
    @abstractmethod
    def public(self) -> Arrays:
        """Everything that the rounds so far have published, by name."""

    @property
    def state(self) -> State:
        """What a restart needs between rounds: what is public, unless a protocol keeps more."""
        return self.public

    @abstractmethod
    def restore(self, state: State) -> None:
        """Continue from what `state` was."""

    def sign_as(self, run_id: str, secret: bytes) -> None:
        """Set the run and the server's Ed25519 key, before the first round."""
        self.run_id, self.secret = run_id, secret

    @property
    def fewest_devices(self) -> int:
        """How many devices must be there before a round opens, and report before its first phase closes."""
        return 1

    def choose_members(self, members: Collection[Name]) -> Collection[Name]:
        """Return which of these members a round asks; called once, before its first attempt."""
        return members

    @property
    def largest_report(self) -> int:
        """Bytes that a device's report in the open phase may have on the wire, with its envelope."""
        return LARGEST_TABLE

    @property
    def concern(self) -> str | None:
        """A warning for the operator about the public state, in one sentence; None where there is none."""
        return None

    @property
    def progress(self) -> str | None:
        """Where the open round stands besides its phase, in one sentence; None where there is nothing to say."""
        return None

    @property
    def accuracy(self) -> list[dict[str, float]]:
        """Accuracy by round as the run's own rounds measured it: numbers by name, `round` among them; often none."""
        return []

    @property
    def can_skip_rounds(self) -> bool:
        """Whether a run learns from its other rounds if nobody reports in one: else every round must have its sum."""
        return True

    @property
    def can_grow(self) -> bool:
        """Whether items may join the catalogue between two rounds."""
        return False

    def add_items(self, count: int, *, rng: RandomStream) -> None:
        """Let so many items join the catalogue, at its end; none is ever taken out."""
        raise ParameterError("items cannot join a run of this protocol.")

    def expect(self, n_devices: int) -> None:
        """Set, before a round, how many members will probably report; in a network run, those seen lately."""
        self.n_expected = n_devices

    @abstractmethod
    def open(self, round_number: int, attempt: int, members: Collection[Name]) -> Inbox:
        """Begin an attempt of a round: the messages of its first phase."""

    @abstractmethod
    def check(self, address: Address, sender: Name, message: Any) -> None:
        """Refuse a message that does not fit the open phase; keep nothing of it."""

    def addend(self, address: Address, sender: Name, message: Any) -> tuple[int, WordArray] | None:
        """The integers of a message that count only in a sum modulo 2³², and are all of it, and the number of that sum.

        None: the message itself is needed.
        """
        return None

    def take_sum(self, address: Address, senders: Collection[Name], total: WordArray) -> None:
        """Take the sum of these senders' addends, all of one number, in place of their messages, before `close`."""
        raise LocalProtocolError("this phase has no reports that count only in a sum.")

    @abstractmethod
    def close(self, address: Address, reports: Iterable[tuple[Name, Any]]) -> Inbox | RoundOver | NextAttempt:
        """End the open phase with these reports, in the order of the senders' names."""
