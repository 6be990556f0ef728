"""The messages of a masked round: in each of five phases, one from the server to a device and one report in reply.

    phase     server → device                            device → server
    keys      Announcement                               PublicKeys
    shares    Roster                                     SealedShares
    table     Partners, with shares for the device       MaskedTable
    consent   Survivors                                  Consent
    unmask    Quorum                                     Unmasking

The package `secagg` explains their meaning, and docs/secure-aggregation.md how they are computed. A list of devices is
a bitmap over the roster, or an array of ascending positions in the roster.
"""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
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
    PROBE_LABEL,
    SIGNATURE_BYTES,
    digest,
    is_signed,
    number,
)
from hushrec.protocols.masked.secagg.roster import PublicKeys, Roster
from hushrec.protocols.masked.secagg.shamir import SHARE_BYTES
from hushrec.protocols.masked.terms import MaskedTerms

SEALED_BYTES = 2 * SHARE_BYTES + 16
COMMITMENTS_BYTES = 2 * HASH_BYTES
MOST_DEVICES = 100_000

crosses("masked.terms", largest=100_000)(MaskedTerms)
crosses("masked.keys", largest=1_000)(PublicKeys)
crosses("masked.roster", largest=400 * MOST_DEVICES)(Roster)


@crosses("masked.announcement", largest=1_000)
@dataclass(frozen=True)
class Announcement:
    """The server's signed announcement of one attempt of a round, with hashes of the terms and of the public table.

    The attempt may be a *probe*: every device sends zeros with noise and masks, which costs no budget.
    """

    run_id: str
    round_number: int
    attempt: int
    terms_digest: bytes
    table_digest: bytes  # hash of the public table that devices downloaded for this round
    signature: bytes = field(repr=False)
    probe: bool = False

    def __post_init__(self) -> None:
        lengths = [len(part) for part in (self.terms_digest, self.table_digest, self.signature)]
        if lengths != [HASH_BYTES, HASH_BYTES, SIGNATURE_BYTES] or len(self.run_id) != 32:
            raise RemoteProtocolError(
                f"announcement must have a run_id of 32 digits, digests of {HASH_BYTES} bytes and a signature of"
                f" {SIGNATURE_BYTES} bytes, got a run_id of {len(self.run_id)} digits, digests of {lengths[0]} and"
                f" {lengths[1]} bytes and a signature of {lengths[2]} bytes."
            )
        if not (1 <= self.round_number < 2**31 and 1 <= self.attempt < 2**31):
            raise RemoteProtocolError(
                "round_number and attempt of an announcement must be at least 1 and below 2^31,"
                f" got {self.round_number} and {self.attempt}."
            )

    @property
    def place(self) -> tuple[int, int]:
        """The pair (round, attempt). A device accepts announcements only in ascending order of this pair."""
        return self.round_number, self.attempt

    @property
    def text(self) -> bytes:
        """The bytes that the server signs: label ‖ run ‖ round ‖ attempt ‖ hash of terms ‖ hash of table.

        Probes have a label of their own.
        """
        label = PROBE_LABEL if self.probe else ANNOUNCEMENT_LABEL
        place = number(self.round_number) + number(self.attempt)
        return label + self.run_id.encode() + place + self.terms_digest + self.table_digest

    @property
    def digest(self) -> bytes:
        """The SHA-256 hash of `text`, on which all signatures and derived keys of the attempt depend."""
        return digest(self.text)

    def is_signed_by(self, server_key: bytes) -> bool:
        """Return whether the announcement was signed with the private key of this public Ed25519 key."""
        return is_signed(server_key, self.signature, self.text)


def announce(
    server: Ed25519PrivateKey,
    run_id: str,
    round_number: int,
    attempt: int,
    terms_digest: bytes,
    table_digest: bytes,
    *,
    probe: bool = False,
) -> Announcement:
    """Return an announcement signed with the server's key."""
    unsigned = Announcement(run_id, round_number, attempt, terms_digest, table_digest, bytes(SIGNATURE_BYTES), probe)
    return replace(unsigned, signature=server.sign(unsigned.text))


@crosses("masked.shares", largest=230 * MOST_DEVICES)
@dataclass(frozen=True, eq=False)
class SealedShares:
    """A device's shares of its own secrets, encrypted to the neighbours that the device drew (`recipients`)."""

    recipients: Annotated[IntArray, Row]  # positions in the roster
    sealed: tuple[bytes, ...] = field(repr=False)  # for each recipient, its share of the mask key and of the seed
    commitments: tuple[bytes, ...] = field(repr=False)  # for each recipient, the hashes of its two shares, 64 bytes

    def __post_init__(self) -> None:
        _check_positions("recipients", self.recipients, len(self.sealed))
        _check_positions("recipients", self.recipients, len(self.commitments))
        _check_lengths("sealed", self.sealed, SEALED_BYTES)
        _check_lengths("commitments", self.commitments, COMMITMENTS_BYTES)


