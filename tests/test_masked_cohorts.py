"""Several cohorts in one round: how many there are, their sums, and what becomes of one that fails or is spoiled."""

import copy
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from service_kit import OPEN_SOCKETS, live_server, wait_for
from test_masked_parties import make_hostile
from test_masked_run import device_sum, small_problem
from test_masked_service import (
    catalogue,
    joined,
    masked_settings,
    new_people,
    play_round,
    report,
    take_part,
    wait_for_phase,
)
from test_service_faults import Clock

from hushrec import wire
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import LocalProtocolError
from hushrec.messages import Address
from hushrec.protocols.masked import device_side
from hushrec.protocols.masked.cohorts import cohort_sizes, draw_cohorts
from hushrec.protocols.masked.encoding import decode_sum
from hushrec.protocols.masked.secagg.roster import device_name
from hushrec.protocols.simulated import SIMULATED_RUN, simulated_secret
from hushrec.server import Server

pytestmark = OPEN_SOCKETS
PEOPLE, LARGEST = 18, 6


def three_cohorts() -> ReferenceEngine:
    """Eighteen devices in a run whose sums hold six, of which four must survive."""
    problem = small_problem(n_users=PEOPLE)
    return ReferenceEngine(replace(problem, terms=small_problem(n_users=LARGEST, survivors=0.6).terms))


def members_asked(cohort: Any) -> list[int]:
    """Whom the cohort asks in the open phase."""
    return sorted(int.from_bytes(name, "big") for name in cohort.asked)


def members_of(cohort: Any) -> list[int]:
    """Whose tables are in the cohort's sum."""
    return sorted(int.from_bytes(name, "big") for name in cohort.survivors)


@pytest.mark.parametrize(
    ("devices", "sizes"), [(5, [5]), (10, [10]), (14, [10]), (18, [9, 9]), (29, [10, 10, 9]), (36, [9, 9, 9, 9])]
)
def test_cohorts_are_full_or_nearly_so(devices: int, sizes: list[int]) -> None:
    """Of 8 to 10 devices each; too many for one and too few for two leave some out."""
    assert cohort_sizes(devices, 8, 10) == sizes


def test_a_cohort_is_drawn_by_a_secret_and_the_announcement() -> None:
    """Again the same; with another announcement, or another secret, others."""
    names = [number.to_bytes(16, "big") for number in range(12)]
    drawn = draw_cohorts(names, [6, 6], b"secret", b"a", {})
    assert draw_cohorts(names[::-1], [6, 6], b"secret", b"a", {}) == drawn
    assert draw_cohorts(names, [6, 6], b"secret", b"b", {}) != drawn
    assert draw_cohorts(names, [6, 6], b"other", b"a", {}) != drawn


def test_suspects_are_spread_over_the_cohorts_and_left_out_first() -> None:
    """Five in three cohorts are two, two and one; whoever has no place is a suspect."""
    names = [number.to_bytes(16, "big") for number in range(18)]
    suspects = set(names[:5])
    drawn = draw_cohorts(names, [6, 6, 6], b"secret", b"a", dict.fromkeys(suspects, 1))
    assert sorted(name for cohort in drawn for name in cohort) == names
    assert [len(cohort) for cohort in drawn] == [6, 6, 6]
    assert sorted(len(suspects & set(cohort)) for cohort in drawn) == [1, 2, 2]
    fewer = draw_cohorts(names, [7, 7], b"secret", b"a", dict.fromkeys(suspects, 1))
    assert set(names) - {name for cohort in fewer for name in cohort} < suspects


