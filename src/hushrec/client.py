"""The private side: one person's ratings, what their protocol keeps, their ledger and the terms they accepted. No I/O.

What a device sends is its protocol's (`DeviceSide`); when it may send it is decided here. A device answers each
(round, attempt, phase) at most once, and in this order:

    IDLE       ──first phase of a later round, or of a later attempt──▶ IN_ROUND, or IDLE after the last phase
    IN_ROUND   ──next phase of the same attempt──▶ IN_ROUND, or IDLE after the last phase
               ──first phase of a later round, or of a later attempt──▶ as from IDLE

What leaves is what `report` returns, and nothing else. The ledger is charged before a message exists outside; when it
refuses, nothing has changed and nothing was sent.
"""

import enum
from collections.abc import Mapping
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.ledger import Ledger
from hushrec.errors import LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import Address
from hushrec.models.predictor import Arrays
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.protocols.parties import Membership, Private, State
from hushrec.randomness import Randomness
from hushrec.scale import HIGHEST, LOWEST


class Stage(enum.Enum):
    """Whether the last round of a device has phases left."""

    IDLE = "idle"
    IN_ROUND = "in a round"


class Ask(enum.Enum):
    """What a message of the server asks a device to begin or to go on with."""

    LATER_ROUND = "a later round"
    LATER_ATTEMPT = "a later attempt"
    NEXT_PHASE = "the next phase"


ALLOWED: Mapping[Stage, frozenset[Ask]] = {
    Stage.IDLE: frozenset({Ask.LATER_ROUND, Ask.LATER_ATTEMPT}),
    Stage.IN_ROUND: frozenset({Ask.LATER_ROUND, Ask.LATER_ATTEMPT, Ask.NEXT_PHASE}),
}


