"""The public side: phases, refusals that change nothing, and sums that no order of arrival can change."""

import itertools

import numpy as np
import pytest
from parties import MODEL, N_ITEMS, make_server, make_terms, make_vectors

from hushrec.errors import LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import Finished, GradientReport
from hushrec.server import NEXT_PHASE, DeadlinePassed, Phase, PublishItems, Server, StartRound


def make_report(round_number: int = 1, items: tuple[int, ...] = (2, 5), value: float = 0.3) -> GradientReport:
    """A report with the same number everywhere."""
    return GradientReport(round_number, np.array(items), np.full((len(items), 3), value))


def view(server: Server) -> tuple[object, ...]:
    """Everything of a server that a refusal must leave alone."""
    return (
        server.phase,
        server.round_number,
        server.item_vectors.tobytes(),
        sorted(map(str, server._reports)),
        sorted(map(str, server._finished)),
        server.terms.n_items,
    )


def server_in(phase: Phase) -> Server:
    """A server brought to that phase, with one report of three in it."""
    server = make_server()
    if phase is not Phase.PUBLISHED:
        server.start_round()
        server.receive(0, make_report())
    if phase is Phase.SUMMED:
        server.deadline_passed()
    return server


ACTIONS = {
    StartRound: lambda server: server.start_round(),
    GradientReport: lambda server: server.receive(1, make_report()),
    Finished: lambda server: server.receive(1, Finished(1)),
    DeadlinePassed: lambda server: server.deadline_passed(),
    PublishItems: lambda server: server.publish(),
}


@pytest.mark.parametrize("message", ACTIONS, ids=lambda message: message.__name__)
@pytest.mark.parametrize("phase", Phase)
def test_every_phase_takes_its_own_messages_and_refuses_the_others(phase, message):
    """A legal move leads where the table says; an illegal one raises and changes nothing."""
    server = server_in(phase)
    before = view(server)
    if message in NEXT_PHASE[phase]:
        ACTIONS[message](server)
        assert server.phase is NEXT_PHASE[phase][message]
    else:
        with pytest.raises((LocalProtocolError, RemoteProtocolError)):
            ACTIONS[message](server)
        assert view(server) == before


def test_a_round_by_hand():
    """Item 2 gets 0.3 and 0.9, moves by 0.6; item 5 gets 0.3 alone; the others stay."""
    server = make_server()
    server.start_round()
    server.receive(0, make_report())
    server.receive(1, make_report(items=(2,), value=0.9))
    for client in (0, 1, 2):
        server.receive(client, Finished(1))
    assert server.phase is Phase.SUMMED
    moved = server.publish() - make_vectors()
    np.testing.assert_allclose(moved[2], 0.6)
    np.testing.assert_allclose(moved[5], 0.3)
    np.testing.assert_allclose(np.delete(moved, [2, 5], axis=0), 0)


def test_the_round_closes_when_all_have_finished():
    """Not before the last one."""
    server = make_server()
    server.start_round()
    for client in (2, 0):
        server.receive(client, Finished(1))
        assert server.phase is Phase.OPEN
    server.receive(1, Finished(1))
    assert server.phase is Phase.SUMMED


def test_a_drop_out_costs_only_itself():
    """The deadline closes the round with what has arrived."""
    server = make_server()
    server.start_round()
    server.receive(0, make_report(items=(7,)))
    server.receive(0, Finished(1))
    server.deadline_passed()
    moved = server.publish() - make_vectors()
    np.testing.assert_allclose(moved[7], 0.3)
    assert server.start_round().round_number == 2


@pytest.mark.parametrize("names", [(0, 1, 2), ("b", "a", "c"), (10, 9, "x")])
def test_the_order_of_arrival_changes_no_bit(names, rng):
    """Every permutation of three reports gives the same item vectors."""
    reports = [GradientReport(1, np.arange(N_ITEMS), rng.normal(size=(N_ITEMS, 3))) for _ in names]
    results = set()
    for order in itertools.permutations(range(3)):
        server = make_server(names)
        server.start_round()
        for index in order:
            server.receive(names[index], reports[index])
        server.deadline_passed()
        results.add(server.publish().tobytes())
    assert len(results) == 1


