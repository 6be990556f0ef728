"""What the dashboard is told: history, events, and the text that the docs share."""

import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from service_kit import (
    OPEN_SOCKETS,
    PATIENCE,
    ROUND_WAIT,
    get,
    live_server,
    new_device,
    play,
    put_server,
    small_settings,
    wait_for,
)

from hushrec import pages
from hushrec.device.budgets import Budgets
from hushrec.errors import StorageError
from hushrec.service import dashboard, schema
from hushrec.service.history import _most_moved_items, most_moved, movement
from hushrec.service.storage import Storage

ROOT = Path(__file__).parents[1]
pytestmark = OPEN_SOCKETS


def first_events(url: str, count: int) -> list[tuple[str, dict[str, Any]]]:
    """Return the first events of the stream."""
    found: list[tuple[str, dict[str, Any]]] = []
    with httpx.stream("GET", f"{url}/dashboard/events", timeout=PATIENCE) as reply:
        name = ""
        for line in reply.iter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line:
                found.append((name, json.loads(line.removeprefix("data: "))))
            if len(found) == count:
                break
    return found


def test_movement_is_the_share_of_the_length_that_changed() -> None:
    """By hand: one of two unit rows moves by 1 and 0.5; ‖V‖ = √2."""
    before = np.eye(2)
    after = np.array([[1.0, 1.0], [0.0, 1.5]])
    assert movement({"v": before}, {"v": after}) == pytest.approx(np.sqrt(1.25) / np.sqrt(2))
    counted = [{"v": before, "round_number": np.array(number)} for number in (0.0, 1.0)]
    assert movement(*counted) == 0
    assert most_moved(before, after) == [(0, 1.0), (1, 0.5)]
    assert most_moved(before, before) == []


def test_the_items_that_moved_are_found_in_the_first_array_that_changed() -> None:
    """A matrix before a vector, also if it gained a column; an array without a row for each item does not count."""
    still = {"scale": np.ones(1), "offsets": np.zeros(2), "rows": np.eye(2)}
    assert _most_moved_items(2, still, still) == []
    changed = still | {"scale": np.zeros(1), "offsets": np.array([0.0, 3.0])}
    assert _most_moved_items(2, still, changed) == [(1, 3.0)]
    grown = changed | {"rows": np.array([[1.0, 0.0, 2.0], [0.0, 1.0, 0.0]])}
    assert _most_moved_items(2, still, grown) == [(0, 2.0)]


def test_every_round_is_in_the_history(tmp_path: Path) -> None:
    """After a run: one row per round, with reports, devices, bytes, latency and movement."""
    with live_server(tmp_path) as live:
        devices = [new_device(tmp_path / f"device-{n}", seed=n) for n in range(3)]
        for device in devices:
            device.join(live.url)
        play(devices)
        told = get(f"{live.url}/dashboard/rounds").json()
        later = get(f"{live.url}/dashboard/rounds?after=4").json()
    rounds = told["rounds"]
    assert rounds["round"] == [1, 2, 3, 4, 5, 6]
    assert all(2 <= n <= 3 for n in rounds["reports"])
    assert all(given <= asked for given, asked in zip(rounds["reports"], rounds["devices"], strict=True))
    assert all(n > 0 for n in rounds["bytes"] + rounds["moved"])
    assert any(n is not None and n > 0 for n in rounds["latency_median"])
    assert told["bytes"] == sum(rounds["bytes"])
    assert told["devices"] == {"active": 3}
    distances = [mover["distance"] for mover in told["most_moved"]]
    assert distances == sorted(distances, reverse=True)
    assert all(mover["title"].startswith("Item-") for mover in told["most_moved"])
    assert 1 <= len(distances) <= 10
    assert later["rounds"]["round"] == [5, 6]
    for device in devices:
        device.close()


def test_history_survives_a_restart(tmp_path: Path) -> None:
    """The history holds the rounds before and after the restart, and a page that was open gets both."""
    settings = small_settings(rounds={"min_devices": 3})
    devices = [new_device(tmp_path / f"device-{n}", seed=n) for n in range(3)]
    with live_server(tmp_path, settings) as live:
        for device in devices:
            device.join(live.url)
        for _ in range(3):
            assert [device.step(wait=ROUND_WAIT) for device in devices] == ["reported"] * 3
        wait_for(lambda: live.rounds.is_open and live.rounds.round_number == 4)
        before = get(f"{live.url}/dashboard/rounds").json()
    with live_server(tmp_path, settings) as live:
        again = get(f"{live.url}/dashboard/rounds").json()
        for device in devices:
            put_server(device, live.url)
        play(devices)
        after = get(f"{live.url}/dashboard/rounds").json()
    assert before["rounds"]["round"] == [1, 2, 3]
    assert again == before
    assert after["rounds"]["round"] == [1, 2, 3, 4, 5, 6]
    for name, values in before["rounds"].items():
        assert after["rounds"][name][: len(values)] == values
    assert after["devices"] == {"active": 3}
    for device in devices:
        device.close()


