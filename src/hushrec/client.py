"""The device's state machine, without I/O: one person's ratings, private state, ledger and accepted terms.

The protocol (`DeviceSide`) decides what a device sends; this module decides when it may send. A device reports at most
once for each (round, attempt, phase). After a report it accepts the next phase of the same attempt, or the first phase
of a later round or of a later attempt; any other message is refused and changes nothing.

Only the return value of `report` leaves the device. The ledger is charged before `report` returns; if the ledger
refuses, nothing changes and nothing is sent.
"""

from typing import Any

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.ledger import Ledger
from hushrec.errors import LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import Address, LastReport
from hushrec.models.predictor import Arrays
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.protocols.parties import Membership, Private, State
from hushrec.randomness import Randomness
from hushrec.scale import HIGHEST, LOWEST

_ROUNDING = 1e-9  # the mean of equal ratings may differ from them by rounding


class Client:
    """The state machine of one person's device in a run. Ratings are on the scale 1 to 5; the ledger spans all runs.

    `side` has the protocol's computations, and no data of the person.
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
        self._last = Address(0, 0, self._phases[-1])  # the last phase stands also for an attempt that it dropped out of
        self._sent = 0  # index of the phase of the last report
        self._items: IntArray = np.empty(0, dtype=np.int64)  # rated items, ascending
        self._values = np.empty(0)  # the ratings, perturbed if the protocol says so
        self._ever_rated: IntArray = np.empty(0, dtype=np.int64)
        self._rating_batches = 0
        self._state = self.side.new_state(randomness)
        self._draws: Any = None
        self.shown: State | None = None  # shown to the person with the last report; must never leave

    def __repr__(self) -> str:
        return f"Client({self._protocol.name}, {'in a round' if self.in_round else 'idle'}, round {self.last_round})"

    @property
    def in_round(self) -> bool:
        """Whether the latest round in which this device reported has phases left."""
        return self._last.phase != self._phases[-1]

    @property
    def is_first_phase(self) -> bool:
        """Whether the last report of this device was its first one in an attempt."""
        return self._last.phase == self._phases[0]

    @property
    def has_attempts(self) -> bool:
        """Whether a round can be tried again: it has several phases, and devices may drop out between two of them."""
        return len(self._phases) > 1

    @property
    def last_round(self) -> int:
        """The number of the latest round in which this device reported; 0 before its first report."""
        return self._last.round_number

    @property
    def done_with(self) -> int:
        """The latest round in which this device will not report again; 0 if there is none.

        A round with one phase is finished for this device when it has reported. A round with several phases may be
        tried again, so that only earlier rounds are finished.
        """
        return max(self.last_round - 1, 0) if self.has_attempts else self.last_round

    def check_takes_part(self) -> None:
        """Raise `LocalProtocolError` if this device cannot report. Under `masked` every device can."""
        if not self.side.takes_part(self._private):
            raise LocalProtocolError(
                "this device cannot report: it has rated none of the server's items, or it has no unrated items left."
                " Rate an item, or remove a rating."
            )

    @property
    def _private(self) -> Private:
        """The private data that the protocol uses. Must never leave the device."""
        known = (self._items, self._values, self._state, self._randomness)
        return Private(*known, self.ledger, self._membership, self._public)

    @property
    def _private_draws(self) -> Any:
        """The random choices of the last report, for engines that record them. Must never leave the device."""
        if self._draws is None:
            raise LocalProtocolError("draws must not be read before the first report.")
        return self._draws

    # Ratings ---------------------------------------------------------------------------------------------------

    def add_ratings(self, items: IntArray, values: FloatArray) -> None:
        """Store ratings, replacing earlier ratings of the same items. Step S1 of docs/data-flow.md.

        Ratings count from the next report on. In `sdcf` the permanent bits do not change before the next permanent
        epoch, because a single changed bit would prove a rating.
        """
        items, values = _checked_ratings(items, values, self.side.n_items(self._state))
        kept, events = self.side.stored_values(values, self._private, self._rating_batches)
        if len(self._ever_rated) == 0 or np.isin(items, self._ever_rated).any():
            self.ledger.charge(events)  # a value that is drawn again costs again
        self._ever_rated = np.union1d(self._ever_rated, items)
        self._rating_batches += 1
        stays = ~np.isin(self._items, items)
        items, kept = np.concatenate([self._items[stays], items]), np.concatenate([self._values[stays], kept])
        order = np.argsort(items)
        self._items, self._values = items[order], kept[order]

    # One phase -------------------------------------------------------------------------------------------------

    def report(self, address: Address, message: Any, draws: Any = None) -> Any | None:
        """Return this device's reply to a message of the server; None if the protocol sends nothing in this phase.

        `address` is the message's round, attempt and phase. The ledger is charged first for everything that the report
        releases. `draws` replaces random draws in tests.
        """
        self.check_takes_part()
        self.check_order(address)
        report = self.side.report(self._private, address, message, draws)
        self.ledger.charge(report.events)  # raises before anything changes
        self._state, self._last, self._draws, self.shown = report.state, address, report.draws, report.shown
        self._sent = self._phases.index(address.phase)
        return report.message

    def is_open(self, address: Address) -> bool:
        """Return whether `address` belongs to an attempt in which this device has reported, and will report again."""
        place = self._last.round_number, self._last.attempt
        return self.in_round and (address.round_number, address.attempt) == place

    def check_order(self, address: Address) -> None:
        """Raise `RemoteProtocolError` unless this device may report for `address` after its last report."""
        asked, last = ((one.round_number, one.attempt) for one in (address, self._last))
        left = self._phases[self._phases.index(self._last.phase) + 1 :]  # of the last attempt
        allowed = self._phases[:1] if asked > last else left[:1] if asked == last else ()
        if address.phase not in allowed:
            raise RemoteProtocolError(
                f"the server's messages must come in order, but {address} was announced after {self._last}."
            )

    def begin_again(self, elsewhere: LastReport) -> None:
        """Prepare this device to continue with a new key.

        Call it before the device enrols a second time. `elsewhere` is the last report that another copy of this store
        may have sent, or `NO_REPORT`. The secrets and permanent bits used so far are discarded. The ledger is charged
        for everything that the other copy may have released.
        """
        state, events = self.side.begin_again(self._private, elsewhere[0])
        self.ledger.charge(events)
        self._state = state
        last = max((self._last.round_number, self._last.attempt), elsewhere[:2])
        self._last, self._sent = Address(*last, self._phases[-1]), len(self._phases) - 1

    def lacks(self, message: Any) -> bool:
        """Return whether this device must fetch the current public table before it can reply to this message.

        Raise `RemoteProtocolError` if the device refuses the message: no public table would make it acceptable.
        """
        return self.side.lacks(self._private, message)

    def take_public(self, public: Arrays) -> None:
        """Store a fetched public table; raise `RemoteProtocolError` if no honest server could have published it."""
        self.side.check_public(public)
        self._public = public

    @property
    def has_public(self) -> bool:
        """Whether `take_public` has given this client a public table."""
        return self._public is not None

    @property
    def spent(self) -> dict[str, float]:
        """The cost of this run so far, by the name of the ledger's unit. Must never leave the device.

        It has `table` under `masked`, and `selection` under `sdcf` once permanent bits are drawn; else it is empty.
        """
        return self.side.spent(self._state)

    def rest(self) -> None:
        """Discard the secrets of the last attempt, because it has ended or this device drops out of it."""
        self._state = self.side.rest(self._state)
        self._last = Address(self._last.round_number, self._last.attempt, self._phases[-1])

    def predict(self, public: Arrays) -> FloatArray:
        """Return predictions for all items on the scale 1 to 5. Must never leave the device."""
        return self.side.predict(self._private, public)

    def reasons(self, public: Arrays, items: IntArray, count: int) -> list[IntArray]:
        """Return for each of `items` up to `count` similar items that are rated at or above the person's own mean.

        The most similar comes first. Must never leave the device.
        """
        liked = self._items[self._values >= np.mean(self._values) - _ROUNDING] if len(self._items) else self._items
        alike = self.side.likeness(self._private, public, items, liked)
        if alike is None:
            return [np.empty(0, dtype=np.int64) for _ in items]
        best = np.argsort(-alike, axis=1, kind="stable")[:, :count]
        return [liked[row[alike[place, row] > 0]] for place, row in enumerate(best)]

    def recommend(self, scores: FloatArray, count: int) -> IntArray:
        """Return the positions of the `count` best unrated items, the best first; fewer if fewer items are unrated."""
        n_items = self.side.n_items(self._state)
        if count < 1 or len(scores) < n_items:
            raise ParameterError(
                f"count must be at least 1, and scores must cover all {n_items} items, got count {count} and"
                f" {len(scores)} scores."
            )
        scores = np.array(scores)
        scores[self._items] = -np.inf
        count = min(count, len(scores) - len(self._items))
        if count == 0:
            return np.empty(0, dtype=np.int64)
        near = np.flatnonzero(scores >= np.partition(scores, -count)[-count])  # includes ties with the last
        return near[np.argsort(-scores[near], kind="stable")][:count].astype(np.int64)

    # Keeping state ---------------------------------------------------------------------------------------------

    def private_state(self) -> State:
        """Return the state to store between messages, besides ratings and ledger. Must never leave the device."""
        return {
            **self._state,
            "last_round": np.array(self._last.round_number),
            "last_attempt": np.array(self._last.attempt),
            "last_phase": np.array(self._phases.index(self._last.phase)),
            "sent_phase": np.array(self._sent),
        }

    def restore_private_state(self, state: State) -> None:
        """Continue from a state that `private_state` returned; ratings and ledger are restored separately."""
        position = ("last_round", "last_attempt", "last_phase", "sent_phase")
        self._state = {name: array for name, array in state.items() if name not in position}
        attempt, phase = state.get("last_attempt", 1), state.get("last_phase", -1)  # states of one phase have neither
        self._last = Address(int(state["last_round"]), int(attempt), self._phases[int(phase)])
        self._sent = int(state.get("sent_phase", phase))


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