class Client:
    """One person's device. Ratings are on the scale 1 to 5; `ledger` outlives the client."""

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
        self._side = protocol.make_device(terms, model)
        self._phases = protocol.phases
        self._protocol = protocol
        self._randomness = randomness
        self._last = Address(0, 0, self._phases[-1])
        self._items: IntArray = np.empty(0, dtype=np.int64)  # rated items, rising
        self._values = np.empty(0)  # as the protocol keeps them: the ratings, or perturbed ones
        self._ever_rated: IntArray = np.empty(0, dtype=np.int64)
        self._rating_batches = 0
        self._state = self._side.new_state(randomness)
        self._draws: Any = None

    def __repr__(self) -> str:
        return f"Client({self._protocol.name}, {self.stage.value}, round {self.last_round})"

    @property
    def stage(self) -> Stage:
        """Whether the last round that this device answered has phases left."""
        return Stage.IDLE if self._last.phase == self._phases[-1] else Stage.IN_ROUND

    @property
    def last_round(self) -> int:
        """The last round that this device took part in."""
        return self._last.round_number

    @property
    def done_with(self) -> int:
        """The last round in which nothing more can be asked; a round of several phases may begin again."""
        return self.last_round if len(self._phases) == 1 else max(self.last_round - 1, 0)

    @property
    def takes_part(self) -> bool:
        """Whether this device reports at all, which its protocol decides."""
        return self._side.takes_part(self._private)

    def statement(self) -> dict[str, Any]:
        """What this device has spent, in which unit, and what that does not cover. It stays on the device."""
        return self._protocol.ledger_statement(self.ledger)

    @property
    def _private(self) -> Private:
        """Must never leave the device."""
        known = (self._items, self._values, self._state, self._randomness)
        return Private(*known, self.ledger, self._membership, self._public)

    @property
    def _private_draws(self) -> Any:
        """The random choices of the last report, for engines that record them. Must never leave the device."""
        if self._draws is None:
            raise LocalProtocolError("a device has no draws before its first report.")
        return self._draws

    @property
    def _rated_items(self) -> IntArray:
        """Must never leave the device."""
        return self._items

    # Ratings ---------------------------------------------------------------------------------------------------

    def add_ratings(self, items: IntArray, values: FloatArray) -> None:
        """Step 1 of docs/data-flow.md. Stores ratings, replacing earlier ones of the same items.

        They count from the next report on, as the protocol says: in `sdcf` the permanent bits stay as they are until
        the next epoch, because a single bit that changes would prove a rating.
        """
        items, values = _checked_ratings(items, values, self._side.n_items(self._state))
        kept, events = self._side.stored_values(values, self._private, self._rating_batches)
        if len(self._ever_rated) == 0 or np.isin(items, self._ever_rated).any():
            self.ledger.charge(events)  # a value that is drawn again is paid again
        self._ever_rated = np.union1d(self._ever_rated, items)
        self._rating_batches += 1
        stays = ~np.isin(self._items, items)
        items, kept = np.concatenate([self._items[stays], items]), np.concatenate([self._values[stays], kept])
        order = np.argsort(items)
        self._items, self._values = items[order], kept[order]

    def remove_rating(self, item: int) -> None:
        """Forgets one rating; what was sent stays sent."""
        keep = self._items != item
        if keep.all():
            raise ParameterError("there is no rating of that item to remove.")
        self._items, self._values = self._items[keep], self._values[keep]

    # One phase -------------------------------------------------------------------------------------------------

    def report(self, address: Address, message: Any, draws: Any = None) -> Any | None:
        """Return this device's report on a message of the server; None where it sends nothing.

        Charges the ledger first, with everything that the report releases. `draws` replaces chance in tests.
        """
        if not self.takes_part:
            raise LocalProtocolError("a device without ratings, or without unrated items to hide among, stays out.")
        self._check_order(address)
        report = self._side.report(self._private, address, message, draws)
        self.ledger.charge(report.events)  # refuses before anything changes
        self._state, self._last, self._draws = report.state, address, report.draws
        return report.message

    def _check_order(self, address: Address) -> None:
        """Refuse a message that was answered before, or that does not follow the last one."""
        asked, place = _asked(address, self._last), self._phases.index(self._last.phase) + 1
        next_phase = self._phases[place] if asked is Ask.NEXT_PHASE and place < len(self._phases) else self._phases[0]
        if asked not in ALLOWED[self.stage] or address.phase != next_phase:
            raise RemoteProtocolError(f"rounds must rise: {address} was announced after {self._last}.")

    def begin_again(self, reported: int) -> None:
        """Go on under a new key; the old one last reported in round `reported`, and none of its bits are used again.

        Charges what another copy of this device may have released.
        """
        state, events = self._side.begin_again(self._private, reported)
        self.ledger.charge(events)
        self._state = state
        self._last = Address(max(self.last_round, reported), self._last.attempt, self._phases[-1])

    def published(self, message: Any) -> Arrays | None:
        """Return what a message of the server publishes, for predictions; None: nothing."""
        return self._side.published(message)

    @property
    def predicts_new_items(self) -> bool:
        """Whether items that joined the catalogue after the run was made have predictions."""
        return self._side.predicts_new_items

    def lacks(self, message: Any) -> bool:
        """Whether this device must take another public state before it can report on this message."""
        return self._side.lacks(self._private, message)

    def take_public(self, public: Arrays) -> None:
        """Keep what the rounds so far have published; refuse what no honest run of these terms has."""
        self._side.check_public(public)
        self._public = public

    @property
    def spent(self) -> dict[str, float]:
        """What this run has used so far, by unit, of what joining it allowed. Private."""
        return self._side.spent(self._state)

    def rest(self) -> None:
        """Forget what was kept for an attempt: none is open."""
        self._state = self._side.rest(self._state)
        self._last = Address(self._last.round_number, self._last.attempt, self._phases[-1])

    def predict(self, public: Arrays) -> FloatArray:
        """Return predictions for all items, on the scale 1 to 5 but not bound to it. Must never leave the device."""
        return self._side.predict(self._private, public)

    def rank(self, public: Arrays, predictions: FloatArray) -> FloatArray:
        """Return what lists are sorted by, for all items: larger is better. Must never leave the device."""
        return self._side.rank(public, predictions)

    @property
    def order(self) -> str | None:
        """How lists are sorted, in one sentence; None where that is by the predictions alone."""
        return self._side.order

    def has_learned(self, public: Arrays) -> bool:
        """Whether a public state tells anything about the items yet."""
        return self._side.has_learned(public)

    def popularity(self, public: Arrays) -> FloatArray | None:
        """Return how much people like each item, as far as that is public; None where it is not."""
        return self._side.popularity(public)

    def recommend(self, scores: FloatArray, count: int) -> IntArray:
        """Return the unrated items with the highest scores, best first. Computed here; nothing is sent."""
        n_items = self._side.n_items(self._state)
        if count < 1 or len(scores) < n_items:
            raise ParameterError(
                f"recommend needs a count of at least 1 and scores of all {n_items} items,"
                f" got {count} and {len(scores)}."
            )
        scores = np.array(scores)
        scores[self._items] = -np.inf
        count = min(count, len(scores) - len(self._items))
        if count == 0:
            return np.empty(0, dtype=np.int64)
        near = np.flatnonzero(scores >= np.partition(scores, -count)[-count])  # all of them, and ties with the last
        return near[np.argsort(-scores[near], kind="stable")][:count].astype(np.int64)

    # Keeping state ---------------------------------------------------------------------------------------------

    def private_state(self) -> State:
        """What a device must store between messages besides ratings and ledger. Must never leave the device."""
        return {
            **self._state,
            "last_round": np.array(self._last.round_number),
            "last_attempt": np.array(self._last.attempt),
            "last_phase": np.array(self._phases.index(self._last.phase)),
        }

    def restore_private_state(self, state: State) -> None:
        """Continues where `private_state` left off; the ledger and the ratings are given apart."""
        position = ("last_round", "last_attempt", "last_phase")
        self._state = {name: array for name, array in state.items() if name not in position}
        attempt, phase = state.get("last_attempt", 1), state.get("last_phase", -1)  # states of one phase have neither
        self._last = Address(int(state["last_round"]), int(attempt), self._phases[int(phase)])


def _asked(address: Address, last: Address) -> Ask | None:
    """Return what a message asks of a device that answered `last`; None for an earlier or repeated message."""
    if address.round_number > last.round_number:
        return Ask.LATER_ROUND
    if address.round_number < last.round_number or address.attempt < last.attempt:
        return None
    return Ask.LATER_ATTEMPT if address.attempt > last.attempt else Ask.NEXT_PHASE


def _checked_ratings(items: IntArray, values: FloatArray, n_items: int) -> tuple[IntArray, FloatArray]:
    values = np.asarray(values, dtype=np.float64)
    if len(items) and not np.issubdtype(np.asarray(items).dtype, np.integer):
        raise ParameterError("rated items must be whole numbers: their places in the catalogue.")
    items = np.asarray(items, dtype=np.int64)
    if items.shape != values.shape or items.ndim != 1 or len(np.unique(items)) != len(items):
        raise ParameterError("ratings must come as one value per item, each item once.")
    if np.any(items < 0) or np.any(items >= n_items):
        raise ParameterError(f"a rated item must be one of the {n_items} of the catalogue.")
    if not np.all((values >= LOWEST) & (values <= HIGHEST)):
        raise ParameterError(f"ratings must be numbers from {LOWEST:g} to {HIGHEST:g}, mapped to that scale first.")
    return items, values
