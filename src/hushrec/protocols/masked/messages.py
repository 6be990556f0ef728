"""The messages of a masked round: a question of the server and a report of the device in each of five phases.

    phase     server → device                            device → server
    keys      Announcement                               PublicKeys
    shares    Roster                                     SealedShares
    table     Partners, with what was sealed for it      MaskedTable
    consent   Survivors                                  Consent
    unmask    Quorum                                     Unmasking

`secagg` says what they mean, docs/secure-aggregation.md how they are computed. Lists of devices are bitmaps over the
roster, or rising positions in it.
"""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
import numpy.typing as npt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from hushrec.arrays import IntArray
from hushrec.errors import RemoteProtocolError
from hushrec.messages import LARGEST_TABLE, Row, crosses
from hushrec.protocols.masked.secagg.primitives import (
    ANNOUNCEMENT_LABEL,
    HASH_BYTES,
    SIGNATURE_BYTES,
    digest,
    is_signed,
    number,
)
from hushrec.protocols.masked.secagg.roster import PublicKeys, Roster
from hushrec.protocols.masked.secagg.shamir import SHARE_BYTES
from hushrec.protocols.masked.terms import MaskedTerms

SEALED_BYTES = 2 * SHARE_BYTES + 16
MOST_DEVICES = 100_000

crosses("masked.terms", largest=100_000)(MaskedTerms)
crosses("masked.keys", largest=1_000)(PublicKeys)
crosses("masked.roster", largest=400 * MOST_DEVICES)(Roster)


@crosses("masked.announcement", largest=1_000)
@dataclass(frozen=True)
class Announcement:
    """Opens an attempt of a round: which terms, which public table, signed by the server."""

    run_id: str
    round_number: int
    attempt: int
    terms_digest: bytes
    table_digest: bytes  # of the public table that devices compute with, as they downloaded it
    signature: bytes = field(repr=False)

    def __post_init__(self) -> None:
        lengths = [len(part) for part in (self.terms_digest, self.table_digest, self.signature)]
        if lengths != [HASH_BYTES, HASH_BYTES, SIGNATURE_BYTES] or len(self.run_id) != 32:
            raise RemoteProtocolError("an announcement must have a run id of 32 digits and hashes of 32 bytes.")
        if not (1 <= self.round_number < 2**31 and 1 <= self.attempt < 2**31):
            raise RemoteProtocolError("round and attempt of an announcement must be positive.")

    @property
    def place(self) -> tuple[int, int]:
        """Round and attempt; a device only accepts rising ones."""
        return self.round_number, self.attempt

    @property
    def digest(self) -> bytes:
        """The hash a of the announcement, to which every key and signature of the attempt is bound."""
        return digest(self.text(self.run_id, self.round_number, self.attempt, self.terms_digest, self.table_digest))

    @staticmethod
    def text(run_id: str, round_number: int, attempt: int, terms_digest: bytes, table_digest: bytes) -> bytes:
        """Return what the server signs: label ‖ run ‖ round ‖ attempt ‖ both hashes."""
        return b"".join(
            (ANNOUNCEMENT_LABEL, run_id.encode(), number(round_number), number(attempt), terms_digest, table_digest)
        )

    def is_signed_by(self, server_key: bytes) -> bool:
        """Tell whether the server that the device joined signed this."""
        fields = (self.run_id, self.round_number, self.attempt, self.terms_digest, self.table_digest)
        return is_signed(server_key, self.signature, self.text(*fields))


def announce(
    server: Ed25519PrivateKey,
    run_id: str,
    round_number: int,
    attempt: int,
    terms_digest: bytes,
    table_digest: bytes,
) -> Announcement:
    """Return a signed announcement."""
    text = Announcement.text(run_id, round_number, attempt, terms_digest, table_digest)
    return Announcement(run_id, round_number, attempt, terms_digest, table_digest, server.sign(text))


@crosses("masked.shares", largest=160 * MOST_DEVICES)
@dataclass(frozen=True, eq=False)
class SealedShares:
    """One device's shares of its secrets, sealed to each neighbour that it drew."""

    recipients: Annotated[IntArray, Row]
    sealed: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_positions("recipients", self.recipients, len(self.sealed))
        _check_lengths("sealed", self.sealed, SEALED_BYTES)


@crosses("masked.partners", largest=160 * MOST_DEVICES)
@dataclass(frozen=True, eq=False)
class Partners:
    """Who sent shares, and what they sealed for this device."""

    partners: bytes  # bitmap
    senders: Annotated[IntArray, Row]
    sealed: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_positions("senders", self.senders, len(self.sealed))
        _check_lengths("sealed", self.sealed, SEALED_BYTES)


@crosses("masked.table", largest=LARGEST_TABLE)
@dataclass(frozen=True, eq=False)
class MaskedTable:
    """A device's upload with its noise, under its masks: random numbers."""

    numbers: Annotated[npt.NDArray[np.uint32], Row] = field(repr=False)


@crosses("masked.survivors", largest=MOST_DEVICES // 4)
@dataclass(frozen=True)
class Survivors:
    """Whose tables arrived."""

    survivors: bytes  # bitmap


@crosses("masked.consent", largest=1_000)
@dataclass(frozen=True)
class Consent:
    """A device's signature of the list of survivors."""

    signature: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check_lengths("signature", (self.signature,), SIGNATURE_BYTES)


@crosses("masked.quorum", largest=80 * MOST_DEVICES)
@dataclass(frozen=True, eq=False)
class Quorum:
    """Who consented, with their signatures."""

    signers: Annotated[IntArray, Row]
    signatures: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_positions("signers", self.signers, len(self.signatures))
        _check_lengths("signatures", self.signatures, SIGNATURE_BYTES)


@crosses("masked.unmasking", largest=80 * MOST_DEVICES)
@dataclass(frozen=True, eq=False)
class Unmasking:
    """One share of each neighbour that drew this device: of its seed if it survived, else of its mask key."""

    owners: Annotated[IntArray, Row]
    shares: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_positions("owners", self.owners, len(self.shares))
        _check_lengths("shares", self.shares, SHARE_BYTES)


def positions_in(bits: bytes, devices: int) -> frozenset[int]:
    """Return the positions that a bitmap names; one of another length, or with bits beyond the roster, is refused."""
    if len(bits) != (devices + 7) // 8:
        raise RemoteProtocolError(f"a bitmap must have one bit for each of {devices} devices.")
    found = np.flatnonzero(np.unpackbits(np.frombuffer(bits, dtype=np.uint8)))
    if found.size and found[-1] >= devices:
        raise RemoteProtocolError(f"a bitmap must name positions below {devices} only.")
    return frozenset(map(int, found))


def _check_positions(name: str, positions: IntArray, count: int) -> None:
    rising = positions.ndim == 1 and not np.any(np.diff(positions) <= 0) and not np.any(positions < 0)
    if not rising or len(positions) != count:
        raise RemoteProtocolError(f"{name} must be {count} rising positions of the roster, one for each entry.")


def _check_lengths(name: str, parts: Collection[bytes], length: int) -> None:
    if any(len(part) != length for part in parts):
        raise RemoteProtocolError(f"{name} must have {length} bytes each.")
