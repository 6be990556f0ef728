"""What comes after a run: further rounds of it, or a next run. A device goes on only if its person agrees."""

from typing import TYPE_CHECKING

from hushrec import wire
from hushrec.device.budgets import allow_run
from hushrec.device.calls import Job
from hushrec.errors import BudgetExceeded, LocalProtocolError, RemoteProtocolError
from hushrec.messages import Offer

if TYPE_CHECKING:
    from hushrec.device.session import Session


class NextRun:
    """Follows the server of one session from one run to the next."""

    def __init__(self, session: "Session") -> None:
        self._session = session

    def look(self) -> Job:
        """Return what the server offers after its run; refuse where that is nothing, or for another device."""
        session, accepted = self._session, self._session.kept.offer()
        if accepted is None or not session.is_enrolled:
            raise LocalProtocolError("this device has not joined a server.")
        offer = yield from session.offered()
        if not (offer.extends(accepted) or self.is_next(offer, accepted)):
            sentence = "this server offers neither further rounds nor a next run."
            raise RemoteProtocolError(sentence, code="nothing-next", status_hint=409)
        session.check_offer(offer)
        return offer

    def needs(self, offer: Offer) -> float | None:
        """Return the ε that the person must allow before this device can follow an offer; None where they do."""
        session = self._session
        if session.offer is None or offer.run_id == session.offer.run_id:
            return None
        try:
            self._check_allowed(offer)
        except BudgetExceeded as error:
            return error.needed
        return None

    def follow(self) -> Job:
        """Agree to what comes next.

        Further rounds draw no new permanent bits, unless an epoch ends. A next run is priced anew: the ledger adds up
        what all runs cost, and must allow it before the server hears anything. The key stays; all else of the old run
        is forgotten.
        """
        session = self._session
        offer = yield from self.look()
        assert session.offer is not None
        if offer.run_id == session.offer.run_id:
            with session.store.change():
                session.store.put("offer", wire.encode(offer))
                session.store.drop("over")
            session.reload()
            return
        self._check_allowed(offer)
        with session.store.change():
            session.store.put_json("past_runs", [*self._past_runs, session.offer.run_id])
            session.drop_run()
            session.store.put("offer", wire.encode(offer))
        session.reload()
        yield from session.join()

    def _check_allowed(self, offer: Offer) -> None:
        allow_run(self._session.make_protocol(offer), offer.terms, self._session.ledger(), {})

    def is_next(self, offer: Offer, accepted: Offer) -> bool:
        """Whether an offer is of a next run of the same server; a device is led back into no earlier one."""
        return offer.follows(accepted) and offer.run_id not in self._past_runs

    @property
    def _past_runs(self) -> list[str]:
        return list(self._session.store.get_json("past_runs") or [])
