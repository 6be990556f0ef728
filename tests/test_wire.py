"""Messages as bytes: what goes in comes out, and whatever else comes in is refused with a code."""

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_kit import keep_record
from wire_kit import describe

from hushrec import wire
from hushrec.arrays import FloatArray
from hushrec.errors import LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import (
    KINDS,
    Catalogue,
    Enrolment,
    Envelope,
    NamedArray,
    Offer,
    Public,
    Receipt,
    Row,
    Table,
    crosses,
)
from hushrec.protocols.gradient.messages import REPORT, GradientReport, ItemVectors, Terms

N_ITEMS, WIDTH, RUN_ID = 30, 3, "ab" * 16


def make_terms(**changes: object) -> Terms:
    """Terms of a small run."""
    settings = {
        "model": "mf",
        "n_factors": WIDTH,
        "n_items": N_ITEMS,
        "reports_per_client": 4.0,
        "data_weight": 400.0,
        "step": 0.4,
        "decay": 0.6,
        "max_rounds": 10,
        "epoch_rounds": None,
        "user_regularization": np.array([0.5, 0.25, 0.125]),
        "item_regularization": np.array([1.0, 2.0, 3.0]),
    }
    return Terms(**{**settings, **changes})  # type: ignore[arg-type]


def make_offer(**changes: object) -> Offer:
    """An offer of these terms."""
    return Offer(RUN_ID, "sdcf", "mf", {"profile_cap": 12, "factors": 3}, make_terms(**changes), bytes(32))


def enclosed(message: object, **changes: Any) -> Envelope:
    """A message of round 3."""
    place = {"run_id": RUN_ID, "round_number": 3, "attempt": 1, "phase": REPORT} | changes
    return Envelope(**place, message=message)


TABLE = np.arange(N_ITEMS * WIDTH, dtype=float).reshape(N_ITEMS, WIDTH) / 8
REPORTED = GradientReport(3, np.array([0, 7, 29]), np.arange(9.0).reshape(3, 3))
MESSAGES = {
    "offer": make_offer(epoch_rounds=5),
    "enrolment": Enrolment(bytes(range(32)), "code"),
    "catalogue": Catalogue(2, ["a"], ["A"]),
    "catalogue with attributes": Catalogue(2, ["a"], ["A"], np.array([[0.5, -1.0]])),
    "public": Public.of(RUN_ID, 2, make_terms(), {"item_vectors": TABLE, "level": np.array(3.0)}),
    "announcement": enclosed(ItemVectors(make_terms(), 3, TABLE)),
    "report": enclosed(REPORTED),
    "empty report": enclosed(GradientReport(3, np.empty(0, dtype=int), np.empty((0, WIDTH)))),
    "receipt": Receipt(3, 1, REPORT, repeated=False),
}
BODIES = {name: wire.encode(message) for name, message in MESSAGES.items()}


def equal(one: Any, other: Any) -> bool:
    """Whether two messages hold the same, arrays and messages within messages too."""
    if isinstance(one, np.ndarray):
        return one.dtype == other.dtype and np.array_equal(one, other)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(equal, one, other))
    if not is_dataclass(one):
        return bool(one == other)
    return type(one) is type(other) and all(equal(getattr(one, f.name), getattr(other, f.name)) for f in fields(one))


@dataclass(frozen=True, eq=False)
class Part:
    """A message within a message."""

    name: str
    numbers: Annotated[FloatArray, Row] = field(repr=False)


@dataclass(frozen=True, eq=False)
class Everything:
    """Every kind of field that a protocol's own message may have."""

    whole: int
    number: float
    text: str
    raw: bytes
    flag: bool
    missing: int | None
    row: Annotated[npt.NDArray[np.uint32], Row] = field(repr=False)
    table: Annotated[FloatArray, Table] = field(repr=False)
    row_or_none: Annotated[FloatArray, Row] | None
    part: Part
    parts: tuple[Part, ...]
    names: list[str]
    shares: dict[str, bytes]


@pytest.fixture
def everything() -> Iterator[Everything]:
    """Declares that message for one test."""
    crosses("toy.everything", largest=1_000)(Everything)
    part = Part("p", np.array([0.5]))
    yield Everything(
        -1, 0.1, "é", b"\0\1", True, None, np.array([0, 2**32 - 1], dtype=np.uint32), np.array([[0.25], [1.0]]),
        None, part, (part, part), ["a", "b"], {"x": b"y"},
    )  # fmt: skip
    del KINDS["toy.everything"]


@pytest.mark.parametrize("name", MESSAGES)
def test_a_message_survives_the_wire(name: str) -> None:
    """Every field, where float32 holds its numbers; encoding again gives the same bytes."""
    message = MESSAGES[name]
    back = wire.decode(BODIES[name], type(message))
    assert equal(back, message)
    assert wire.encode(back) == BODIES[name]


