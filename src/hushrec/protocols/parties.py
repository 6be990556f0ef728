"""The interfaces that a protocol implements, `DeviceSide` and `ServerSide`. They compute reports and sums without I/O.

A round is a fixed list of phases. In each phase the server puts one message into the inbox of every device that it
asks, and the device replies with one report or none. When a phase closes, the server uses the reports to compute the
messages of the next phase, to end the round, or to start another attempt of the round.

    server   open ──▶ inbox of phase 1 ──▶ close ──▶ inbox of phase 2 ──▶ … ──▶ close ──▶ RoundOver or NextAttempt
    device            report ───────────────────▶ report ──▶ …

The state machines `Client` and `Server` call these interfaces and enforce the order of messages.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, ClassVar

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
    """The identity of a device in a run: the run's id, the server's public key, the device's name and private key."""

    run_id: str
    server_key: bytes  # public Ed25519 key, as it was when the device joined
    device: Name
    secret: bytes = field(repr=False)  # private Ed25519 key of the device


@dataclass(frozen=True, eq=False)
class Private:
    """The data of a device that `DeviceSide` computes from; all fields but `public` are private."""

    items: IntArray = field(repr=False)  # rated items in ascending order
    values: FloatArray = field(repr=False)  # their ratings on the scale 1 to 5
    state: State = field(repr=False)
    randomness: Randomness = field(repr=False)
    ledger: Ledger = field(default_factory=Ledger, repr=False)  # read only; `Client` charges it
    membership: Membership | None = field(default=None, repr=False)  # None before the device has joined
    public: Arrays | None = field(default=None, repr=False)  # the latest public table that the device accepted


@dataclass(frozen=True, eq=False)
class Report:
    """The result of `DeviceSide.report`: a message, the device's new state, and the events to charge before sending."""

    message: Any | None  # None if the device sends no report in this phase
    state: State = field(repr=False)  # replaces the device's state
    events: tuple[Event, ...] = field(default=(), repr=False)
    draws: Any = field(default=None, repr=False)  # the random draws of this report; never sent
    shown: State | None = field(default=None, repr=False)  # shown to the person with the report; None: neither is shown


class DeviceSide(ABC):
    """The computations of a device in one protocol, under the terms that the device accepted when it joined.

    An instance stores no data of the person; every method gets the data that it needs as an argument.
    """

    most_shown: ClassVar[int] = 1  # number of its latest reports that a device stores, to show them to its person
    order: str | None = None  # how recommendations are sorted, one sentence; None: by the predictions

    def new_state(self, randomness: Randomness) -> State:
        """Return the arrays that the device stores before its first round, by name; empty by default."""
        return {}

    @abstractmethod
    def n_items(self, state: State) -> int:
        """Return the number of items in the catalogue, as far as this device knows."""

    def takes_part(self, private: Private) -> bool:
        """Return whether this device reports in rounds. By default every device does, whatever its ratings."""
        return True

    @abstractmethod
    def report(self, private: Private, address: Address, message: Any, draws: Any = None) -> Report:
        """Return the report in reply to the server's message; raise `RemoteProtocolError` to refuse the message.

        `address` names the round, attempt and phase. In tests, `draws` replaces the device's random draws.
        """

    @abstractmethod
    def predict(self, private: Private, public: Arrays) -> FloatArray:
        """Return the predicted rating of every item, `(n_items,)`, about 1 to 5; a model that ranks returns scores."""

    def rank(self, public: Arrays, predictions: FloatArray) -> FloatArray:
        """Return the score of every item, `(n_items,)`; recommendation lists start with the largest score."""
        return predictions

    def has_learned(self, public: Arrays) -> bool:
        """Return whether the public table contains results of training, so that predictions make sense."""
        return True

    def popularity(self, public: Arrays) -> FloatArray | None:
        """Return a score of each item's popularity, `(n_items,)`; None if the protocol does not publish it."""
        return None

    def likeness(self, private: Private, public: Arrays, items: IntArray, others: IntArray) -> FloatArray | None:
        """Return how similar each of `items` is to each of `others`, `(len(items), len(others))`.

        A larger number means more similar; its scale depends on the model. None if the protocol cannot compute it.
        """
        return None

    def published(self, message: Any) -> Arrays | None:
        """Return the arrays of the public table if the server's message contains it, else None."""
        return None

    @property
    def predicts_new_items(self) -> bool:
        """Whether this device can predict items that joined the catalogue after the run was created."""
        return False

    def lacks(self, private: Private, message: Any) -> bool:
        """Return whether the device must fetch another public table before it can reply to this message.

        Raise `RemoteProtocolError` to refuse the message.
        """
        return False

    def spent(self, state: State) -> dict[str, float]:
        """Return what this run has cost so far, by unit of the ledger.

        The numbers are comparable with those of `ConfiguredProtocol.joining_costs`, the largest cost of the run.
        """
        return {}

    def rest(self, state: State) -> State:
        """Return the state without the secrets of the latest attempt; called when no attempt is open."""
        return state

    def check_public(self, public: Arrays) -> None:
        """Raise `RemoteProtocolError` for a public table that no honest server sends, such as one with NaN."""
        for name, array in public.items():
            if not np.all(np.isfinite(array)):
                raise RemoteProtocolError(
                    f"the public table of a run must contain finite numbers only, but {name} does not."
                    " The device refuses the table."
                )

    def begin_again(self, private: Private, reported: int) -> tuple[State, list[Event]]:
        """Return the new state of a device that joins the run again with a new key, and the events to charge first.

        `reported` is the last round in which another copy of this device may have reported; 0 if there is no such copy.
        """
        return private.state, []

    def stored_values(self, values: FloatArray, private: Private, batch: int) -> tuple[FloatArray, list[Event]]:
        """Return the values to store for new ratings, with noise in some protocols, and the events to charge.

        `batch`, the number of earlier calls, selects the random stream, so that no noise is used twice.
        """
        return values, []


