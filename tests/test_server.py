"""The public side: phases, refusals that change nothing, and sums that no order of arrival can change."""

import itertools

import numpy as np
import pytest
from parties import MODEL, N_ITEMS, make_server, make_terms, make_vectors

from hushrec.errors import LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import Address
from hushrec.protocols.gradient.messages import REPORT, GradientReport
from hushrec.protocols.gradient.server import GradientServer
from hushrec.protocols.parties import NextAttempt, RoundOver, ServerSide
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.server import MOST_ATTEMPTS, NEXT_STAGE, Event, Server, Stage


def make_report(round_number: int = 1, items: tuple[int, ...] = (2, 5), value: float = 0.3) -> GradientReport:
    """A report with the same number everywhere."""
    return GradientReport(round_number, np.array(items, dtype=np.int64), np.full((len(items), 3), value))


def at(round_number: int = 1) -> Address:
    """Where a report of that round belongs."""
    return Address(round_number, 1, REPORT)


def view(server: Server) -> tuple[object, ...]:
    """Everything of a server that a refusal must leave alone."""
    return (
        server.stage,
        server.round_number,
        server.side.item_vectors.tobytes(),
        sorted(map(str, server.reported)),
        server.side.terms.n_items,
    )


def published(server: Server) -> np.ndarray:
    """What the server has made public."""
    return server.side.public["item_vectors"]


def server_in(stage: Stage) -> Server:
    """A server at that stage; in an open round one report of three is in."""
    server = make_server()
    if stage is Stage.OPEN:
        server.start_round()
        server.receive(0, at(), make_report())
    return server


def test_a_protocol_without_sums_refuses_one():
    """What needs every report itself takes no sum of them."""
    server = server_in(Stage.OPEN)
    assert server.side.addend(at(), 0, make_report()) is None
    with pytest.raises(LocalProtocolError, match="take_sum"):
        server.close_phase([], [([0], np.zeros(3, dtype=np.uint32))])


ACTIONS = {
    Event.START_ROUND: lambda server: server.start_round(),
    Event.RECEIVE: lambda server: server.receive(1, at(), make_report()),
    Event.END_ROUND: lambda server: server.close_phase(),  # of the only phase there is
    Event.ENROL: lambda server: server.replace_members([7]),
}


@pytest.mark.parametrize("event", ACTIONS, ids=lambda event: event.name)
@pytest.mark.parametrize("stage", Stage)
def test_every_stage_takes_its_own_events_and_refuses_the_others(stage, event):
    """A legal move leads where the table says; an illegal one raises and changes nothing."""
    server = server_in(stage)
    before = view(server)
    if event in NEXT_STAGE[stage]:
        ACTIONS[event](server)
        assert server.stage is NEXT_STAGE[stage][event]
    else:
        with pytest.raises((LocalProtocolError, RemoteProtocolError)):
            ACTIONS[event](server)
        assert view(server) == before


def test_a_round_by_hand():
    """Item 2 gets 0.3 and 0.9, moves by 0.6; item 5 gets 0.3 alone; the others stay."""
    server = make_server()
    server.start_round()
    server.receive(0, at(), make_report())
    server.receive(1, at(), make_report(items=(2,), value=0.9))
    server.receive(2, at(), make_report(items=()))
    assert server.reported.keys() == server.asked
    server.close_phase()
    moved = published(server) - make_vectors()
    np.testing.assert_allclose(moved[2], 0.6)
    np.testing.assert_allclose(moved[5], 0.3)
    np.testing.assert_allclose(np.delete(moved, [2, 5], axis=0), 0)


def test_the_inbox_is_empty_once_a_device_has_answered():
    """And for everybody between rounds."""
    server = make_server()
    assert server.inbox(0) is None
    server.start_round()
    assert server.inbox(0).round_number == 1
    assert server.inbox(9) is None
    server.receive(0, at(), make_report())
    assert server.inbox(0) is None
    assert server.reported.keys() < server.asked


def test_a_drop_out_costs_only_itself():
    """A phase closes with what has arrived."""
    server = make_server()
    server.start_round()
    server.receive(0, at(), make_report(items=(7,)))
    server.close_phase()
    np.testing.assert_allclose((published(server) - make_vectors())[7], 0.3)
    server.start_round()
    assert server.address == at(2)


