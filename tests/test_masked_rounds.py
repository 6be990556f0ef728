"""Masked rounds as state machines: whole attempts over the wire, every wrong message, and a malicious server."""

import dataclasses
import itertools
import math
import pickle
import random
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from service_kit import keep_record
from test_wire import mutate

from hushrec import wire
from hushrec.budget.accountants import TableAccountant
from hushrec.budget.gaussian import Cohort, run_mu
from hushrec.errors import AttemptFailed, LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import LARGEST_TABLE, Envelope, Offer, Public
from hushrec.protocols.masked import server_round
from hushrec.protocols.masked.device_round import NEXT_STATE, Consented, DeviceRound, Idle, Keyed, Sent, Shared
from hushrec.protocols.masked.device_table import affordable_fraction, make_table
from hushrec.protocols.masked.encoding import Entries
from hushrec.protocols.masked.messages import (
    Announcement,
    Consent,
    MaskedTable,
    Partners,
    Quorum,
    SealedShares,
    Survivors,
    Unmasking,
    announce,
    positions_in,
)
from hushrec.protocols.masked.plan import Block, make_plan
from hushrec.protocols.masked.price import price_plan
from hushrec.protocols.masked.secagg.roster import PublicKeys, Roster, Rules, bitmap, keys_text, make_roster
from hushrec.protocols.masked.server_round import EXPECTED, Phase, ServerRound
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.randomness import SeededRandomness, SystemRandomness, SystemStream

RUN, TABLE = "ab" * 16, bytes(range(32))
SERVER = Ed25519PrivateKey.from_private_bytes(b"s" * 32)
SERVER_KEY = SERVER.public_key().public_bytes_raw()
PLAN = make_plan(
    [[Block("counts", (6,), 8.0, 0.3), Block("bias", (3, 1), 5.0, 0.2)], [Block("prior", (4,), 12.0, 0.5)]]
)