def test_three_cohorts_have_the_engines_sums_and_all_of_them_are_learned_from() -> None:
    """Integer by integer, cohort by cohort; what is learned is their sum, of three times as many devices."""
    engine = three_cohorts()
    problem, side = engine.problem, engine.server.side
    one, codes, table = problem.terms.priced.plan.rounds[0], problem.terms.priced.codes[0], side.learner.table()
    learned: dict[str, Any] = {}
    learn = side.learner.learn
    side.learner.learn = lambda sums, survivors: (learned.update(sums, survivors=survivors), learn(sums, survivors))
    engine.run_round()
    cohorts = side.attempt.cohorts
    assert [len(cohort.survivors) for cohort in cohorts] == [LARGEST] * 3
    assert sorted(user for cohort in cohorts for user in members_of(cohort)) == list(range(PEOPLE))
    values = 0.0
    for cohort in cohorts:
        present = np.isin(np.arange(PEOPLE), members_of(cohort))
        expected = device_sum(problem, CpuMaskedEngine(problem), 1, one, codes, table, present)
        np.testing.assert_array_equal(cohort.sum, expected)
        values = values + decode_sum(codes[0], cohort.sum[: codes[0].size], LARGEST).values
    counts = learned[one.blocks[0].name]
    np.testing.assert_array_equal(counts.values, values)
    assert counts.noise_variance == pytest.approx(PEOPLE * codes[0].share_variance * codes[0].grid ** 2)
    assert (learned["survivors"], side.learner.devices) == (PEOPLE, PEOPLE)


def test_sums_of_tables_stand_for_the_tables() -> None:
    """Several workers add them up, cohort by cohort: the same sums of the same survivors; a wrong sum is refused."""
    calm, summed = three_cohorts(), three_cohorts()
    server, close = summed.server, summed.server.close_phase

    def close_with_sums() -> None:
        grouped: dict[int, Any] = {}
        for name, message in server.reported.items():
            found = server.side.addend(server.address, name, message)
            if found is None:
                return close()
            kept, total = grouped.setdefault(found.cohort, ({}, np.zeros_like(found.integers)))
            kept[name] = found.kept
            total += found.integers
        cohort = server.side.attempt.cohorts[0]
        one, other = (next(iter(group.asked)) for group in server.side.attempt.cohorts[:2])
        for devices, size in (([one], 3), ([one, other], len(total))):
            with pytest.raises(LocalProtocolError, match=r"devices|shape"):
                cohort.receive_sum(dict.fromkeys(devices, bytes(64)), np.zeros(size, dtype=np.uint32))
        twice = copy.deepcopy(cohort)
        twice.receive_sum({one: bytes(64)}, np.zeros(len(total), dtype=np.uint32))
        with pytest.raises(LocalProtocolError, match="before"):
            twice.receive_sum({one: bytes(64)}, np.zeros(len(total), dtype=np.uint32))
        return close([], list(grouped.values()))

    server.close_phase = close_with_sums  # type: ignore[method-assign]
    calm.run_round()
    summed.run_round()
    for expected, found in zip(calm.server.side.attempt.cohorts, server.side.attempt.cohorts, strict=True):
        assert found.survivors == expected.survivors
        np.testing.assert_array_equal(found.sum, expected.sum)


@pytest.mark.parametrize("phase", ["shares", "table", "consent", "unmask"])
def test_a_cohort_that_too_few_stay_in_is_given_up_and_the_others_go_on(phase: str) -> None:
    """Its tables are in no sum, and the round ends in its first attempt."""
    engine = three_cohorts()
    side = engine.server.side
    lost: set[int] = set()

    def absent(address: Address) -> set[int]:
        if address.phase == phase and not lost:
            lost.update(sorted(int.from_bytes(name, "big") for name in side.attempt.cohorts[1].asked)[:4])
        return lost

    engine.absent = absent
    engine.run_round()
    assert side.attempt.announcement.place == (1, 1)
    assert [len(side.attempt.cohorts), len(side.attempt.given_up)] == [2, 1]
    assert len(side.attempt.survivors) == 2 * LARGEST
    assert (side.progress or "").startswith("2 cohorts")
    assert side.learner.round_number == 1


