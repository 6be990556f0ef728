"""The device side of the masked protocol: computes reports with a `DeviceRound`, their costs, and predictions."""

from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.accountants import TableAccountant
from hushrec.budget.events import Event, TablesElsewhere, TableSent
from hushrec.errors import LocalProtocolError, RemoteProtocolError
from hushrec.messages import Address
from hushrec.models.gaussian_process import Ratings
from hushrec.models.predictor import Arrays, Predictor
from hushrec.protocols.masked import device_round as rounds
from hushrec.protocols.masked.device_state import (
    announced_table,
    at_rest,
    attempt_in,
    make_state,
    new_state,
    place_in,
    spent_in,
)
from hushrec.protocols.masked.device_table import affordable_fraction, make_table, stream_number
from hushrec.protocols.masked.encoding import Entries
from hushrec.protocols.masked.evaluation import NO_RATINGS, Held, is_held_out
from hushrec.protocols.masked.learning import learning_of
from hushrec.protocols.masked.messages import Announcement, MaskedTable, Partners
from hushrec.protocols.masked.secagg.primitives import Table
from hushrec.protocols.masked.secagg.roster import device_name
from hushrec.protocols.masked.table import published_digest
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.protocols.parties import DeviceSide, Private, Report, State
from hushrec.randomness import Purpose, Randomness


