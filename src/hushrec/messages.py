"""The messages between devices and servers: every value that crosses the trust boundary, and nothing else.

This table lists everything that a device sends, and everything that a device accepts.

                        server → device                                    device → server
    every protocol      Offer, Catalogue, Public, Envelope, Receipt,       Enrolment, Envelope; Credentials in the
                        Problem                                            header of signed requests
    plain, isgld, sdcf  Terms, ItemVectors                                 GradientReport
    masked              Announcement, Roster, Partners, Survivors,         PublicKeys, SealedShares, MaskedTable,
                        Quorum                                             Consent, Unmasking

`@crosses` declares a message: its tag on the wire and its largest size. A protocol declares its own messages in the
module that `Protocol.messages` names. `KINDS` holds all messages whose modules are imported, and `wire.py` encodes
them. A message of a round is sent in an `Envelope`, which names its run, round, attempt and phase.

A device first sends one `Enrolment`: a new public key and an invitation, but nothing about the person. Afterwards it
may also change its key or leave; these requests contain nothing else. A request for the next message says which
rounds the device has finished, and which report was its last. Downloads of the offer, of the catalogue and of the
public table are not signed.

Messages are immutable and check their own fields, so that a malformed message cannot be built.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any, TypeVar

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError, RemoteProtocolError

PROTOCOL_VERSION = 2
LARGEST_TABLE = 64 * 2**20  # bytes of one table of numbers, whoever sends it
LONGEST_ID, LONGEST_TITLE = 200, 500
MOST_DIMENSIONS = 2  # of an array in the public table
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_HEXADECIMAL = re.compile(r"[0-9a-f]{32}")
_TAG = re.compile(r"[a-z][a-z0-9-]*(\.[a-z][a-z0-9-]*)?")
_PHASE = re.compile(r"[a-z][a-z0-9-]{0,19}")

PROBLEM_TYPE = "urn:hushrec:problem:"

# Dimensions of an array in a message: a row is sent as a buffer, a table as its width and a buffer.
Row, Table = "row", "table"

RunTerms = Annotated[Any, "terms"]  # the terms of a protocol, as `Protocol.terms` names them
RoundMessage = Annotated[Any, "message of a round"]  # any other message of a protocol

Message = TypeVar("Message")


@dataclass(frozen=True)
class Kind:
    """A type of message that may cross the trust boundary: its tag on the wire, its class and its largest size."""

    tag: str
    message: type
    largest: int  # bytes on the wire


KINDS: dict[str, Kind] = {}  # by tag


def crosses(tag: str, *, largest: int) -> Callable[[type[Message]], type[Message]]:
    """Return a decorator that declares a frozen dataclass as a message that crosses the trust boundary.

    `tag` is `NAME`, or `PROTOCOL.NAME` for a message of one protocol; `largest` is the largest encoded size in bytes.
    """

    def declare(message: type[Message]) -> type[Message]:
        if not _TAG.fullmatch(tag) or tag in KINDS:
            raise ParameterError(f"tag must be unused and written NAME or PROTOCOL.NAME in lowercase, got {tag!r}.")
        KINDS[tag] = Kind(tag, message, largest)
        return message

    return declare


# A run, before its rounds ----------------------------------------------------------------------------------------


@crosses("offer", largest=300_000)
@dataclass(frozen=True, eq=False)
class Offer:
    """A server's offer to devices before they join: the run, its protocol, model and options, and its terms."""

    run_id: str
    protocol: str
    model: str
    options: dict[str, int | float | str | bool]  # options of protocol and model that every device has in common
    terms: RunTerms
    server_key: bytes  # the Ed25519 key with which the server signs its messages in rounds

    def __post_init__(self) -> None:
        if len(self.server_key) != 32:
            raise RemoteProtocolError(f"server_key must have 32 bytes, got {len(self.server_key)}.")
        _check_name(self, "run_id", _HEXADECIMAL, "32 hexadecimal digits")
        for name in ("protocol", "model"):
            _check_name(self, name, _PHASE, "a name of up to 20 small letters, digits and hyphens")

    def keeps(self, accepted: "Offer") -> bool:
        """Return whether this offer equals the offer `accepted`, except that the catalogue may have grown."""
        names = ("run_id", "protocol", "model", "options", "server_key")
        same = all(getattr(self, name) == getattr(accepted, name) for name in names)
        return same and type(self.terms) is type(accepted.terms) and bool(self.terms.agrees_with(accepted.terms))

    def extends(self, accepted: "Offer") -> bool:
        """Return whether this offer only adds rounds to the offer `accepted`; the person must agree to these rounds."""
        comparable = type(self.terms) is type(accepted.terms)
        longer = comparable and self.terms.max_rounds > accepted.terms.max_rounds
        return longer and self.can_be_extended and self.with_rounds(accepted.terms.max_rounds).keeps(accepted)

    def follows(self, accepted: "Offer") -> bool:
        """Return whether this offer is for another run of the same server; the person must agree to join it."""
        return self.run_id != accepted.run_id and self.server_key == accepted.server_key

    @property
    def can_be_extended(self) -> bool:
        """Whether the server may add rounds later. It may not under `masked`, whose plan prices all rounds together."""
        return any(entry.name == "max_rounds" for entry in fields(self.terms))

    def with_rounds(self, max_rounds: int) -> "Offer":
        return replace(self, terms=replace(self.terms, max_rounds=max_rounds))


