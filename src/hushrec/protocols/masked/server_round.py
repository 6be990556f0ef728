"""The server side of one attempt of a masked round in one cohort, as a state machine without I/O or clock.

    phase    report of a device        → result        needed to continue
    KEYS     PublicKeys                → roster        at least n_min devices
    SHARES   SealedShares              → partners      at least n_min devices
    TABLE    MaskedTable               → survivors     at least n_min devices; tables are added as they arrive
    CONSENT  Consent                   → quorum        at least n_min devices
    UNMASK   Unmasking                 → the sum       t shares of every secret

The caller calls `close` at the deadline of each phase. The attempt ends in phase SUMMED or FAILED. If it fails, nothing
is revealed, and the next attempt starts from the beginning. `question` returns the server's message to a device in the
current phase. Every report is checked, and a device reports once in each phase.
"""

import enum
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from hushrec.arrays import IntArray
from hushrec.errors import AttemptFailed, LocalProtocolError, RemoteProtocolError
from hushrec.protocols.masked.messages import (
    Announcement,
    Consent,
    MaskedTable,
    Partners,
    Quorum,
    SealedShares,
    Survivors,
    Unmasking,
)
from hushrec.protocols.masked.secagg.primitives import Table, is_signed
from hushrec.protocols.masked.secagg.roster import (
    PublicKeys,
    Roster,
    bitmap,
    make_roster,
    masks_text,
    partners_digest,
    survivors_text,
    without_copies,
)
from hushrec.protocols.masked.secagg.server import recover_sum
from hushrec.protocols.masked.terms import MaskedTerms


class Phase(enum.Enum):
    """The phase of an attempt; the first five values are the names of phases in message envelopes."""

    KEYS = "keys"
    SHARES = "shares"
    TABLE = "table"
    CONSENT = "consent"
    UNMASK = "unmask"
    SUMMED = "summed"
    FAILED = "failed"


# The message that devices send in each phase, and the phase that follows it.
EXPECTED: dict[Phase, tuple[type, Phase]] = {
    Phase.KEYS: (PublicKeys, Phase.SHARES),
    Phase.SHARES: (SealedShares, Phase.TABLE),
    Phase.TABLE: (MaskedTable, Phase.CONSENT),
    Phase.CONSENT: (Consent, Phase.UNMASK),
    Phase.UNMASK: (Unmasking, Phase.SUMMED),
}


