"""The person's page without a browser: what it answers, to whom, and how fast."""

import asyncio
import socket
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI
from offline_kit import OfflineServer, make_small_offer
from pace import slowness
from service_kit import (
    OPEN_SOCKETS,
    PATIENCE,
    ROUND_WAIT,
    live_server,
    new_device,
    put_server,
    small_settings,
    wait_for,
)

from hushrec import Device, pages
from hushrec.audit.own_reports import read_reports
from hushrec.budget.events import TablesElsewhere
from hushrec.cli.device import ui
from hushrec.device import joining
from hushrec.device.inference import compare
from hushrec.device.ui import Consent, Page, Rating, make_ui
from hushrec.errors import ParameterError
from hushrec.protocols.fleet_size import sentence_of
from hushrec.protocols.gradient.device import GradientDevice
from hushrec.protocols.gradient.fleet_size import MEASURED
from hushrec.scale import Scale

ROOT = Path(__file__).parents[1]
HOST, TOKEN = "127.0.0.1:8471", "secret"
pytestmark = OPEN_SOCKETS


class Asker:
    """Asks the page's API in process, as its own script does."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app

    def ask(self, method: str, path: str, headers: dict[str, str] | None = None, **arguments: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._app)
            async with httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}") as http:
                return await http.request(
                    method, path, headers={"Hushrec-Token": TOKEN, **(headers or {})}, **arguments
                )

        return asyncio.run(send())

    def get(self, path: str, **arguments: Any) -> httpx.Response:
        return self.ask("GET", path, **arguments)

    def post(self, path: str, **arguments: Any) -> httpx.Response:
        return self.ask("POST", path, **arguments)


def client_of(device: Device) -> Asker:
    """A page of this device."""
    return Asker(make_ui(Page(device, read_reports), token=TOKEN, hosts={HOST}))


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Asker]:
    """A page of a device that joined nobody."""
    with new_device(tmp_path / "device") as device:
        yield client_of(device)


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"Hushrec-Token": ""}, "the token is missing or wrong"),
        ({"Hushrec-Token": "guess"}, "the token is missing or wrong"),
        ({"Host": "evil.example:8471"}, "address"),
        ({"Host": "127.0.0.1:9999"}, "address"),
        ({"Origin": "https://evil.example"}, "another origin"),
        ({"Origin": "null"}, "another origin"),
        ({"Sec-Fetch-Site": "cross-site"}, "another origin"),
        ({"Sec-Fetch-Site": "same-site"}, "another origin"),
    ],
)
def test_another_page_is_refused(client: Asker, headers: dict[str, str], reason: str) -> None:
    """Without token, host and origin of its own, a request reads and changes nothing."""
    for reply in (client.get("/api/state", headers=headers), client.post("/api/forget", json={}, headers=headers)):
        assert reply.status_code == 403
        assert reason in reply.json()["detail"]
    assert client.get("/api/state").json()["n_ratings"] == 12


def test_every_answer_has_the_policy(client: Asker) -> None:
    """Page, files, answers and refusals carry it; no answer may be read by another origin."""
    for path in ("/", "/static/device.js", "/static/device.css", "/api/state", "/api/nothing"):
        reply = client.get(path)
        assert reply.headers["content-security-policy"] == pages.CONTENT_SECURITY_POLICY
        assert "access-control-allow-origin" not in reply.headers
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_before_joining_there_is_nothing_to_rate(client: Asker) -> None:
    """A level before a server, recommendations before a round: one sentence each, with a code."""
    assert client.get("/api/levels").json() == {"levels": []}
    assert client.get("/api/recommendations").json()["code"] == "not-now"
    assert client.get("/api/sent").json()["last"] is None
    assert client.post("/api/level", json={"level": 3}).json()["code"] == "not-now"


def test_rate_take_part_and_see_what_left(tmp_path: Path) -> None:
    """The way of a person through the API: join, choose a level, rate, answer a round, look at it, be forgotten."""
    settings = small_settings(rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live:
        device = Device.create(tmp_path / "device")
        client = client_of(device)
        assert client.post("/api/join", json={"server": live.url}).status_code == 204
        for n in range(8):
            assert client.post("/api/rate", json={"item": f"item-{n}", "value": 1 + n % 5}).json() == {"before": None}
        assert "from 1 to 5" in client.post("/api/rate", json={"item": "item-9", "value": 6}).json()["detail"]
        assert client.post("/api/rate", json={"item": "item-7", "value": None}).json() == {"before": 3}
        assert [entry["title"] for entry in client.get("/api/ratings").json()["items"]] == [
            f"Item-{n}" for n in range(7)
        ]
        assert client.post("/api/level", json={"level": 1}).status_code == 204
        while (last := client.get("/api/sent").json()["last"]) is None:
            device.step(wait=ROUND_WAIT)
        state = client.get("/api/state").json()
        assert (device.budgets.by_protocol()["sdcf"]["epsilon_i"], state["ledger"]["limit"]) == (1.0, 2.0)
        assert state["ledger"]["fixed"] is not None
        assert "epsilon_i" in client.post("/api/level", json={"level": 4}).json()["detail"]
        report = device.sent().reports[-1].report
        assert [row["title"] for row in last["rows"]] == [f"Item-{item}" for item in report.items]
        assert np.allclose([row["numbers"] for row in last["rows"]], report.gradients)
        found = client.get("/api/recommendations").json()["items"]
        assert len(found) == 10
        assert not {entry["item"] for entry in found} & {f"item-{n}" for n in range(7)}
        meaning = client.get("/api/levels").json()
        assert [level["epsilon"] for level in meaning["levels"]] == [0.5, 2.0, 8.0]
        assert client.post("/api/allow", json={"raise_to": 4}).status_code == 204
        assert client.get("/api/state").json()["ledger"]["limit"] == 4.0
        assert client.post("/api/forget", json={}).status_code == 204
        assert client.get("/api/state").status_code == 410
        assert not (tmp_path / "device").exists()
        assert live.rounds.registry.count_active() == 0


def test_search_is_quick_on_a_hundred_thousand_titles(tmp_path: Path) -> None:
    """Every word must occur, case and accents do not matter, beginnings come first; 0.1 s (more where slower)."""
    with Device.create(tmp_path / "device") as device:
        titles = [f"Film {n} of the Café" for n in range(99_999)] + ["Café society"]
        with device._store.change():
            device._store.append_items(0, [str(n) for n in range(100_000)], titles)
        page, seconds = Page(device, read_reports), []
        device.search("a first time, to read the catalogue")
        for _ in range(5):
            started = time.thread_time()
            found = page.search("cafe", 0)
            seconds.append(time.thread_time() - started)
        assert found["count"] == 100_000
        assert found["items"][0]["title"] == "Café society"
        assert [entry["title"] for entry in page.search("CAFÉ 77777", 0)["items"]] == ["Film 77777 of the Café"]
        assert min(seconds) < 0.1 * slowness()


def test_the_list_is_quick_on_a_hundred_thousand_items(tmp_path: Path) -> None:
    """After a rating, all that the page asks for again is computed in less than 0.1 s (more on a slower machine)."""
    settings = small_settings(terms={"factors": 10, "reports_per_client": 50}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings, n_items=100_000) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        while device.step(wait=ROUND_WAIT) != "reported":
            pass
        page = Page(device, read_reports)
        seconds = []
        for value in (1, 2, 3, 4, 5):
            page.rate(Rating(item="item-70000", value=value))
            started = time.thread_time()
            page.state()
            found = page.recommendations()["items"]
            seconds.append(time.thread_time() - started)
        assert len(found) == 10
        assert page.search("item-99999", 0)["count"] == 1
        assert min(seconds) < 0.1 * slowness()


def silent_server(device: Device) -> socket.socket:
    """Makes a device talk to a port that takes connections and never answers."""
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    listening.listen()
    listening.settimeout(PATIENCE)
    put_server(device, f"http://127.0.0.1:{listening.getsockname()[1]}")
    return listening


def test_nobody_waits_for_a_server_that_is_silent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taking part stops at once, and forgetting takes as long as the farewell may: then the store is gone."""
    monkeypatch.setattr("hushrec.device.device.FAREWELL_SECONDS", 0.2)
    monkeypatch.setattr("hushrec.device.device.SILENT_SECONDS", PATIENCE)
    device = new_device(tmp_path / "device")
    with live_server(tmp_path) as live:
        device.join(live.url)
    with silent_server(device) as silent:
        client = client_of(device)
        started = time.monotonic()
        assert client.post("/api/part", json={"on": True}).status_code == 204
        connection, _ = silent.accept()  # the thread asks
        assert client.post("/api/part", json={"on": False}).status_code == 204
        assert client.get("/api/state").json()["part"] == {
            "on": False,
            "code": "off",
            "words": "",
            "needed": None,
        }
        assert client.post("/api/forget", json={}).status_code == 204
        assert time.monotonic() - started < PATIENCE  # which the thread still waits for
        connection.close()
        assert not (tmp_path / "device").exists()
        for path in ("state", "ratings", "sent", "search"):
            reply = client.get(f"/api/{path}")
            assert (reply.status_code, reply.json()["code"]) == (410, "erased")