@crosses("enrolment", largest=1_000)
@dataclass(frozen=True)
class Enrolment:
    """A device's request to take part: its public key, and an invitation if the server requires one."""

    public_key: bytes = field(repr=False)
    invitation: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.public_key) != 32:
            raise RemoteProtocolError(f"public_key must have 32 bytes, got {len(self.public_key)}.")
        if self.invitation is not None and len(self.invitation) > 100:
            raise RemoteProtocolError(f"invitation must have at most 100 characters, got {len(self.invitation)}.")


@crosses("catalogue", largest=16 * 2**20)
@dataclass(frozen=True)
class Catalogue:
    """A page of the public catalogue: items from position `first` on, with attributes if the model uses them."""

    first: int
    ids: list[str]
    titles: list[str]
    attributes: Annotated[FloatArray, Table] | None = None

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.titles) or self.first < 0:
            raise RemoteProtocolError(
                f"first must be 0 or more, got {self.first}, and titles must have one title per id, got"
                f" {len(self.titles)} titles for {len(self.ids)} ids."
            )
        if self.attributes is not None and len(self.attributes) != len(self.ids):
            raise RemoteProtocolError(
                f"attributes must have one row per id, or be left out, got {len(self.attributes)} rows for"
                f" {len(self.ids)} ids."
            )
        check_items(self.ids, self.titles)


def check_items(ids: list[str], titles: list[str]) -> None:
    """Raise `RemoteProtocolError` if an id or a title is too long or contains control characters."""
    for name, texts, most in (("ids", ids, LONGEST_ID), ("titles", titles, LONGEST_TITLE)):
        if any(len(text) > most or _CONTROL.search(text) for text in texts):
            raise RemoteProtocolError(f"{name} of items must have up to {most} characters, and no control characters.")


@dataclass(frozen=True, eq=False)
class NamedArray:
    """One array of the public table: its name, its shape and its numbers."""

    name: str
    shape: list[int]
    numbers: Annotated[FloatArray, Row] = field(repr=False)  # in row-major order

    def __post_init__(self) -> None:
        freeze(self, "numbers", np.floating)
        in_range = len(self.shape) <= MOST_DIMENSIONS and all(0 <= length <= LARGEST_TABLE for length in self.shape)
        if not in_range or math.prod(self.shape) != len(self.numbers):
            raise RemoteProtocolError(
                f"shape must have at most {MOST_DIMENSIONS} lengths, and as many entries as numbers"
                f" ({len(self.numbers)}), got {len(self.shape)} lengths."
            )


@crosses("public", largest=LARGEST_TABLE + 300_000)
@dataclass(frozen=True, eq=False)
class Public:
    """The public table, from which devices predict: after the latest round that has ended, or the initial table."""

    run_id: str
    round_number: int  # the last round that has ended, or 0
    terms: RunTerms
    arrays: tuple[NamedArray, ...]

    @classmethod
    def of(cls, run_id: str, round_number: int, terms: Any, arrays: Mapping[str, Any]) -> "Public":
        named = (NamedArray(name, list(a.shape), np.ravel(a).astype(np.float64)) for name, a in arrays.items())
        return cls(run_id, round_number, terms, tuple(named))

    def by_name(self) -> dict[str, FloatArray]:
        return {array.name: array.numbers.reshape(array.shape) for array in self.arrays}


# A round ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Address:
    """The address of a message: round, attempt and phase. A device sends at most one message for each address."""

    round_number: int
    attempt: int
    phase: str

    def __str__(self) -> str:
        return f"round {self.round_number}, attempt {self.attempt}, phase {self.phase}"


LastReport = tuple[int, int, int]  # round, attempt, and the index of the phase, from 0
NO_REPORT: LastReport = (0, 0, 0)
_LAST_REPORT = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})\.([0-9]{1,2})")