# The server ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RoundOver:
    """The result of `ServerSide.close` when the round has ended and the public table is updated."""


@dataclass(frozen=True)
class NextAttempt:
    """The result of `ServerSide.close` when the round needs another attempt."""

    reason: str  # shown to the operator
    members: Collection[Name]  # the devices that the next attempt asks for reports


class ServerSide(ABC):
    """The computations of the server in one protocol.

    From the reports of a phase they make the messages of the next phase or, after the last phase, a new public table.
    """

    phases: tuple[str, ...]
    n_expected: int | None = None  # devices that will probably report in the next round: those seen lately
    run_id: str = ""  # set by `sign_as`
    secret: bytes = b""  # the server's private key, set by `sign_as`

    @property
    @abstractmethod
    def terms(self) -> Any:
        """The terms that every device has accepted."""

    @property
    @abstractmethod
    def public(self) -> Arrays:
        """The arrays of the public table after the rounds so far, by name."""

    @property
    def state(self) -> State:
        """The arrays that `restore` needs to continue between two rounds; by default those of the public table."""
        return self.public

    @abstractmethod
    def restore(self, state: State) -> None:
        """Replace the state of this object by arrays that `state` returned, so that the next round can start."""

    def sign_as(self, run_id: str, secret: bytes) -> None:
        """Set the run's id, and the private Ed25519 key that signs announcements, before the first round."""
        self.run_id, self.secret = run_id, secret

    @property
    def fewest_devices(self) -> int:
        """The number of devices that must be present to open a round, and must report before its first phase closes."""
        return 1

    def may_close(self, reported: AbstractSet[Name], gone: AbstractSet[Name], quorum: float) -> bool:
        """Return whether the open phase may close before its deadline with the reports of the devices `reported`.

        `gone` are devices that have left the run. `quorum` is the operator's setting: the fraction of present devices
        that must have reported. The caller has checked this fraction over all devices; a protocol with cohorts also
        checks it in each cohort.
        """
        return True

    def choose_members(self, members: Collection[Name]) -> Collection[Name]:
        """Return those of the devices `members` that the next attempt asks for reports; all by default.

        It is called when a round starts, and when too few devices have reported in the first phase of an attempt.
        """
        return members

    @property
    def largest_report(self) -> int:
        """The largest size of a report in any phase, in bytes of its encoding, including its envelope."""
        return LARGEST_TABLE

    @property
    def concern(self) -> str | None:
        """A warning for the operator, for example about implausible item vectors; None if there is none."""
        return None

    @property
    def progress(self) -> str | None:
        """A sentence for the operator about the progress of the open attempt; None if the phase's name says enough."""
        return None

    @property
    def accuracy(self) -> list[dict[str, float]]:
        """The accuracy that the run itself has measured, one dict for each measured round; empty by default.

        The keys are those of `hushrec.protocols.masked.evaluation.Measured`, such as `round_number` and `rmse`.
        """
        return []

    @property
    def can_skip_rounds(self) -> bool:
        """Whether training can skip a round number. If not, a server that lost a finished round cannot continue."""
        return True

    @property
    def can_grow(self) -> bool:
        """Whether items may join the catalogue between two rounds."""
        return False

    def add_items(self, count: int, *, rng: RandomStream) -> None:
        """Append `count` items to the catalogue; raise `ParameterError` unless `can_grow`. Items are never removed."""
        raise ParameterError("items cannot be added to a run of this protocol. Start a new run.")

    @abstractmethod
    def open(self, round_number: int, attempt: int, members: Collection[Name]) -> Inbox:
        """Start an attempt of a round that asks the devices `members`; return the messages of its first phase."""

    @abstractmethod
    def check(self, address: Address, sender: Name, message: Any) -> None:
        """Raise `RemoteProtocolError` if the open phase cannot accept this report. The report is not stored."""

    def signer_of(self, message: Any) -> bytes | None:
        """Return the public Ed25519 key that a report names as its sender's, or None if it names none.

        The caller must refuse the report if it knows the sender by another key.
        """
        return None

    def addend(self, address: Address, sender: Name, message: Any) -> tuple[int, WordArray] | None:
        """Return (cohort number, integers) if the server needs only the sum of a cohort's reports, else None.

        The caller may then add up the integers of all reports of the same cohort modulo 2³², and pass the total to
        `take_sum` instead of passing the reports to `close`.
        """
        return None

    def take_sum(self, address: Address, senders: Collection[Name], total: WordArray) -> None:
        """Accept the sum of the integers that `addend` returned for these senders; must be called before `close`."""
        raise LocalProtocolError("take_sum must not be called: this protocol needs every report, not only their sum.")

    @abstractmethod
    def close(self, address: Address, reports: Iterable[tuple[Name, Any]]) -> Inbox | RoundOver | NextAttempt:
        """Close the open phase with these reports, sorted by sender.

        Return the messages of the next phase; `RoundOver` if the round has ended; or `NextAttempt` if it has failed.
        """