def test_a_device_keeps_its_last_reports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports as they were sent, with the vectors of their items; the oldest go, and all of them with `leave`.

    About 30 of 60 items are reported in each round: that none is has a probability below 1e-6.
    """
    monkeypatch.setattr(GradientDevice, "most_shown", 3)
    with (
        live_server(tmp_path, small_settings(terms={"reports_per_client": 30}, rounds={"min_devices": 1})) as live,
        new_device(tmp_path / "device") as device,
    ):
        device.join(live.url)
        vectors = {}
        while device.step(wait=ROUND_WAIT) == "reported":
            found = device.sent().reports
            vectors[found[-1].report.round_number] = device.public_table()["item_vectors"]
        assert device.status().is_over
        found = device.sent().reports
        assert len(found) == 3
        for shown in found:
            announced = vectors[shown.round_number]
            assert np.array_equal(shown.arrays["item_vectors"], announced[shown.report.items])
        device.leave()
        assert device.sent() is None
        assert not device.status().is_over


def test_a_level_of_ones_own_is_on_the_slider(tmp_path: Path) -> None:
    """A budget that is no public level is shown with its own ε_P."""
    with live_server(tmp_path) as live, Device.create(tmp_path / "device", epsilon_i=2.0, epsilon_p=5.0) as device:
        device.join(live.url)
        levels = client_of(device).get("/api/levels").json()["levels"]
    assert [level["name"] for level in levels] == ["Strict", "Middle", "Your own", "Usual"]
    assert [level["in_use"] for level in levels] == [False, False, True, False]
    assert levels[2]["epsilon"] == 5.0


def test_the_page_is_on_loopback_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`hushrec device ui` hands one socket to its server, bound to 127.0.0.1; a browser can connect from then on."""
    Device.create(tmp_path / "device").close()
    bound = []

    def connect(_: uvicorn.Server, sockets: list[socket.socket]) -> None:
        for listening in sockets:
            bound.append(listening.getsockname()[0])
            socket.create_connection(listening.getsockname()).close()

    monkeypatch.setattr("uvicorn.Server.run", connect)
    ui(port=0, store=tmp_path / "device")
    assert bound == ["127.0.0.1"]


