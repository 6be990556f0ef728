"""The device's side of a masked round as a state machine. No I/O.

    Idle       Announcement → PublicKeys     Keyed       fresh secrets
    Keyed      Roster       → SealedShares   Shared      neighbours drawn
    Shared     Partners     → MaskedTable    Sent        ledger charged; the own secrets are deleted
    Sent       Survivors    → Consent        Consented   one list signed
    Consented  Quorum       → Unmasking      Idle        others' shares are deleted

The state is a frozen value: whoever stores it together with the report, before sending, can be killed at any moment. A
message that is refused changes nothing. A newer announcement ends an attempt in every state; an older one, or the same
again, is refused, so that no attempt is answered twice.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hushrec.errors import LocalProtocolError, RemoteProtocolError
from hushrec.protocols.masked.messages import (
    Announcement,
    Consent,
    MaskedTable,
    Partners,
    Quorum,
    SealedShares,
    Survivors,
    Unmasking,
    positions_in,
)
from hushrec.protocols.masked.secagg import device as secagg
from hushrec.protocols.masked.secagg.primitives import Table
from hushrec.protocols.masked.secagg.roster import PublicKeys, Roster
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.randomness import RandomStream


@dataclass(frozen=True)
class Idle:
    """The device is between attempts; `place` is the last (round, attempt) that it answered."""

    place: tuple[int, int] = (0, 0)


@dataclass(frozen=True, repr=False)
class Keyed:
    """The device has published keys."""

    announcement: Announcement
    secrets: secagg.Secrets
    keys: PublicKeys


@dataclass(frozen=True, repr=False)
class Shared:
    """The device has sealed shares for its neighbours."""

    announcement: Announcement
    secrets: secagg.Secrets
    roster: Roster
    own: int
    drawn: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Sent:
    """The device has sent its table, and holds the shares of others."""

    announcement: Announcement
    roster: Roster
    own: int
    pairing: secagg.Pairing
    held: Mapping[int, secagg.HeldShares]


@dataclass(frozen=True, repr=False)
class Consented:
    """The device has signed a list of survivors."""

    sent: Sent
    survivors: frozenset[int]


State = Idle | Keyed | Shared | Sent | Consented

# What may be answered in which state, and the state after it. An announcement may come at any time.
NEXT_STATE: dict[type, dict[type, type]] = {
    Idle: {Announcement: Keyed},
    Keyed: {Announcement: Keyed, Roster: Shared},
    Shared: {Announcement: Keyed, Partners: Sent},
    Sent: {Announcement: Keyed, Survivors: Consented},
    Consented: {Announcement: Keyed, Quorum: Idle},
}


class DeviceRound:
    """One device in one run. `make_upload` gives its integers with noise for a round, and charges the ledger."""

    def __init__(
        self,
        terms: MaskedTerms,
        run_id: str,
        server_key: bytes,
        device: bytes,
        identity: Ed25519PrivateKey,
        make_upload: Callable[[int], Table],
        *,
        state: State | None = None,
    ) -> None:
        self._terms, self._run_id, self._server_key = terms, run_id, server_key
        self._device, self._identity, self._make_upload = device, identity, make_upload
        self.state: State = Idle() if state is None else state

    def report(self, message: Any, *, table_digest: bytes, rng: RandomStream) -> Any:
        """Return the report on a message of the server, and move on; or refuse it and stay.

        `table_digest` is the hash of the public table that this device holds and has checked.
        """
        if type(message) not in NEXT_STATE[type(self.state)]:
            raise RemoteProtocolError(
                f"a device that is {type(self.state).__name__.lower()} must not be sent {type(message).__name__}.",
                status_hint=409,
            )
        self.state, reply = self._step(message, table_digest, rng)
        return reply

    def _step(self, message: Any, table_digest: bytes, rng: RandomStream) -> tuple[State, Any]:
        state = self.state
        if isinstance(message, Announcement):
            return self._publish_keys(message, table_digest, rng)
        if isinstance(state, Keyed):
            return self._share(state, message, rng)
        if isinstance(state, Shared):
            return self._send_table(state, message)
        if isinstance(state, Sent):
            return self._consent(state, message)
        assert isinstance(state, Consented)  # by NEXT_STATE
        return self._unmask(state, message)

    def _publish_keys(self, message: Announcement, table_digest: bytes, rng: RandomStream) -> tuple[State, Any]:
        if message.run_id != self._run_id or not message.is_signed_by(self._server_key):
            raise RemoteProtocolError("an announcement must be of this run and signed by the server that was joined.")
        if message.terms_digest != self._terms.digest:
            raise RemoteProtocolError("an announcement must be of the terms that this device accepted.")
        if message.table_digest != table_digest:
            raise RemoteProtocolError("an announcement must be of the public table that this device holds.")
        if message.place <= self.place:
            raise RemoteProtocolError(f"round and attempt must be later than {self.place}, got {message.place}.")
        self._terms.table_size(message.round_number)  # refuses a round that the plan does not have
        secrets = secagg.draw_secrets(rng=rng)
        keys = secagg.make_keys(secrets, message.digest, self._device, self._identity)
        return Keyed(message, secrets, keys), keys

    def _share(self, state: Keyed, roster: Roster, rng: RandomStream) -> tuple[State, Any]:
        rules = self._terms.rules
        own = secagg.accept_roster(roster, state.announcement.digest, state.keys, rules)
        drawn = secagg.draw_neighbours(rules, len(roster), own, rng=rng)
        sealed = secagg.seal_shares(state.secrets, roster, own, drawn, rules, rng=rng)
        reply = SealedShares(np.array(drawn, dtype=np.int64), tuple(sealed[position] for position in drawn))
        return Shared(state.announcement, state.secrets, roster, own, drawn), reply

    def _send_table(self, state: Shared, message: Partners) -> tuple[State, Any]:
        """Charge the ledger and mask the upload: after this the device's own secrets are not needed any more."""
        roster, own = state.roster, state.own
        inbox = dict(zip(map(int, message.senders), message.sealed, strict=True))
        partners = positions_in(message.partners, len(roster))
        pairing = secagg.accept_partners(roster, own, state.drawn, partners, inbox, self._terms.rules)
        held = secagg.open_shares(state.secrets, roster, own, inbox)
        upload = self._make_upload(state.announcement.round_number)
        if upload.shape != (self._terms.table_size(state.announcement.round_number),):
            raise LocalProtocolError("an upload must have one integer for each number of the round's blocks.")
        table = secagg.mask_table(state.secrets, roster, own, pairing, upload)
        return Sent(state.announcement, roster, own, pairing, held), MaskedTable(table)

    def _consent(self, state: Sent, message: Survivors) -> tuple[State, Any]:
        survivors = positions_in(message.survivors, len(state.roster))
        signature = secagg.sign_survivors(
            self._identity, state.roster, state.own, state.pairing, survivors, self._terms.rules
        )
        return Consented(state, survivors), Consent(signature)

    def _unmask(self, state: Consented, message: Quorum) -> tuple[State, Any]:
        sent = state.sent
        signatures = dict(zip(map(int, message.signers), message.signatures, strict=True))
        shares = secagg.reveal_shares(
            sent.held, sent.roster, sent.pairing, state.survivors, signatures, self._terms.rules
        )
        owners = sorted(shares)
        reply = Unmasking(np.array(owners, dtype=np.int64), tuple(shares[owner] for owner in owners))
        return Idle(sent.announcement.place), reply

    @property
    def place(self) -> tuple[int, int]:
        """Round and attempt of the last announcement that was answered."""
        return place_of(self.state)


def place_of(state: State) -> tuple[int, int]:
    """Return round and attempt of the last announcement that a device in this state answered."""
    if isinstance(state, Idle):
        return state.place
    return (state.sent if isinstance(state, Consented) else state).announcement.place