@pytest.mark.parametrize(
    ("sender", "message", "status", "sentence"),
    [
        (9, make_report(), 403, "not enrolled"),
        (9, Finished(1), 403, "not enrolled"),
        (1, make_report(2), 409, "report is for round 2, but the open round is 1"),
        (1, Finished(2), 409, "report is for round 2, but the open round is 1"),
        (0, make_report(), 409, "reported in this round already"),
        (2, make_report(), 409, "finished the round already"),
        (2, Finished(1), 409, "finished the round already"),
        (1, make_report(items=(2, 20)), 422, "name items below 20"),
        (1, GradientReport(1, np.array([2]), np.ones((1, 4))), 422, "must have 3 numbers each"),
        (1, make_report(value=1e3), 422, "norms up to 100 in this round"),
    ],
)
def test_hostile_and_late_messages_are_refused_and_change_nothing(sender, message, status, sentence):
    """Each with a status hint, and without naming an item."""
    server = make_server()
    server.start_round()
    server.receive(0, make_report())
    server.receive(2, Finished(1))
    before = view(server)
    with pytest.raises(RemoteProtocolError, match=sentence) as refusal:
        server.receive(sender, message)
    assert refusal.value.status_hint == status
    assert view(server) == before


def test_a_message_between_rounds_is_told_to_wait():
    """Status 409, with the last round's number."""
    server = make_server()
    with pytest.raises(RemoteProtocolError, match="no round is open; the last was round 0"):
        server.receive(0, make_report())


def test_reports_are_forgotten_when_the_round_closes():
    """Only the sum survives."""
    server = server_in(Phase.SUMMED)
    assert not server._reports
    assert repr(server) == "Server(summed, round 1, 0 finished)"


def test_rounds_end_with_the_terms():
    """Ten rounds were announced: an eleventh is refused."""
    server = make_server(max_rounds=1)
    server.start_round()
    server.deadline_passed()
    server.publish()
    with pytest.raises(LocalProtocolError, match="all 1 rounds of the terms are over"):
        server.start_round()


def test_clients_join_between_rounds():
    """Whoever is enrolled is waited for; in an open round nobody joins."""
    server = make_server(())
    server.enrol(1)
    server.start_round()
    with pytest.raises(LocalProtocolError):
        server.enrol(5)
    server.receive(1, Finished(1))
    assert server.phase is Phase.SUMMED


def test_the_catalogue_grows_at_its_end():
    """New items are announced with new terms, and can be reported."""
    server = make_server()
    server.append_items(make_vectors(4, seed=9))
    announcement = server.start_round()
    assert announcement.terms.n_items == 24
    server.receive(0, make_report(items=(23,)))
    with pytest.raises(LocalProtocolError):
        server.append_items(make_vectors(1))
    with pytest.raises(ParameterError, match="must have 3 numbers each"):
        make_server().append_items(make_vectors(1, width=2))


def test_item_vectors_of_the_wrong_shape_are_refused():
    """The table must fit the terms and the model."""
    with pytest.raises(ParameterError, match=r"shape \(20, 3\), got \(19, 3\)"):
        Server(make_terms(), MODEL, make_vectors(19), [])


def test_a_tighter_norm_bound_can_be_set():
    """What the default lets through, a strict server refuses."""
    server = Server(make_terms(), MODEL, make_vectors(), [0], max_gradient_norm=0.1)
    server.start_round()
    with pytest.raises(RemoteProtocolError, match=r"norms up to 0\.1"):
        server.receive(0, make_report())


def test_numbers_that_are_none_never_reach_the_table():
    """Neither at the start nor with new items, and a refusal leaves the server as it was."""
    broken = np.full((N_ITEMS, 3), np.nan)
    with pytest.raises(ParameterError, match="finite"):
        Server(make_terms(), MODEL, broken, [])
    server = make_server()
    before = view(server)
    with pytest.raises(ParameterError, match="finite"):
        server.append_items(broken[:1])
    assert view(server) == before


def test_the_bound_on_gradients_falls_with_the_step():
    """What passes in round 1 is absurd in round 10."""
    server = Server(make_terms(), MODEL, make_vectors(), [0], round_number=9)
    server.start_round()
    with pytest.raises(RemoteProtocolError, match=r"norms up to 25\.1"):
        server.receive(0, make_report(10, value=40.0))