class MaskedDevice(DeviceSide):
    """The computations of a device in the masked protocol, under the terms that it accepted."""

    def __init__(self, terms: MaskedTerms, model: Any, fraction: float) -> None:
        self._terms, self._fraction = terms, fraction
        if model.columns.n_items < terms.n_items:
            raise RemoteProtocolError(
                f"terms must be for at most {model.columns.n_items} items, the size of the catalogue, got"
                f" {terms.n_items}. The device does not join."
            )
        learning = type(learning_of(model))
        self._learning = learning(model.columns.first(terms.n_items))
        self._predicting = learning(model.columns) if learning.predicts_new_items else self._learning

    def new_state(self, randomness: Randomness) -> State:
        return new_state()

    def n_items(self, state: State) -> int:
        return self._terms.n_items

    def rest(self, state: State) -> State:
        return at_rest(state)

    def lacks(self, private: Private, message: Any) -> bool:
        if not isinstance(message, Announcement | Partners):
            return False
        announced, membership = announced_table(private.state), private.membership
        if isinstance(message, Announcement):
            announced = message.table_digest
            if membership is not None:
                place = place_in(private.state)
                rounds.check_announcement(message, self._terms, membership.run_id, membership.server_key, place)
        if private.public is None:
            return True
        return announced is not None and published_digest(private.public) != announced  # else `report` refuses it

    def report(self, private: Private, address: Address, message: Any, draws: Any = None) -> Report:
        uses_table = isinstance(message, Announcement | Partners)
        if private.membership is None:
            raise LocalProtocolError("a device must have joined the run before it reports. Join the run.")
        if private.public is None and uses_table:
            raise LocalProtocolError("a device must have the public table before it reports. Fetch the table.")
        spent, events = spent_in(private.state), tuple[TableSent, ...]()

        def table_of(round_number: int) -> Table:
            nonlocal spent, events
            table, spent, events = self._table(private, round_number, address.attempt)
            return table

        own, attempt = private.membership, attempt_in(private.state)
        name, identity = device_name(own.device), Ed25519PrivateKey.from_private_bytes(own.secret)
        device = rounds.DeviceRound(self._terms, own.run_id, own.server_key, name, identity, table_of, state=attempt)
        purpose = Purpose.MASK_KEYS if isinstance(message, Announcement) else Purpose.MASK_SHARES
        stream = private.randomness.stream(purpose, stream_number(address.round_number, address.attempt))
        digest = published_digest(private.public) if uses_table and private.public is not None else b""
        reply = device.report(message, table_digest=digest, rng=stream)
        if device.place != (address.round_number, address.attempt):
            raise RemoteProtocolError(
                f"message must be for round {address.round_number} and attempt {address.attempt} of its envelope, got"
                f" round {device.place[0]} and attempt {device.place[1]}. The device sends no report."
            )
        shown: State | None = {} if isinstance(reply, MaskedTable) else None  # even if the table is zeros
        return Report(reply, make_state(device.state, spent), events, shown=shown)

    def _table(
        self, private: Private, round_number: int, attempt: int
    ) -> tuple[Table, TableAccountant, tuple[TableSent, ...]]:
        """Return the table of a round, the cost of the run including it, and what the ledger is charged for it.

        If the budget of the run or the ledger does not allow the cost, the table is zeros with full noise.
        """
        priced, before = self._terms.priced, spent_in(private.state)
        event = priced.table_sent(round_number - 1, affordable_fraction(priced, round_number, before, self._fraction))
        can_pay = priced.is_exact or private.ledger.can_pay([event])
        blocks = self._blocks(private, round_number) if can_pay and len(private.items) else None
        randomness = private.randomness
        table, after = make_table(
            priced, round_number, blocks, before, fraction=self._fraction, randomness=randomness, attempt=attempt
        )
        return table, after, (event,) if after.tables > before.tables and not priced.is_exact else ()

    def _blocks(self, private: Private, round_number: int) -> list[Entries]:
        """Return the device's entries of each block of the round, in the order of the plan.

        If the run measures its accuracy, held-out ratings are used in the evaluation block only.
        """
        assert private.public is not None  # as `membership`: checked by `report`
        assert private.membership is not None
        plan, items, values, held = self._terms.priced.plan, private.items, private.values, NO_RATINGS
        if plan.holds_out:
            is_held = is_held_out(private.membership.device, items, self._terms.n_items)
            held, items, values = Held(items[is_held], values[is_held]), items[~is_held], values[~is_held]
        table = self._learning.table_from(private.public)
        return self._learning.entries(plan.rounds[round_number - 1].blocks, table, items, values, held)

    def spent(self, state: State) -> dict[str, float]:
        return {"table": spent_in(state).charged()}

    def begin_again(self, private: Private, reported: int) -> tuple[State, list[Event]]:
        """Return the state without secrets, and the events to charge before the device joins again with a new key.

        `reported` is the last round in which another copy of this store may have reported, or 0 if there is no other
        copy. Another copy may have spent everything that this store has not yet spent of the run's budget. If there is
        one, an event charges this unspent budget, as far as the ledger's limit allows. In later rounds the device then
        sends zeros with noise, which nobody can distinguish from other tables.
        """
        spent, priced = spent_in(private.state), self._terms.priced
        if not reported or priced.is_exact:
            return at_rest(private.state), []
        allowed = (private.ledger.limit("table") or 0.0) - private.ledger["table"].charged()
        rest = min(allowed, priced.mu_squared - spent.charged())  # the copy may have used the run's whole budget
        lost = TablesElsewhere(max(0.0, rest), priced.accountant().distance)
        spent.compose(lost)
        return make_state(attempt_in(at_rest(private.state)), spent), [lost]

    # Predictions -----------------------------------------------------------------------------------------------

    def check_public(self, public: Arrays) -> None:
        super().check_public(public)
        if self._learning.table_from(public).n_items != self._terms.n_items:
            raise RemoteProtocolError(
                f"the public table must have one row for each of {self._terms.n_items} items. Devices refuse the table."
            )

    @property
    def predicts_new_items(self) -> bool:
        return self._learning.predicts_new_items

    def predict(self, private: Private, public: Arrays) -> FloatArray:
        items = np.arange(self._predicting.columns.n_items)
        return self._predictor(private, public).predict(np.zeros_like(items), items)

    def likeness(self, private: Private, public: Arrays, items: IntArray, others: IntArray) -> FloatArray:
        return self._predictor(private, public).likeness_between(items, others)

    def rank(self, public: Arrays, predictions: FloatArray) -> FloatArray:
        return self._predicting.rank(self._predicting.with_new_items(public), predictions)

    @property
    def order(self) -> str | None:  # type: ignore[override]
        return self._learning.order

    def has_learned(self, public: Arrays) -> bool:
        return int(public["round_number"]) > 0

    def popularity(self, public: Arrays) -> FloatArray:
        return np.asarray(self._predicting.with_new_items(public)["log_counts"])

    def _predictor(self, private: Private, public: Arrays) -> Predictor:
        own = Ratings(np.array([0, len(private.items)]), private.items, private.values)
        final = int(public["round_number"]) == self._terms.max_rounds
        learning = self._predicting
        return learning.predictor(learning.table_from(learning.with_new_items(public)), own, final=final)
