"""Every value that crosses the trust boundary, and nothing else.

A reader of this file can list everything that a device sends and everything that it believes.

    server → device     Offer (with Terms), Catalogue, Public, Envelope of ItemVectors, Receipt, Problem
    device → server     Enrolment, Envelope of GradientReport; Credentials in the header of every request

`@crosses` declares a message: its tag on the wire and its largest size. A protocol declares the messages of its own
phases in the same way, in its own folder; `KINDS` is the list of all of them, and `wire.py` encodes what is in it.
A message of a round travels in an `Envelope`, which says to which run, round, attempt and phase it belongs.

An `Enrolment` goes first and once: a fresh public key and an invitation, nothing of the person. After it a device
can also ask to change its key or to leave, which says no more than that.

Messages are frozen, and check their own shape when they are built: a malformed one cannot exist.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Self, TypeVar

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import ParameterError, RemoteProtocolError

PROTOCOL_VERSION = 2
LARGEST_REGULARIZATION = 1e6
LARGEST_TABLE = 64 * 2**20  # bytes of one table of numbers, whoever sends it
LONGEST_ID, LONGEST_TITLE = 200, 500
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_HEXADECIMAL = re.compile(r"[0-9a-f]{32}")
_TAG = re.compile(r"[a-z][a-z0-9-]*(\.[a-z][a-z0-9-]*)?")
_PHASE = re.compile(r"[a-z][a-z0-9-]{0,19}")

PROBLEM_TYPE = "urn:hushrec:problem:"
REPORT = "report"  # the one phase of protocols that send gradients

# How many dimensions an array of a message has. On the wire a row is a buffer, a table is its width and a buffer.
Row, Table = "row", "table"

# Fields of the terms that may never change during a run.
_FIXED = (
    "model",
    "n_factors",
    "n_side_rows",
    "reports_per_client",
    "data_weight",
    "step",
    "decay",
    "max_rounds",
    "epoch_rounds",
)


Message = TypeVar("Message")


@dataclass(frozen=True)
class Kind:
    """A type of message that may cross the boundary."""

    tag: str
    message: type
    largest: int  # bytes on the wire


KINDS: dict[str, Kind] = {}  # by tag


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


@crosses("gradient.terms", largest=200_000)
@dataclass(frozen=True, eq=False, kw_only=True)
class Terms:
    """What a server asks of every device for a whole run; a device accepts it once and holds the server to it.

    `data_weight` is N: it stands for the number of ratings, which the server must not know, and is
    n_clients · reports_per_client in `sdcf`. `step` is η₀ N.
    """

    model: str
    n_factors: int
    n_items: int
    n_side_rows: int = 0  # of the item vectors, after those of the items: attributes and w₀ of model `fm`
    reports_per_client: float | None  # z; None where devices send just their rated items
    data_weight: float  # N
    step: float  # η₀ N
    decay: float  # γ of η_t = η₀ / t^γ
    max_rounds: int
    epoch_rounds: int | None  # every so many rounds the permanent bits are drawn anew; None: never
    user_regularization: Annotated[FloatArray, Row] = field(repr=False)  # diagonal of Λ_u
    item_regularization: Annotated[FloatArray, Row] = field(repr=False)  # diagonal of Λ_v

    def __post_init__(self) -> None:
        _check_whole(self, "n_items", "n_factors", "n_side_rows", "max_rounds", "epoch_rounds")
        if not 1 <= self.n_items <= 10**8 or not 1 <= self.n_factors <= 10**4 or self.max_rounds < 1:
            raise RemoteProtocolError("terms must name at least one item, one factor and one round, within reason.")
        if not 0 <= self.n_side_rows <= 10**6:
            raise RemoteProtocolError(f"n_side_rows must be in 0 to 1000000, got {self.n_side_rows}.")
        if self.reports_per_client is not None and not 0 < self.reports_per_client < self.n_items:
            raise RemoteProtocolError(
                f"reports_per_client must be above 0 and below the number of items, {self.n_items},"
                f" got {self.reports_per_client}."
            )
        if not (0 < self.step < math.inf and 0 < self.data_weight < math.inf and 0 <= self.decay <= 10):
            raise RemoteProtocolError("step and data_weight must be positive and finite, decay between 0 and 10.")
        if self.epoch_rounds is not None and self.epoch_rounds < 1:
            raise RemoteProtocolError(f"epoch_rounds must be at least 1, got {self.epoch_rounds}.")
        for name in ("user_regularization", "item_regularization"):
            _freeze(self, name, np.floating)
            diagonal = getattr(self, name)
            if diagonal.ndim != 1 or not np.all((diagonal >= 0) & (diagonal <= LARGEST_REGULARIZATION)):
                raise RemoteProtocolError(
                    f"a regularization must be a row of numbers from 0 to {LARGEST_REGULARIZATION:g}."
                )

    def step_size(self, round_number: int) -> float:
        """η_t = η₀ / t^γ, t = 1, 2, …  ([SDCF], section 2.3)."""
        return self.step / self.data_weight * math.pow(round_number, -self.decay)

    @property
    def most_items(self) -> int:
        """How many items a report may name: z + 6 √z + 12, or all of them where devices send what they rated.

        A selection names at most z items on average, each decided on its own: by Bernstein's inequality it exceeds
        this number with probability below exp(−18).
        """
        z = self.reports_per_client
        return self.n_items if z is None else min(self.n_items, math.ceil(z + 6 * math.sqrt(z) + 12))

    def epoch(self, round_number: int) -> int:
        """The permanent epoch of a round: 0 until the first announced redraw."""
        return 0 if self.epoch_rounds is None else (round_number - 1) // self.epoch_rounds

    def agrees_with(self, accepted: "Terms") -> bool:
        """Whether these terms keep what was accepted; only the list of items may grow."""
        return (
            all(getattr(self, name) == getattr(accepted, name) for name in _FIXED)
            and self.n_items >= accepted.n_items
            and np.array_equal(self.user_regularization, accepted.user_regularization)
            and np.array_equal(self.item_regularization, accepted.item_regularization)
        )

    def with_items(self, n_items: int) -> Self:
        """The same terms for a catalogue of another length."""
        return replace(self, n_items=n_items)


@crosses("offer", largest=300_000)
@dataclass(frozen=True, eq=False)
class Offer:
    """What a server offers to devices before they join: which run, protocol and model, their options, the terms."""

    run_id: str
    protocol: str
    model: str
    options: dict[str, int | float | str | bool]  # of protocol and model, as far as they are the same for all devices
    terms: Any

    def __post_init__(self) -> None:
        _check_name(self, "run_id", _HEXADECIMAL, "32 hexadecimal digits")
        for name in ("protocol", "model"):
            _check_name(self, name, _PHASE, "a name of up to 20 small letters, digits and hyphens")

    def keeps(self, accepted: "Offer") -> bool:
        """Whether this is still the offer that was accepted; only the list of items may have grown."""
        names = ("run_id", "protocol", "model", "options")
        same = all(getattr(self, name) == getattr(accepted, name) for name in names)
        return same and type(self.terms) is type(accepted.terms) and bool(self.terms.agrees_with(accepted.terms))

    def extends(self, accepted: "Offer") -> bool:
        """Whether this is the offer that was accepted, with more rounds: a person has to agree to them."""
        shorter = replace(self, terms=replace(self.terms, max_rounds=accepted.terms.max_rounds))
        return self.terms.max_rounds > accepted.terms.max_rounds and shorter.keeps(accepted)


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
    """Refuse what a screen should not be made to show: control characters, and texts without end."""
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
        _freeze(self, "numbers", np.floating)
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
            _check_whole(self, name)
            if not 1 <= getattr(self, name) <= 10**9:
                raise RemoteProtocolError(f"{name} must be in 1 to {10**9}, got {getattr(self, name)}.")


@crosses("gradient.item-vectors", largest=LARGEST_TABLE + 200_000)
@dataclass(frozen=True, eq=False)
class ItemVectors:
    """Opens a round on a device: the terms again, the round, and all that the server knows of the items."""

    terms: Terms
    round_number: int
    item_vectors: Annotated[FloatArray, Table] = field(repr=False)  # (n_items + n_side_rows, item_width)
    max_report_norm: float | None = None  # of all gradients of a report together; devices scale theirs down to it

    def __post_init__(self) -> None:
        _check_whole(self, "round_number")
        if not 1 <= self.round_number <= self.terms.max_rounds:
            raise RemoteProtocolError(
                f"round must be in 1 to {self.terms.max_rounds}, the last round of the terms, got {self.round_number}."
            )
        _freeze(self, "item_vectors", np.floating)
        n_rows = self.terms.n_items + self.terms.n_side_rows
        if self.item_vectors.ndim != 2 or len(self.item_vectors) != n_rows:
            raise RemoteProtocolError(
                f"item vectors must be a table of {n_rows} rows, got shape {self.item_vectors.shape}."
            )
        if not np.all(np.isfinite(self.item_vectors)):
            raise RemoteProtocolError("item vectors must be finite numbers.")
        if self.max_report_norm is not None and not 0 < self.max_report_norm < math.inf:
            raise RemoteProtocolError(f"max_report_norm must be positive and finite, got {self.max_report_norm:g}.")


@crosses("gradient.report", largest=LARGEST_TABLE)
@dataclass(frozen=True, eq=False)
class GradientReport:
    """What one device says of the items it selected in one round, possibly none. Its repr shows none of it."""

    round_number: int
    items: Annotated[IntArray, Row] = field(repr=False)  # (n_selected,), rising
    gradients: Annotated[FloatArray, Table] = field(repr=False)  # (n_selected, item_width)

    def __post_init__(self) -> None:
        _check_whole(self, "round_number")
        _freeze(self, "items", np.integer)
        _freeze(self, "gradients", np.floating)
        if self.items.ndim != 1 or self.gradients.ndim != 2 or len(self.items) != len(self.gradients):
            raise RemoteProtocolError("a report must hold one gradient per item.")
        if np.any(np.diff(self.items) <= 0) or np.any(self.items[:1] < 0):
            raise RemoteProtocolError("items of a report must be rising and not negative, each named once.")
        if not np.all(np.isfinite(self.gradients)):
            raise RemoteProtocolError("gradients must be finite numbers.")


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


def _check_whole(message: object, *names: str) -> None:
    for name in names:
        value = getattr(message, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer)):
            raise RemoteProtocolError(f"{name} must be a whole number, got a {type(value).__name__}.")


def _freeze(message: object, name: str, kind: type[np.integer[Any]] | type[np.floating[Any]]) -> None:
    """Makes an array of a message its own and read-only: what was checked once stays as it was.

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
