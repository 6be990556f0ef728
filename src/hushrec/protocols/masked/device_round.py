"""The device side of a masked round as a state machine without I/O.

    state      message      → report         next state
    Idle       Announcement → PublicKeys     Keyed       draws fresh secrets
    Keyed      Roster       → SealedShares   Shared      draws neighbours
    Shared     Partners     → MaskedTable    Sent        computes the table and deletes the device's own secrets
    Sent       Survivors    → Consent        Consented   signs one list of survivors
    Consented  Quorum       → Unmasking      Idle        deletes the shares of other devices

A state is an immutable object. A device stores the new state together with the report before it sends the report, so
that it can be stopped at any moment. A refused message changes nothing. An announcement of a later attempt is accepted
in any state and ends the open attempt. An announcement of the same or an earlier attempt is refused, so that a device
never reports twice in an attempt.
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

MOST_ATTEMPTS = 1_000  # of one round: a server sees each draw of neighbours, and could repeat it until it likes one


@dataclass(frozen=True)
class Idle:
    """The state of a device between attempts.

    `place` is the latest (round, attempt) in which the device reported, or (0, 0) before its first report.
    """

    place: tuple[int, int] = (0, 0)


@dataclass(frozen=True, repr=False)
class Keyed:
    """The state of a device after it has sent its public keys."""

    announcement: Announcement
    secrets: secagg.Secrets
    keys: PublicKeys


@dataclass(frozen=True, repr=False)
class Shared:
    """The state of a device after it has sent encrypted shares of its secrets for the neighbours `drawn`.

    `own` is the device's position in the roster.
    """

    announcement: Announcement
    secrets: secagg.Secrets
    roster: Roster
    own: int
    drawn: tuple[int, ...]


@dataclass(frozen=True, repr=False)
class Sent:
    """The state of a device after it has sent its masked table.

    `own` is the device's position in the roster. `pairing` says with which devices it shares masks. `held` has its
    shares of other devices' secrets, by position in the roster. `identities` are the public keys of all devices of the
    roster, with which their signatures of the list of survivors are checked.
    """

    announcement: Announcement
    identities: tuple[bytes, ...]
    own: int
    pairing: secagg.Pairing
    held: Mapping[int, secagg.HeldShares]


@dataclass(frozen=True, repr=False)
class Consented:
    """The state of a device after it has signed the list `survivors`, which has positions in the roster."""

    sent: Sent
    survivors: frozenset[int]


State = Idle | Keyed | Shared | Sent | Consented

# The messages that each state accepts, and the state that follows. Every state accepts an announcement.
NEXT_STATE: dict[type, dict[type, type]] = {
    Idle: {Announcement: Keyed},
    Keyed: {Announcement: Keyed, Roster: Shared},
    Shared: {Announcement: Keyed, Partners: Sent},
    Sent: {Announcement: Keyed, Survivors: Consented},
    Consented: {Announcement: Keyed, Quorum: Idle},
}


class DeviceRound:
    """The state machine of one device in the rounds of one masked run.

    `make_table` takes the announcement of an attempt and returns the device's table with noise but without masks. The
    caller must charge the ledger for that table before it sends the report.
    """

    def __init__(
        self,
        terms: MaskedTerms,
        run_id: str,
        server_key: bytes,
        device: bytes,
        identity: Ed25519PrivateKey,
        make_table: Callable[[Announcement], Table],
        *,
        state: State | None = None,
    ) -> None:
        self._terms, self._run_id, self._server_key = terms, run_id, server_key
        self._device, self._identity, self._make_table = device, identity, make_table
        self.state: State = Idle() if state is None else state

    def report(self, message: Any, *, table_digest: bytes, rng: RandomStream) -> Any:
        """Return the report in reply to a message of the server, and enter the next state.

        Raise `RemoteProtocolError` for an unacceptable message, and keep the state. `table_digest` is the hash of the
        public table that this device has.
        """
        accepted = NEXT_STATE[type(self.state)]
        if type(message) not in accepted:
            names = " or ".join(kind.__name__ for kind in accepted)
            raise RemoteProtocolError(
                f"message must be {names} for a device in state {type(self.state).__name__},"
                f" got {type(message).__name__}.",
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
            return self._send_table(state, message, table_digest)
        if isinstance(state, Sent):
            return self._consent(state, message)
        assert isinstance(state, Consented)  # by NEXT_STATE
        return self._unmask(state, message)

    def _publish_keys(self, message: Announcement, table_digest: bytes, rng: RandomStream) -> tuple[State, Any]:
        check_announcement(message, self._terms, self._run_id, self._server_key, self.place)
        if message.table_digest != table_digest:
            raise RemoteProtocolError(
                "table_digest must be the hash of the public table that this device has. The device fetches"
                " the table again."
            )
        secrets = secagg.draw_secrets(rng=rng)
        keys = secagg.make_keys(secrets, message.digest, self._device, self._identity)
        return Keyed(message, secrets, keys), keys

    def _share(self, state: Keyed, roster: Roster, rng: RandomStream) -> tuple[State, Any]:
        rules = self._terms.rules
        largest = self._terms.priced.cohort.devices
        if len(roster) > largest:
            raise RemoteProtocolError(
                f"the roster must have at most {largest} devices, for which the rules were chosen, got {len(roster)}."
                " The device sends no report."
            )
        own = secagg.accept_roster(roster, state.announcement.digest, state.keys, rules)
        drawn = secagg.draw_neighbours(rules, len(roster), own, rng=rng)
        made = secagg.seal_shares(state.secrets, roster, own, drawn, rules, rng=rng)
        sealed, commitments = zip(*(made[position] for position in drawn), strict=True)
        reply = SealedShares(np.array(drawn, dtype=np.int64), sealed, commitments)
        return Shared(state.announcement, state.secrets, roster, own, drawn), reply

    def _send_table(self, state: Shared, message: Partners, table_digest: bytes) -> tuple[State, Any]:
        """Return the next state, which no longer contains the device's own secrets, and the masked table.

        The table is computed from the public table with this hash, which must be the announced one.
        """
        if table_digest != state.announcement.table_digest:
            raise RemoteProtocolError(
                "the public table must be the one that was announced for this attempt, but its hash differs."
                " The device sends no report."
            )
        roster, own = state.roster, state.own
        inbox = dict(zip(map(int, message.senders), message.sealed, strict=True))
        partners = positions_in(message.partners, len(roster))
        pairing = secagg.accept_partners(roster, own, state.drawn, partners, inbox, self._terms.rules)
        held = secagg.open_shares(state.secrets, roster, own, inbox)
        table = self._make_table(state.announcement)
        size = self._terms.table_size(state.announcement.round_number)
        if table.shape != (size,):
            raise LocalProtocolError(f"make_table must return a table of shape ({size},), got {table.shape}.")
        masked = secagg.mask_table(state.secrets, roster, own, pairing, table)
        reply = MaskedTable(masked, secagg.sign_masks(self._identity, pairing))
        return Sent(state.announcement, roster.identities, own, pairing, held), reply

    def _consent(self, state: Sent, message: Survivors) -> tuple[State, Any]:
        survivors = positions_in(message.survivors, len(state.identities))
        signatures = dict(zip(map(int, message.owners), message.signatures, strict=True))
        signature = secagg.sign_survivors(
            self._identity,
            state.identities,
            state.own,
            state.pairing,
            survivors,
            state.held,
            signatures,
            self._terms.rules,
        )
        return Consented(state, survivors), Consent(signature)

    def _unmask(self, state: Consented, message: Quorum) -> tuple[State, Any]:
        sent = state.sent
        signatures = dict(zip(map(int, message.signers), message.signatures, strict=True))
        shares = secagg.reveal_shares(
            sent.held, sent.identities, sent.pairing, state.survivors, signatures, self._terms.rules
        )
        owners = sorted(shares)
        reply = Unmasking(np.array(owners, dtype=np.int64), tuple(shares[owner] for owner in owners))
        return Idle(sent.announcement.place), reply

    @property
    def place(self) -> tuple[int, int]:
        """The (round, attempt) of the latest announcement that this device replied to."""
        return place_of(self.state)


def check_announcement(
    message: Announcement, terms: MaskedTerms, run_id: str, server_key: bytes, last: tuple[int, int]
) -> None:
    """Raise `RemoteProtocolError` if run, signature, terms or round of an announcement are not acceptable to a device.

    The hash of the public table is not checked here. `last` is the (round, attempt) of the latest announcement that
    the device replied to.
    """
    if message.run_id != run_id or not message.is_signed_by(server_key):
        raise RemoteProtocolError(
            "announcement must be for this run and signed by the server that this device joined. The device"
            " sends no report."
        )
    if message.terms_digest != terms.digest:
        raise RemoteProtocolError(
            "terms_digest must be the hash of the terms that this device accepted. The device sends no report."
        )
    if message.place <= last:
        raise RemoteProtocolError(
            f"round and attempt must be later than those of the last announcement, {last}, got {message.place}."
        )
    if message.attempt > MOST_ATTEMPTS:
        raise RemoteProtocolError(
            f"attempt must be at most {MOST_ATTEMPTS}, got {message.attempt}: masks are drawn anew in each attempt, and"
            " with enough draws chance helps the server. The device sends no report."
        )
    terms.table_size(message.round_number)  # raises for a round that the plan does not have


def place_of(state: State) -> tuple[int, int]:
    """Return the (round, attempt) of the latest announcement that a device in this state replied to."""
    if isinstance(state, Idle):
        return state.place
    return (state.sent if isinstance(state, Consented) else state).announcement.place