def test_attacks_are_held_against_the_truth() -> None:
    """By hand: of four items seen two are called rated, one is, with its rating; the guess names the best ones."""

    class Said:
        direction = np.array([0.0, 1.0])
        items = np.array([1, 3, 5, 7])
        beliefs = np.array([0.9, 0.8, 0.1, 0.0])
        ratings = np.array([4.0, 2.0, 5.0, 1.0])

    vectors = np.column_stack([np.arange(30.0), np.arange(30.0)[::-1]])  # along one axis the best are the other's worst
    first, last = [n for n in range(12) if n not in (1, 8)], range(20, 30)
    found = compare(Said(), np.array([0.0, 2.0]), vectors, {1: 4.0, 8: 3.0}, first, 0.5)
    expected = {"cosine": 1.0, "same_top": 10, "n_seen": 4, "n_believed": 2, "n_right": 1, "n_exact": 1}
    assert {name: found[name] for name in expected} == expected
    away = compare(Said(), np.array([2.0, 0.0]), vectors, {1: 5.0, 8: 3.0}, last, 0.5)
    assert (away["cosine"], away["same_top"], away["n_exact"]) == (0.0, 0, 0)
    taste = np.random.default_rng(1).normal((3.0, 0.0), size=(200, 2))
    liked = np.argsort(-taste[:, 0])[:10].tolist()
    assert (
        compare(Said(), np.array([1.0, 0.0]), taste, {}, liked, 0.5)["public_top"] > 5
    )  # V w is nearly constant along the mean


@pytest.mark.parametrize(
    ("scale", "step"), [((0.5, 5.0), 0.5), ((1.0, 5.0), 1.0), ((1.0, 5.0), 0.5), ((0.0, 100.0), 25)]
)
def test_the_attack_on_ones_own_reports_knows_the_scale(
    tmp_path: Path, rng: np.random.Generator, scale: tuple[float, float], step: float
) -> None:
    """With budgets that give everything away every rating is read exactly, on stars, half stars and any other scale."""
    server = OfflineServer(make_small_offer(60, factors=4, rounds=20, reports_per_client=50.0))
    server.offer = replace(server.offer, terms=replace(server.offer.terms, data_weight=1e9))  # leaves no noise
    with Device.create(tmp_path / "device", epsilon_i=1500, epsilon_p=3000, scale=scale) as device:
        low, steps = scale[0], int((scale[1] - scale[0]) / step)
        device.add_ratings({f"item-{n}": low + step * rng.integers(0, steps + 1) for n in range(30)})
        server.run(joining.join(device._session))
        for _ in range(20):
            server.run(device._session.step())
        last = Page(device, read_reports).sent()["last"]
    assert last["n_right"] >= 28  # wrong beliefs are as rare as coincidences on few values
    assert last["n_exact"] >= last["n_right"] - 1
    known = [row for row in last["rows"] if row["rating"] is not None and row["guess"] is not None]
    assert sum(row["guess"] == pytest.approx(row["rating"]) for row in known) >= len(known) - 1