def test_a_protocol_declares_messages_of_its_own(everything: Everything) -> None:
    """They are derived from their class: arrays, optional fields, messages within messages, lists and maps."""
    assert equal(wire.as_sent(everything), everything)
    assert equal(wire.decode(wire.encode(enclosed(everything)), Envelope).message, everything)
    described = dict(describe(Everything))
    assert described["row"] == "uint32 buffer"
    assert described["table"] == "[width, float32 buffer]"
    assert described["row_or_none"] == "float32 buffer or nil"
    assert described["parts"] == "list of map: Part"
    assert described["shares"] == "map from text to bytes"


def test_a_tag_is_declared_once_and_in_one_form() -> None:
    """Two types under one tag could be taken for each other."""
    for tag in ("offer", "Offer", "a.b.c", "", "a b"):
        with pytest.raises(ParameterError, match="tag"):
            crosses(tag, largest=1)(Part)
    with pytest.raises(LocalProtocolError, match="Part"):
        wire.encode(Part("p", np.array([0.5])))


@given(
    items=st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=20),
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 8),
)
@settings(max_examples=50)
def test_a_report_is_rounded_to_float32_once(items: set[int], seed: int, width: int) -> None:
    """Items exactly, gradients rounded; decoding and encoding again gives the same bytes."""
    gradients = np.random.default_rng(seed).normal(size=(len(items), width)) * 100
    report = GradientReport(7, np.array(sorted(items)), gradients)
    body = wire.encode(enclosed(report))
    back = wire.decode(body, Envelope)
    assert np.array_equal(back.message.items, report.items)
    assert np.array_equal(back.message.gradients, gradients.astype(np.float32).astype(float))
    assert wire.encode(back) == body


def test_a_report_is_about_as_long_as_its_numbers() -> None:
    """85 items of 50 factors take 4 bytes a number and little more: the 20 kB that the load is stated for."""
    report = GradientReport(1, np.arange(85), np.ones((85, 50)))
    assert 85 * 51 * 4 <= len(wire.encode(enclosed(report))) <= 85 * 51 * 4 + 250


def refusal(body: bytes, expected: type = Envelope) -> RemoteProtocolError:
    """How these bytes are refused."""
    with pytest.raises(RemoteProtocolError) as caught:
        wire.decode(body, expected)
    return caught.value


@pytest.mark.parametrize("name", MESSAGES)
def test_another_protocol_version_is_named_as_such(name: str) -> None:
    """Whatever else another version changes, the refusal says what to do."""
    later = {**msgspec.msgpack.decode(BODIES[name]), "version": 3, "unknown": 1}
    for changed in (later, {key: value for key, value in later.items() if key != "type"}):
        refused = refusal(msgspec.msgpack.encode(changed), type(MESSAGES[name]))
        assert (refused.status_hint, refused.code) == (426, "wrong-version")
        assert "got 3" in str(refused)


@pytest.mark.parametrize("name", MESSAGES)
def test_fields_that_are_missing_unknown_or_of_another_type_are_refused(name: str) -> None:
    """Each field, one at a time, of the envelope and of the message in it."""
    found = msgspec.msgpack.decode(BODIES[name])
    inner = found.get("message", {})
    for changed in [*changes_of(found), *({**found, "message": change} for change in changes_of(inner))]:
        assert refusal(msgspec.msgpack.encode(changed), type(MESSAGES[name])).status_hint in (422, 426)


def changes_of(found: dict[str, Any]) -> list[dict[str, Any]]:
    """A map with a further entry, with one entry of another type, and with one missing."""
    wrong = [{**found, "more": 1}] if found else []
    wrong += [{**found, name: [[1]]} for name in found]
    return wrong + [{key: value for key, value in found.items() if key != name} for name in found]


@pytest.mark.parametrize("name", MESSAGES)
def test_further_bytes_and_missing_bytes_are_refused(name: str) -> None:
    """A body is one message, whole and alone."""
    for body in (BODIES[name] + b"\0", BODIES[name] * 2, BODIES[name][:-1], b""):
        assert refusal(body, type(MESSAGES[name])).code == "malformed"


def test_a_tag_that_is_unknown_or_unexpected_is_refused_with_its_code() -> None:
    """At the top and inside an envelope."""
    found = msgspec.msgpack.decode(BODIES["report"])
    assert refusal(msgspec.msgpack.encode({**found, "type": "nonsense"})).code == "unknown-type"
    found["message"]["type"] = "nonsense"
    assert refusal(msgspec.msgpack.encode(found)).code == "unknown-type"
    refused = refusal(BODIES["offer"], Receipt)
    assert (refused.code, refused.status_hint) == ("wrong-type", 422)


