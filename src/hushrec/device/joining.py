"""How a device joins and leaves runs, agrees to a server's next run, and changes its key.

Functions that return a `Job` are generators that yield requests and receive replies, as in `session.py`. A key is
stored before it is sent, and an enrolment is sent only if the ledger's limits can cover the cost of the run.
"""

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from hushrec import wire
from hushrec.budget.ledger import Ledger
from hushrec.client import Client
from hushrec.device.budgets import allow_run, consent
from hushrec.device.calls import Call, Job, check_size, expect, not_joined
from hushrec.device.open_attempt import drop_out
from hushrec.errors import BudgetExceeded, ConsentNeeded, LocalProtocolError, RemoteProtocolError
from hushrec.messages import NO_REPORT, Enrolment, LastReport, Offer
from hushrec.models import find_model
from hushrec.offers import check_offer, make_run_model, offered
from hushrec.protocols import find_protocol
from hushrec.signing import DeviceKey, Request, device_id_of

if TYPE_CHECKING:
    from hushrec.device.session import Session


def join(session: "Session", invitation: str | None = None) -> Job:
    """Fetch the server's offer, enrol, and fetch the catalogue and the public table.

    The device enrols with a new key, unless a key is stored for this run, as after a crash.
    """
    if session.is_enrolled:
        raise LocalProtocolError(
            "this device has joined a run already. Leave the run first with `hushrec device leave`."
        )
    offer = yield from fetch_offer(session)
    if session.store.get("private_state") is None:
        _allow(session, offer)  # raises before the server learns of this device
    if session.key is None or session.offer is None or not offer.keeps(session.offer):
        session.key = DeviceKey.generate()  # a key is never used with two servers
        session.name = device_id_of(session.key.public_key)
    assert session.name is not None
    session.offer = offer
    with session.store.change():
        session.store.put("key", session.key.to_bytes())
        session.store.put("device", session.name.encode())
        session.store.put("offer", wire.encode(offer))
    body = wire.encode(Enrolment(session.key.public_key, invitation))
    expect((yield Call(Request("POST", "/v1/devices", body))), 201)
    yield from session.refresh_catalogue(offer.terms.n_items)
    client = session.make_client()
    with session.store.change():
        session.store.put("enrolled", b"1")
        if session.store.get("private_state") is None:
            _allow(session, offer, client.ledger)  # the client may have charged it for the noise of ratings
            session.store.put_client(client)
    if session.keep_public:
        yield from session.look_at_public()


def _allow(session: "Session", offer: Offer, ledger: Ledger | None = None) -> None:
    """Raise the limits of `ledger` to cover the largest cost of the offered run, as `allow_run` does.

    Raise `BudgetExceeded` if the person must allow more first. Without `ledger`, check the stored ledger, and change
    nothing.
    """
    found = session.store.ledger() if ledger is None else ledger
    allow_run(session.budgets.protocol_for(offer), offer.terms, found, {})


def ask_offer() -> Job:
    """Fetch and return the server's present offer, unchecked; the request is anonymous."""
    return wire.decode(expect((yield Call(Request("GET", "/v1/run"), signed=False)), 200), Offer)


def fetch_offer(session: "Session") -> Job:
    """Fetch, check and return the server's offer.

    If this device has joined the run, further rounds to which the person has not agreed are left out. Raise
    `ConsentNeeded` if the offer is for a next run, and `RemoteProtocolError` if this device has joined another run, if
    the terms are invalid, if the public table would be too large, or if the protocol does not protect ratings.
    """
    offer = yield from ask_offer()
    if session.store.get("private_state") is not None and (accepted := session.store.offer()) is not None:
        if offer.extends(accepted):  # further rounds need the person's consent
            offer = replace(offer, terms=replace(offer.terms, max_rounds=accepted.terms.max_rounds))
        if _is_next(session, offer, accepted):
            raise ConsentNeeded(
                "this server offers a next run with new terms. To take part in it, agree with `hushrec device join"
                " --next`."
            )
        if not offer.keeps(accepted):
            raise RemoteProtocolError(
                "this server must offer the run that this device joined, but offers another. To join the new run, leave"
                " the old one first with `hushrec device leave`.",
                code="wrong-run",
            )
    _check_offer(session, offer)
    return offer