class ServerRound:
    """The server's state machine for one attempt of a round in one cohort.

    `members` are the names of the devices that are asked for keys. The caller must verify who sent each message; the
    service checks the signature of each request.
    """

    def __init__(self, terms: MaskedTerms, announcement: Announcement, members: Collection[bytes]) -> None:
        self.terms, self.announcement = terms, announcement
        self.phase = Phase.KEYS
        self.asked = frozenset(members)  # names of the devices that are asked for a report in the current phase
        self.survivors: frozenset[bytes] = frozenset()  # names of the devices whose tables are in the sum
        self.n_keys = 0  # number of devices that have sent keys, without culprits
        self.stayed: frozenset[bytes] = frozenset()  # devices that reported when KEYS, SHARES or TABLE closed
        self.sum: Table | None = None  # sum of the survivors' tables, once SUMMED
        self.culprits: frozenset[bytes] = frozenset()  # names of devices that are known to have broken the protocol
        self._reports: dict[bytes, Any] = {}  # of the current phase, by name; for a table, only its signature
        self._total = np.zeros(terms.table_size(announcement.round_number), dtype=np.uint32)
        self._roster = Roster(announcement.digest, ())
        self._positions: dict[bytes, int] = {}  # in the roster, by name
        self._drawn: dict[int, dict[int, bytes]] = {}  # sender of shares → recipient → commitments
        self._inbox: dict[int, dict[int, bytes]] = {}  # recipient → sender → sealed
        self._masks_text = b""  # the bytes that devices sign with their tables
        self._arrived: dict[int, bytes] = {}  # position of each survivor, ascending → signature of its table
        self._signed_text = b""  # the bytes that survivors sign to consent
        self._quorum: Quorum | None = None  # the signatures, from phase UNMASK on

    def part(self, members: Collection[bytes]) -> "ServerRound":
        """Return a new state machine for a subset of the members, in phase KEYS, with the keys that they have sent."""
        found = ServerRound(self.terms, self.announcement, members)
        found._reports = {name: self._reports[name] for name in members}
        return found

    @property
    def reported(self) -> frozenset[bytes]:
        """The names of the devices that have reported in the current phase."""
        return frozenset(self._reports)

    def question(self, device: bytes) -> Any:
        """Return the server's message to this device in the current phase.

        Raise `LocalProtocolError` if the device is not asked in this phase.
        """
        if device not in self.asked:
            raise LocalProtocolError(
                f"device must be one that the server asks in phase {self.phase.value}, got one that it does not ask."
            )
        if self.phase is Phase.KEYS:
            return self.announcement
        if self.phase is Phase.SHARES:
            return self._roster
        if self.phase is Phase.TABLE:
            inbox = self._inbox.get(self._positions[device], {})
            return Partners(bitmap(self._drawn, len(self._roster)), _positions(inbox), tuple(inbox.values()))
        if self.phase is Phase.CONSENT:
            own = [n for n in self._inbox.get(self._positions[device], {}) if n in self._arrived]
            return Survivors(
                bitmap(self._arrived, len(self._roster)),
                np.array(own, dtype=np.int64),
                tuple(self._arrived[owner] for owner in own),
            )
        return self._quorum

    def check(self, device: bytes, message: Any) -> None:
        """Raise `RemoteProtocolError` if `receive` would refuse this report. The report is not stored."""
        phase, kind = self.phase.value, type(message)
        if self.phase not in EXPECTED or EXPECTED[self.phase][0] is not kind:
            raise RemoteProtocolError(
                f"message must be a report of phase {phase}, got {kind.__name__}.", status_hint=409
            )
        if device not in self.asked:
            raise RemoteProtocolError(f"a device must report only if it is asked in phase {phase}.", status_hint=409)
        if device in self._reports:
            raise RemoteProtocolError(f"a device must report only once in phase {phase}.", status_hint=409)
        if self.phase is Phase.KEYS:
            self._check_keys(device, message)
        elif self.phase is Phase.SHARES:
            self._check_shares(self._positions[device], message)
        elif self.phase is Phase.TABLE:
            if message.numbers.shape != self._total.shape:
                raise RemoteProtocolError(f"table must have {len(self._total)} integers, got {len(message.numbers)}.")
            self._check_signature(device, message.signature, self._masks_text, "partners")
        elif self.phase is Phase.CONSENT:
            self._check_signature(device, message.signature, self._signed_text, "survivors")
        elif not self._inbox.get(self._positions[device], {}).keys() >= set(map(int, message.owners)):
            raise RemoteProtocolError("owners of revealed shares must be devices that sent shares to this device.")

    def receive(self, device: bytes, message: Any) -> None:
        """Check and store a device's report, or raise `RemoteProtocolError` and change nothing."""
        self.check(device, message)
        if self.phase is Phase.TABLE:
            self._total += message.numbers
            message = message.signature
        self._reports[device] = message

    def receive_sum(self, signatures: Mapping[bytes, bytes], total: Table) -> None:
        """Add the sum of some devices' tables, modulo 2³², instead of receiving each table.

        `signatures` has the signature of each table by the name of its device. The caller must have checked each table
        with `check`.
        """
        if self.phase is not Phase.TABLE or total.shape != self._total.shape:
            raise LocalProtocolError(
                f"a sum must come in phase table and have shape {self._total.shape}, got phase {self.phase.value} and"
                f" shape {total.shape}."
            )
        senders = frozenset(signatures)
        if not senders <= self.asked:
            raise LocalProtocolError(
                "a sum must contain only tables that the server asked for, but it contains the tables of"
                f" {len(senders - self.asked)} devices that were not asked."
            )
        if senders & self._reports.keys():
            raise LocalProtocolError("devices of a sum must not have reported before.")
        self._total += total
        self._reports |= signatures

    def close(self) -> None:
        """Close the current phase and enter the next; raise `AttemptFailed` if the attempt cannot continue.

        The usual reason is that too few devices have reported. A `RemoteProtocolError` in this step ends the attempt as
        well and becomes `AttemptFailed`, because another call would raise it again. In phase KEYS, devices that use
        a key of another device are left out, and are culprits. When the attempt ends, the shares that devices sent and
        revealed are deleted.
        """
        if self.phase not in EXPECTED:
            raise LocalProtocolError(f"close must not be called after the attempt has ended ({self.phase.value}).")
        try:
            self._close()
            self.phase = EXPECTED[self.phase][1]
        except AttemptFailed as failure:
            names = (self._roster.entries[position].device for position in failure.culprits)
            self.phase, self.culprits = Phase.FAILED, self.culprits.union(names)
            raise
        except RemoteProtocolError as error:
            self.phase = Phase.FAILED
            raise AttemptFailed(str(error)) from error
        finally:
            self.asked, self._reports = self.reported, {}
            if self.phase not in EXPECTED:
                self.asked, self._inbox = frozenset(), {}

    def _close(self) -> None:
        if self.phase is Phase.KEYS:
            distinct = {entry.device: entry for entry in without_copies(self._reports.values())}
            self._reports, self.culprits = distinct, frozenset(self._reports.keys() - distinct.keys())
            self.n_keys = len(distinct)
        if self.phase in (Phase.KEYS, Phase.SHARES, Phase.TABLE):
            self.stayed = self.reported
        rules = self.terms.rules
        needed = rules.threshold if self.phase is Phase.UNMASK else rules.smallest
        if len(self._reports) < needed:
            raise AttemptFailed(
                f"there must be at least {needed} reports in phase {self.phase.value}, got {len(self._reports)}."
            )
        if self.phase is Phase.KEYS:
            self._roster = make_roster(self.announcement.digest, list(self._reports.values()))
            self._positions = {entry.device: position for position, entry in enumerate(self._roster.entries)}
            return
        reports = {self._positions[device]: self._reports[device] for device in sorted(self._reports)}
        if self.phase is Phase.SHARES:
            for sender, report in reports.items():
                self._drawn[sender] = dict(zip(map(int, report.recipients), report.commitments, strict=True))
                for recipient, sealed in zip(self._drawn[sender], report.sealed, strict=True):
                    self._inbox.setdefault(recipient, {})[sender] = sealed
            self._masks_text = masks_text(partners_digest(self._roster, self._drawn))
        elif self.phase is Phase.TABLE:
            self._arrived, self.survivors = reports, self.reported
            context = partners_digest(self._roster, self._drawn)
            self._signed_text = survivors_text(context, self._arrived, len(self._roster))
        elif self.phase is Phase.CONSENT:
            self._quorum = Quorum(_positions(reports), tuple(consent.signature for consent in reports.values()))
        else:
            unmasked = {
                sender: dict(zip(map(int, one.owners), one.shares, strict=True)) for sender, one in reports.items()
            }
            self.sum = recover_sum(self._roster, rules, self._drawn, self._arrived, self._total, unmasked)

    def _check_signature(self, device: bytes, signature: bytes, text: bytes, what: str) -> None:
        identity = self._roster.entries[self._positions[device]].identity
        if not is_signed(identity, signature, text):
            raise RemoteProtocolError(
                f"signature must be the device's valid signature of the list of {what}.", status_hint=401
            )

    def _check_keys(self, device: bytes, keys: PublicKeys) -> None:
        if keys.device != device:
            raise RemoteProtocolError("keys must belong to the device that sends them.", status_hint=401)
        if not keys.is_genuine(self.announcement.digest):
            raise RemoteProtocolError("keys must be signed by the device for this announcement.", status_hint=401)
        keys.check_keys()

    def _check_shares(self, sender: int, shares: SealedShares) -> None:
        others = len(self._roster) - 1
        recipients = tuple(map(int, shares.recipients))
        if sender in recipients or len(recipients) != min(self.terms.rules.neighbours, others):
            raise RemoteProtocolError(
                f"recipients of shares must be {min(self.terms.rules.neighbours, others)} other devices,"
                f" got {len(recipients)}{' including the sender' if sender in recipients else ''}."
            )
        if recipients[-1] > others:
            raise RemoteProtocolError(
                f"recipients must be positions in the roster, from 0 to {others}, got {recipients[-1]}."
            )


def _positions(rising: Mapping[int, Any]) -> IntArray:
    return np.array(list(rising), dtype=np.int64)
