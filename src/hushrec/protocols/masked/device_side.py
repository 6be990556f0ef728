"""The device side of the masked protocol: computes reports (with a `DeviceRound`), their costs, and predictions."""

import math
from dataclasses import fields
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
    NO_ATTEMPT,
    announced_table,
    attempt_in,
    make_state,
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
    """The computations of a device in the masked protocol, under the terms that it accepted.

    `fraction` multiplies the largest norm of every block. It is below 1 for a person whose own budget is smaller than
    the run's.
    """

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
        return make_state(rounds.Idle(), TableAccountant())

    def n_items(self, state: State) -> int:
        return self._terms.n_items

    def rest(self, state: State) -> State:
        return {**state, "attempt": NO_ATTEMPT}

    def lacks(self, private: Private, message: Any) -> bool:
        if not isinstance(message, Announcement | Partners):
            return False
        announced, own = announced_table(private.state), private.membership
        if isinstance(message, Announcement):
            announced = message.table_digest
            if own is not None:
                last = place_in(private.state)
                rounds.check_announcement(message, self._terms, own.run_id, own.server_key, last)
        if private.public is None or announced is None:  # announced is None: `report` refuses the message
            return private.public is None
        return published_digest(private.public) != announced

    def report(self, private: Private, address: Address, message: Any) -> Report:
        own, public, digest = private.membership, private.public, b""
        if own is None:
            raise LocalProtocolError("a device must have joined the run before it reports. Join the run.")
        if isinstance(message, Announcement | Partners):
            if public is None:
                raise LocalProtocolError("a device must have the public table before it reports. Fetch the table.")
            digest = published_digest(public)
            if isinstance(message, Announcement):
                self._terms.table_size(message.round_number)  # raises for a round that the plan does not have
                groups = self._terms.priced.plan.groups_until(message.round_number)
                self._learning.check_fits(groups, self._learning.table_from(public))
        spent, events = spent_in(private.state), tuple[TableSent, ...]()

        def table_of(announcement: Announcement) -> Table:
            nonlocal spent, events
            table, spent, events = self._table(private, announcement)
            return table

        attempt = attempt_in(private.state)
        name, identity = device_name(own.device), Ed25519PrivateKey.from_private_bytes(own.secret)
        device = rounds.DeviceRound(self._terms, own.run_id, own.server_key, name, identity, table_of, state=attempt)
        purpose = Purpose.MASK_KEYS if isinstance(message, Announcement) else Purpose.MASK_SHARES
        stream = private.randomness.stream(purpose, stream_number(address.round_number, address.attempt))
        reply = device.report(message, table_digest=digest, rng=stream)
        if device.place != (address.round_number, address.attempt):
            raise RemoteProtocolError(
                f"message must be for round {address.round_number} and attempt {address.attempt} of its envelope, got"
                f" round {device.place[0]} and attempt {device.place[1]}. The device sends no report."
            )
        shown: State | None = {} if isinstance(reply, MaskedTable) else None  # even if the table is zeros
        return Report(reply, make_state(device.state, spent), events, shown=shown)

    def _table(
        self, private: Private, announcement: Announcement
    ) -> tuple[Table, TableAccountant, tuple[TableSent, ...]]:
        """Return the table of an attempt, the cost of the run including this table, and the events to charge for it.

        The table is zeros with full noise, and there are no events, in three cases: in a probe, for a person without
        ratings, and if the budget of the run or the ledger cannot pay for the table. In these cases the device computes
        entries from a made-up profile and discards them, so that every table takes equally long (`Learning.entries`).
        """
        priced, before, round_number = self._terms.priced, spent_in(private.state), announcement.round_number
        fraction = affordable_fraction(priced, round_number, before, self._fraction)
        event = priced.table_sent(round_number - 1, fraction)
        can_pay = fraction > 0 and private.ledger.can_pay([event])
        sends_zeros = announcement.probe or not can_pay or not len(private.items)
        profile = NO_RATINGS if sends_zeros else Held(private.items, private.values)
        table, after = make_table(
            priced,
            round_number,
            self._entries(private, round_number, *profile),
            before,
            fraction=self._fraction,
            randomness=private.randomness,
            attempt=announcement.attempt,
            sends_zeros=sends_zeros,
        )
        return table, after, (event,) if after.tables > before.tables else ()

    def _entries(self, private: Private, round_number: int, items: IntArray, values: FloatArray) -> list[Entries]:
        """Return a profile's entries of each block of the round, in the order of the plan.

        If the run measures its accuracy, held-out ratings are used in the evaluation block only. If the computation
        fails, the entries are zeros, and are paid for as usual: the server must not see that a profile is special.
        """
        assert private.public is not None  # as `membership`: checked by `report`
        assert private.membership is not None
        plan, held = self._terms.priced.plan, NO_RATINGS
        if plan.holds_out:
            is_held = is_held_out(private.membership.device, items, self._terms.n_items)
            held, items, values = Held(items[is_held], values[is_held]), items[~is_held], values[~is_held]
        table = self._learning.table_from(private.public)
        blocks = plan.rounds[round_number - 1].blocks
        try:
            return self._learning.entries(blocks, table, items, values, held)
        except Exception:  # a failure that depends on the profile must not be visible to the server
            return [Entries(np.zeros(block.size)) for block in blocks]

    def spent(self, state: State) -> dict[str, float]:
        return {"table": spent_in(state).charged()}

    def begin_again(self, private: Private, reported: int) -> tuple[State, list[Event]]:
        """Return the state without secrets, and the events to charge before the device joins again with a new key.

        `reported` is the last round in which another copy of this store may have reported, or 0 if there is no other
        copy. Another copy may have spent all of the run's budget that this store has left. So if there is another copy,
        an event charges all that is left, as far as the ledger's limit allows. In later rounds the device then sends
        zeros with noise, which nobody can distinguish from other tables.
        """
        spent, priced = spent_in(private.state), self._terms.priced
        if not reported or private.ledger["table"].charged() == math.inf:
            return self.rest(private.state), []
        if priced.is_exact:  # the tables of a copy with an infinite limit had no noise
            is_allowed = private.ledger.limit("table") == math.inf
            return self.rest(private.state), [priced.table_sent(0)] if is_allowed else []
        allowed = (private.ledger.limit("table") or 0.0) - private.ledger["table"].charged()
        rest = min(allowed, priced.mu_squared - spent.charged())  # the copy may have used the run's whole budget
        lost = TablesElsewhere(max(0.0, rest), priced.accountant().distance)
        spent.compose(lost)
        return make_state(rounds.Idle(place_in(private.state)), spent), [lost]

    # Predictions -----------------------------------------------------------------------------------------------

    def check_public(self, public: Arrays) -> None:
        super().check_public(public)
        unknown = sorted(public.keys() - {entry.name for entry in fields(self._learning.table)} - {"round_number"})
        if unknown:
            raise RemoteProtocolError(
                f"the public table must have known arrays only, got {len(unknown)} others. Devices refuse the table."
            )
        number = public.get("round_number")
        if number is None or number.ndim or not 0 <= number <= self._terms.max_rounds or number % 1:
            raise RemoteProtocolError(
                f"round_number of the public table must be a whole number from 0 to {self._terms.max_rounds}. Devices"
                " refuse the table."
            )
        if self._learning.table_from(public).n_items != self._terms.n_items:
            raise RemoteProtocolError(
                f"the public table must have one row for each of {self._terms.n_items} items. Devices refuse the table."
            )

    def predict(self, private: Private, public: Arrays) -> FloatArray:
        items = np.arange(self._predicting.columns.n_items)
        return self._predictor(private, public).predict(np.zeros_like(items), items)

    def likeness(self, private: Private, public: Arrays, items: IntArray, others: IntArray) -> FloatArray | None:
        predictor = self._predictor(private, public)
        return predictor.likeness_between(items, others) if predictor.compares_items else None

    def rank(self, public: Arrays, predictions: FloatArray) -> FloatArray:
        return self._predicting.rank(self._predicting.with_new_items(public), predictions)

    @property
    def order(self) -> str | None:  # type: ignore[override]
        return self._learning.order

    def has_learned(self, public: Arrays) -> bool:
        return int(public["round_number"]) >= self._terms.priced.plan.repeats

    def popularity(self, public: Arrays) -> FloatArray:
        return np.asarray(self._predicting.with_new_items(public)["log_counts"])

    def _predictor(self, private: Private, public: Arrays) -> Predictor:
        own = Ratings(np.array([0, len(private.items)]), private.items, private.values)
        final = int(public["round_number"]) == self._terms.max_rounds
        learning = self._predicting
        return learning.predictor(learning.table_from(learning.with_new_items(public)), own, final=final)