def parse_last_report(text: str) -> LastReport | None:
    """Return round, attempt and index of the phase of a device's last report; None if `text` is malformed.

    `text` is written ROUND.ATTEMPT.PHASE, three whole numbers.
    """
    found = _LAST_REPORT.fullmatch(text)
    return None if found is None else (int(found[1]), int(found[2]), int(found[3]))


def write_last_report(report: LastReport) -> str:
    """Return round, attempt and index of the phase of a device's last report as the text ROUND.ATTEMPT.PHASE."""
    return ".".join(map(str, report))


@crosses("envelope", largest=LARGEST_TABLE + 301_000)
@dataclass(frozen=True, eq=False)
class Envelope:
    """A message of a round with its address. A device sends at most one message for each (round, attempt, phase)."""

    run_id: str
    round_number: int
    attempt: int  # 1, 2, …: a round that must start again gets another attempt, with all messages new
    phase: str
    message: RoundMessage

    @classmethod
    def to(cls, run_id: str, address: Address, message: Any) -> "Envelope":
        return cls(run_id, address.round_number, address.attempt, address.phase, message)

    @property
    def address(self) -> Address:
        return Address(self.round_number, self.attempt, self.phase)

    def __post_init__(self) -> None:
        _check_name(self, "run_id", _HEXADECIMAL, "32 hexadecimal digits")
        _check_name(self, "phase", _PHASE, "a name of up to 20 small letters, digits and hyphens")
        for name in ("round_number", "attempt"):
            check_whole(self, name)
            if not 1 <= getattr(self, name) <= 10**9:
                raise RemoteProtocolError(f"{name} must be from 1 to {10**9}, got {getattr(self, name)}.")


@crosses("receipt", largest=1_000)
@dataclass(frozen=True)
class Receipt:
    """A server's confirmation that a report is stored durably; `repeated` if the same report was stored before."""

    round_number: int
    attempt: int
    phase: str
    repeated: bool

    @classmethod
    def of(cls, address: Address, *, repeated: bool) -> "Receipt":
        return cls(address.round_number, address.attempt, address.phase, repeated)


@dataclass(frozen=True)
class Credentials:
    """The content of the Authorization header of a device's request; see `signing.py` for its text form."""

    device: str  # 32 hexadecimal digits
    nonce: int  # greater than all earlier nonces of this device
    signature: bytes = field(repr=False)  # Ed25519, 64 bytes


@dataclass(frozen=True)
class Problem:
    """A refused request as a problem document (RFC 9457): `code` is for programs, `detail` is a sentence for people."""

    code: str
    status: int
    detail: str
    extra: dict[str, Any] = field(default_factory=dict)  # last_nonce or last_report, for some codes

    def as_json(self) -> dict[str, Any]:
        """Return the JSON object of the HTTP response."""
        named = {"type": PROBLEM_TYPE + self.code, "title": self.code.replace("-", " ")}
        return {**named, "status": self.status, "detail": self.detail, **self.extra}


def payload_bytes(message: object) -> int:
    """Return the size on the wire, in bytes, of the fields of a message that are arrays or `bytes`."""
    values = [value for value in vars(message).values() if isinstance(value, np.ndarray | bytes)]
    return sum(4 * value.size if isinstance(value, np.ndarray) else len(value) for value in values)


def _check_name(message: object, name: str, form: re.Pattern[str], description: str) -> None:
    if not form.fullmatch(getattr(message, name)):
        raise RemoteProtocolError(f"{name} must be {description}.")


def check_whole(message: object, *names: str) -> None:
    """Raise `RemoteProtocolError` if one of these fields of a message is neither a whole number nor None."""
    for name in names:
        value = getattr(message, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
            raise RemoteProtocolError(f"{name} must be a whole number, got a {type(value).__name__}.")


def freeze(message: object, name: str, kind: type[np.integer[Any]] | type[np.floating[Any]]) -> None:
    """Replace the array in field `name` of a message by a read-only copy, so that a checked message cannot change.

    Raise `RemoteProtocolError` unless the field is an array of `kind`, such as `np.floating`. If `kind` is
    `np.integer`, the copy is int64, so that differences of unsigned numbers cannot wrap around.
    """
    given = getattr(message, name)
    if not isinstance(given, np.ndarray) or not np.issubdtype(given.dtype, kind):
        raise RemoteProtocolError(f"{name} must be an array of {kind.__name__} numbers, got another type or dtype.")
    if kind is np.integer and given.dtype != np.int64:
        given = given.astype(np.int64)
    if given.flags.writeable:
        given = given.copy()
        given.flags.writeable = False
    object.__setattr__(message, name, given)