def _check_offer(session: "Session", offer: Offer) -> None:
    check_offer(offer)
    with offered():  # before anything is fetched or sent, if the model does not depend on the catalogue
        protocol = session.budgets.protocol_for(offer)
        check_size(protocol, offer.terms)
        protocol.check_terms(offer.terms)
        if find_model(offer.model).item_facts is None:
            protocol.make_device(offer.terms, make_run_model(offer.model, offer.options, None))
    if not find_protocol(offer.protocol).is_private:
        raise RemoteProtocolError(
            f"the server's protocol must protect ratings, but {offer.protocol} does not. Join another server."
        )


def check_server(session: "Session") -> Job:
    """Raise if the server offers neither the run that this device joined nor a next run after it."""
    with contextlib.suppress(ConsentNeeded):  # storing the server's new address needs no consent
        yield from fetch_offer(session)


def rejoin(session: "Session", invitation: str | None = None) -> Job:
    """Enrol again with a new key, after the store was restored from a backup or copied.

    Another copy of the store may have sent reports. So the server is asked for the last report under the old key, and
    the ledger is charged for all that the copy may have sent. If the ledger's limit is too low, this raises and changes
    nothing. The ledger is stored before the old key leaves the run, so that an interruption cannot undo the charge.
    The private state, stored with it, says what is charged, so that a second try does not charge it again. The old
    permanent bits are not used again.
    """
    offer = yield from fetch_offer(session)  # change nothing if the server is away or has another run
    elsewhere: LastReport = (session.store.get_json("copied") or 0, 0, 0)
    if session.is_enrolled:
        elsewhere = max(elsewhere, (yield from _ask_elsewhere(session)))
    client = _begin_again(session, offer, elsewhere)
    if elsewhere == NO_REPORT:
        drop_out(session)
    else:
        with session.store.change():
            session.store.put_client(client)
            session.store.put_json("copied", elsewhere[0])
            session.store.drop("attempt_until", "outbox")
    if session.is_enrolled:
        yield from _retire("bad-signature")  # another copy may have changed the key
    client = _begin_again(session, offer, NO_REPORT)
    with session.store.change():
        session.store.put_client(client)
        session.store.drop("attempt_until", "outbox", "copied", "key", "next_key", "device", "enrolled")
    session.key = session.name = None
    yield from join(session, invitation)  # the user vector and the last round are kept


def _begin_again(session: "Session", offer: Offer, elsewhere: LastReport) -> Client:
    """Return a `Client` charged for the reports of another copy, with limits that allow the rest of the run.

    `elsewhere` is the copy's last report. The caller must store the client's ledger and state, or nothing has changed.
    """
    client = session.client()
    session.forget_client()
    with consent("joining again needs"):
        client.begin_again(elsewhere)
    allow_run(session.budgets.protocol_for(offer), offer.terms, client.ledger, client.spent)
    return client


def _ask_elsewhere(session: "Session") -> Job:
    """Return the round, attempt and phase of the last report that another copy of the store may have sent.

    Ask the server for the last report under this device's key. Return `NO_REPORT` if this store has that report. The
    server refuses the key if the copy has changed it. Then the copy may have reported in every round so far: return the
    round after that of the latest public table, with attempt and phase 0.
    """
    rounds = session.accepted.terms.max_rounds
    ask = Call(Request("GET", "/v1/inbox?after=1000000000"))  # above every round, so that no message comes
    reply = yield ask
    if reply.code == "bad-signature" and (new := session.store.key("next_key")) is not None:
        session.key = new  # a change of the key succeeded, but its reply was lost
        reply = yield ask
    if reply.code == "bad-signature":
        return min((yield from session.refresh_public()) + 1, rounds), 0, 0
    if reply.code not in ("not-active", "not-enrolled", "run-over"):
        expect(reply, 204)
    return session.reported_elsewhere(reply)


def leave(session: "Session") -> Job:
    """Leave the run at the server and in the store. Reports that were sent cannot be taken back."""
    drop_out(session)
    yield from _retire()
    forget_run(session)


def _retire(*also: str) -> Job:
    """Ask the server to end this device's enrolment.

    Ignore the server's refusal if the server does not know the device, if the enrolment or the run has ended already,
    or if the code of the refusal is in `also`.
    """
    reply = yield Call(Request("DELETE", "/v1/devices/me"))
    if reply.status != 204 and reply.code not in ("not-enrolled", "not-active", "next-run", *also):
        expect(reply, 204)