@crosses("masked.partners", largest=160 * MOST_DEVICES)
@dataclass(frozen=True, eq=False)
class Partners:
    """The list of devices that sent shares, and the shares that are encrypted to the recipient of this message."""

    partners: bytes  # bitmap of all devices that sent shares
    senders: Annotated[IntArray, Row]  # positions in the roster of the devices that sent shares to the recipient
    sealed: tuple[bytes, ...] = field(repr=False)  # for each sender, its encrypted shares

    def __post_init__(self) -> None:
        _check_positions("senders", self.senders, len(self.sealed))
        _check_lengths("sealed", self.sealed, SEALED_BYTES)


@crosses("masked.table", largest=LARGEST_TABLE)
@dataclass(frozen=True, eq=False)
class MaskedTable:
    """A device's table of integers with noise and masks; without the other tables it looks uniformly random.

    `signature` says for which list of partners the device has computed the masks.
    """

    numbers: Annotated[npt.NDArray[np.uint32], Row] = field(repr=False)
    signature: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check_lengths("signature", (self.signature,), SIGNATURE_BYTES)


@crosses("masked.survivors", largest=80 * MOST_DEVICES)
@dataclass(frozen=True, eq=False)
class Survivors:
    """The list of devices whose tables have arrived, which each of these devices is asked to sign.

    For every survivor that gave shares to the recipient of this message (`owners`), it has the signature that came with
    the survivor's table.
    """

    survivors: bytes  # bitmap
    owners: Annotated[IntArray, Row]  # positions in the roster
    signatures: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_positions("owners", self.owners, len(self.signatures))
        _check_lengths("signatures", self.signatures, SIGNATURE_BYTES)


@crosses("masked.consent", largest=1_000)
@dataclass(frozen=True)
class Consent:
    """A device's signature of the list of survivors, which consents to unmasking the sum of their tables."""

    signature: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check_lengths("signature", (self.signature,), SIGNATURE_BYTES)


@crosses("masked.quorum", largest=80 * MOST_DEVICES)
@dataclass(frozen=True, eq=False)
class Quorum:
    """The list of devices that signed the list of survivors, with their signatures."""

    signers: Annotated[IntArray, Row]  # positions in the roster
    signatures: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_positions("signers", self.signers, len(self.signatures))
        _check_lengths("signatures", self.signatures, SIGNATURE_BYTES)


@crosses("masked.unmasking", largest=80 * MOST_DEVICES)
@dataclass(frozen=True, eq=False)
class Unmasking:
    """The shares that a device reveals, one for each device that had given it shares (`owners`).

    Each is a share of the owner's seed if the owner survived, else a share of the owner's mask key.
    """

    owners: Annotated[IntArray, Row]  # positions in the roster
    shares: tuple[bytes, ...] = field(repr=False)

    def __post_init__(self) -> None:
        _check_positions("owners", self.owners, len(self.shares))
        _check_lengths("shares", self.shares, SHARE_BYTES)


def positions_in(bits: bytes, devices: int) -> frozenset[int]:
    """Return the positions of the ones in a bitmap; raise `RemoteProtocolError` unless it fits `devices` devices."""
    if len(bits) != (devices + 7) // 8:
        raise RemoteProtocolError(
            f"bitmap must have {(devices + 7) // 8} bytes, one bit for each of {devices} devices, got {len(bits)}."
        )
    found = np.flatnonzero(np.unpackbits(np.frombuffer(bits, dtype=np.uint8)))
    if found.size and found[-1] >= devices:
        raise RemoteProtocolError(f"bitmap must have ones at positions below {devices} only, got {found[-1]}.")
    return frozenset(map(int, found))


def _check_positions(name: str, positions: IntArray, count: int) -> None:
    rising = positions.ndim == 1 and not np.any(np.diff(positions) <= 0) and not np.any(positions < 0)
    if not rising or len(positions) != count:
        raise RemoteProtocolError(
            f"{name} must be {count} ascending positions in the roster, one for each entry sent with them."
        )


def _check_lengths(name: str, parts: Collection[bytes], length: int) -> None:
    if not {length}.issuperset(map(len, parts)):
        raise RemoteProtocolError(f"each entry of {name} must have {length} bytes, got {sorted({*map(len, parts)})}.")
