"""Messages as bytes: MessagePack maps whose tables are raw little-endian buffers (float32 and uint32).

One codec for both sides. Decoding checks form and length here and everything else where a message is built, so
that whatever comes in over the network is a valid message or a `RemoteProtocolError`, and nothing else.
"""

import re
from dataclasses import dataclass
from typing import TypeVar

import msgspec
import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import RemoteProtocolError
from hushrec.messages import PROTOCOL_VERSION, Enrolment, Finished, GradientReport, ItemVectors, Offer, Terms

MEDIA_TYPE = "application/msgpack"
LONGEST_ID, LONGEST_TITLE = 200, 500
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


class _Terms(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    model: str
    n_factors: int
    n_items: int
    reports_per_client: float | None
    data_weight: float
    step: float
    decay: float
    max_rounds: int
    epoch_rounds: int | None
    user_regularization: bytes
    item_regularization: bytes


class _Offer(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    run_id: str
    protocol: str
    profile_cap: int
    terms: _Terms


class _Announcement(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    offer: _Offer
    round_number: int
    item_width: int
    item_vectors: bytes


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    round_number: int
    items: bytes
    gradients: bytes


class _Enrolment(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    public_key: bytes
    invitation: str | None


class _Catalogue(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    first: int
    ids: list[str]
    titles: list[str]


class _Receipt(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    round_number: int
    repeated: bool


class _Head(msgspec.Struct):
    version: int


Body = TypeVar("Body", bound=msgspec.Struct)


@dataclass(frozen=True, eq=False)
class Announcement:
    """An open round as it travels: the offer again, and the item vectors."""

    offer: Offer
    item_vectors: ItemVectors


@dataclass(frozen=True)
class Catalogue:
    """Ids and titles of items from position `first` on. Public."""

    first: int
    ids: list[str]
    titles: list[str]


@dataclass(frozen=True)
class Receipt:
    """The server holds this round's answer durably; `repeated` when it held the same bytes before."""

    round_number: int
    repeated: bool


def encode_offer(offer: Offer) -> bytes:
    """The bytes of an offer."""
    return msgspec.msgpack.encode(_pack_offer(offer))


def decode_offer(body: bytes) -> Offer:
    """The offer in these bytes, or a refusal."""
    return _unpack_offer(_decode(body, _Offer))


def encode_announcement(announcement: Announcement) -> bytes:
    """The bytes of an announcement."""
    vectors = announcement.item_vectors
    return msgspec.msgpack.encode(
        _Announcement(
            version=vectors.version,
            offer=_pack_offer(announcement.offer),
            round_number=vectors.round_number,
            item_width=vectors.item_vectors.shape[1],
            item_vectors=_pack_floats(vectors.item_vectors),
        )
    )


def decode_announcement(body: bytes) -> Announcement:
    """The announcement in these bytes, or a refusal."""
    packed = _decode(body, _Announcement)
    offer = _unpack_offer(packed.offer)
    table = _unpack_table(packed.item_vectors, offer.terms.n_items)
    if table.shape[1] != packed.item_width:
        raise RemoteProtocolError("item vectors must fill a table of the stated width.")
    return Announcement(offer, ItemVectors(offer.terms, packed.round_number, table, packed.version))


def encode_answer(report: GradientReport | None, finished: Finished) -> bytes:
    """All that a device says in one round. Gradients are rounded to float32: what is sent is these bytes."""
    items, gradients = (np.empty(0), np.empty((0, 0))) if report is None else (report.items, report.gradients)
    return msgspec.msgpack.encode(
        _Answer(
            version=finished.version,
            round_number=finished.round_number,
            items=items.astype("<u4").tobytes(),
            gradients=_pack_floats(gradients),
        )
    )


def decode_answer(body: bytes) -> tuple[GradientReport | None, Finished]:
    """The answer in these bytes, or a refusal."""
    packed = _decode(body, _Answer)
    finished = Finished(packed.round_number, packed.version)
    if len(packed.items) % 4:
        raise RemoteProtocolError("items of an answer must be whole uint32 numbers.")
    items = np.frombuffer(packed.items, dtype="<u4").astype(np.int64)
    if len(items) == 0:
        if packed.gradients:
            raise RemoteProtocolError("an answer without items must hold no gradients.")
        return None, finished
    return GradientReport(packed.round_number, items, _unpack_table(packed.gradients, len(items))), finished


def encode_enrolment(enrolment: Enrolment) -> bytes:
    """The bytes of an enrolment."""
    return msgspec.msgpack.encode(_Enrolment(enrolment.version, enrolment.public_key, enrolment.invitation))


def decode_enrolment(body: bytes) -> Enrolment:
    """The enrolment in these bytes, or a refusal."""
    packed = _decode(body, _Enrolment)
    return Enrolment(packed.public_key, packed.invitation, packed.version)


def encode_catalogue(catalogue: Catalogue) -> bytes:
    """The bytes of a catalogue."""
    return msgspec.msgpack.encode(_Catalogue(PROTOCOL_VERSION, catalogue.first, catalogue.ids, catalogue.titles))


def decode_catalogue(body: bytes) -> Catalogue:
    """The catalogue in these bytes, or a refusal."""
    packed = _decode(body, _Catalogue)
    if len(packed.ids) != len(packed.titles) or packed.first < 0:
        raise RemoteProtocolError("a catalogue must hold one title per id.")
    check_items(packed.ids, packed.titles)
    return Catalogue(packed.first, packed.ids, packed.titles)


def check_items(ids: list[str], titles: list[str]) -> None:
    """Refuses what a screen should not be made to show: control characters, and texts without end."""
    for name, texts, most in (("ids", ids, LONGEST_ID), ("titles", titles, LONGEST_TITLE)):
        if any(len(text) > most or _CONTROL.search(text) for text in texts):
            sentence = f"{name} of items must have at most {most} characters, none of them for control."
            raise RemoteProtocolError(sentence, status_hint=422)


def encode_receipt(receipt: Receipt) -> bytes:
    """The bytes of a receipt."""
    return msgspec.msgpack.encode(_Receipt(PROTOCOL_VERSION, receipt.round_number, receipt.repeated))


def decode_receipt(body: bytes) -> Receipt:
    """The receipt in these bytes, or a refusal."""
    packed = _decode(body, _Receipt)
    return Receipt(packed.round_number, packed.repeated)


def rounded_to_wire(terms: Terms) -> Terms:
    """The terms as a device will read them, so that both sides compute with the same numbers."""
    return _unpack_terms(_pack_terms(terms))


def largest_answer(n_items: int, item_width: int) -> int:
    """Bytes of an answer that names every item: what a server has to accept at most."""
    return 200 + n_items * 4 * (1 + item_width)


def _decode(body: bytes, kind: type[Body]) -> Body:
    """A body as its form, or a refusal; another protocol version is named as such, whatever else differs."""
    try:
        packed = msgspec.msgpack.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        _refuse_version(body)
        name = kind.__name__.strip("_").lower()
        raise RemoteProtocolError(f"the body must be a well-formed {name} in MessagePack.", status_hint=422) from None
    _check_version(packed.version)  # type: ignore[attr-defined]
    return packed


def _refuse_version(body: bytes) -> None:
    try:
        head = msgspec.msgpack.decode(body, type=_Head)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    _check_version(head.version)


def _check_version(version: int) -> None:
    Finished(0, version)  # refuses another protocol version in its own words


def _pack_floats(array: FloatArray) -> bytes:
    with np.errstate(over="ignore"):
        packed = array.astype("<f4")
    if not np.all(np.isfinite(packed)):
        raise RemoteProtocolError("numbers on the wire must be finite as float32.")
    return packed.tobytes()


def _unpack_floats(buffer: bytes) -> FloatArray:
    if len(buffer) % 4:
        raise RemoteProtocolError("a buffer must hold whole float32 numbers.", status_hint=422)
    numbers = np.frombuffer(buffer, dtype="<f4")
    if not np.all(np.isfinite(numbers)):  # before the cast, which warns of some of them
        raise RemoteProtocolError("numbers on the wire must be finite as float32.", status_hint=422)
    return numbers.astype(np.float64)


def _unpack_table(buffer: bytes, n_rows: int) -> FloatArray:
    numbers = _unpack_floats(buffer)
    if len(numbers) == 0 or len(numbers) % n_rows:
        raise RemoteProtocolError("a buffer must fill its table, row by row.", status_hint=422)
    return numbers.reshape(n_rows, -1)


def _pack_terms(terms: Terms) -> _Terms:
    return _Terms(
        version=terms.version,
        model=terms.model,
        n_factors=terms.n_factors,
        n_items=terms.n_items,
        reports_per_client=terms.reports_per_client,
        data_weight=terms.data_weight,
        step=terms.step,
        decay=terms.decay,
        max_rounds=terms.max_rounds,
        epoch_rounds=terms.epoch_rounds,
        user_regularization=_pack_floats(terms.user_regularization),
        item_regularization=_pack_floats(terms.item_regularization),
    )


def _unpack_terms(packed: _Terms) -> Terms:
    fields = msgspec.structs.asdict(packed)
    for name in ("user_regularization", "item_regularization"):
        fields[name] = _unpack_floats(fields[name])
    return Terms(**fields)


def _pack_offer(offer: Offer) -> _Offer:
    return _Offer(offer.version, offer.run_id, offer.protocol, offer.profile_cap, _pack_terms(offer.terms))


def _unpack_offer(packed: _Offer) -> Offer:
    return Offer(packed.run_id, packed.protocol, packed.profile_cap, _unpack_terms(packed.terms), packed.version)
