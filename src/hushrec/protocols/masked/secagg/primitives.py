"""The cryptographic primitives of secure aggregation. All come from `cryptography`, and browsers have them as well.

They are X25519 for key agreement, HKDF-SHA256 for key derivation, AES-256-CTR for masks, AES-256-GCM for shares, and
Ed25519 for signatures. Every derived key is used once, so that counters and nonces can start at zero. Positions in the
roster are encoded in 4 bytes, big-endian.
"""

import hashlib
from typing import NoReturn

import numpy as np
import numpy.typing as npt
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from hushrec.errors import RemoteProtocolError

Table = npt.NDArray[np.uint32]

KEY_BYTES = 32
HASH_BYTES = 32
SIGNATURE_BYTES = 64

# Labels that begin the input of each hash and signature, for domain separation.
TERMS_LABEL = b"hushrec masked 1 terms"
TABLE_LABEL = b"hushrec masked 1 table"
ANNOUNCEMENT_LABEL = b"hushrec masked 1 announcement"
PROBE_LABEL = b"hushrec masked 1 probe"
KEYS_LABEL = b"hushrec masked 1 keys"
SEED_LABEL = b"hushrec masked 1 seed"
ROSTER_LABEL = b"hushrec masked 1 roster"
PARTNERS_LABEL = b"hushrec masked 1 partners"
MASKS_LABEL = b"hushrec masked 1 masks"
SURVIVORS_LABEL = b"hushrec masked 1 survivors"
COHORTS_LABEL = b"hushrec masked 1 cohorts"
COMMITMENT_LABEL = b"hushrec masked 1 commitment"
# Labels that begin HKDF's info, one for each use of a derived key.
SHARE_LABEL = b"hushrec masked 1 share"
SELF_LABEL = b"hushrec masked 1 self"
PAIR_LABEL = b"hushrec masked 1 pair"


def digest(*parts: bytes) -> bytes:
    """Return the SHA-256 of the concatenated parts, each of which must have a fixed length or a length prefix."""
    return hashlib.sha256(b"".join(parts)).digest()


def commitment(share: bytes) -> bytes:
    """Return the hash of a share, 32 bytes. Once it is published, nobody can pass off another share as this one."""
    return digest(COMMITMENT_LABEL, share)


def number(value: int) -> bytes:
    """Return a position or a count as 4 bytes, big-endian."""
    return value.to_bytes(4, "big")


def public_half(private: bytes) -> bytes:
    """Return the X25519 public key, 32 bytes, of a private key of 32 bytes."""
    return load_private(private).public_key().public_bytes_raw()


def load_private(private: bytes) -> X25519PrivateKey:
    """Return the X25519 key object of a private key of 32 bytes.

    Load a key once for many agreements: loading takes as long as one agreement.
    """
    return X25519PrivateKey.from_private_bytes(private)


def agree(private: X25519PrivateKey, public: bytes) -> bytes:
    """Return the X25519 shared secret of a private and a public key.

    Raise `RemoteProtocolError` for a public key of wrong length, or for one of the few weak public keys ("of low
    order") with which the shared secret is zero.
    """
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        refuse("X25519 public keys must have 32 bytes, and must not be of low order")


# Zero bytes are the private key 2²⁵⁴. Its shared secret is zero exactly for the public keys of low order, because
# their orders are powers of two, and those of all other public keys have an odd prime factor.
_POWER_OF_TWO = load_private(bytes(KEY_BYTES))


def check_order(public: bytes) -> None:
    """Raise `RemoteProtocolError` for an X25519 public key that `agree` refuses: of wrong length, or of low order."""
    agree(_POWER_OF_TWO, public)


def derive(secret: bytes, label: bytes, context: bytes, *positions: int) -> bytes:
    """Return a 32-byte key: HKDF-SHA256 of `secret` without salt, with info = label ‖ context ‖ positions."""
    info = label + context + b"".join(map(number, positions))
    return HKDF(hashes.SHA256(), KEY_BYTES, None, info).derive(secret)


class Keystream:
    """A generator of masks of `size` 32-bit words. The mask of a key is its AES-256-CTR keystream, little-endian."""

    def __init__(self, size: int) -> None:
        self._zeros = bytes(4 * size)
        self._buffer = bytearray(4 * size + 15)  # update_into needs room for one more block
        self._words = np.frombuffer(self._buffer, dtype="<u4", count=size)

    def add(self, table: Table, key: bytes) -> None:
        """Add the mask of `key` to the table in place, modulo 2³²."""
        np.add(table, self._fill(key), out=table)

    def subtract(self, table: Table, key: bytes) -> None:
        """Subtract the mask of `key` from the table in place, modulo 2³²."""
        np.subtract(table, self._fill(key), out=table)

    def _fill(self, key: bytes) -> npt.NDArray[np.uint32]:
        encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        encryptor.update_into(self._zeros, self._buffer)
        return self._words


def seal(key: bytes, text: bytes) -> bytes:
    """Return `text` encrypted with AES-256-GCM; the key must not be used for any other text."""
    return AESGCM(key).encrypt(bytes(12), text, None)


def unseal(key: bytes, sealed: bytes) -> bytes | None:
    """Return the text that `seal` encrypted; None if it was encrypted with another key or has been changed."""
    try:
        return AESGCM(key).decrypt(bytes(12), sealed, None)
    except InvalidTag:
        return None


def is_signed(public: bytes, signature: bytes, text: bytes) -> bool:
    """Return whether the Ed25519 signature of `text` is valid for this public key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


def refuse(must: str, status_hint: int = 400) -> NoReturn:
    """Raise `RemoteProtocolError`; `must` is the error message without its full stop.

    `status_hint` is the HTTP status with which the service replies.
    """
    raise RemoteProtocolError(f"{must}.", status_hint=status_hint)