def test_a_phase_closes_early_only_if_every_cohort_that_can_succeed_has_enough() -> None:
    """Of six devices in each cohort four must report, and the early fraction; devices that left are not waited for."""
    engine = three_cohorts()
    server, side = engine.server, engine.server.side
    server.start_round()
    everybody = set(engine.clients)
    assert not side.may_close({0, 1, 2, 3}, set(), 0.1)  # n_min keys: one drop-out would end the attempt
    assert side.may_close({0, 1, 2, 3, 4}, set(), 0.1)
    assert not side.may_close({0, 1, 2, 3, 4}, {4}, 0.1)
    for user in everybody:
        engine._ask(user)
    server.close_phase()
    first = sorted(int.from_bytes(name, "big") for name in side.attempt.cohorts[0].asked)
    rest = everybody.difference(first)
    for given, gone, early_fraction, may_close in [
        ([], [], 0.1, False),
        (first[:3], [], 0.1, False),  # 15 of 18 devices
        (first[:4], [], 0.1, True),
        (first[:4], [], 0.8, False),
        (first[:5], [], 0.8, True),
        (first[:4], first[4:], 1.0, True),
        (first[:4], first[3:5], 0.8, False),  # one that left had reported, and is not counted
        (first[:5], first[4:5], 0.8, True),
        (first[:3], first[3:], 0.8, True),  # this cohort has failed
        (first[:3], first[2:5], 0.8, False),  # n_min may still report
    ]:
        assert side.may_close(rest.union(given), set(gone), early_fraction) is may_close


def test_a_spoiled_cohort_is_discarded_and_its_members_are_suspected() -> None:
    """The round ends with the other two, and the next one spreads the suspects, of whom two are left.

    From then on these are not asked. No round has a second attempt, so that nobody pays twice.
    """
    engine = three_cohorts()
    make_hostile(engine, 4)
    side, number = engine.server.side, engine.problem.terms.max_rounds
    engine.run_round()
    assert "4" in side.suspects
    assert len(side.suspects) == LARGEST
    assert side.learner.devices == 2 * LARGEST
    engine.run_round()
    assert "4" in side.suspects
    assert len(side.suspects) == LARGEST // 3
    for _ in range(number - 2):
        engine.run_round()
        asked = {name for cohort in side.attempt.cohorts for name in members_of(cohort)}
        assert asked == set(range(PEOPLE)) - set(map(int, side.suspects))
    assert side.attempt.announcement.place == (number, 1)
    assert max(client.ledger["table"].tables for client in engine.clients.values()) == number


