"""The device's side of the conversation with a server, without network I/O.

Each job is a generator: it yields a request and receives the reply. A driver (`transport.py`) makes the requests and
does all retries, which send the same body again.

The order inside `step` is essential: a report is made; one transaction charges the ledger and stores the report's
bytes; only then are the bytes sent. After a crash the stored bytes are sent, never different ones.

A job holds no `Client` while it waits for a reply, because the person may rate items in the meantime. The store is the
only source of truth.
"""

import contextlib
import time
from dataclasses import replace
from typing import Any

import numpy as np

from hushrec import wire
from hushrec.budget.events import as_number
from hushrec.budget.ledger import Ledger
from hushrec.client import Client, place_in
from hushrec.device import open_attempt
from hushrec.device.budgets import Budgets, allow_run, consent
from hushrec.device.calls import LARGEST_PAGE, MOST_ITEMS, SMALL_REPLY, Call, Job, Reply, check_size, expect, not_joined
from hushrec.device.joining import rotate_key
from hushrec.device.predictions import Predictions
from hushrec.device.store import Store
from hushrec.errors import ConsentNeeded, CopiedStore, LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import (
    LARGEST_TABLE,
    NO_REPORT,
    Catalogue,
    Credentials,
    Envelope,
    LastReport,
    Offer,
    Public,
    Receipt,
    write_last_report,
)
from hushrec.models import find_model
from hushrec.models.titles import own_titles
from hushrec.offers import make_run_model, offered
from hushrec.protocols import find_protocol
from hushrec.protocols.configured import ConfiguredProtocol, LedgerStatement
from hushrec.protocols.parties import Membership, State
from hushrec.randomness import SystemRandomness
from hushrec.signing import Request

LONGEST_WAIT = 45.0  # seconds of one long poll
_PUBLIC = Call(Request("GET", "/v1/public"), signed=False, largest=LARGEST_TABLE + SMALL_REPLY)
STEPPED, NO_ROUND, REFUSED, RUN_OVER = "reported", "no round", "refused", "run over"


