"""Every value that crosses the trust boundary, and nothing else.

A reader of this file can list everything that a device sends and everything that it believes.

                        server → device                                    device → server
    every protocol      Offer, Catalogue, Public, Envelope, Receipt,       Enrolment, Envelope; Credentials in the
                        Problem                                            header of every request
    plain, isgld, sdcf  Terms, ItemVectors                                 GradientReport
    masked              Announcement, Roster, Partners, Survivors,         PublicKeys, SealedShares, MaskedTable,
                        Quorum                                             Consent, Unmasking

`@crosses` declares a message: its tag on the wire and its largest size. A protocol declares its own messages in its own
folder, in one of the modules of `OF_PROTOCOLS`. `KINDS` lists what is declared, and `wire.py` encodes it. A message of
a round travels in an `Envelope`, which says to which run, round, attempt and phase it belongs.

An `Enrolment` goes first and once: a fresh public key and an invitation, nothing of the person. After it a device
can also ask to change its key or to leave, which says no more than that.

Messages are frozen, and check their own shape when they are built: a malformed one cannot exist.
"""

import importlib
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
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_HEXADECIMAL = re.compile(r"[0-9a-f]{32}")
_TAG = re.compile(r"[a-z][a-z0-9-]*(\.[a-z][a-z0-9-]*)?")
_PHASE = re.compile(r"[a-z][a-z0-9-]{0,19}")

PROBLEM_TYPE = "urn:hushrec:problem:"

# How many dimensions an array of a message has. On the wire a row is a buffer, a table is its width and a buffer.
Row, Table = "row", "table"

Message = TypeVar("Message")


@dataclass(frozen=True)
class Kind:
    """A type of message that may cross the boundary."""

    tag: str
    message: type
    largest: int  # bytes on the wire


KINDS: dict[str, Kind] = {}  # by tag

# Where protocols declare their messages, by the first word of a tag. A module is imported when its tag is first met.
OF_PROTOCOLS = {"gradient": "hushrec.protocols.gradient.messages", "masked": "hushrec.protocols.masked.messages"}


def find_kind(tag: str) -> Kind | None:
    """Return the type of message of that tag; None if no message has it."""
    place = OF_PROTOCOLS.get(tag.partition(".")[0])
    if tag not in KINDS and place is not None:
        importlib.import_module(place)
    return KINDS.get(tag)


def crosses(tag: str, *, largest: int) -> Callable[[type[Message]], type[Message]]:
    """Declare a frozen dataclass as a message: the decorator of every type that crosses the boundary.

    `tag` names it on the wire: `NAME`, or `PROTOCOL.NAME` for one of a protocol's own. `largest` is in bytes.
    """

    def declare(message: type[Message]) -> type[Message]:
        if not _TAG.fullmatch(tag) or tag in KINDS:
            raise ParameterError(f"tag must be NAME or PROTOCOL.NAME in small letters, and new, got {tag!r}.")
        KINDS[tag] = Kind(tag, message, largest)
        return message

    return declare


# A run, before its rounds ----------------------------------------------------------------------------------------