def test_refusals_of_a_healthy_run_are_not_counted(tmp_path: Path) -> None:
    """A request after the end of the run is not counted; a request without a signature is."""
    with live_server(tmp_path, small_settings(terms={"rounds": 1}, rounds={"min_devices": 1})) as live:
        with new_device(tmp_path / "device") as device:
            device.join(live.url)
            play([device])
        assert live.monitor.refusals == 0
        assert get(f"{live.url}/v1/inbox").status_code == 401
        assert live.monitor.refusals == 1


def test_events_say_what_is_fixed_and_then_what_is_now(tmp_path: Path) -> None:
    """The first event has terms, versions and texts; later ones have the state whenever it changes."""
    with live_server(tmp_path) as live:
        (first, fixed), (second, now) = first_events(live.url, 2)
        assert (first, second) == ("fixed", "now")
        assert (fixed["protocol"], fixed["rounds"], fixed["model"]["options"]["profile_cap"]) == ("sdcf", 6, 30)
        assert all(
            word in " ".join(fixed["asks"]) for word in ("6 rounds", "about 3 items", "once", "up to 30 ratings")
        )
        assert (now["state"], now["round"], now["devices"], now["items"]) == ("waiting", 0, 0, 60)
        live.admin("POST", "/v1/admin/pause")
        wait_for(lambda: first_events(live.url, 2)[1][1]["state"] == "paused")  # what all watchers share is made anew


def test_the_stream_ends_when_the_server_stops(tmp_path: Path) -> None:
    """An open page does not delay the shutdown."""
    with live_server(tmp_path) as live:
        stream = httpx.stream("GET", f"{live.url}/dashboard/events", timeout=PATIENCE)
        reply = stream.__enter__()
        lines = reply.iter_lines()
        assert next(lines) == "event: fixed"
    assert list(lines)[-1] == ""  # whole events, then the end
    stream.__exit__(None, None, None)


def test_too_many_pages_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the limit, a page is refused with Retry-After."""
    monkeypatch.setattr(dashboard, "MOST_WATCHERS", 0)
    with live_server(tmp_path) as live:
        reply = get(f"{live.url}/dashboard/events")
    assert (reply.status_code, reply.headers["retry-after"]) == (503, "10")
    assert reply.json()["type"].endswith(":busy")


def test_a_page_that_is_closed_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A watcher is no longer counted after its connection ends, however it ends."""
    monkeypatch.setattr(dashboard, "MOST_WATCHERS", 1)
    with live_server(tmp_path) as live:
        assert len(first_events(live.url, 1)) == 1
        wait_for(lambda: _is_let_in(live.url))


def _is_let_in(url: str) -> bool:
    with httpx.stream("GET", f"{url}/dashboard/events", timeout=PATIENCE) as reply:
        return reply.status_code == 200


def test_the_page_comes_with_a_strict_policy(tmp_path: Path) -> None:
    """Page, script and style have the Content-Security-Policy; the page has no inline code and no foreign address."""
    with live_server(tmp_path) as live:
        for path in ("/", "/static/base.css", "/static/page.js", "/static/dashboard.css", "/static/dashboard.js"):
            reply = get(live.url + path)
            assert reply.status_code == 200
            assert reply.headers["content-security-policy"] == pages.CONTENT_SECURITY_POLICY
            assert reply.headers["x-content-type-options"] == "nosniff"
            assert "http://" not in reply.text.replace("http://www.w3.org/2000/svg", "")
            assert "https://" not in reply.text
    assert not re.search(r'\s(style|on\w+)="', pages.read_file("dashboard.html").decode())


def test_a_run_of_protocol_version_1_is_refused_and_an_empty_database_is_not(tmp_path: Path) -> None:
    """Devices of that version speak another protocol; a database without a run gets the new tables."""
    address = f"sqlite:///{tmp_path / 'server.sqlite'}"
    with live_server(tmp_path):
        pass
    engine = sa.create_engine(address)
    with engine.begin() as connection:
        connection.execute(schema.schema.update().values(version=3))
    with pytest.raises(StorageError, match="protocol version 1"):
        Storage(address)
    with engine.begin() as connection:
        connection.execute(schema.run.delete())
    engine.dispose()
    storage = Storage(address)
    assert storage.at_once(lambda c: c.execute(sa.select(schema.schema.c.version)).scalar()) == len(schema.MIGRATIONS)
    storage.close()


def test_the_usual_budget_is_the_one_that_devices_propose(tmp_path: Path) -> None:
    """The default that the dashboard names is that of `hushrec device init`."""
    with live_server(tmp_path) as live:
        asks = dashboard.Dashboard(live.rounds).fixed()["asks"]
    assert f"ε_P is {Budgets().by_protocol()['sdcf']['epsilon_p']:g}." in " ".join(asks)


def test_the_docs_and_the_dashboard_say_the_same() -> None:
    """docs/privacy.md holds the dashboard's text, word for word."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    generator = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generator)
    page = (ROOT / "docs" / "privacy.md").read_text("utf-8")
    assert generator.with_knowledge(page) == page, "run python docs/generate.py knowledge"


def test_the_docs_print_the_policy() -> None:
    """docs/pages.md shows the header as it is sent."""
    assert f"Content-Security-Policy: {pages.CONTENT_SECURITY_POLICY}\n" in (ROOT / "docs" / "pages.md").read_text(
        "utf-8"
    )