class Session:
    """The conversation of one device, whose data is in `store`, with one server."""

    def __init__(self, store: Store, *, keep_public: bool = True) -> None:
        self.store = store
        self.keep_public = keep_public
        self._nonce = 0
        self._client: Client | None = None
        self.predictions = Predictions(self)
        self.reload()
        open_attempt.drop_expired(self)

    def reload(self) -> None:
        """Read budgets, offer, key and the device's id from the store, at the start and when the run changes."""
        self.offer = self.store.offer()
        self.budgets = self.store.budgets()
        self.key = self.store.key()
        self.name = self.store.device()
        self.refusal = ""  # why this device refused a message; "" if it has finished an attempt since
        self.predictions.forget()
        self.forget_client()

    @staticmethod
    def start(store: Store, budgets: Budgets) -> None:
        """Write the budgets and an empty ledger to a store."""
        with store.change():
            store.put_json("budgets", budgets.to_record())
            store.put_json("ledger", Ledger(**budgets.limits).to_record())

    @property
    def is_enrolled(self) -> bool:
        return self.store.get("enrolled") is not None

    @property
    def accepted(self) -> Offer:
        """The offer that this device accepted; raise if it has not joined a server."""
        if self.offer is None:
            raise not_joined()
        return self.offer

    def change_budgets(self, budgets: Budgets) -> None:
        """Replace the budgets, from the next round on.

        For each protocol whose options change:

        1. Raise `LocalProtocolError` if the protocol's options are fixed, for example because `isgld` has drawn noise.
        2. Set the ledger's limit for the protocol's unit to the limit in `budgets`, or remove it if `budgets` has none.
           This step is left out if budget has been spent in that unit, or if the joined run has this protocol and its
           privacy level can change while rounds go on, as under `masked`.
        3. If the joined run has this protocol, raise the limit to the largest cost of the run with the new options, or
           raise `BudgetExceeded` and change nothing (`allow_run`).
        """
        ledger = self.store.ledger()
        for name in budgets.options.keys() | self.budgets.options.keys():
            if budgets.options.get(name) != self.budgets.options.get(name):
                self._change_options(name, budgets, ledger)
        self._put(budgets, ledger)

    def _change_options(self, name: str, budgets: Budgets, ledger: Ledger) -> None:
        if self.budgets.chosen(name) is not None:
            reason = self.budgets.configured(name).ledger_statement(ledger).fixed
            if reason is not None:
                raise LocalProtocolError(reason)
        unit, takes_part = find_protocol(name).unit, self.is_enrolled and self.accepted.protocol == name
        # Without a pause, the level may change during a run, and another copy of this store may have reported in it.
        keeps_limit = takes_part and not budgets.protocol_for(self.accepted).pauses_for_level
        if unit is not None and not ledger[unit].charged() and not keeps_limit:
            ledger.set_limit(unit, budgets.limits.get(unit))
        if takes_part:
            protocol = budgets.protocol_for(self.accepted)
            protocol.check_terms(self.accepted.terms)
            allow_run(protocol, self.accepted.terms, ledger, self.client().spent)

    def _put(self, budgets: Budgets, ledger: Ledger) -> None:
        with self.store.change():
            self.store.put_json("budgets", budgets.to_record())
            self.store.put_json("ledger", ledger.to_record())
        self.budgets = budgets
        self.forget_client()

    def allow(self, epsilon: float, protocol: str | None = None) -> None:
        """Raise the ledger's limits so that all runs together may cost `epsilon`; refuse less than is allowed now.

        The limits are those of `protocol`, or if it is None, of the protocols that `_protocols` returns.
        """
        ledger, allowed = self.store.ledger(), as_number("epsilon", epsilon)
        protocols = self._protocols(ledger) if protocol is None else [self.budgets.configured(protocol)]
        limit = max(protocol.ledger_statement(ledger).limit or 0.0 for protocol in protocols)
        if allowed < limit:
            raise ParameterError(
                f"the new limit on epsilon (--raise-to) must be at least {limit:.4g}, the present limit, got"
                f" {allowed:g}. Limits can only be raised."
            )
        raised = {unit: limit for protocol in protocols for unit, limit in protocol.limits_at(allowed).items()}
        if not raised:
            raise ParameterError(
                f"epsilon must not be given, because protocol {protocols[0].name} has no limit on epsilon. Its limits"
                " can be set with Device.create(limits={...})."
            )
        for unit, limit in raised.items():
            ledger.raise_limit(unit, max(limit, ledger.limit(unit) or 0.0))
        self._put(self.budgets, ledger)

    @property
    def is_over(self) -> bool:
        return self.store.get("over") is not None

    def forget_client(self) -> None:
        """Discard the cached `Client`, after ratings changed or a write failed; the next use reads the store again."""
        self._client = None

    # Signing ---------------------------------------------------------------------------------------------------

    def sign(self, request: Request) -> Credentials:
        """Sign a request with a nonce above all earlier ones, which comes from the clock and need not be stored."""
        if self.key is None or self.name is None or self.offer is None:
            raise not_joined()
        self._nonce = max(self._nonce + 1, time.time_ns())
        return self.key.sign(request, run_id=self.offer.run_id, device=self.name, nonce=self._nonce)

    def raise_nonce(self, last_nonce: int) -> None:
        """Make all further nonces larger than `last_nonce`, the last one that the server accepted from this device.

        This is needed after this device's clock was set back.
        """
        self._nonce = max(self._nonce, last_nonce)

    # Rounds ----------------------------------------------------------------------------------------------------

    def step(self, wait: float = 0) -> Job:
        """Wait up to `wait` seconds for an open phase, and report in it; return the outcome.

        The outcome is "reported" (even with nothing to send), "no round" (no message to reply to), "run over", or
        "refused" if this device refuses a message after it has reported in the attempt: then it drops out of the
        attempt only, because other devices may be the cause. Raise `RemoteProtocolError` if it refuses an announcement,
        terms or a public table, which the server alone has made.
        """
        self._refuse_copies()
        open_attempt.drop_expired(self)
        if self.store.get("next_key") is not None:
            yield from rotate_key(self)  # finish an interrupted change of the key
        if self.store.get("outbox") is not None:
            yield from self._send_outbox()
        wait = min(wait, LONGEST_WAIT)
        reply = yield Call(self._inbox(wait), largest=LARGEST_TABLE + SMALL_REPLY, wait=wait)
        if (elsewhere := self.reported_elsewhere(reply)) != NO_REPORT:
            self._found_copy(elsewhere[0])
        if reply.status >= 400 or reply.attempt_seconds == 0:
            open_attempt.drop_out(self)
        if reply.status == 204:
            open_attempt.extend(self, reply.attempt_seconds)
            return NO_ROUND
        if reply.code == "run-over":
            if self.keep_public:
                yield from self.refresh_public()
                predicts_new = self.budgets.protocol_for(self.accepted).predicts_new_items(self.accepted.model)
                while predicts_new and (yield from self._append_page()):
                    self.forget_client()  # items joined the catalogue, which this device can predict without a round
                with self.store.change():
                    self.store.put("over", b"1")
            return RUN_OVER
        envelope = wire.decode(expect(reply, 200), Envelope)
        terms = getattr(envelope.message, "terms", None)
        self._check_terms(envelope.run_id, terms)
        if terms is not None and terms.n_items > self.accepted.terms.n_items:
            yield from self.refresh_catalogue(terms.n_items)
        if not (yield from self._provide(envelope)):
            open_attempt.drop_out(self)
            return NO_ROUND
        is_open = self.client().is_open(envelope.address)
        try:
            has_report = self._prepare_report(envelope, reply.attempt_seconds)
        except RemoteProtocolError as error:
            if not is_open:
                raise
            open_attempt.drop_out(self)
            self.refusal = str(error)
            return REFUSED
        if has_report:
            yield from self._send_outbox()
        return STEPPED

    def _inbox(self, wait: float) -> Request:
        """Return the request for the server's next message to this device.

        The request names round, attempt and phase of this device's last report. A server that was restored from a
        backup, and does not have this report, can then notice that it is missing.
        """
        client = self.client()
        client.check_takes_part()
        last = write_last_report(client.place)
        done_with = max(client.done_with, self.store.get_json("given_up") or 0)  # needs no further report
        return Request("GET", f"/v1/inbox?after={done_with}&last={last}&wait={wait:g}")

    def _provide(self, envelope: Envelope) -> Job:
        """Give the `Client` the public table that a message refers to, from the store or else from the server.

        Return False if the server already has a later table, because the round has ended in the meantime; else True. A
        message that is out of order is refused first, so that it cannot replace the public table.
        """
        client, message = self.client(), envelope.message
        client.check_order(envelope.address)
        if not client.lacks(message):
            return True
        if (stored := self.store.public()) is not None:
            client.take_public(stored)
            if not client.lacks(message):
                return True
        if (yield from self.refresh_public()) >= envelope.round_number:
            return False
        if self.client().lacks(message):
            raise RemoteProtocolError(
                "the server's public table must be the one that was announced, but its hash differs. No report"
                " is sent. Ask the operator."
            )
        return True

    def refresh_public(self) -> Job:
        """Fetch and store the public table; return the number of the round after which it was published."""
        public = wire.decode(expect((yield _PUBLIC), 200), Public)
        yield from self._take_public(public)
        return public.round_number

    def look_at_public(self) -> Job:
        """Try to fetch and store the public table, so that a new device can recommend at once if a round has ended.

        A random public table, as `sdcf` has before its first round, is not stored: lists from it would mean nothing.
        """
        reply = yield replace(_PUBLIC, optional=True)
        if reply.status == 200:
            with contextlib.suppress(RemoteProtocolError):  # the first step reports the error
                public = wire.decode(reply.body, Public)
                if public.round_number > 0 or not self.client().side.has_learned(public.by_name()):
                    yield from self._take_public(public)

    def _take_public(self, public: Public) -> Job:
        with contextlib.suppress(ConsentNeeded):  # reading the results of further rounds needs no consent
            self._check_terms(public.run_id, public.terms)
        arrays = public.by_name()
        if public.terms.n_items > self.accepted.terms.n_items:
            yield from self.refresh_catalogue(public.terms.n_items)
        self.client().take_public(arrays)
        with self.store.change(durable=False):
            self.store.put_public(arrays)
        self.predictions.forget()

    @property
    def last_round(self) -> int:
        """The last round in which this device reported, from the store."""
        return place_in(self.store.private_state())[0]

    def _refuse_copies(self) -> None:
        if self.store.get("copied") is not None:
            raise CopiedStore(
                "this store is a copy or a restored backup: another copy has sent later reports with the same key."
                " Enrol again with `hushrec device join --again`, which charges the ledger for these reports."
            )

    def reported_elsewhere(self, reply: Reply) -> LastReport:
        """Return the last report that another copy of this store has sent with its key; `NO_REPORT` if there is none.

        The server's `reply` names the last report under this key. This device stores each report before it sends it, so
        a report later than the last one in the store is from another copy.
        """
        last = reply.last_report
        if last is None or last <= self.client().last_report:
            return NO_REPORT
        if last[0] > (rounds := self.accepted.terms.max_rounds):
            raise RemoteProtocolError(
                f"this run has {rounds} rounds, but the server says that this device reported in round {last[0]}. Ask"
                " the operator."
            )
        return last

    def _found_copy(self, reported: int) -> None:
        open_attempt.drop_out(self)
        with self.store.change():
            self.store.put_json("copied", reported)
            self.store.drop("outbox")
        self._refuse_copies()

    def _check_terms(self, run_id: str, terms: Any | None) -> None:
        """Raise `RemoteProtocolError` unless a message's run and terms are those that this device accepted.

        New items in the terms are accepted. `terms` is None if the message contains no terms. Raise `ConsentNeeded` if
        the terms only add rounds, to which the person has not agreed yet.
        """
        accepted = self.accepted
        if run_id != accepted.run_id:
            raise RemoteProtocolError(
                "the server's message must be for the run that this device joined, but names another. Ask the operator."
            )
        if terms is None:
            return
        offer = replace(accepted, terms=terms)
        if not (offer.keeps(accepted) or offer.extends(accepted)):
            raise RemoteProtocolError(
                "the server's terms must be those that this device accepted, but they differ. Ask the operator."
            )
        check_size(self.budgets.protocol_for(offer), terms)
        if offer.extends(accepted):
            further = terms.max_rounds - accepted.terms.max_rounds
            raise ConsentNeeded(
                f"the server offers {further} further rounds of this run. To take part in them, agree with "
                "`hushrec device join --next`."
            )

    def _prepare_report(self, envelope: Envelope, attempt_seconds: int | None) -> bool:
        """Make the report, charge the ledger, and store both; return whether there is a report to send.

        The secrets of an attempt with several phases are kept for `attempt_seconds` (see `open_attempt.put_time`).
        """
        client, asked = self.client(), envelope.message
        terms = getattr(asked, "terms", None)
        offer = self.accepted if terms is None else replace(self.accepted, terms=terms)
        try:
            published = client.side.published(asked)
            with consent("the next report needs"):
                report = client.report(envelope.address, asked)
            with self.store.change():
                self.store.put_client(client)
                open_attempt.put_time(self, client, attempt_seconds)
                if terms is not None:
                    self.store.put("offer", wire.encode(offer))
                if report is None:
                    self.store.put_json("given_up", envelope.round_number)
                else:
                    body = wire.encode(Envelope.to(offer.run_id, envelope.address, report))
                    self.store.put("outbox", body)
                    if self.keep_public and client.shown is not None:
                        self.store.put_shown(body, client.shown, client.side.most_shown)
                if self.keep_public and published is not None:
                    self.store.put_public(published)
        except BaseException:
            self.forget_client()  # the store has not changed, and is the only source of truth
            raise
        self.offer = offer
        self.refusal = self.refusal if client.in_round else ""
        self.predictions.forget()
        return report is not None

    def _send_outbox(self) -> Job:
        """Send the stored report; remove it when its receipt has arrived, or if its phase is closed."""
        body = self.store.required("outbox")
        reply = yield Call(Request("POST", "/v1/reports", body))
        if reply.code == "reported":
            self._found_copy(wire.decode(body, Envelope).round_number)
        if reply.code != "phase-closed":
            wire.decode(expect(reply, 200), Receipt)
        with self.store.change(durable=False):  # if a crash undoes this, the same bytes are sent again
            self.store.drop("outbox")
            if not self.client().in_round:
                self.store.drop("attempt_until")

    def refresh_catalogue(self, n_items: int) -> Job:
        """Fetch and append new items page by page, until the catalogue has `n_items` items."""
        while self.store.count_items() < n_items:
            if not (yield from self._append_page()):
                raise _wrong_page()
        self.forget_client()

    def _append_page(self) -> Job:
        """Fetch the next page of the catalogue and append its items; return their number."""
        known = self.store.count_items()
        call = Call(Request("GET", f"/v1/items?first={known}"), signed=False, largest=LARGEST_PAGE)
        page = wire.decode(expect((yield call), 200), Catalogue)
        if page.first != known or known + len(page.ids) > MOST_ITEMS:
            raise _wrong_page()
        width = 0 if page.attributes is None else page.attributes.shape[1]
        if known and page.ids and width != self.store.count_attributes():
            raise RemoteProtocolError(
                f"new items must have as many attributes as the others ({self.store.count_attributes()}), got {width}."
                " The device does not add them. Ask the operator."
            )
        if page.ids:
            with self.store.change():
                self.store.append_items(known, page.ids, page.titles, page.attributes)
        return len(page.ids)

    # The state machine -----------------------------------------------------------------------------------------

    def client(self) -> Client:
        """Return the `Client` in its stored state; it is cached until the store has a later report."""
        state = self.store.private_state()
        if self._client is None or self._client.place != place_in(state):
            self._client = self.make_client(state)
        return self._client

    def make_client(self, state: State | None = None) -> Client:
        """Return a `Client` for the accepted offer, with the stored ratings and ledger.

        `state` is the stored private state; None stands for the state of a device before its first round.
        """
        offer, terms = self.accepted, self.accepted.terms
        own = None
        if self.key is not None and self.name is not None:
            own = Membership(offer.run_id, offer.server_key, self.name, self.key.to_bytes())
        with offered():
            known = find_model(offer.model).sent_facts is not None
            facts = (self.store.attributes(), own_titles(self.store.catalogue())) if known else (None,)
            model = make_run_model(offer.model, offer.options, *facts)
            protocol, randomness = self.budgets.protocol_for(offer), SystemRandomness()
            client = Client(terms, model, protocol, randomness=randomness, ledger=self.store.ledger(), membership=own)
        if state is not None:
            with self.store.intact("the private state"):
                client.restore_private_state(state)
        rated = self.store.rated_items(terms.n_items)
        if rated:
            client.add_ratings(np.array(list(rated)), self.budgets.mapping.to_unit(list(rated.values())))
        return client

    def _protocols(self, ledger: Ledger) -> list[ConfiguredProtocol]:
        """Return a list with the joined run's protocol or, before joining, the result of `Budgets.before_joining`."""
        return self.budgets.before_joining(ledger) if self.offer is None else [self.budgets.protocol_for(self.offer)]

    def budget(self) -> LedgerStatement:
        """Return what this device has spent, in the unit and words of the joined run's protocol.

        Before joining, use the protocol that earlier runs charged to the ledger, or else the default protocol.
        """
        ledger = self.store.ledger()
        protocol = self._protocols(ledger)[0]
        own_epsilon, own_delta = protocol.own_budget(self.offer and self.offer.terms)
        return replace(protocol.ledger_statement(ledger), own_epsilon=own_epsilon, own_delta=own_delta)


def _wrong_page() -> RemoteProtocolError:
    return RemoteProtocolError("the server's page of the catalogue must begin where the last page ended.")