class Counting(ServerSide):
    """A protocol of two phases that needs two answers in each, and counts what it hears."""

    phases = ("hello", "bye")
    terms = make_terms()

    def __init__(self):
        self.heard = []

    @property
    def public(self):
        return {"heard": np.array(self.heard)}

    def restore(self, public):
        self.heard = public["heard"].tolist()

    def open(self, round_number, attempt, members):
        return {name: f"hello {name}" for name in members}

    def check(self, address, sender, message):
        if not isinstance(message, int):
            raise RemoteProtocolError("a number, please.")

    def close(self, address, answers):
        numbers = dict(answers)
        if len(numbers) < 2:
            return NextAttempt("too few", sorted(numbers))
        if address.phase == "hello":
            return {name: f"bye {name}" for name in numbers}
        self.heard.append(sum(numbers.values()))
        return RoundOver()


def counting_server() -> Server:
    """Three devices, in their first round."""
    server = Server(Counting(), ("a", "b", "c"))
    server.start_round()
    return server


def test_a_round_of_two_phases_asks_those_who_answered():
    """The second phase is for whom the first one heard; each phase has its own address and inbox."""
    server = counting_server()
    for name in "ab":
        assert server.inbox(name) == f"hello {name}"
        server.receive(name, Address(1, 1, "hello"), 1)
    server.close_phase()
    assert server.address == Address(1, 1, "bye")
    assert [server.inbox(name) for name in "abc"] == ["bye a", "bye b", None]
    with pytest.raises(RemoteProtocolError, match="does not ask this device"):
        server.receive("c", server.address, 1)
    with pytest.raises(RemoteProtocolError, match="phase bye is open"):
        server.receive("a", Address(1, 1, "hello"), 1)
    for name, number in (("b", 4), ("a", 3)):
        server.receive(name, server.address, number)
    server.close_phase()
    assert (server.stage, server.side.heard) == (Stage.IDLE, [7])


def test_answers_that_are_stored_elsewhere_are_given_back_in_order():
    """The server keeps a stand-in for each, takes them as they are read, and refuses another order or a repetition."""
    server = counting_server()
    for name in "ba":
        server.check(name, server.address, 1)
        server.keep(name, server.address, f"kept {name}")
    server.keep("a", Address(9, 1, "hello"), "of another phase")
    assert dict(server.reported) == {"b": "kept b", "a": "kept a"}
    assert server.inbox("a") is None
    for wrong in ([("b", 1), ("a", 1)], [("a", 1), ("a", 1)]):
        with pytest.raises(LocalProtocolError, match="order"):
            server.close_phase(iter(wrong))
    server.drop("b")
    assert (dict(server.reported), set(server.asked)) == ({"a": "kept a"}, {"a", "c"})
    server.close_phase(iter([("a", 1), ("c", 2)]))
    assert server.address == Address(1, 1, "bye")


def test_a_phase_with_too_few_answers_begins_another_attempt():
    """Of whom the protocol names; what was said in the first attempt is gone."""
    server = counting_server()
    server.receive("a", server.address, 1)
    server.close_phase()
    assert server.address == Address(1, 2, "hello")
    assert [server.inbox(name) for name in "abc"] == ["hello a", None, None]
    for _ in range(MOST_ATTEMPTS - 2):
        server.close_phase()
    with pytest.raises(LocalProtocolError, match=f"round 1 failed {MOST_ATTEMPTS} times"):
        server.close_phase()


def test_a_saved_server_goes_on_between_rounds_and_in_the_middle_of_one():
    """Its state between rounds, and the stored answers of the phases that were closed, are all it takes."""
    server = counting_server()
    answers = [("a", 1), ("b", 2)]
    for _ in range(2):
        server.close_phase(answers)
    twin = Server(Counting(), ("a", "b", "c"))
    twin.restore(server.state())
    for one in (server, twin):
        one.resume_round()
        one.close_phase(answers)
        assert one.address == Address(2, 1, "bye")
        with pytest.raises(LocalProtocolError, match="state must be read"):
            one.state()
        one.close_phase(answers)
    assert twin.side.heard == server.side.heard == [3, 3]
    twin.replace_members(["c"])
    twin.resume_round(attempt=2)
    assert (twin.address, twin.inbox("c"), twin.inbox("a")) == (Address(3, 2, "hello"), "hello c", None)


@pytest.mark.parametrize("names", [(0, 1, 2), ("b", "a", "c"), (10, 9, "x")])
def test_the_order_of_arrival_changes_no_bit(names, rng):
    """Every permutation of three reports gives the same item vectors."""
    reports = [GradientReport(1, np.arange(N_ITEMS), rng.normal(size=(N_ITEMS, 3))) for _ in names]
    results = set()
    for order in itertools.permutations(range(3)):
        server = make_server(names)
        server.start_round()
        for index in order:
            server.receive(names[index], at(), reports[index])
        server.close_phase()
        results.add(published(server).tobytes())
    assert len(results) == 1