@crosses("offer", largest=300_000)
@dataclass(frozen=True, eq=False)
class Offer:
    """What a server offers to devices before they join: which run, protocol and model, their options, the terms."""

    run_id: str
    protocol: str
    model: str
    options: dict[str, int | float | str | bool]  # of protocol and model, as far as they are the same for all devices
    terms: Any
    server_key: bytes  # Ed25519: what the server signs in rounds is signed with it

    def __post_init__(self) -> None:
        if len(self.server_key) != 32:
            raise RemoteProtocolError(f"server_key must have 32 bytes, got {len(self.server_key)}.")
        _check_name(self, "run_id", _HEXADECIMAL, "32 hexadecimal digits")
        for name in ("protocol", "model"):
            _check_name(self, name, _PHASE, "a name of up to 20 small letters, digits and hyphens")

    def keeps(self, accepted: "Offer") -> bool:
        """Whether this is still the offer that was accepted; only the list of items may have grown."""
        names = ("run_id", "protocol", "model", "options", "server_key")
        same = all(getattr(self, name) == getattr(accepted, name) for name in names)
        return same and type(self.terms) is type(accepted.terms) and bool(self.terms.agrees_with(accepted.terms))

    def extends(self, accepted: "Offer") -> bool:
        """Whether this is the offer that was accepted, with more rounds: a person has to agree to them."""
        longer = self.terms.max_rounds > accepted.terms.max_rounds
        return longer and self.can_be_extended and self.with_rounds(accepted.terms.max_rounds).keeps(accepted)

    def follows(self, accepted: "Offer") -> bool:
        """Whether this is another run of the server whose offer was accepted: a person has to agree to it."""
        return self.run_id != accepted.run_id and self.server_key == accepted.server_key

    @property
    def can_be_extended(self) -> bool:
        """Whether rounds can be added: those of a plan cannot, since it is priced as a whole."""
        return any(entry.name == "max_rounds" for entry in fields(self.terms))

    def with_rounds(self, max_rounds: int) -> "Offer":
        """Return the offer with another number of rounds."""
        return replace(self, terms=replace(self.terms, max_rounds=max_rounds))


@crosses("enrolment", largest=1_000)
@dataclass(frozen=True)
class Enrolment:
    """A device asks to take part: its public key, and an invitation where one is needed."""

    public_key: bytes = field(repr=False)
    invitation: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.public_key) != 32:
            raise RemoteProtocolError(f"a public key must have 32 bytes, got {len(self.public_key)}.")
        if self.invitation is not None and len(self.invitation) > 100:
            raise RemoteProtocolError("an invitation has at most 100 characters.")


@crosses("catalogue", largest=16 * 2**20)
@dataclass(frozen=True)
class Catalogue:
    """Ids and titles of items from position `first` on, and their columns for models that have some. Public."""

    first: int
    ids: list[str]
    titles: list[str]
    attributes: Annotated[FloatArray, Table] | None = None

    def __post_init__(self) -> None:
        if len(self.ids) != len(self.titles) or self.first < 0:
            raise RemoteProtocolError("a catalogue must begin at 0 or above and hold one title per id.")
        if self.attributes is not None and len(self.attributes) != len(self.ids):
            raise RemoteProtocolError("a catalogue must hold one row of attributes per id, or none at all.")
        check_items(self.ids, self.titles)


def check_items(ids: list[str], titles: list[str]) -> None:
    """Refuse ids and titles with control characters, or too long to show on a screen."""
    for name, texts, most in (("ids", ids, LONGEST_ID), ("titles", titles, LONGEST_TITLE)):
        if any(len(text) > most or _CONTROL.search(text) for text in texts):
            sentence = f"{name} of items must have at most {most} characters, none of them for control."
            raise RemoteProtocolError(sentence)


@dataclass(frozen=True, eq=False)
class NamedArray:
    """One array of what a run has published."""

    name: str
    shape: list[int]
    numbers: Annotated[FloatArray, Row] = field(repr=False)  # row by row

    def __post_init__(self) -> None:
        freeze(self, "numbers", np.floating)
        if any(length < 0 for length in self.shape) or math.prod(self.shape) != len(self.numbers):
            raise RemoteProtocolError("numbers of a public array must fill its shape.")


@crosses("public", largest=LARGEST_TABLE + 300_000)
@dataclass(frozen=True, eq=False)
class Public:
    """Everything that the rounds so far have published: what devices predict with."""

    run_id: str
    round_number: int  # the last that has ended; 0: none
    terms: Any
    arrays: tuple[NamedArray, ...]

    @classmethod
    def of(cls, run_id: str, round_number: int, terms: Any, arrays: Mapping[str, Any]) -> "Public":
        """Return the message with these arrays."""
        named = (NamedArray(name, list(a.shape), np.ravel(a).astype(np.float64)) for name, a in arrays.items())
        return cls(run_id, round_number, terms, tuple(named))

    def by_name(self) -> dict[str, FloatArray]:
        """Return the arrays, each in its shape."""
        return {array.name: array.numbers.reshape(array.shape) for array in self.arrays}


