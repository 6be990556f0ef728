"""Messages as bytes: what goes in comes out, and whatever else comes in is refused."""

import random
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from service_kit import keep_record

from hushrec import wire
from hushrec.errors import RemoteProtocolError
from hushrec.messages import Enrolment, Finished, GradientReport, ItemVectors, Offer, Terms

N_ITEMS, WIDTH = 30, 3


def make_terms(**changes: object) -> Terms:
    """Terms of a small run."""
    fields = {
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
    return Terms(**{**fields, **changes})  # type: ignore[arg-type]


def make_offer(**changes: object) -> Offer:
    """An offer of these terms."""
    return Offer("ab" * 16, "sdcf", 12, make_terms(**changes))


def make_announcement() -> wire.Announcement:
    """Round 3 of that offer."""
    offer = make_offer()
    table = np.arange(N_ITEMS * WIDTH, dtype=float).reshape(N_ITEMS, WIDTH) / 8
    return wire.Announcement(offer, ItemVectors(offer.terms, 3, table))


def make_answer() -> bytes:
    """An answer to round 3."""
    return wire.encode_answer(GradientReport(3, np.array([0, 7, 29]), np.arange(9.0).reshape(3, 3)), Finished(3))


DECODERS = {
    "offer": (wire.decode_offer, wire.encode_offer(make_offer())),
    "announcement": (wire.decode_announcement, wire.encode_announcement(make_announcement())),
    "answer": (wire.decode_answer, make_answer()),
    "enrolment": (wire.decode_enrolment, wire.encode_enrolment(Enrolment(bytes(32), "code"))),
    "catalogue": (wire.decode_catalogue, wire.encode_catalogue(wire.Catalogue(2, ["a"], ["A"]))),
    "receipt": (wire.decode_receipt, wire.encode_receipt(wire.Receipt(3, repeated=False))),
}


def test_an_offer_survives_the_wire() -> None:
    """Every field, and both regularizations."""
    offer = make_offer(epoch_rounds=5)
    back = wire.decode_offer(wire.encode_offer(offer))
    assert back.keeps(offer)
    assert offer.keeps(back)


def test_an_announcement_survives_the_wire() -> None:
    """Numbers that float32 holds come back exactly."""
    sent = make_announcement()
    back = wire.decode_announcement(wire.encode_announcement(sent))
    assert back.item_vectors.round_number == 3
    assert np.array_equal(back.item_vectors.item_vectors, sent.item_vectors.item_vectors)


@given(
    items=st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=20),
    seed=st.integers(0, 2**32 - 1),
    width=st.integers(1, 8),
)
@settings(max_examples=50)
def test_an_answer_survives_the_wire_as_float32(items: set[int], seed: int, width: int) -> None:
    """Items exactly, gradients rounded once: decoding and encoding again gives the same bytes."""
    gradients = np.random.default_rng(seed).normal(size=(len(items), width)) * 100
    report = GradientReport(7, np.array(sorted(items)), gradients)
    body = wire.encode_answer(report, Finished(7))
    back, finished = wire.decode_answer(body)
    assert back is not None
    assert finished == Finished(7)
    assert np.array_equal(back.items, report.items)
    assert np.array_equal(back.gradients, gradients.astype(np.float32).astype(float))
    assert wire.encode_answer(back, finished) == body


def test_an_answer_without_items_is_finished_alone() -> None:
    """An empty selection sends only "finished"."""
    body = wire.encode_answer(None, Finished(4))
    assert wire.decode_answer(body) == (None, Finished(4))


def test_an_answer_is_about_as_long_as_its_numbers() -> None:
    """85 items of 50 factors take 4 bytes a number and little more: the 20 kB that the load is stated for."""
    report = GradientReport(1, np.arange(85), np.ones((85, 50)))
    length = len(wire.encode_answer(report, Finished(1)))
    assert 85 * 51 * 4 <= length <= 85 * 51 * 4 + 100
    assert length <= wire.largest_answer(85, 50)


@pytest.mark.parametrize("name", DECODERS)
def test_another_protocol_version_is_named_as_such(name: str) -> None:
    """Whatever else a later version changes, the refusal says what to do."""
    decode, body = DECODERS[name]
    later = {**msgspec.msgpack.decode(body), "version": 2, "unknown": 1}
    with pytest.raises(RemoteProtocolError, match="version must be 1, got 2") as caught:
        decode(msgspec.msgpack.encode(later))
    assert caught.value.status_hint == 426