@pytest.mark.parametrize("depth", [2, 332, 5_000])
def test_envelopes_inside_envelopes_are_refused(depth: int) -> None:
    """However deep they are, the decoder does not follow them."""
    body = BODIES["report"]
    fields = msgspec.msgpack.decode(body)
    for _ in range(depth - 1):
        body = msgspec.msgpack.encode({**fields, "message": msgspec.Raw(body)})
    assert refusal(body).code in ("wrong-type", "malformed")


@pytest.mark.parametrize("tag", [tag for tag in KINDS if not tag.startswith("toy.")])
def test_an_envelope_holds_messages_of_rounds_only(tag: str) -> None:
    """Neither terms, whose price takes long to compute, nor messages that are sent alone."""
    fields = msgspec.msgpack.decode(BODIES["report"])
    refused = refusal(msgspec.msgpack.encode({**fields, "message": {"type": tag}}))
    is_of_rounds = "." in tag and not tag.endswith(".terms")
    assert refused.code == ("malformed" if is_of_rounds else "wrong-type")
    as_terms = msgspec.msgpack.encode({**msgspec.msgpack.decode(BODIES["offer"]), "terms": {"type": tag}})
    assert refusal(as_terms, Offer).code == ("malformed" if tag.endswith(".terms") else "wrong-type")


@pytest.mark.parametrize("shape", [[1] * 3, [0, 2**63], [0, 2**40], [-1, -4], [3], [2, 3]])
def test_a_shape_that_no_table_has_is_refused(shape: list[int]) -> None:
    """Too many dimensions or lengths, and lengths for another number of numbers."""
    with pytest.raises(RemoteProtocolError, match="shape"):
        NamedArray("rows", shape, np.ones(math.prod(shape) if math.prod(shape) < 4 and 3 not in shape else 4))


def test_every_type_has_a_size_that_both_sides_hold(everything: Everything) -> None:
    """A longer message is neither sent nor taken, whatever is in it."""
    long = replace(everything, raw=bytes(1_000))
    with pytest.raises(LocalProtocolError, match=r"toy\.everything"):
        wire.encode(long)
    packed = msgspec.msgpack.decode(wire.encode(everything))
    body = msgspec.msgpack.encode({**packed, "raw": bytes(1_000)})
    refused = refusal(body, Everything)
    assert (refused.code, refused.status_hint) == ("too-large", 413)
    packed.pop("version")
    inside = {**msgspec.msgpack.decode(BODIES["report"]), "message": {**packed, "raw": bytes(1_000)}}
    assert refusal(msgspec.msgpack.encode(inside)).code == "too-large"


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"items": b"\0\0\0"}, "uint32"),
        ({"items": b""}, "gradients must"),
        ({"gradients": [3, b"\0"]}, "float32"),
        ({"gradients": [3, b""]}, "gradients must"),
        ({"gradients": [3, bytes(4 * 10)]}, "whole number of rows"),
        ({"gradients": [0, bytes(4 * 9)]}, "whole number of rows"),
        ({"gradients": [-3, bytes(4 * 9)]}, "whole number of rows"),
        ({"gradients": [2**60, bytes(4 * 9)]}, "whole number of rows"),
        ({"gradients": [3, np.array([np.nan] * 9, dtype="<f4").tobytes()]}, "finite"),
        ({"gradients": [3, bytes(32) + b"\x00\x00\xa0\x7f"]}, "finite"),  # a signalling NaN
        ({"items": np.array([7, 7, 8], dtype="<u4").tobytes()}, "items of a report"),
    ],
)
def test_a_report_that_is_wrong_inside_is_refused(changes: dict[str, Any], word: str) -> None:
    """Lengths, finiteness and order."""
    found = msgspec.msgpack.decode(BODIES["report"])
    found["message"].update(changes)
    assert word in str(refusal(msgspec.msgpack.encode(found)))


def test_a_refusal_names_the_field_and_nothing_of_its_content() -> None:
    """Help for whoever writes a device, without an echo."""
    found = msgspec.msgpack.decode(BODIES["offer"])
    found["terms"]["n_items"] = "secret"
    refused = str(refusal(msgspec.msgpack.encode(found), Offer))
    assert "n_items" in refused
    assert "secret" not in refused


