"""Devices that leave in any phase, over HTTP: the sum is the engine's, integer by integer, or nothing is revealed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from masked_kit import (
    PHASES,
    close_phase,
    engine_sum,
    joined,
    masked_settings,
    problem_of,
    public_of,
    report,
    seed_devices,
    survivors_of,
    tables_of,
)
from service_kit import OPEN_SOCKETS, Live, keep_record, wait_for

from hushrec import Device
from hushrec.protocols.masked.cohorts import Attempt
from hushrec.protocols.masked.server_side import MaskedServer
from hushrec.simulation.training_problem import AnyProblem

pytestmark = OPEN_SOCKETS


def leave_in(live: Live, devices: list[Device], phase: str, lost: int, round_number: int, attempt: int = 1) -> None:
    """The first `lost` devices are silent from this phase on, and the deadline passes; stop where the attempt ends."""
    for place in PHASES:
        awake = devices if PHASES.index(place) < PHASES.index(phase) else devices[lost:]
        report(live, awake, place, round_number, attempt)
        if place == phase and lost:
            close_phase(live)
            if not live.rounds.is_open or live.rounds.server.address.attempt > attempt:
                return


@pytest.fixture
def ended(monkeypatch: pytest.MonkeyPatch) -> list[Attempt]:
    """Attempts that ended with a sum. The server forgets them as soon as it opens the next round."""
    found, end_round = [], MaskedServer._end_round

    def keep(side: MaskedServer, attempt: Attempt) -> Any:
        found.append(attempt)
        return end_round(side, attempt)

    monkeypatch.setattr(MaskedServer, "_end_round", keep)
    return found


def check_round(
    live: Live,
    devices: list[Device],
    problem: AnyProblem,
    ended: list[Attempt],
    phase: str,
    lost: int,
    round_number: int,
    attempt: int = 1,
) -> None:
    """Drop-outs in one phase: the sum is of whose tables arrived, and it is the engine's."""
    public = public_of(live)
    leave_in(live, devices, phase, lost, round_number, attempt)
    wait_for(lambda: live.rounds.server.side.learner.round_number == round_number)
    survivors = survivors_of(ended[-1], devices)
    assert survivors == list(range(lost if PHASES.index(phase) <= PHASES.index("table") else 0, len(devices)))
    np.testing.assert_array_equal(ended[-1].sum, engine_sum(problem, public, survivors, round_number, attempt))


def test_sums_over_http_are_the_engines_with_drop_outs_in_each_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[Attempt]
) -> None:
    """In round r, three of ten leave in phase r, and are back in the next round; ledgers have every table once.

    No more may leave. Other shares of drop-outs are left to `make soak`.
    """
    lost = 3
    with joined(tmp_path, 10, masked_settings(10, terms={"survivors": 0.7})) as (live, devices):
        seed_devices(monkeypatch, devices)
        problem = problem_of(live, devices)
        for number, phase in enumerate(PHASES, start=1):
            check_round(live, devices, problem, ended, phase, lost, number)
        assert live.rounds.is_over
        # Whoever left before sending a table has not paid for it.
        assert tables_of(devices) == [2] * lost + [5] * (10 - lost)


def test_below_the_threshold_over_http_nothing_is_revealed_and_the_next_attempt_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ended: list[Attempt]
) -> None:
    """In round r, four of five leave in phase r of the first attempt; the second has all, with draws of its own."""
    with joined(tmp_path, 5, masked_settings(5, terms={"reserve": 0.6})) as (live, devices):
        seed_devices(monkeypatch, devices)
        problem = problem_of(live, devices)
        for number, phase in enumerate(PHASES, start=1):
            leave_in(live, devices, phase, 4, number)
            assert live.rounds.server.side.learner.round_number == len(ended) == number - 1
            check_round(live, devices, problem, ended, PHASES[0], 0, number, attempt=2)


@pytest.mark.soak
def test_every_share_of_drop_outs_in_every_phase_over_http(tmp_path: Path, ended: list[Attempt]) -> None:
    """Nobody, one, a tenth and three tenths of twenty devices leave in each phase: twenty rounds."""
    devices = 20
    shares = [0, 1, devices // 10, 3 * devices // 10]
    for lost in shares:
        (tmp_path / str(lost)).mkdir()
        settings = masked_settings(devices, terms={"survivors": 0.7, "corrupt": 0.0})
        with joined(tmp_path / str(lost), devices, settings) as (live, people), pytest.MonkeyPatch.context() as patch:
            seed_devices(patch, people)
            problem = problem_of(live, people)
            for number, phase in enumerate(PHASES, start=1):
                check_round(live, people, problem, ended, phase, lost, number)
    done = {"devices": devices, "drop_outs": shares, "phases": list(PHASES), "rounds": len(shares) * len(PHASES)}
    keep_record("masked-dropouts", done | {"sums_equal_to_the_engines": True})