@pytest.mark.parametrize("asleep", [None, 2])
def test_a_hostile_device_that_rests_is_not_cleared(asleep: int | None) -> None:
    """It lies in the first and in the third round; the second, in which everybody is honest, clears nobody.

    A suspect that is absent from the second round does not make the others less suspect.
    """
    engine = three_cohorts()
    engine.absent = lambda address: {asleep} if address.round_number == 2 else set()
    honest, side = engine.clients[4].report, engine.server.side
    make_hostile(engine, 4)
    lying = engine.clients[4].report
    left = []
    for turn in (lying, honest, lying):
        engine.clients[4].report = turn  # type: ignore[method-assign]
        engine.run_round()
        left.append(len(side.suspects))
        assert "4" in side.suspects
    assert left == [LARGEST, LARGEST, LARGEST // 3]


def test_a_spoiled_cohort_with_a_drop_out_is_spread_before_it_is_left_out() -> None:
    """All members but one are suspects, which are too few to fill a cohort; the second round asks them nevertheless."""
    engine = three_cohorts()
    make_hostile(engine, 4)
    side = engine.server.side

    def absent(address: Address) -> set[int]:
        if address.round_number > 1 or address.phase != "table":
            return set()
        cohort = next(own for own in side.attempt.cohorts if device_name(4) in own.asked)
        return {max(set(members_asked(cohort)) - {4})}

    engine.absent = absent
    engine.run_round()
    assert len(side.suspects) == LARGEST - 1
    engine.run_round()
    assert set(map(int, side.suspects)) <= {user for own in side.attempt.cohorts for user in members_of(own)}
    assert "4" in side.suspects


@pytest.mark.parametrize("suspected", [False, True])
def test_a_restart_makes_the_same_cohorts(suspected: bool) -> None:
    """From the state before the round and the keys that were stored; suspects are spread as they were."""
    engine = three_cohorts()
    server = engine.server
    if suspected:
        make_hostile(engine, 4)
        engine.run_round()
        assert len(server.side.suspects) == LARGEST
    state = server.state()
    server.start_round()
    for user in engine.clients:
        engine._ask(user)
    keys = sorted(server.reported.items())
    server.close_phase()
    side = engine._protocol.make_network_server(engine.problem.terms, engine.problem.model, state)
    side.sign_as(SIMULATED_RUN, simulated_secret(engine.problem.seed))
    again = Server(side, engine.clients, round_number=int(suspected))
    again.resume_round()
    again.close_phase(keys)
    for user in engine.clients:
        assert wire.encode(again.inbox(user)) == wire.encode(server.inbox(user))


def test_over_http_more_devices_than_a_sum_holds_form_cohorts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine devices in sums of three: each cohort's sum is that of what its devices made before they masked it.

    Eight of nine devices are more than the early fraction 0.5, but the cohort of the last one is waited for.
    """
    tables: dict[tuple[int, bytes], Any] = {}
    make = device_side.make_table

    def recording(*given: Any, **more: Any) -> Any:
        made = make(*given, **more)
        tables[len(tables), made[0].tobytes()] = made[0]
        return made

    monkeypatch.setattr(device_side, "make_table", recording)
    settings = masked_settings(3, rounds={"min_devices": 9, "early_fraction": 0.5}, terms={"survivors": 1.0})
    clock = Clock()
    with joined(tmp_path, 9, settings, clock=clock) as (live, devices):
        report(live, devices, "keys")
        report(live, devices[1:], "shares")
        clock.now += 11  # more than grace_seconds
        assert live.admin("POST", "/v1/admin/start").status_code == 200  # the schedule looks at the clock
        assert live.admin("POST", "/v1/admin/pause").status_code == 200
        report(live, devices[:1], "shares")
        take_part(devices, lambda: not live.rounds.is_open and live.rounds.round_number == 1)
        wait_for(lambda: not live.rounds.is_open)
        attempt = live.rounds.server.side.attempt
        assert [len(cohort.survivors) for cohort in attempt.cohorts] == [3, 3, 3]
        assert len(tables) == 9
        np.testing.assert_array_equal(attempt.sum, np.sum(list(tables.values()), axis=0, dtype=np.uint32))
        assert live.rounds.server.side.learner.devices == 9


def test_suspects_outlive_a_restart_inside_an_open_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of five spoils the first attempt; a server that restarts in the second one suspects whom it suspected."""
    make = device_side.make_table
    calls = iter(range(100))

    def spoiling(*given: Any, **more: Any) -> Any:
        table, spent = make(*given, **more)
        return (table + np.uint32(2**30) if next(calls) == 0 else table), spent

    monkeypatch.setattr(device_side, "make_table", spoiling)
    settings = masked_settings(5)
    with ExitStack() as stack:
        devices = new_people(tmp_path, 5)
        for device in devices:
            stack.callback(device.close)
        with live_server(tmp_path, settings, items=catalogue()) as live:
            for device in devices:
                device.join(live.url)
            play_round(live, devices)
            wait_for_phase(live, Address(1, 2, "keys"))
            side = live.rounds.server.side
            suspects, pool = side.suspects, sorted(side._pool)
            assert len(suspects) == len(pool) == 5
            assert side.attempt.announcement.probe
        with live_server(tmp_path, settings, items=catalogue()) as live:
            side = live.rounds.server.side
            assert live.rounds.server.address == Address(1, 2, "keys")
            assert (side.suspects, sorted(side._pool)) == (suspects, pool)
            assert side.attempt.announcement.probe
