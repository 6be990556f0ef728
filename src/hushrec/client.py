"""The device's state machine, without I/O: one person's ratings, private state, ledger and accepted terms.

The protocol (`DeviceSide`) decides what a device sends; this module decides when the device may send. A device reports
at most once for each (round, attempt, phase). After a report it accepts a message of the next phase of this attempt, or
of the first phase of a later attempt or round; any other message is refused and changes nothing.

Only the return value of `report` leaves the device. The ledger is charged before `report` returns; if the ledger
refuses, nothing changes and nothing is sent.
"""

from typing import Any

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.ledger import Ledger
from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.messages import Address, LastReport
from hushrec.models.lists import are_liked, best_items, most_similar
from hushrec.models.predictor import Arrays
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.protocols.parties import Membership, Private, State
from hushrec.randomness import Randomness
from hushrec.scale import HIGHEST, LOWEST

_POSITION = ("last_round", "last_attempt", "last_phase", "sent_phase")  # of the last report, in a stored state


class Client:
    """The state machine of one person's device in a run. Ratings are on the scale 1 to 5; the ledger spans all runs.

    The attribute `side` has the protocol's computations, and no data of the person.
    """

    def __init__(
        self,
        terms: Any,
        model: Any,
        protocol: ConfiguredProtocol,
        *,
        randomness: Randomness,
        ledger: Ledger,
        membership: Membership | None = None,
    ) -> None:
        self.ledger = ledger
        self._membership = membership
        self._public: Arrays | None = None
        self.side = protocol.make_device(terms, model)
        self._phases = protocol.phases
        self._protocol = protocol
        self._randomness = randomness
        self._last = Address(0, 0, self._phases[-1])  # has the last phase if no phase of the attempt is left
        self._sent = 0  # index of the phase of the last report
        self._items: IntArray = np.empty(0, dtype=np.int64)  # rated items, ascending
        self._values = np.empty(0)  # the ratings, perturbed if the protocol says so
        self._state = self.side.new_state(randomness)
        self.shown: State | None = None  # shown to the person with the last report; must never leave

    def __repr__(self) -> str:
        return f"Client({self._protocol.name}, {'in a round' if self.in_round else 'idle'}, round {self.last_round})"

    @property
    def in_round(self) -> bool:
        """Whether an attempt is open for this device: it has reported in the attempt, and later phases are left."""
        return self._last.phase != self._phases[-1]

    @property
    def has_attempts(self) -> bool:
        """Whether a failed round can be tried again: only rounds with several phases can."""
        return len(self._phases) > 1

    @property
    def last_round(self) -> int:
        """The latest round in which this device, or another copy of its store, has reported; 0 before the first."""
        return self._last.round_number

    @property
    def place(self) -> LastReport:
        """Round, attempt and phase index of the last report.

        After `rest` the attempt counts as finished: the phase index is that of the last phase of a round.
        """
        return self._last.round_number, self._last.attempt, self._phases.index(self._last.phase)

    @property
    def last_report(self) -> LastReport:
        """Round, attempt and phase index of the last report of this device, or of another copy of its store."""
        return self._last.round_number, self._last.attempt, self._sent

    @property
    def done_with(self) -> int:
        """The latest round that is finished for this device, which will not report in it again; 0 if there is none.

        A round with one phase is finished when this device has reported. A round with several phases may be tried
        again, so that it is finished only when this device has reported in a later round.
        """
        return max(self.last_round - 1, 0) if self.has_attempts else self.last_round

    def check_takes_part(self) -> None:
        """Raise `LocalProtocolError` if this device cannot report, for example because it has no ratings.

        Under `masked` it always can.
        """
        self.side.check_takes_part(self._private)

    @property
    def _private(self) -> Private:
        """The private data that the protocol uses. Must never leave the device."""
        ratings = self._items, self._values
        return Private(*ratings, self._state, self._randomness, self.ledger, self._membership, self._public)

    # Ratings ---------------------------------------------------------------------------------------------------

    def add_ratings(self, items: IntArray, values: FloatArray) -> None:
        """Store ratings, replacing earlier ratings of the same items. Step S1 of docs/data-flow.md.

        Ratings count from the next report on. In `sdcf` the permanent bits do not change before the next permanent
        epoch, because a single changed bit would prove a rating.
        """
        items, values = _checked_ratings(items, values, self.side.n_items(self._state))
        kept, state, events = self.side.stored_values(items, values, self._private)
        self.ledger.charge(events)  # raises before anything changes
        self._state = state
        stays = ~np.isin(self._items, items)
        items, kept = np.concatenate([self._items[stays], items]), np.concatenate([self._values[stays], kept])
        order = np.argsort(items)
        self._items, self._values = items[order], kept[order]

    # One phase -------------------------------------------------------------------------------------------------

    def report(self, address: Address, message: Any) -> Any | None:
        """Return this device's reply to a message of the server; None if the protocol sends nothing in this phase.

        `address` is the message's round, attempt and phase. The ledger is charged first for everything that the report
        releases.
        """
        self.check_takes_part()
        self.check_order(address)
        report = self.side.report(self._private, address, message)
        self.ledger.charge(report.events)  # raises before anything changes
        self._state, self._last, self.shown = report.state, address, report.shown
        self._sent = self._phases.index(address.phase)
        return report.message

    def is_open(self, address: Address) -> bool:
        """Return whether `address` belongs to the attempt that is open for this device (`in_round`)."""
        place = self._last.round_number, self._last.attempt
        return self.in_round and (address.round_number, address.attempt) == place

    def check_order(self, address: Address) -> None:
        """Raise `RemoteProtocolError` unless this device may report for `address` after its last report."""
        asked, last = ((one.round_number, one.attempt) for one in (address, self._last))
        left = self._phases[self._phases.index(self._last.phase) + 1 :]  # of the last attempt
        allowed = self._phases[:1] if asked > last else left[:1] if asked == last else ()
        if address.phase not in allowed:
            raise RemoteProtocolError(
                f"the server's messages must come in order, got the message for {address} after {self._last}."
            )

    def begin_again(self, elsewhere: LastReport) -> None:
        """Prepare this device to continue with a new key.

        Call it before the device enrols a second time. `elsewhere` is the last report that another copy of the device's
        store may have sent, or `NO_REPORT`. Discard the secrets and permanent bits used so far, and charge the ledger
        for everything that the other copy may have released.
        """
        state, events = self.side.begin_again(self._private, elsewhere[0])
        self.ledger.charge(events)
        self._state = state
        last = max((self._last.round_number, self._last.attempt), elsewhere[:2])
        self._last, self._sent = Address(*last, self._phases[-1]), len(self._phases) - 1

    def lacks(self, message: Any) -> bool:
        """Return whether this device must fetch the current public table before it can reply to this message.

        Raise `RemoteProtocolError` if this device must refuse the message whatever the public table is.
        """
        return self.side.lacks(self._private, message)

    def take_public(self, public: Arrays) -> None:
        """Store a fetched public table; raise `RemoteProtocolError` if no honest server could have published it."""
        self.side.check_public(public)
        self._public = public

    @property
    def spent(self) -> dict[str, float]:
        """The cost of this run so far, by unit of the ledger. Must never leave the device.

        Under `masked` the unit is `table`. Under `sdcf` it is `selection`, with the cost of the permanent bits in use;
        there is no entry before they are drawn, and none under other protocols.
        """
        return self.side.spent(self._state)

    def rest(self) -> None:
        """Discard the secrets of the last attempt, because it has ended or this device drops out of it."""
        self._state = self.side.rest(self._state)
        self._last = Address(self._last.round_number, self._last.attempt, self._phases[-1])

    def predict(self, public: Arrays) -> FloatArray:
        """Return the predicted ratings of all items, about 1 to 5, or the scores of a model that ranks items.

        They must never leave the device.
        """
        return self.side.predict(self._private, public)

    def reasons(self, public: Arrays, items: IntArray, count: int) -> list[IntArray]:
        """Return for each of `items` up to `count` similar items that the person rated at or above their own mean.

        The most similar item is first. The arrays are empty if the protocol cannot compare items. They must never leave
        the device.
        """
        liked = self._items[are_liked(self._values)]
        alike = self.side.likeness(self._private, public, items, liked)
        if alike is None:
            return [np.empty(0, dtype=np.int64) for _ in items]
        return [liked[most_similar(row, count)] for row in alike]

    def compares_items(self, public: Arrays) -> bool:
        """Return whether this device can tell which items are similar, and so give `reasons`."""
        nothing = np.empty(0, dtype=np.int64)
        return self.side.likeness(self._private, public, nothing, nothing) is not None

    def recommend(self, scores: FloatArray, count: int) -> IntArray:
        """Return the positions of the `count` best unrated items, the best first; fewer if fewer items are unrated."""
        n_items = self.side.n_items(self._state)
        if count < 1 or len(scores) < n_items:
            raise ParameterError(
                f"count must be at least 1, and scores must cover all {n_items} items, got count {count} and"
                f" {len(scores)} scores."
            )
        return best_items(scores, self._items, count)

    # Keeping state ---------------------------------------------------------------------------------------------

    def private_state(self) -> State:
        """Return the state to store between messages, besides ratings and ledger. Must never leave the device."""
        position = dict(zip(_POSITION, (*self.place, self._sent), strict=True))
        return {**self._state, **{name: np.array(number) for name, number in position.items()}}

    def restore_private_state(self, state: State) -> None:
        """Continue from a state that `private_state` returned; ratings and ledger are restored separately.

        Call it before ratings are added: under `isgld` the state has their noisy values.
        """
        self._state = {name: array for name, array in state.items() if name not in _POSITION}
        attempt, phase = state.get("last_attempt", 1), state.get("last_phase", -1)  # states of one phase have neither
        self._last = Address(int(state["last_round"]), int(attempt), self._phases[int(phase)])
        self._sent = int(state.get("sent_phase", phase))


def place_in(state: State) -> LastReport:
    """Return the value that `Client.place` had when `Client.private_state` returned `state`."""
    number, attempt, phase = (int(state[name]) for name in _POSITION[:3])
    return number, attempt, phase


def _checked_ratings(items: IntArray, values: FloatArray, n_items: int) -> tuple[IntArray, FloatArray]:
    values = np.asarray(values, dtype=np.float64)
    if len(items) and not np.issubdtype(np.asarray(items).dtype, np.integer):
        raise ParameterError("items must be whole numbers, the positions in the catalogue.")
    items = np.asarray(items, dtype=np.int64)
    if items.shape != values.shape or items.ndim != 1 or len(np.unique(items)) != len(items):
        raise ParameterError("items must be unique, and values must hold one value for each of them.")
    if np.any(items < 0) or np.any(items >= n_items):
        raise ParameterError(f"items must be positions in the catalogue, from 0 to {n_items - 1}.")
    if not np.all((values >= LOWEST) & (values <= HIGHEST)):
        raise ParameterError(f"values must be ratings from {LOWEST:g} to {HIGHEST:g}. Map them to that scale first.")
    return items, values