# A round ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Address:
    """Where a message belongs. A device sends one message for each, and never another."""

    round_number: int
    attempt: int
    phase: str

    def __str__(self) -> str:
        return f"round {self.round_number}, attempt {self.attempt}, phase {self.phase}"


@crosses("envelope", largest=LARGEST_TABLE + 301_000)
@dataclass(frozen=True, eq=False)
class Envelope:
    """Where a message belongs. A device sends one message for each (round, attempt, phase), and never another."""

    run_id: str
    round_number: int
    attempt: int  # 1, 2, …: a round that has to begin again is another attempt, and everything in it is new
    phase: str
    message: Any

    @classmethod
    def to(cls, run_id: str, address: Address, message: Any) -> "Envelope":
        """Return a message with its address."""
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
                raise RemoteProtocolError(f"{name} must be in 1 to {10**9}, got {getattr(self, name)}.")


@crosses("receipt", largest=1_000)
@dataclass(frozen=True)
class Receipt:
    """The server holds this message of a round durably; `repeated` when it held the same bytes before."""

    round_number: int
    attempt: int
    phase: str
    repeated: bool

    @classmethod
    def of(cls, address: Address, *, repeated: bool) -> "Receipt":
        """Return the receipt of a report with this address."""
        return cls(address.round_number, address.attempt, address.phase, repeated)


@dataclass(frozen=True)
class Credentials:
    """The Authorization header of a device's request: text, see `signing.py`."""

    device: str  # 32 hexadecimal digits
    nonce: int  # above all earlier ones of this device
    signature: bytes = field(repr=False)  # Ed25519, 64 bytes


@dataclass(frozen=True)
class Problem:
    """A refusal, in JSON (RFC 9457). `code` is for programs, `detail` one sentence for people."""

    code: str
    status: int
    detail: str
    extra: dict[str, Any] = field(default_factory=dict)  # last_nonce or last_round, where the code says so

    def as_json(self) -> dict[str, Any]:
        """Return the object that is sent."""
        title = self.code.replace("-", " ")
        known = {"type": PROBLEM_TYPE + self.code, "title": title, "status": self.status, "detail": self.detail}
        return known | self.extra


def payload_bytes(message: object) -> int:
    """How many bytes the numbers of a message take on the wire: 4 for each of an array, and buffers as they are."""
    values = list(vars(message).values())
    arrays = sum(4 * value.size for value in values if isinstance(value, np.ndarray))
    return arrays + sum(len(value) for value in values if isinstance(value, bytes))


def _check_name(message: object, name: str, form: re.Pattern[str], words: str) -> None:
    if not form.fullmatch(getattr(message, name)):
        raise RemoteProtocolError(f"{name} must be {words}.")


def check_whole(message: object, *names: str) -> None:
    """Refuse a message in which one of these fields is neither a whole number nor None."""
    for name in names:
        value = getattr(message, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
            raise RemoteProtocolError(f"{name} must be a whole number, got a {type(value).__name__}.")


def freeze(message: object, name: str, kind: type[np.integer[Any]] | type[np.floating[Any]]) -> None:
    """Make an array of a message its own and read-only: what was checked once stays as it was.

    Integers become int64, so that differences of unsigned ones cannot wrap.
    """
    given = getattr(message, name)
    if not isinstance(given, np.ndarray) or not np.issubdtype(given.dtype, kind):
        raise RemoteProtocolError(f"{name} must be an array of {kind.__name__} numbers.")
    if kind is np.integer and given.dtype != np.int64:
        given = given.astype(np.int64)
    if given.flags.writeable:
        given = given.copy()
        given.flags.writeable = False
    object.__setattr__(message, name, given)