def test_numbers_that_the_wire_cannot_hold_are_not_sent(everything: Everything) -> None:
    """They would arrive as infinity, or as another number."""
    with pytest.raises(LocalProtocolError, match="float32"):
        wire.encode(enclosed(GradientReport(1, np.array([1]), np.array([[1e39]]))))
    with pytest.raises(LocalProtocolError, match="4294967295"):
        wire.encode(enclosed(GradientReport(1, np.array([2**32]), np.array([[1.0]]))))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"run_id": "../x"}, "run_id"),
        ({"phase": "Two words"}, "phase"),
        ({"phase": ""}, "phase"),
        ({"round_number": 0}, "round_number"),
        ({"attempt": 0}, "attempt"),
        ({"attempt": 10**10}, "attempt"),
    ],
)
def test_an_envelope_is_checked_where_it_is_built(change: dict[str, Any], name: str) -> None:
    """Its parts go into addresses and tables."""
    with pytest.raises(RemoteProtocolError, match=name):
        enclosed(REPORTED, **change)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"run_id": "../x"}, "run_id"),
        ({"protocol": "Two words"}, "protocol"),
        ({"model": ""}, "model"),
    ],
)
def test_an_offer_is_checked_where_it_is_built(change: dict[str, object], sentence: str) -> None:
    """A server cannot offer what a device could not hold it to."""
    with pytest.raises(RemoteProtocolError, match=sentence):
        replace(make_offer(), **change)  # type: ignore[arg-type]


def test_an_offer_is_kept_only_if_nothing_but_items_was_added() -> None:
    """Another run, cap or term is another offer."""
    offer = make_offer()
    assert replace(offer, terms=replace(offer.terms, n_items=40)).keeps(offer)
    assert not offer.keeps(replace(offer, terms=replace(offer.terms, n_items=40)))
    assert not replace(offer, run_id="cd" * 16).keeps(offer)
    assert not replace(offer, options={"profile_cap": 13, "factors": 3}).keeps(offer)
    assert not replace(offer, model="bpr").keeps(offer)
    assert not replace(offer, terms=make_terms(step=0.5)).keeps(offer)


def test_an_enrolment_and_a_catalogue_are_checked_where_they_are_built() -> None:
    """A key has 32 bytes, an invitation is short, neither is in a repr; every item has a title."""
    with pytest.raises(RemoteProtocolError, match="public_key"):
        Enrolment(bytes(31))
    with pytest.raises(RemoteProtocolError, match="invitation"):
        Enrolment(bytes(32), "x" * 101)
    assert "secret" not in repr(Enrolment(bytes(32), "secret"))
    with pytest.raises(RemoteProtocolError, match="title"):
        Catalogue(0, ["a"], [])


def mutate(body: bytes, rng: random.Random) -> bytes:
    """Flips, cuts, repeats or inserts bytes, a few times."""
    changed = bytearray(body)
    for _ in range(rng.randint(1, 6)):
        place = rng.randrange(len(changed) + 1)
        kind = rng.randrange(5)
        if kind == 0 and changed:
            changed[place % len(changed)] = rng.randrange(256)
        elif kind == 1:
            changed[place:place] = rng.randbytes(rng.randint(1, 9))
        elif kind == 2:
            del changed[place : place + rng.randint(1, 9)]
        elif kind == 3:
            changed[place:place] = changed[: rng.randint(0, 40)]
        else:
            changed[place : place + 1] = bytes([rng.choice([0xC0, 0xC1, 0xC6, 0xDC, 0xDD, 0xDF, 0xCF, 0xD9])])
    return bytes(changed)


def fuzz(count: int, seed: int) -> tuple[int, int]:
    """Mutated messages through the decoder: how many were tried, and how many were still valid."""
    rng = random.Random(seed)
    valid = 0
    for _ in range(count):
        name = rng.choice(list(BODIES))
        try:
            wire.decode(mutate(BODIES[name], rng), type(MESSAGES[name]))
            valid += 1
        except RemoteProtocolError:
            continue
    return count, valid


def test_the_decoder_refuses_or_accepts_and_never_crashes() -> None:
    """12,000 mutated messages: each is a valid message or a RemoteProtocolError, nothing else."""
    tried, valid = fuzz(12_000, seed=1)
    assert 0 < valid < tried


@pytest.mark.soak
def test_the_decoder_stands_two_million_mutated_messages() -> None:
    """The long form."""
    tried, valid = fuzz(2_000_000, seed=2)
    assert 0 < valid < tried
    keep_record(
        "service-fuzz", {"mutated_messages": tried, "still_valid": valid, "refused": tried - valid, "crashes": 0}
    )


@given(st.binary(max_size=200), st.sampled_from(sorted(MESSAGES)))
@settings(max_examples=300)
def test_arbitrary_bytes_are_refused(body: bytes, name: str) -> None:
    """Bytes that no encoder made are no message."""
    refusal(body, type(MESSAGES[name]))