def forget_run(session: "Session") -> None:
    """Remove the run, its catalogue and the keys from the store. Ratings, ledger and the server's address stay."""
    _charge_copy(session)
    with session.store.change():
        _drop_run(session)
        session.store.drop("key", "next_key", "device", "offer")
    session.reload()


def _charge_copy(session: "Session") -> None:
    """Charge the ledger for the reports of another copy, if this store was found to be a copy.

    The state, stored with the ledger, says what is charged, so that a second call does not charge it again. If the
    ledger's limit is too low, raise `BudgetExceeded` and change nothing.
    """
    if reported := session.store.get_json("copied"):
        client = session.client()
        session.forget_client()
        with consent("leaving the run needs"):
            client.begin_again((reported, 0, 0))
        with session.store.change():
            session.store.put_client(client)


def _drop_run(session: "Session") -> None:
    """Remove the run from the store, but not its offer and the device's keys; call only inside `Store.change`."""
    session.store.drop("attempt_until", "enrolled", "outbox", "copied", "over", "given_up")
    session.store.drop("private_state", "public", "shown")
    session.store.drop_catalogue()


def rotate_key(session: "Session") -> Job:
    """Replace the device's key at the server. Both keys are stored until the server has confirmed the new key.

    The device drops out of an open attempt, because its reports there are signed with the old key.
    """
    drop_out(session)
    new = session.store.key("next_key") or DeviceKey.generate()
    with session.store.change():
        session.store.put("next_key", new.to_bytes())
    body = wire.encode(Enrolment(new.public_key))
    reply = yield Call(Request("PUT", "/v1/devices/me/key", body))
    if reply.code == "bad-signature":  # an earlier request succeeded, but its reply was lost
        session.key = new
        reply = yield Call(Request("PUT", "/v1/devices/me/key", body))
    expect(reply, 204)
    session.key = new
    with session.store.change():
        session.store.put("key", new.to_bytes())
        session.store.drop("next_key")
    session.forget_client()  # its rounds are signed with the new key


# After a run ------------------------------------------------------------------------------------------------


def look_next(session: "Session") -> Job:
    """Return the server's offer of further rounds or a next run; raise `RemoteProtocolError` if there is neither."""
    accepted = session.store.offer()
    if accepted is None or not session.is_enrolled:
        raise not_joined()
    offer = yield from ask_offer()
    if not (offer.extends(accepted) or _is_next(session, offer, accepted)):
        sentence = "this server offers neither further rounds nor a next run. Try again later."
        if offer.run_id == accepted.run_id and not session.is_over:
            sentence = (
                "this device already takes part in the run that this server offers, and it is not over. Continue with"
                " `hushrec device join`."
            )
        raise RemoteProtocolError(sentence, code="nothing-next", status_hint=409)
    _check_offer(session, offer)
    return offer


def needs(session: "Session", offer: Offer) -> float | None:
    """Return the ε that the person must allow for all runs together before `follow`; None if the limit is enough."""
    if session.offer is None or offer.run_id == session.offer.run_id:
        return None
    try:
        _allow(session, offer)
    except BudgetExceeded as error:
        return error.needed
    return None


def follow(session: "Session") -> Job:
    """Agree to the server's offer of further rounds, or of a next run.

    Under `sdcf`, further rounds draw new permanent bits only when a permanent epoch has ended. Before the device enrols
    in a next run, the ledger's limit must cover the costs of this run and of all earlier runs together. The device then
    keeps its key and the old run's id and recommendations, and deletes the rest of the old run.
    """
    offer = yield from look_next(session)
    assert session.offer is not None
    if offer.run_id == session.offer.run_id:
        with session.store.change():
            session.store.put("offer", wire.encode(offer))
            session.store.drop("over")
        session.reload()
        return
    _charge_copy(session)
    _allow(session, offer)
    with session.store.change():
        session.predictions.keep_list()
        past = session.store.get_json("past_runs") or []
        session.store.put_json("past_runs", [*past, session.offer.run_id])
        _drop_run(session)
        session.store.put("offer", wire.encode(offer))
    session.reload()
    yield from join(session)


def _is_next(session: "Session", offer: Offer, accepted: Offer) -> bool:
    return offer.follows(accepted) and offer.run_id not in (session.store.get_json("past_runs") or [])
