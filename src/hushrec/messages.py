"""Every value that crosses the trust boundary, and nothing else.

What a server ever sees of a person is one `GradientReport` and one `Finished` per round, under the name the
transport gives the sender. A reader of this file can list everything that leaves a device.

    server → device     Offer, Terms, ItemVectors
    device → server     Enrolment, GradientReport, Finished

An `Enrolment` goes first and once: a fresh public key and an invitation, nothing of the person. After it a device
can also ask to change its key or to leave, which says no more than that.

Messages are frozen, and check their own shape when they are built: a malformed one cannot exist.
"""

import math
import re
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import RemoteProtocolError

PROTOCOL_VERSION = 1
LARGEST_REGULARIZATION = 1e6

# Fields of the terms that may never change during a run.
_FIXED = (
    "version",
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


@dataclass(frozen=True, eq=False, kw_only=True)
class Terms:
    """What a server asks of every device for a whole run; a device accepts it once and holds the server to it.

    `data_weight` is N: it stands for the number of ratings, which the server must not know, and is
    n_clients · reports_per_client in `sdcf`. `step` is η₀ N.
    """

    version: int = PROTOCOL_VERSION
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
    user_regularization: FloatArray = field(repr=False)  # diagonal of Λ_u
    item_regularization: FloatArray = field(repr=False)  # diagonal of Λ_v

    def __post_init__(self) -> None:
        _check_version(self.version)
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


@dataclass(frozen=True, eq=False)
class ItemVectors:
    """Opens a round on a device: the terms again, the round, and all that the server knows of the items."""

    terms: Terms
    round_number: int
    item_vectors: FloatArray = field(repr=False)  # (n_items + n_side_rows, item_width)
    version: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        _check_version(self.version)
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


@dataclass(frozen=True, eq=False)
class Offer:
    """What a server offers to devices before they join: which run, which protocol, the public cap, the terms."""

    run_id: str
    protocol: str
    profile_cap: int
    terms: Terms
    version: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        _check_version(self.version)
        if not re.fullmatch(r"[0-9a-f]{32}", self.run_id):
            raise RemoteProtocolError("run_id must be 32 hexadecimal digits.")
        if self.protocol != "sdcf":
            raise RemoteProtocolError(f"protocol of a network run must be sdcf, got {self.protocol[:20]!r}.")
        if not 1 <= self.profile_cap < self.terms.n_items:
            raise RemoteProtocolError(
                f"profile_cap must be at least 1 and below the number of items, {self.terms.n_items},"
                f" got {self.profile_cap}."
            )

    def keeps(self, accepted: "Offer") -> bool:
        """Whether this is still the offer that was accepted; only the list of items may have grown."""
        same = (self.run_id, self.protocol, self.profile_cap) == (
            accepted.run_id,
            accepted.protocol,
            accepted.profile_cap,
        )
        return same and self.terms.agrees_with(accepted.terms)


@dataclass(frozen=True)
class Enrolment:
    """A device asks to take part: its public key, and an invitation where one is needed."""

    public_key: bytes = field(repr=False)
    invitation: str | None = field(default=None, repr=False)
    version: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        _check_version(self.version)
        if len(self.public_key) != 32:
            raise RemoteProtocolError(f"a public key must have 32 bytes, got {len(self.public_key)}.")
        if self.invitation is not None and len(self.invitation) > 100:
            raise RemoteProtocolError("an invitation has at most 100 characters.")


@dataclass(frozen=True, eq=False)
class GradientReport:
    """What one device says of the items it selected in one round. Its repr shows none of it."""

    round_number: int
    items: IntArray = field(repr=False)  # (n_selected,), rising
    gradients: FloatArray = field(repr=False)  # (n_selected, item_width)
    version: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        _check_version(self.version)
        _check_whole(self, "round_number")
        _freeze(self, "items", np.integer)
        _freeze(self, "gradients", np.floating)
        if self.items.ndim != 1 or self.gradients.ndim != 2 or len(self.items) != len(self.gradients):
            raise RemoteProtocolError("a report must hold one gradient per item.")
        if len(self.items) == 0:
            raise RemoteProtocolError("a report must hold at least one item; with none, send only 'finished'.")
        if np.any(np.diff(self.items) <= 0) or self.items[0] < 0:
            raise RemoteProtocolError("items of a report must be rising and not negative, each named once.")
        if not np.all(np.isfinite(self.gradients)):
            raise RemoteProtocolError("gradients must be finite numbers.")


@dataclass(frozen=True)
class Finished:
    """A device has sent all it will send in this round."""

    round_number: int
    version: int = PROTOCOL_VERSION

    def __post_init__(self) -> None:
        _check_version(self.version)
        _check_whole(self, "round_number")


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


def _check_version(version: int) -> None:
    if version != PROTOCOL_VERSION:
        raise RemoteProtocolError(
            f"protocol version must be {PROTOCOL_VERSION}, got {version}. Update the older side.", status_hint=426
        )