@pytest.mark.parametrize(
    ("sender", "address", "message", "status", "sentence"),
    [
        (9, at(), make_report(), 409, "does not ask"),
        (1, at(2), make_report(2), 409, "is for round 2, attempt 1, phase report, but round 1"),
        (1, Address(1, 2, REPORT), make_report(), 409, "the report is for round 1, attempt 2"),
        (1, Address(1, 1, "share"), make_report(), 409, "phase share, but"),
        (0, at(), make_report(), 409, "already reported in this phase"),
        (1, at(), make_report(2), 422, "round_number"),
        (1, at(), "hello", 422, "GradientReport"),
        (1, at(), make_report(items=(2, 20)), 422, "item numbers .* below 20"),
        (1, at(), GradientReport(1, np.array([2]), np.ones((1, 4))), 422, "gradients .* 3 numbers"),
        (1, at(), make_report(value=1e3), 422, "gradient .* at most 100 "),
    ],
)
def test_hostile_and_late_messages_are_refused_and_change_nothing(sender, address, message, status, sentence):
    """Each with a status hint, and without naming an item."""
    server = server_in(Stage.OPEN)
    before = view(server)
    with pytest.raises(RemoteProtocolError, match=sentence) as refusal:
        server.receive(sender, address, message)
    assert refusal.value.status_hint == status
    assert view(server) == before


def test_a_message_between_rounds_is_told_to_wait():
    """Status 409, with the last round's number."""
    server = make_server()
    with pytest.raises(RemoteProtocolError, match="no round is open"):
        server.receive(0, at(), make_report())


def test_reports_are_forgotten_when_the_round_closes():
    """Only the sum survives."""
    server = server_in(Stage.OPEN)
    server.close_phase()
    assert not server.reported
    assert "0 reports" in repr(server)


def test_rounds_end_with_the_terms():
    """Ten rounds were announced: an eleventh is refused."""
    server = make_server(max_rounds=1)
    server.start_round()
    server.close_phase()
    with pytest.raises(LocalProtocolError, match="all 1 rounds"):
        server.start_round()


def test_clients_join_between_rounds():
    """Whoever is enrolled is waited for; in an open round nobody joins."""
    server = make_server(())
    server.replace_members([1])
    server.start_round()
    with pytest.raises(LocalProtocolError):
        server.replace_members([1, 5])
    server.receive(1, at(), make_report())
    assert server.reported.keys() == server.asked


def test_the_catalogue_grows_at_its_end():
    """New items are announced with new terms, and can be reported."""
    server = make_server()
    server.side.add_items(4, rng=SeededRandomness(9).stream(Purpose.ITEM_VECTORS))
    server.start_round()
    assert server.inbox(0).terms.n_items == 24
    server.receive(0, at(), make_report(items=(23,)))


def test_item_vectors_of_the_wrong_shape_are_refused():
    """The table must fit the terms and the model."""
    with pytest.raises(ParameterError, match=r"shape \(20, 3\), got \(19, 3\)"):
        GradientServer(make_terms(), MODEL, make_vectors(19))


def test_a_tighter_norm_bound_can_be_set():
    """What the default lets through, a strict server refuses."""
    server = Server(GradientServer(make_terms(), MODEL, make_vectors(), max_gradient_norm=0.1), [0])
    server.start_round()
    with pytest.raises(RemoteProtocolError, match=r"gradient .* at most 0\.1 "):
        server.receive(0, at(), make_report())


def test_numbers_that_are_none_never_reach_the_table():
    """A start with one is refused."""
    broken = np.full((N_ITEMS, 3), np.nan)
    with pytest.raises(ParameterError, match="finite"):
        GradientServer(make_terms(), MODEL, broken)


def test_the_bound_on_gradients_falls_with_the_step():
    """What passes in round 1 is absurd in round 10."""
    server = Server(GradientServer(make_terms(), MODEL, make_vectors()), [0], round_number=9)
    server.start_round()
    with pytest.raises(RemoteProtocolError, match=r"gradient .* at most 25\.1"):
        server.receive(0, at(10), make_report(10, value=40.0))


def test_an_open_round_cannot_be_opened_again():
    """Neither started nor resumed, and nothing changes."""
    server = server_in(Stage.OPEN)
    before = view(server)
    for opened in (server.start_round, server.resume_round):
        with pytest.raises(LocalProtocolError, match="start a round"):
            opened()
        assert view(server) == before