@pytest.mark.parametrize("name", DECODERS)
def test_fields_that_are_missing_unknown_or_of_another_type_are_refused(name: str) -> None:
    """Each field, one at a time."""
    decode, body = DECODERS[name]
    fields = msgspec.msgpack.decode(body)
    wrong = [{**fields, "more": 1}, *({**fields, field: {"x": 1}} for field in fields)]
    wrong += [{key: value for key, value in fields.items() if key != field} for field in fields]
    for changed in wrong:
        with pytest.raises(RemoteProtocolError, match="must"):
            decode(msgspec.msgpack.encode(changed))


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"items": b"\0\0\0"}, "whole uint32"),
        ({"items": b"", "gradients": b"\0\0\0\0"}, "without items must hold no gradients"),
        ({"gradients": b"\0"}, "whole float32"),
        ({"gradients": b""}, "fill its table"),
        ({"gradients": bytes(4 * 10)}, "fill its table"),
        ({"gradients": np.array([np.nan] * 9, dtype="<f4").tobytes()}, "finite"),
        ({"gradients": bytes(32) + b"\x00\x00\xa0\x7f"}, "finite"),  # a signalling NaN
        ({"items": np.array([7, 7, 8], dtype="<u4").tobytes()}, "rising"),
    ],
)
def test_an_answer_that_is_wrong_inside_is_refused(changes: dict[str, bytes], sentence: str) -> None:
    """Lengths, finiteness and order, each with its sentence."""
    body = msgspec.msgpack.encode({**msgspec.msgpack.decode(make_answer()), **changes})
    with pytest.raises(RemoteProtocolError, match=sentence):
        wire.decode_answer(body)


def test_numbers_that_float32_cannot_hold_are_not_sent() -> None:
    """They would arrive as infinity."""
    with pytest.raises(RemoteProtocolError, match="finite as float32"):
        wire.encode_answer(GradientReport(1, np.array([1]), np.array([[1e39]])), Finished(1))


def test_a_table_of_another_width_or_a_catalogue_without_titles_is_refused() -> None:
    """What the maps say of themselves must agree."""
    announcement = msgspec.msgpack.decode(DECODERS["announcement"][1])
    with pytest.raises(RemoteProtocolError, match="stated width"):
        wire.decode_announcement(msgspec.msgpack.encode({**announcement, "item_width": 2}))
    catalogue = msgspec.msgpack.decode(DECODERS["catalogue"][1])
    with pytest.raises(RemoteProtocolError, match="one title per id"):
        wire.decode_catalogue(msgspec.msgpack.encode({**catalogue, "titles": []}))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"run_id": "../x"}, "32 hexadecimal"),
        ({"protocol": "plain"}, "must be sdcf"),
        ({"profile_cap": 0}, "profile_cap must be at least 1"),
        ({"profile_cap": N_ITEMS}, "below the number of items"),
    ],
)
def test_an_offer_is_checked_where_it_is_built(change: dict[str, object], sentence: str) -> None:
    """A server cannot offer what a device could not hold it to."""
    with pytest.raises(RemoteProtocolError, match=sentence):
        replace(make_offer(), **change)  # type: ignore[arg-type]


def test_an_offer_is_kept_only_if_nothing_but_items_was_added() -> None:
    """Another run, cap or term is another offer."""
    offer = make_offer()
    assert replace(offer, terms=offer.terms.with_items(40)).keeps(offer)
    assert not offer.keeps(replace(offer, terms=offer.terms.with_items(40)))
    assert not replace(offer, run_id="cd" * 16).keeps(offer)
    assert not replace(offer, profile_cap=13).keeps(offer)
    assert not replace(offer, terms=make_terms(step=0.5)).keeps(offer)


def test_an_enrolment_is_checked_where_it_is_built() -> None:
    """A key has 32 bytes, an invitation is short, and neither is in a repr."""
    with pytest.raises(RemoteProtocolError, match="32 bytes, got 31"):
        Enrolment(bytes(31))
    with pytest.raises(RemoteProtocolError, match="at most 100 characters"):
        Enrolment(bytes(32), "x" * 101)
    assert "secret" not in repr(Enrolment(bytes(32), "secret"))


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
    """Mutated messages through every decoder: how many were tried, and how many were still valid."""
    rng = random.Random(seed)
    valid = 0
    for _ in range(count):
        decode, body = rng.choice(list(DECODERS.values()))
        try:
            decode(mutate(body, rng))
            valid += 1
        except RemoteProtocolError:
            continue
    return count, valid


def test_the_decoders_refuse_or_accept_and_never_crash() -> None:
    """12,000 mutated messages: each is a valid message or a RemoteProtocolError, nothing else."""
    tried, valid = fuzz(12_000, seed=1)
    assert 0 < valid < tried


@pytest.mark.soak
def test_the_decoders_stand_two_million_mutated_messages() -> None:
    """The long form."""
    tried, valid = fuzz(2_000_000, seed=2)
    assert 0 < valid < tried
    keep_record(
        "service-fuzz", {"mutated_messages": tried, "still_valid": valid, "refused": tried - valid, "crashes": 0}
    )


@given(st.binary(max_size=200), st.sampled_from(sorted(DECODERS)))
@settings(max_examples=300)
def test_arbitrary_bytes_are_refused(body: bytes, name: str) -> None:
    """Bytes that no encoder made are no message."""
    with pytest.raises(RemoteProtocolError):
        DECODERS[name][0](body)
