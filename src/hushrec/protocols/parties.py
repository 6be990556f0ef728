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
NOT_NEEDED = "not needed"  # key of `ServerSide.round_counts`


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
    values: FloatArray = field(repr=False)  # their ratings on the scale 1 to 5; under `isgld` with noise
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
    shown: State | None = field(default=None, repr=False)  # arrays for the person's page; None: do not show the report


class DeviceSide(ABC):
    """The computations of a device in one protocol, under the terms that the device accepted when it joined.

    An instance stores no data of the person; every method gets the data that it needs as an argument.
    """

    most_shown: ClassVar[int] = 1  # how many of its latest reports a device stores, to show them to its person
    order: str | None = None  # a sentence about the order of recommendations; None: they are sorted by the predictions

    def new_state(self, randomness: Randomness) -> State:
        """Return the arrays that the device stores before its first round, by name; empty by default."""
        return {}

    @abstractmethod
    def n_items(self, state: State) -> int:
        """Return the number of items in the catalogue, as far as this device knows."""

    def check_takes_part(self, private: Private) -> None:
        """Raise `LocalProtocolError` if this device cannot report with these ratings. By default, every device can."""
        return

    @abstractmethod
    def report(self, private: Private, address: Address, message: Any) -> Report:
        """Return the report in reply to the server's message; raise `RemoteProtocolError` to refuse the message.

        `address` names the round, attempt and phase.
        """

    @abstractmethod
    def predict(self, private: Private, public: Arrays) -> FloatArray:
        """Return the predicted rating of every item, `(n_items,)`, about 1 to 5; a model that ranks returns scores."""

    def trained_predictions(self, public: Arrays, state: State) -> FloatArray | None:
        """Return the predictions that simulations measure, from the state after training, for all items, `(n_items,)`.

        Return None if simulations measure the result of `predict`, which is what a device shows.
        """
        return None

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

    def lacks(self, private: Private, message: Any) -> bool:
        """Return whether the device must fetch another public table before it can reply to this message.

        Raise `RemoteProtocolError` to refuse the message.
        """
        return False

    def spent(self, state: State) -> dict[str, float]:
        """Return the cost of this run so far, by unit of the ledger; the units are those of `joining_costs`."""
        return {}

    def rest(self, state: State) -> State:
        """Return the state without the secrets of the latest attempt, which has ended for this device."""
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

        `reported` is the last round in which another copy of the device's store may have reported; 0 if there is none.
        """
        return private.state, []

    def stored_values(
        self, items: IntArray, values: FloatArray, private: Private
    ) -> tuple[FloatArray, State, list[Event]]:
        """Return the values to train on for new ratings, the new state, and the events to charge.

        In some protocols the values are ratings with noise. By default they are the ratings, and nothing else changes.
        """
        return values, private.state, []


# The server ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Addend:
    """A report of which the server needs only the sum of its integers over a cohort, and a few bytes of its own."""

    cohort: int  # number of the cohort
    integers: WordArray = field(repr=False)
    kept: bytes = field(repr=False)  # the bytes that the server needs besides the sum


@dataclass(frozen=True)
class RoundOver:
    """The result of `ServerSide.close` when the round has ended and the public table is updated."""


@dataclass(frozen=True)
class NextAttempt:
    """The result of `ServerSide.close` when the round needs another attempt."""

    reason: str  # shown to the operator; it names no device
    members: Collection[Name]  # the devices that the next attempt asks for reports
    needs_operator: bool = False  # the next attempt would probably fail too: the operator decides whether it begins


class ServerSide(ABC):
    """The computations of the server in one protocol.

    From the reports of a phase they make the messages of the next phase or, after the last phase, a new public table.
    """

    phases: tuple[str, ...]
    n_expected: int | None = None  # number of devices seen lately, which will probably report in the next round
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

    def may_close(self, reported: AbstractSet[Name], gone: AbstractSet[Name], early_fraction: float) -> bool:
        """Return whether the open phase may close before its deadline with the reports of the devices `reported`.

        `gone` are devices that have left the run. `early_fraction` is the operator's setting: the fraction of present
        devices that must have reported. The caller has checked this fraction over all devices; a protocol with cohorts
        also checks it in each cohort.
        """
        return True

    def choose_members(self, members: Collection[Name]) -> Collection[Name]:
        """Return the devices among `members` that the next attempt asks for reports; by default all of them.

        The caller uses this method when a round starts, and when too few devices have reported in the first phase of
        an attempt.
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
    def suspects(self) -> AbstractSet[str]:
        """The names of devices of which at least one has probably sent a false report; empty by default."""
        return frozenset()

    @property
    def round_counts(self) -> dict[str, int]:
        """Counts that the operator sees, about the open round or, if none is open, the round that ended last.

        The keys are headings of columns, such as "probes". `NOT_NEEDED` is the number of devices that reported in the
        first phase of the last attempt, but that later phases did not ask, because a sum cannot hold more devices. The
        dashboard does not count them as drop-outs.
        """
        return {}

    @property
    def accuracy(self) -> list[dict[str, float | None]]:
        """The accuracy that the run itself has measured, one dict for each measured round; empty by default.

        The keys are `round_number`, `rmse` (of the model), `bias_rmse` (of the bias model), and their standard errors,
        `rmse_error` and `bias_error`. The values of the last four are None if noise hides the accuracy.
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
        """Raise `RemoteProtocolError` if the open phase cannot accept this report. Do not store the report."""

    def signer_of(self, message: Any) -> bytes | None:
        """Return the public Ed25519 key that a report names as its sender's, or None if it names none.

        The caller must refuse the report if it knows the sender by another key.
        """
        return None

    def addend(self, address: Address, sender: Name, message: Any) -> Addend | None:
        """Return the report as an `Addend` if the server needs only sums of integers over cohorts, else None.

        The caller may then add up the integers of all reports of a cohort modulo 2³², and pass the total to `take_sum`
        instead of passing the reports to `close`.
        """
        return None

    def take_sum(self, address: Address, kept: Mapping[Name, bytes], total: WordArray) -> None:
        """Accept the sum of some reports' integers; must be called before `close`.

        `kept` has `Addend.kept` of each of these reports by its sender.
        """
        raise LocalProtocolError("take_sum must not be called: this protocol needs every report, not only their sum.")

    @abstractmethod
    def close(self, address: Address, reports: Iterable[tuple[Name, Any]]) -> Inbox | RoundOver | NextAttempt:
        """Close the open phase with these reports, sorted by sender.

        Return the messages of the next phase; `RoundOver` if the round has ended; or `NextAttempt` if it has failed.
        """