def test_scaling_a_report_down_hides_no_rating_from_the_attack(tmp_path: Path, rng: np.random.Generator) -> None:
    """What the announced norm takes from a report, noise included, an attacker puts back: most ratings are read."""
    server = OfflineServer(make_small_offer(400, factors=20, rounds=20, expected_devices=200, reports_per_client=80.0))
    server.item_vectors, server.max_report_norm = rng.normal(0.22, 0.1, (400, 20)), 0.5
    with Device.create(tmp_path / "device", epsilon_i=8) as device:
        device.add_ratings({f"item-{n}": 1 + int(n % 5) for n in rng.permutation(400)[:120]})
        server.run(joining.join(device._session))
        for _ in range(20):
            server.run(device._session.step())
        norms = [float(np.linalg.norm(shown.report.gradients)) for shown in device.sent().reports]
        last = Page(device, read_reports).sent()["last"]
    assert norms == pytest.approx([0.5] * 20, rel=1e-5)
    assert last["n_right"] > 60
    assert last["n_exact"] > 0.7 * last["n_right"]  # 0.89 and more in 24 runs; 0.3 where nothing is put back


@pytest.mark.parametrize(
    ("scale", "offered"),
    [
        ((1.0, 5.0), [1, 2, 3, 4, 5]),
        ((0.5, 2.0), [0.5, 1, 1.5, 2]),
        ((0.0, 9.0), list(range(10))),
        ((0.0, 10.0), [0, 2.5, 5, 7.5, 10]),
        ((-1.0, 1.3), [-1, -0.425, 0.15, 0.725, 1.3]),
    ],
)
def test_a_form_offers_ten_ratings_at_most(scale: tuple[float, float], offered: list[float]) -> None:
    """Whole steps, else halves, else five values from end to end."""
    assert Scale(*scale).form_values().tolist() == pytest.approx(offered)


def test_what_to_expect_is_said_for_as_many_devices_as_the_server_expects(tmp_path: Path) -> None:
    """One sentence of the measurement by fleet size, before joining and after; no figure of another run."""
    with live_server(tmp_path) as live, Device.create(tmp_path / "device") as device:
        client = client_of(device)
        before = client.post("/api/look", json={"server": live.url}).json()
        assert not device.has_joined
        device.join(live.url)
        assert before["expectation"] == client.get("/api/levels").json()["expectation"] == sentence_of(MEASURED, 50)
        assert [level["name"] for level in before["levels"]] == ["Strict", "Middle", "Usual"]


def test_a_port_that_is_taken_is_refused(tmp_path: Path) -> None:
    """`hushrec device ui` says so, and lets the store go."""
    Device.create(tmp_path / "device").close()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ParameterError, match=f"--port .* {port}"):
            ui(port=port, store=tmp_path / "device")
    Device(tmp_path / "device").close()


def test_a_spent_budget_stops_taking_part_and_a_person_can_allow_more(tmp_path: Path) -> None:
    """At a permanent epoch the page's thread stops, and says why by code; allowed another draw, it goes on."""
    settings = small_settings(terms={"rounds": 4, "epoch_rounds": 2}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        page = Page(device, read_reports)
        for code in ("budget", "off"):
            page.participation.start()
            wait_for(lambda: not page.participation.is_on)
            assert page.participation.code == code
            assert ("--raise-to 16" in page.participation.words) == (code == "budget")
            assert page.participation.needed == (16.0 if code == "budget" else None)
            page.allow(Consent(raise_to=page.participation.needed))
        assert page.participation.reported == 4
        assert page.state()["is_over"]


def test_another_budget_of_sdcf_leaves_the_cost_of_masked_runs_in_the_ledger(tmp_path: Path) -> None:
    """Its limit, too: only the limit of selections changes, of which nothing was spent."""
    with Device.create(tmp_path / "device") as device:
        session, ledger = device._session, device._session.store.ledger()
        ledger.raise_limit("table", 4.0)
        ledger.charge([TablesElsewhere(1.5, 0.0)])
        session._put(device.budgets, ledger)
        device.choose(epsilon_i=2)
        kept = session.store.ledger()
        assert (kept.limit("table"), kept["table"].charged(), kept.limit("selection")) == (4.0, 1.5, None)
