"""What is kept of a closed round: its duration, attempts, reports by phase, and the counts of its protocol."""

import json
import logging
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa
from masked_kit import (
    PHASES,
    catalogue,
    close_phase,
    joined,
    masked_settings,
    new_people,
    play_round,
    report,
    take_part,
    wait_for_phase,
)
from service_kit import (
    OPEN_SOCKETS,
    Live,
    RawDevice,
    get,
    held_port,
    live_server,
    make_body,
    small_settings,
    wait_for,
)
from test_service_faults import Clock

from hushrec.messages import Address
from hushrec.protocols.masked import device_side
from hushrec.service import schema
from hushrec.signing import device_id_of

pytestmark = OPEN_SOCKETS


def closed_round(live: Live) -> dict[str, Any]:
    """The only closed round, as the dashboard is told of it; the admin API says the same."""
    wait_for(lambda: live.count("rounds_closed") == 1)
    columns = get(f"{live.url}/dashboard/rounds").json()["rounds"]
    (row,) = live.admin("GET", "/v1/admin/rounds").json()["rounds"]
    assert {name: [value] for name, value in row.items()} == columns
    return row


def test_a_round_lasts_from_its_opening_over_attempts_phases_and_a_restart(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """100 s until an attempt fails, 30 s in a phase of the second, 7 s while no server runs, 2 s in the last phase."""
    wall, settings = Clock(), masked_settings(6)
    with held_port() as port, ExitStack() as stack, caplog.at_level(logging.INFO, "hushrec.service"):
        devices = new_people(tmp_path, 6)
        for device in devices:
            stack.callback(device.close)
        server = {"items": catalogue(), "port": port, "wall_clock": wall}
        with live_server(tmp_path, settings, **server) as live:
            for device in devices:
                device.join(live.url)
            token = live.admin_token
            report(live, devices, "keys")
            report(live, devices[:2], "shares")
            wall.now += 100
            close_phase(live)
            report(live, devices, "keys", attempt=2)
            report(live, devices[:5], "shares", attempt=2)
            wall.now += 30
            close_phase(live)
            report(live, devices[:2], "table", attempt=2)
        wall.now += 7
        with live_server(tmp_path, settings, **server, admin_token=token) as live:
            report(live, devices[2:5], "table", attempt=2)
            report(live, devices[:5], "consent", attempt=2)
            wall.now += 2
            report(live, devices[:5], "unmask", attempt=2)
            found = closed_round(live)
    by_phase = dict(zip(PHASES, (6, 5, 5, 5, 5), strict=True))
    facts = {
        "attempts": 2,
        "phases": by_phase,
        "counts": {"probes": 0, "cohorts": 1, "discarded sums": 0, "not needed": 0},
    }
    assert found["seconds"] == 139
    assert found["devices"] == 6
    assert facts.items() <= found.items()
    events = [json.loads(line.getMessage()) for line in caplog.records if line.name == "hushrec.service"]
    (logged,) = [event for event in events if event["event"] == "round-closed"]
    assert logged == {"event": "round-closed", "round": 1, "reports": 5, "seconds": 139, **facts}


def test_cohorts_are_counted_with_those_that_were_given_up(tmp_path: Path) -> None:
    """Ten devices in two cohorts; two of one cohort drop out, so that it is given up."""
    with joined(tmp_path, 10, masked_settings(5, rounds={"min_devices": 10})) as (live, devices):
        report(live, devices, "keys")
        wait_for_phase(live, Address(1, 1, "shares"))
        first, _ = live.rounds.server.side._asked_together
        lost = sorted(first)[:2]
        stay = [device for device in devices if device._session.name not in lost]
        report(live, stay, "shares")
        close_phase(live)
        others = [device for device in devices if device._session.name not in first]
        for phase in PHASES[2:]:
            report(live, others, phase)
        found = closed_round(live)
    assert found["phases"] == dict(zip(PHASES, (10, 8, 5, 5, 5), strict=True))
    assert (found["attempts"], found["counts"]) == (
        1,
        {"probes": 0, "cohorts": 2, "discarded sums": 0, "not needed": 0},
    )


def test_probes_and_discarded_sums_of_all_attempts_are_counted_over_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of five spoils the first attempt, and the server restarts in the probe that follows."""
    make, calls = device_side.make_table, iter(range(1000))

    def spoiling(*given: Any, **more: Any) -> Any:
        table, spent = make(*given, **more)
        return (table + np.uint32(2**30) if next(calls) == 0 else table), spent

    monkeypatch.setattr(device_side, "make_table", spoiling)
    settings = masked_settings(5, rounds={"deadline_seconds": 2})
    with held_port() as port, ExitStack() as stack:
        devices = new_people(tmp_path, 5)
        for device in devices:
            stack.callback(device.close)
        with live_server(tmp_path, settings, items=catalogue(), port=port) as live:
            for device in devices:
                device.join(live.url)
            token = live.admin_token
            play_round(live, devices)
            wait_for_phase(live, Address(1, 2, "keys"))
            assert live.rounds.server.side.round_counts == {
                "probes": 1,
                "cohorts": 1,
                "discarded sums": 1,
                "not needed": 0,
            }
        settings = masked_settings(5, rounds={"deadline_seconds": 2, "automatic": False})
        with live_server(tmp_path, settings, items=catalogue(), port=port, admin_token=token) as live:
            assert live.rounds.server.side.round_counts == {
                "probes": 1,
                "cohorts": 1,
                "discarded sums": 1,
                "not needed": 0,
            }
            take_part(devices, lambda: not live.rounds.is_open)
            found = closed_round(live)
            counts = found["counts"]
            assert (counts["cohorts"], counts["discarded sums"]) == (1, 1)
            assert 1 <= counts["probes"] <= found["attempts"] - 2
            assert live.admin("POST", "/v1/admin/start").status_code == 200
            assert live.rounds.server.side.round_counts == {
                "probes": 0,
                "cohorts": 1,
                "discarded sums": 0,
                "not needed": 0,
            }


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_database_of_the_previous_version_is_migrated(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """Of its closed round it knows neither attempts nor duration; its open round counts from the last phase."""
    database = f"sqlite:///{tmp_path / 'server.sqlite'}" if kind == "sqlite" else request.getfixturevalue("database")
    settings, wall = small_settings(rounds={"min_devices": 1}), Clock()
    with live_server(tmp_path, settings, database=database, wall_clock=wall) as live, RawDevice(live) as device:
        wait_for(lambda: live.rounds.is_open)
        assert device.report(make_body()).status_code == 200
        wait_for(lambda: live.rounds.round_number == 2 and live.rounds.is_open)
        token, key = live.admin_token, device.key
    engine = sa.create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        for table, column in (
            ("run", "round_opened_at"),
            *(("history", one) for one in ("attempts", "phases", "counts")),
        ):
            connection.execute(sa.text(f"ALTER TABLE {table} DROP COLUMN {column}"))
        connection.execute(schema.schema.update().values(version=9))
    engine.dispose()
    wall.now += 50
    with live_server(tmp_path, settings, database=database, admin_token=token, wall_clock=wall) as live:
        device = RawDevice(live, enrol=False)
        device.key, device.name = key, device_id_of(key.public_key)
        with device:
            assert device.report(make_body(2)).status_code == 200
        wait_for(lambda: live.count("rounds_closed") == 1)
        found = live.admin("GET", "/v1/admin/rounds").json()["rounds"]
    assert [row["round"] for row in found] == [1, 2]
    assert [row["reports"] for row in found] == [1, 1]
    assert [row["seconds"] for row in found] == [None, 50]
    assert [row["attempts"] for row in found] == [None, 1]
    assert [row["phases"] for row in found] == [None, {"report": 1}]
    assert [row["counts"] for row in found] == [None, {}]
