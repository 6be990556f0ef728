"""Signatures of requests: a device signs each request with its Ed25519 key.

    Authorization: Hushrec DEVICE:NONCE:SIGNATURE

The signature covers method, target (path and query), run, device, nonce and the hash of the body, so that nobody else
can change the request or send it to another run. The nonces of a device must increase, so that the server can refuse a
request that is sent twice.
"""

import base64
import hashlib
import re
from dataclasses import dataclass, field
from functools import cached_property

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from hushrec.errors import RemoteProtocolError
from hushrec.messages import Credentials

SCHEME = "Hushrec"
LARGEST_NONCE = 2**62
_FORM = re.compile(rf"{SCHEME} ([0-9a-f]{{32}}):([0-9]{{1,19}}):([A-Za-z0-9_-]{{86}})")


def device_id_of(public_key: bytes) -> str:
    """Return the id of a device that enrols with this public key: 32 hexadecimal digits of a SHA-256 hash of the key.

    If the device replaces its key later, its id stays the same.
    """
    return hashlib.sha256(b"hushrec device 1" + public_key).hexdigest()[:32]


def header_of(credentials: Credentials) -> str:
    """Return the value of the Authorization header for these credentials."""
    signature = base64.urlsafe_b64encode(credentials.signature).decode().rstrip("=")
    return f"{SCHEME} {credentials.device}:{credentials.nonce}:{signature}"


def parse_header(header: str | None) -> Credentials:
    """Return the credentials in an Authorization header; raise `RemoteProtocolError` if its form is wrong."""
    match = _FORM.fullmatch(header or "")
    if match is None:
        raise RemoteProtocolError(
            "this request must have the header 'Authorization: Hushrec DEVICE:NONCE:SIGNATURE'.", code="not-signed"
        )
    if int(match[2]) > LARGEST_NONCE:
        raise RemoteProtocolError(f"the nonce must be at most {LARGEST_NONCE}, got {match[2]}.", code="not-signed")
    return Credentials(match[1], int(match[2]), base64.urlsafe_b64decode(match[3] + "=="))


@dataclass(frozen=True)
class Request:
    """The parts of a device's HTTP request that its signature covers."""

    method: str
    target: str  # path and query
    body: bytes = field(default=b"", repr=False)

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(self.body).digest()

    def signed_text(self, run_id: str, device: str, nonce: int) -> bytes:
        """Return the bytes to sign: a fixed first line, then one line for each value that the signature covers.

        No value can contain a line break, so that different requests have different bytes.
        """
        digest = self.digest.hex()
        parts = ("hushrec request 2", self.method, self.target, run_id, device, nonce, digest)
        return "\n".join(str(part) for part in parts).encode()


class DeviceKey:
    """The private Ed25519 key of a device or of the server, which its repr does not show."""

    def __init__(self, secret: Ed25519PrivateKey) -> None:
        self._secret = secret

    @classmethod
    def generate(cls) -> "DeviceKey":
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_bytes(cls, secret: bytes) -> "DeviceKey":
        return cls(Ed25519PrivateKey.from_private_bytes(secret))

    def __repr__(self) -> str:
        return "DeviceKey()"

    def to_bytes(self) -> bytes:
        """Return the private key as 32 bytes, for the owner's own store. They must never leave it."""
        return self._secret.private_bytes_raw()

    @property
    def public_key(self) -> bytes:
        return self._secret.public_key().public_bytes_raw()

    def sign(self, request: Request, *, run_id: str, device: str, nonce: int) -> Credentials:
        signature = self._secret.sign(request.signed_text(run_id, device, nonce))
        return Credentials(device, nonce, signature)


def load_public_key(public_key: bytes) -> Ed25519PublicKey:
    """Return the Ed25519 public key in these bytes; raise `RemoteProtocolError` if they are not a valid key."""
    try:
        return Ed25519PublicKey.from_public_bytes(public_key)
    except ValueError:
        raise RemoteProtocolError("public_key must be a valid Ed25519 public key, but is not.") from None


def is_signed(request: Request, credentials: Credentials, public_key: Ed25519PublicKey, run_id: str) -> bool:
    """Return whether the signature in `credentials` is valid for this request, run and public key."""
    try:
        public_key.verify(credentials.signature, request.signed_text(run_id, credentials.device, credentials.nonce))
    except InvalidSignature:
        return False
    return True