@cache
def make_terms(epsilon: float = 8.0, devices: int = 10) -> MaskedTerms:
    """A run of ten devices of which seven must survive and one may be corrupt."""
    priced = price_plan(PLAN, epsilon=epsilon, delta=1e-6, cohort=Cohort(devices, survivors=0.7, corrupt=0.1))
    return MaskedTerms(priced, Rules(priced.cohort.smallest, priced.cohort.most_corrupt, devices - 1, devices // 2))


class Person:
    """A device of the tests, with the table that it sent."""

    def __init__(self, number: int, terms: MaskedTerms) -> None:
        self.name = number.to_bytes(16, "big")
        self.identity = Ed25519PrivateKey.from_private_bytes(bytes([number + 1]) * 32)
        self.table = np.zeros(0, dtype=np.uint32)
        self.terms = terms
        self.round = self.restarted(Idle())

    def restarted(self, state: object) -> DeviceRound:
        """The same device after a restart with this state."""
        return DeviceRound(
            self.terms,
            RUN,
            SERVER_KEY,
            self.name,
            self.identity,
            self._table,
            state=state,  # type: ignore[arg-type]
        )

    def _table(self, announcement: Announcement) -> np.ndarray:
        round_number = announcement.round_number
        blocks = [Entries(np.full(code.size, 0.5)) for code in self.terms.priced.codes[round_number - 1]]
        self.table, _ = make_table(
            self.terms.priced, round_number, blocks, TableAccountant(), randomness=SystemRandomness()
        )
        return self.table

    def report(self, message: object, table_digest: bytes = TABLE) -> object:
        """What the device says to a message that came over the wire."""
        return self.round.report(wire.as_sent(message), table_digest=table_digest, rng=SystemStream())


class Attempt:
    """A server and ten devices, up to any phase."""

    def __init__(self, round_number: int = 1, attempt: int = 1, people: list[Person] | None = None) -> None:
        self.terms = make_terms()
        self.people = people or [Person(number, self.terms) for number in range(10)]
        self.announcement = announce(SERVER, RUN, round_number, attempt, self.terms.digest, TABLE)
        self.server = ServerRound(self.terms, self.announcement, [person.name for person in self.people])

    def play(self, until: Phase = Phase.SUMMED, lost: dict[Phase, set[int]] | None = None) -> "Attempt":
        """Close phases until this one is open; `lost` leave before they report in a phase, and stay away."""
        gone: set[int] = set()
        while self.server.phase is not until:
            gone |= (lost or {}).get(self.server.phase, set())
            for number, person in enumerate(self.people):
                if number not in gone and person.name in self.server.asked:
                    self.server.receive(person.name, wire.as_sent(person.report(self.server.question(person.name))))
            self.server.close()
        return self

    def expected(self) -> np.ndarray:
        """The sum of the survivors' tables."""
        tables = [person.table for person in self.people if person.name in self.server.survivors]
        return np.sum(tables, axis=0, dtype=np.uint32)


PHASES = tuple(EXPECTED)


@pytest.mark.parametrize("lost", [0, 1, 3])
@pytest.mark.parametrize("phase", PHASES)
def test_a_round_over_the_wire_gives_the_exact_sum(phase: Phase, lost: int) -> None:
    """0, 1 and 3 of 10 devices leave in each phase; every message is encoded and decoded."""
    attempt = Attempt().play(lost={phase: set(range(lost))})
    assert np.array_equal(attempt.server.sum, attempt.expected())
    assert len(attempt.server.survivors) == (10 - lost if phase in PHASES[:3] else 10)


def test_rounds_and_attempts_follow_each_other() -> None:
    """The plan's two rounds with the same devices, the first of them on its second attempt."""
    first = Attempt()
    with pytest.raises(AttemptFailed, match="table"):
        first.play(lost={Phase.TABLE: {0, 1, 2, 3}})
    assert first.server.phase is Phase.FAILED
    assert first.server.sum is None
    again = Attempt(1, 2, first.people).play()
    assert np.array_equal(again.server.sum, again.expected())
    second = Attempt(2, 1, first.people).play()
    assert np.array_equal(second.server.sum, second.expected())
    assert {person.round.place for person in first.people} == {(2, 1)}


@pytest.mark.parametrize("phase", PHASES)
def test_too_few_answers_end_the_attempt_in_every_phase(phase: Phase) -> None:
    """Six leave: nothing is revealed, and nothing is received any more."""
    attempt = Attempt()
    with pytest.raises(AttemptFailed, match=phase.value):
        attempt.play(lost={phase: set(range(6))})
    assert attempt.server.phase is Phase.FAILED
    assert attempt.server.sum is None
    with pytest.raises(RemoteProtocolError, match="failed"):
        attempt.server.receive(attempt.people[9].name, Consent(bytes(64)))
    with pytest.raises(LocalProtocolError, match="failed"):
        attempt.server.close()
    with pytest.raises(LocalProtocolError, match="does not ask"):
        attempt.server.question(attempt.people[9].name)


def sign_keys(person: Person, announcement: Announcement, keys: PublicKeys, **changes: bytes) -> PublicKeys:
    """The device's keys with these changes, and its signature of them."""
    changed = dataclasses.replace(keys, **changes)
    signature = person.identity.sign(keys_text(announcement.digest, *changed.parts()[:-1]))
    return dataclasses.replace(changed, signature=signature)


PRIME = 2**255 - 19
ORDER_8 = 325606250916557431795983626356110631294008115727848805560023387167927233504
LOW_ORDER = {"0": 0, "1": 1, "order 8": ORDER_8, "p - 1": PRIME - 1, "p": PRIME, "p + 1": PRIME + 1}


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("mask_key", "identity"),
        ("mask_key", "channel_key"),
        ("channel_key", "identity"),
        *itertools.product(["mask_key", "channel_key"], LOW_ORDER),
    ],
)
def test_keys_that_no_roster_can_hold_are_refused_and_the_others_finish(field: str, bad: str) -> None:
    """A key of low order, or one key for two uses: nothing is stored, and the round is without this device."""
    attempt = Attempt()
    hostile = attempt.people[4]
    keys = hostile.report(attempt.announcement)
    assert isinstance(keys, PublicKeys)
    value = LOW_ORDER[bad].to_bytes(32, "little") if bad in LOW_ORDER else getattr(keys, bad)
    with pytest.raises(RemoteProtocolError, match=r"X25519|distinct"):
        attempt.server.receive(hostile.name, sign_keys(hostile, attempt.announcement, keys, **{field: value}))
    assert attempt.server.reported == frozenset()
    attempt.play(lost={Phase.KEYS: {4}})
    assert np.array_equal(attempt.server.sum, attempt.expected())
    assert len(attempt.server.survivors) == 9


@pytest.mark.parametrize(
    ("field", "copied", "left_out"),
    [
        ("mask_key", "mask_key", {4, 6}),
        ("channel_key", "mask_key", {4, 6}),
        ("mask_key", "identity", {4}),
        ("channel_key", "identity", {4}),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_a_copied_key_does_not_stop_a_round(field: str, copied: str, left_out: set[int], is_first: bool) -> None:
    """An identity is its signer's; of two devices with one mask or channel key, neither is in the roster."""
    attempt = Attempt()
    server = attempt.server
    sent = {number: person.report(attempt.announcement) for number, person in enumerate(attempt.people)}
    victim, own = sent[6], sent[4]
    assert isinstance(victim, PublicKeys)
    assert isinstance(own, PublicKeys)
    sent[4] = sign_keys(attempt.people[4], attempt.announcement, own, **{field: getattr(victim, copied)})
    for number in sorted(sent, reverse=not is_first):
        server.receive(attempt.people[number].name, sent[number])
    server.close()
    kept = set(range(10)) - left_out
    assert server.asked == {attempt.people[number].name for number in kept}
    assert server.culprits == {attempt.people[number].name for number in left_out}
    attempt.play()
    assert np.array_equal(server.sum, attempt.expected())
    assert len(server.survivors) == len(kept)


def test_too_few_distinct_keys_end_the_attempt() -> None:
    """Devices that are not in the roster do not count."""
    attempt = Attempt()
    shared = bytes(range(1, 33))
    for person in attempt.people:
        keys = person.report(attempt.announcement)
        assert isinstance(keys, PublicKeys)
        changes = {"mask_key": shared} if person in attempt.people[:4] else {}
        attempt.server.receive(person.name, sign_keys(person, attempt.announcement, keys, **changes))
    with pytest.raises(AttemptFailed, match="at least 7 reports in phase keys, got 6"):
        attempt.server.close()
    assert attempt.server.culprits == {person.name for person in attempt.people[:4]}


def test_whatever_a_peer_did_a_phase_that_cannot_close_ends_the_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service would try the same again and again; the next attempt begins with new secrets."""

    def refuse(*_: object) -> None:
        raise RemoteProtocolError("keys must please the server.")

    attempt = Attempt()
    for person in attempt.people:
        attempt.server.receive(person.name, person.report(attempt.announcement))
    monkeypatch.setattr(server_round, "make_roster", refuse)
    with pytest.raises(AttemptFailed, match="please"):
        attempt.server.close()
    assert attempt.server.phase is Phase.FAILED


@cache
def one_of_each() -> dict[type, object]:
    """A real message of each type that a server or a device sends, from one attempt."""
    found: dict[type, object] = {}
    attempt = Attempt()
    while attempt.server.phase is not Phase.SUMMED:
        for person in attempt.people:
            question = attempt.server.question(person.name)
            reply = person.report(question)
            attempt.server.receive(person.name, reply)
            found |= {type(question): question, type(reply): reply}
        attempt.server.close()
    return found


STATES = {Idle: Phase.KEYS, Keyed: Phase.SHARES, Shared: Phase.TABLE, Sent: Phase.CONSENT, Consented: Phase.UNMASK}


@pytest.mark.parametrize("state", STATES)
def test_a_device_answers_in_turn_only(state: type) -> None:
    """Each state × message that the table does not have is refused with 409, and changes nothing."""
    person = Attempt().play(STATES[state]).people[0]
    before = person.round.state
    assert type(before) is state
    for kind, message in one_of_each().items():
        if kind not in NEXT_STATE[state]:
            with pytest.raises(RemoteProtocolError, match="message must be") as refusal:
                person.report(message)
            assert refusal.value.status_hint == 409
            assert person.round.state is before


@pytest.mark.parametrize("phase", PHASES)
def test_a_server_takes_what_its_phase_expects_only(phase: Phase) -> None:
    """Each phase × message, reports of strangers, and second reports are refused, and change nothing."""
    attempt = Attempt().play(phase)
    server, person = attempt.server, attempt.people[0]
    for kind, message in one_of_each().items():
        if kind is not EXPECTED[phase][0]:
            with pytest.raises(RemoteProtocolError, match=phase.value):
                server.receive(person.name, message)
    reply = person.report(server.question(person.name))
    with pytest.raises(RemoteProtocolError, match="asked"):
        server.receive(b"stranger 16 byte", reply)
    assert server.reported == frozenset()
    server.receive(person.name, reply)
    with pytest.raises(RemoteProtocolError, match="once"):
        server.receive(person.name, reply)
    assert server.reported == {person.name}


@pytest.mark.parametrize("phase", PHASES[1:])
def test_a_newer_announcement_ends_an_attempt_in_every_state(phase: Phase) -> None:
    """The next attempt goes on from there; the one before cannot be reported any more."""
    attempt = Attempt().play(phase)
    again = Attempt(1, 2, attempt.people).play()
    assert np.array_equal(again.server.sum, again.expected())
    with pytest.raises(RemoteProtocolError, match=r"later .* \(1, 2\)"):
        attempt.people[0].report(attempt.announcement)


@pytest.mark.parametrize("phase", PHASES)
def test_an_attempt_is_never_answered_twice(phase: Phase) -> None:
    """A replayed announcement, of the same attempt or of an older round, is refused in every state."""
    people = Attempt(2, 1).play(Phase.SHARES).people
    attempt = Attempt(2, 2, people).play(phase)
    person = attempt.people[0]
    for round_number, number in ((2, 1), (1, 9)) if phase is Phase.KEYS else ((2, 2), (2, 1), (1, 9)):
        with pytest.raises(RemoteProtocolError, match="later"):
            person.report(announce(SERVER, RUN, round_number, number, attempt.terms.digest, TABLE))


def hostile_announcements() -> list[tuple[str, Announcement]]:
    """One for each thing that a device checks before it publishes keys."""
    terms = make_terms()
    good = (SERVER, RUN, 1, 1, terms.digest, TABLE)
    stranger = Ed25519PrivateKey.from_private_bytes(b"x" * 32)
    weaker = make_terms(epsilon=16.0)
    return [
        ("signed", announce(stranger, *good[1:])),
        ("run", announce(SERVER, "cd" * 16, *good[2:])),
        ("signed", dataclasses.replace(announce(*good), attempt=2)),
        ("terms", announce(SERVER, RUN, 1, 1, weaker.digest, TABLE)),
        ("table", announce(SERVER, RUN, 1, 1, terms.digest, bytes(32))),
        ("round", announce(SERVER, RUN, 3, 1, terms.digest, TABLE)),
    ]


@pytest.mark.parametrize(("reason", "message"), hostile_announcements())
def test_a_hostile_announcement_is_refused(reason: str, message: Announcement) -> None:
    """Another server, run, plan, noise, table or round: no key is published."""
    person = Person(0, make_terms())
    with pytest.raises(RemoteProtocolError, match=reason):
        person.report(message)
    assert person.round.state == Idle()


def test_a_table_is_made_only_from_the_public_table_that_was_announced() -> None:
    """With another one the device makes none and keeps its state; this attempt and the next remain open to it."""
    attempt = Attempt().play(Phase.TABLE)
    person = attempt.people[0]
    question, before = attempt.server.question(person.name), person.round.state
    with pytest.raises(RemoteProtocolError, match="sends no report"):
        person.report(question, table_digest=bytes(32))
    assert person.round.state is before
    assert len(person.table) == 0
    attempt.play()
    assert len(person.table)
    again = Attempt(1, 2, attempt.people).play()
    assert np.array_equal(again.server.sum, again.expected())


def test_every_term_is_in_the_digest() -> None:
    """A changed name, norm, variance, cohort, number of neighbours, ε or δ is another digest."""
    terms = make_terms()
    priced, code = terms.priced, terms.priced.codes[0][0]

    def with_code(**changes: float) -> MaskedTerms:
        codes = ((dataclasses.replace(code, **changes), priced.codes[0][1]), priced.codes[1])
        return MaskedTerms(dataclasses.replace(priced, codes=codes), terms.rules)

    renamed = [[Block("Counts", (6,), 8.0, 0.3), PLAN.rounds[0].blocks[1]], list(PLAN.rounds[1].blocks)]
    others = [
        with_code(clip_units=code.clip_units - 1),
        with_code(norm_squared=code.norm_squared - 1),
        with_code(share_variance=code.share_variance + 1),
        MaskedTerms(dataclasses.replace(priced, delta=2e-6), terms.rules),
        MaskedTerms(dataclasses.replace(priced, epsilon=9.0), terms.rules),
        MaskedTerms(dataclasses.replace(priced, reserve=0.1), terms.rules),
        MaskedTerms(priced, dataclasses.replace(terms.rules, threshold=6)),
        MaskedTerms(priced, dataclasses.replace(terms.rules, neighbours=8)),
        MaskedTerms(dataclasses.replace(priced, plan=make_plan(renamed)), terms.rules),
    ]
    assert len({terms.digest, *(other.digest for other in others)}) == 10


def test_terms_that_cost_more_than_they_say_are_refused() -> None:
    """A weaker noise share, other sizes than the plan's, another cohort in the rules."""
    terms = make_terms()
    priced = terms.priced
    weak = dataclasses.replace(priced.codes[0][0], share_variance=priced.codes[0][0].share_variance // 2)
    with pytest.raises(RemoteProtocolError, match="epsilon"):
        MaskedTerms(dataclasses.replace(priced, codes=((weak, priced.codes[0][1]), priced.codes[1])), terms.rules)
    with pytest.raises(RemoteProtocolError, match="code"):
        MaskedTerms(dataclasses.replace(priced, codes=priced.codes[::-1]), terms.rules)
    with pytest.raises(RemoteProtocolError, match="cohort"):
        MaskedTerms(priced, dataclasses.replace(terms.rules, smallest=6))
    with pytest.raises(RemoteProtocolError, match="round"):
        terms.table_size(3)


@pytest.mark.parametrize(
    "change",
    [
        {"share_variance": 15},
        {"share_variance": 2**62 + 1},
        {"norm_squared": 0},
        {"norm_squared": 2**63, "share_variance": 2**62},
        {"clip_units": 0},
        {"clip_units": 2**16 + 1},
    ],
)
def test_terms_that_no_device_could_compute_with_are_refused(change: dict[str, int]) -> None:
    """A device would fail in the middle of a round, or its integers would overflow."""
    terms = make_terms()
    first, *others = terms.priced.codes[0]
    codes = ((dataclasses.replace(first, **change), *others), *terms.priced.codes[1:])
    with pytest.raises(RemoteProtocolError, match="must have a share_variance"):
        MaskedTerms(dataclasses.replace(terms.priced, codes=codes), terms.rules)


def test_terms_with_a_large_delta_or_large_tables_are_refused() -> None:
    """Delta above 1/(10 n) promises little; and a table must fit into one message."""
    terms = make_terms()
    with pytest.raises(ParameterError, match="delta must be"):
        MaskedTerms(dataclasses.replace(terms.priced, delta=0.02), terms.rules)
    size = LARGEST_TABLE // 4 + 1
    code = dataclasses.replace(terms.priced.codes[0][0], size=size, clip=1.0, norm_squared=1)
    plan = make_plan([[Block("counts", (size,), 1.0, 1.0)]])
    with pytest.raises(RemoteProtocolError, match="bytes"):
        MaskedTerms(dataclasses.replace(terms.priced, plan=plan, codes=((code,),)), terms.rules)


def test_a_device_goes_on_from_its_stored_state_in_every_phase() -> None:
    """Each state given to a new object: the round ends with the same sum, so that a restart loses nothing."""
    attempt = Attempt()
    while attempt.server.phase is not Phase.SUMMED:
        for person in attempt.people:
            attempt.server.receive(person.name, person.report(attempt.server.question(person.name)))
            person.round = person.restarted(person.round.state)
        attempt.server.close()
    assert np.array_equal(attempt.server.sum, attempt.expected())


def test_secrets_are_gone_when_they_are_not_needed() -> None:
    """After the table the device's own secrets are in no state; after unmasking others' shares are not either."""
    attempt = Attempt().play(Phase.TABLE)
    person = attempt.people[0]
    assert isinstance(person.round.state, Shared)
    own = person.round.state.secrets
    attempt.play(Phase.CONSENT)
    reached = list(values_in(person.round.state))
    assert not {own.mask_private, own.channel_private, own.seed} & {value for value in reached if type(value) is bytes}
    attempt.play()
    assert person.round.state == Idle((1, 1))


def values_in(value: object):  # type: ignore[no-untyped-def]
    """Everything that an object of dataclasses and containers holds."""
    yield value
    if dataclasses.is_dataclass(value):
        inside = [getattr(value, field.name) for field in dataclasses.fields(value)]
    elif isinstance(value, dict):
        inside = [*value, *value.values()]
    elif isinstance(value, tuple | list | frozenset):
        inside = list(value)
    else:
        inside = []
    for one in inside:
        yield from values_in(one)


@pytest.mark.parametrize("lost", [0, 6])
def test_the_server_holds_no_share_once_the_attempt_has_ended(lost: int) -> None:
    """Neither those that devices revealed nor the encrypted ones, whether there is a sum or not."""
    attempt = Attempt().play(Phase.UNMASK)
    server, shares = attempt.server, set[bytes]()
    for person in attempt.people[lost:]:
        reply = person.report(server.question(person.name))
        assert isinstance(reply, Unmasking)
        server.receive(person.name, reply)
        shares.update(reply.shares)
    shares.update(sealed for inbox in server._inbox.values() for sealed in inbox.values())
    assert len(shares) == (10 - lost) * 9 + 90
    held = pickle.dumps(vars(server))
    assert all(share in held for share in shares)
    with nullcontext() if lost == 0 else pytest.raises(AttemptFailed):
        server.close()
    held = pickle.dumps(vars(server))
    assert not any(share in held for share in shares)


def test_a_hostile_server_gets_no_table_with_wrong_partners() -> None:
    """Too few partners, a bitmap of another length or beyond the roster, senders that are no partners."""
    attempt = Attempt().play(Phase.TABLE)
    person = attempt.people[0]
    question = attempt.server.question(person.name)
    for partners in (bitmap(range(5), 10), question.partners + b"\0", b"\xff\xff", bitmap(range(1, 10), 10)):
        with pytest.raises(RemoteProtocolError, match=r"partners|bitmap|this device"):
            person.report(dataclasses.replace(question, partners=partners))
    assert isinstance(person.round.state, Shared)


def test_a_device_signs_one_list_of_survivors_and_reveals_for_that_one() -> None:
    """A second list is out of turn; consents of others to another list are no quorum."""
    attempt = Attempt().play(Phase.CONSENT)
    person, server = attempt.people[0], attempt.server
    question = server.question(person.name)
    with pytest.raises(RemoteProtocolError, match="at least 7"):
        person.report(dataclasses.replace(question, survivors=bitmap(range(6), 10)))
    person.report(dataclasses.replace(question, survivors=bitmap(range(9), 10)))  # the server lies: 9 dropped out
    with pytest.raises(RemoteProtocolError, match="message must be"):
        person.report(server.question(person.name))
    for other in attempt.people[1:]:
        server.receive(other.name, other.report(server.question(other.name)))
    server.close()
    quorum = server.question(attempt.people[1].name)
    with pytest.raises(RemoteProtocolError, match="signatures of the survivors"):
        person.report(quorum)
    assert isinstance(person.round.state, Consented)


def test_a_hostile_device_is_refused_by_the_server() -> None:
    """Somebody else's keys, shares for itself or for too few, a short table, a forged consent, shares of strangers."""
    attempt = Attempt()
    server, (first, second) = attempt.server, attempt.people[:2]
    keys = second.report(server.question(second.name))
    with pytest.raises(RemoteProtocolError, match="sends"):
        server.receive(first.name, keys)
    with pytest.raises(RemoteProtocolError, match="signed"):
        server.receive(second.name, dataclasses.replace(keys, seed_hash=bytes(32)))
    attempt = Attempt().play(Phase.SHARES)
    server, first = attempt.server, attempt.people[0]
    shares = first.report(server.question(first.name))
    for recipients in (range(9), range(1, 9), range(2, 11)):
        count = len(recipients)
        cut = SealedShares(np.array(recipients), shares.sealed[:count], shares.commitments[:count])
        with pytest.raises(RemoteProtocolError, match=r"shares|recipients"):
            server.receive(first.name, cut)
    attempt = Attempt().play(Phase.TABLE)
    with pytest.raises(RemoteProtocolError, match="9 integers"):
        attempt.server.receive(first.name, MaskedTable(np.zeros(8, dtype=np.uint32), bytes(64)))
    with pytest.raises(RemoteProtocolError, match="list of partners"):
        attempt.server.receive(first.name, MaskedTable(np.zeros(9, dtype=np.uint32), bytes(64)))
    attempt.play(Phase.CONSENT)
    with pytest.raises(RemoteProtocolError, match="signature"):
        attempt.server.receive(first.name, Consent(bytes(64)))
    attempt.play(Phase.UNMASK)
    with pytest.raises(RemoteProtocolError, match="owners"):
        attempt.server.receive(first.name, Unmasking(np.array([0]), (bytes(66),)))


def test_malformed_messages_cannot_be_built() -> None:
    """Wrong lengths, positions that do not rise or are negative, counts that differ."""
    wrong = [
        lambda: SealedShares(np.array([1, 1]), (bytes(148),) * 2, (bytes(64),) * 2),
        lambda: SealedShares(np.array([1]), (bytes(147),), (bytes(64),)),
        lambda: SealedShares(np.array([1]), (bytes(148),), (bytes(63),)),
        lambda: SealedShares(np.array([1]), (bytes(148),), ()),
        lambda: Partners(b"", np.array([-1]), (bytes(148),)),
        lambda: Quorum(np.array([1, 2]), (bytes(64),)),
        lambda: Quorum(np.array([1]), (bytes(63),)),
        lambda: Unmasking(np.array([1]), (bytes(65),)),
        lambda: Consent(bytes(63)),
        lambda: Announcement(RUN, 1, 1, bytes(31), bytes(32), bytes(64)),
        lambda: Announcement(RUN, 0, 1, bytes(32), bytes(32), bytes(64)),
        lambda: Announcement(RUN + "a", 1, 1, bytes(32), bytes(32), bytes(64)),
        lambda: Announcement(RUN, 1, 2**31, bytes(32), bytes(32), bytes(64)),
        lambda: positions_in(b"\x01", 7),
    ]
    for build in wrong:
        with pytest.raises(RemoteProtocolError):
            build()


def test_every_message_comes_back_from_the_wire() -> None:
    """All ten kinds: encoded, decoded and encoded again are the same bytes."""
    assert set(one_of_each()) == {
        Announcement, PublicKeys, Roster, SealedShares, Partners, MaskedTable, Survivors, Consent, Quorum, Unmasking,
    }  # fmt: skip
    for message in one_of_each().values():
        body = wire.encode(message)
        assert wire.encode(wire.decode(body, type(message))) == body


def test_a_table_of_the_wrong_length_is_our_mistake() -> None:
    """It is not sent, and the state stays."""
    attempt = Attempt().play(Phase.TABLE)
    person = attempt.people[0]
    person.round._make_table = lambda _: np.zeros(3, dtype=np.uint32)
    with pytest.raises(LocalProtocolError, match="make_table"):
        person.report(attempt.server.question(person.name))
    assert isinstance(person.round.state, Shared)


def test_a_device_that_cannot_pay_sends_zeros_with_noise() -> None:
    """Retries are paid from the reserve; after that, and without ratings, the table is noise and costs nothing."""
    priced = price_plan(PLAN, epsilon=math.inf, delta=1e-6, cohort=Cohort(10))
    blocks = [Entries(np.full(code.size, 1.0)) for code in priced.codes[0]]
    table, _ = make_table(priced, 1, blocks, TableAccountant(), randomness=SeededRandomness(1))
    assert table.any()
    table, spent = make_table(priced, 1, blocks, TableAccountant(), randomness=SeededRandomness(1), sends_zeros=True)
    assert (table.any(), spent.spent()) == (False, 0.0)
    priced = price_plan(PLAN, epsilon=8, delta=1e-6, cohort=Cohort(10), reserve=0.4)
    spent = TableAccountant()
    seen = []
    for _ in range(5):
        table, after = make_table(priced, 1, blocks, spent, randomness=SeededRandomness(1))
        seen.append((table.tobytes(), after.spent() > spent.spent()))
        spent = after
    paid = [paid for _, paid in seen]
    assert paid[:2] == [True, True]
    assert paid == sorted(paid, reverse=True)
    silent, _ = make_table(priced, 1, blocks, spent, randomness=SeededRandomness(1), sends_zeros=True)
    assert seen[4][0] == silent.tobytes() != seen[1][0]
    assert affordable_fraction(priced, 2, spent) == 1.0
    assert spent.spent() < run_mu(8, 1e-6) ** 2


@pytest.mark.parametrize(
    ("reserve", "least", "most"), [(0.0, 0.0, 0.0), (0.1, 0.0, 0.0), (0.3, 0.5, 0.999), (0.6, 1.0, 1.0)]
)
def test_a_repeated_attempt_is_paid_out_of_the_reserve(reserve: float, least: float, most: float) -> None:
    """With norms reduced where the reserve is small, and not at all where that would leave less than half of them."""
    priced = price_plan(PLAN, epsilon=8, delta=1e-6, cohort=Cohort(10), reserve=reserve)
    spent = TableAccountant()
    spent.compose(priced.table_sent(0))
    fraction = affordable_fraction(priced, 1, spent)
    assert least <= fraction <= most
    for number, own in ((1, fraction), (2, 1.0)):
        if own:
            spent.compose(priced.table_sent(number - 1, own))
    assert spent.spent() <= priced.mu_squared * (1 + 1e-9)


def test_a_device_that_missed_a_round_can_pay_a_repeated_one_in_full() -> None:
    """The budget of the first round, which it was not in, is left."""
    priced = price_plan(PLAN, epsilon=8, delta=1e-6, cohort=Cohort(10))
    spent = TableAccountant()
    spent.compose(priced.table_sent(1))
    missed = TableAccountant()
    missed.compose(priced.table_sent(0))
    second = TableAccountant()
    second.compose(priced.table_sent(1))
    expected = min(1.0, math.sqrt(missed.spent() / second.spent()))
    assert affordable_fraction(priced, 2, spent) == pytest.approx(expected if expected >= 0.5 else 0.0, rel=1e-6)


@pytest.mark.parametrize("fraction", [0.0, 1e-9])
def test_a_person_who_allows_nothing_any_more_sends_zeros(fraction: float) -> None:
    """Also after a table was paid for: lowering one's budget must not be seen."""
    priced = price_plan(PLAN, epsilon=8, delta=1e-6, cohort=Cohort(10))
    spent = TableAccountant()
    spent.compose(priced.table_sent(0))
    assert affordable_fraction(priced, 2, spent, fraction) == 0
    blocks = [Entries(np.full(code.size, 1.0)) for code in priced.codes[1]]
    table, after = make_table(priced, 2, blocks, spent, fraction=fraction, randomness=SeededRandomness(1))
    silent, _ = make_table(priced, 2, blocks, spent, randomness=SeededRandomness(1), sends_zeros=True)
    assert after == spent
    np.testing.assert_array_equal(table, silent)


def test_a_roster_of_more_devices_than_the_rules_are_for_is_refused() -> None:
    """Neighbours and threshold were chosen for ten."""
    attempt = Attempt().play(Phase.SHARES)
    keys = [attempt.people[0].round.state.keys]
    for number in range(1, 12):
        person = Person(number, attempt.terms)
        keys.append(person.report(attempt.announcement))
    roster = make_roster(attempt.announcement.digest, keys)
    with pytest.raises(RemoteProtocolError, match="roster"):
        attempt.people[0].report(roster)


def test_a_person_with_half_a_budget_pays_half_and_stays_within_it() -> None:
    """With k = ½ each round costs a quarter of μ², and the sum of the plan k² μ²."""
    priced = price_plan(PLAN, epsilon=8, delta=1e-6, cohort=Cohort(10))
    spent = TableAccountant()
    for number in (1, 2):
        blocks = [Entries(np.full(code.size, 1.0)) for code in priced.codes[number - 1]]
        _, spent = make_table(priced, number, blocks, spent, fraction=0.5, randomness=SeededRandomness(1))
    assert spent.spent() == pytest.approx(run_mu(8, 1e-6) ** 2 / 4, rel=1e-4)
    assert spent.tables == 2
    assert affordable_fraction(priced, 2, spent, 0.5) == 0.0  # a repeated attempt, for which nothing is left
    assert affordable_fraction(priced, 2, spent) > 0  # unless the person allows more from now on


def test_blocks_must_be_those_of_the_round() -> None:
    """Two blocks in the first round, one in the second."""
    priced = make_terms().priced
    with pytest.raises(ParameterError, match="blocks"):
        make_table(priced, 1, [], TableAccountant(), randomness=SeededRandomness(1))


def test_states_and_phases_are_one_circle() -> None:
    """Every state is reached, and an announcement is heard in all of them."""
    assert set(itertools.chain(*(after.values() for after in NEXT_STATE.values()))) == set(NEXT_STATE)
    assert all(after[Announcement] is Keyed for after in NEXT_STATE.values())
    assert [after for _, after in EXPECTED.values()] == [*PHASES[1:], Phase.SUMMED]


def fuzz(count: int, seed: int) -> int:
    """Mutated messages of all kinds through the decoders: how many were still valid; all others were refused."""
    rng, valid, terms = random.Random(seed), 0, make_terms()
    offer = Offer(RUN, "masked", "gp", {"epsilon": 8.0}, terms, bytes(32))
    public = Public.of(RUN, 1, terms, {"counts": np.ones(4)})
    alone = [*one_of_each().values(), offer, public]
    enclosed = [Envelope(RUN, 1, 1, "keys", message) for message in [*one_of_each().values(), terms]]
    bodies = [(wire.encode(message), type(message)) for message in [*alone, *enclosed]]
    for _ in range(count):
        body, kind = rng.choice(bodies)
        try:
            wire.decode(mutate(body, rng), kind)
            valid += 1
        except RemoteProtocolError:
            continue
    return valid


def test_the_decoders_refuse_or_accept_and_never_crash() -> None:
    """4,000 mutated messages: each is a valid message or a RemoteProtocolError, nothing else."""
    assert 0 < fuzz(4000, seed=3) < 4000


@pytest.mark.soak
def test_the_decoders_stand_a_million_mutated_messages() -> None:
    """The same for 10⁶ of them; the record says how many were still valid."""
    count, valid = 10**6, fuzz(10**6, seed=4)
    assert 0 < valid < count
    keep_record(
        "masked-fuzz", {"mutated_messages": count, "still_valid": valid, "refused": count - valid, "crashes": 0}
    )
