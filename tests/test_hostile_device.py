"""One enrolled device that lies about its gradients: the others finish, and what they learn stays what it was."""

import importlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from parties import MODEL, make_announcement, make_client, make_terms, make_vectors, report_on
from service_kit import (
    OPEN_SOCKETS,
    ROUND_WAIT,
    RawDevice,
    live_server,
    make_body,
    new_device,
    small_settings,
    wait_for,
)

from hushrec.data import load
from hushrec.errors import RemoteProtocolError
from hushrec.protocols.gradient.messages import GradientReport, Terms
from hushrec.protocols.gradient.plausible import LEAST_REPORTS, report_bound
from hushrec.protocols.gradient.selection import PermanentChoice
from hushrec.protocols.gradient.server import GradientServer
from hushrec.server import Server
from hushrec.service.settings import TermsSettings

pytestmark = OPEN_SOCKETS


def open_server(terms: Terms, members: list[int], **bounds: Any) -> Server:
    """A server with those members and bounds, in round 1."""
    server = Server(GradientServer(terms, MODEL, make_vectors(terms.n_items), **bounds), members)
    server.start_round()
    return server


@pytest.fixture(scope="module")
def benchmark() -> Iterator[dict[str, ModuleType]]:
    """The scripts that measure the attack, as modules."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))
        yield {name: importlib.import_module(name) for name in ("network_run", "hostile")}


@pytest.fixture(scope="module")
def attacked(benchmark: dict[str, ModuleType]) -> dict[str, Any]:
    """40 people and one hostile device, 30 rounds, by attack; without one under "none"."""
    people = benchmark["network_run"].draw_people(load("synthetic:users=60,items=300,ratings=3600,seed=2"), 40, 0)
    known = benchmark["hostile"].attacks(people)
    attacks = {"none": None, **{name: known[name] for name in ("every item", "together, 10 items", "away, all it may")}}
    settings = TermsSettings(protocol="sdcf", rounds=30, factors=10)
    return {
        name: benchmark["network_run"].play(people, seed=3, settings=settings, attack=attack)
        for name, attack in attacks.items()
    }


def test_one_hostile_device_among_forty_ends_the_run_for_nobody(attacked: dict[str, Any]) -> None:
    """Every honest device reports in every round, and their RMSE stays within 0.01, whatever the hostile one does."""
    assert {name: done.finished for name, done in attacked.items()} == dict.fromkeys(attacked, 40)
    assert attacked["every item"].refused == 3
    shifts = {name: done.rmse - attacked["none"].rmse for name, done in attacked.items()}
    assert max(shifts.values()) < 0.01, shifts


def test_without_the_bounds_one_device_ends_the_run(benchmark: dict[str, ModuleType]) -> None:
    """The same device against a server that only stops the absurd: honest devices give up."""
    people = benchmark["network_run"].draw_people(load("synthetic:users=60,items=300,ratings=3600,seed=2"), 40, 0)
    attack = benchmark["hostile"].attacks(people)["together, all it may"]
    settings = TermsSettings(protocol="sdcf", rounds=30, factors=10)
    assert benchmark["network_run"].play(people, seed=3, settings=settings, attack=attack, bounded=False).finished < 40


def test_a_report_names_about_as_many_items_as_the_terms_announce() -> None:
    """⌈z + 6 √z + 12⌉ of them, or all where devices send what they rated."""
    assert make_terms(n_items=1682, reports_per_client=81.0).most_items == 81 + 54 + 12
    assert make_terms(n_items=1682, reports_per_client=None).most_items == 1682
    terms = make_terms(n_items=100, reports_per_client=1.0)
    server = open_server(terms, [0])
    with pytest.raises(RemoteProtocolError, match="at most 19 items, got 20") as refusal:
        server.receive(0, server.address, GradientReport(1, np.arange(20), np.zeros((20, 3))))
    assert refusal.value.status_hint == 422
    server.receive(0, server.address, GradientReport(1, np.arange(19), np.zeros((19, 3))))


def test_a_device_that_selects_too_many_items_sends_a_random_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of being refused; which ones stay is chance."""
    client = make_client(n_items=100, reports_per_client=1.0)
    monkeypatch.setattr(PermanentChoice, "select_items", lambda *_, rng: np.arange(60))
    report = report_on(client, make_announcement(n_items=100, reports_per_client=1.0))
    assert len(report.items) == 19
    assert not np.array_equal(report.items, np.arange(19))


@pytest.mark.parametrize("share", [0.25, 4.0])
def test_a_device_scales_its_report_down_to_the_announced_norm(share: float) -> None:
    """All rows by the same factor, the noise with them; a report within the bound stays as it is."""
    free = report_on(make_client(), make_announcement())
    norm = float(np.linalg.norm(free.gradients))
    announced = make_announcement()
    bound = share * norm
    report = report_on(make_client(), replace(announced, max_report_norm=bound))
    assert np.array_equal(report.items, free.items)
    np.testing.assert_allclose(report.gradients, min(1.0, share) * free.gradients, rtol=1e-12)


def test_a_server_holds_reports_to_the_norm_that_it_announced() -> None:
    """With room for float32, and no more."""
    terms = make_terms()
    side = GradientServer(terms, MODEL, make_vectors(terms.n_items))
    side.max_report_norm = 2.0
    server = Server(side, [0, 1])
    server.start_round()
    assert server.inbox(0).max_report_norm == 2.0
    rows = np.full((4, 3), 1 / np.sqrt(3))  # norm 2 together
    with pytest.raises(RemoteProtocolError, match="joint norm of at most 2 "):
        server.receive(0, server.address, GradientReport(1, np.arange(4), rows * 1.00001))
    server.receive(
        0, server.address, GradientReport(1, np.arange(4), (rows * 1.0000002).astype(np.float32).astype(np.float64))
    )


def test_few_reports_move_an_item_little() -> None:
    """Of c reports, the sum over max(c, c₀): worked by hand with c₀ = 4."""
    server = open_server(make_terms(), [0, 1], least_reports=4)
    for sender, items in ((0, [2, 5]), (1, [5])):
        server.receive(sender, server.address, GradientReport(1, np.array(items), np.full((len(items), 3), 0.4)))
    server.close_phase()
    moved = server.side.public["item_vectors"] - make_vectors()
    np.testing.assert_allclose(moved[2], 0.1)
    np.testing.assert_allclose(moved[5], 0.2)
    assert not moved[[0, 1, 3, 4]].any()


def test_the_bound_grows_with_the_number_of_devices_and_falls_with_the_step() -> None:
    """√((η N steps)² + η K z): one step for up to 25 devices, 20 for 500 and more. η N = 0.4 in round 1."""
    terms = make_terms()  # N = 50, K = 3, z = 5
    noise = 0.4 / 50 * 3 * 5
    for devices, steps in ((2, 1), (25, 1), (100, 4), (500, 20), (100_000, 20)):
        assert report_bound(terms, 1, devices) == pytest.approx(np.sqrt((0.4 * steps) ** 2 + noise))
    assert report_bound(terms, 10, 100) < report_bound(terms, 1, 100) / 2


def test_over_http_the_hostile_device_is_refused_and_the_honest_one_is_not(tmp_path: Path) -> None:
    """The bound is announced, a device keeps to it, and it outlives a restart of the server."""
    settings = small_settings(terms={"step": 40.0, "reports_per_client": 16}, rounds={"early_fraction": 1.0})
    with (
        live_server(tmp_path, settings, n_items=300) as live,
        RawDevice(live) as hostile,
        new_device(tmp_path / "device") as honest,
    ):
        honest.join(live.url)
        wait_for(lambda: live.rounds.is_open)
        bound = live.rounds.server.side.max_report_norm
        assert bound == report_bound(live.rounds.offer.terms, 1, 2)
        assert hostile.report(make_body(items=tuple(range(300)), size=0.0)).status_code == 413  # not even read
        reply = hostile.report(make_body(items=tuple(range(53)), size=0.0))
        assert (reply.status_code, "at most 52 items" in reply.text) == (422, True)
        reply = hostile.report(make_body(items=(1,), size=bound))
        assert (reply.status_code, "joint norm" in reply.text) == (422, True)
        assert honest.step(wait=ROUND_WAIT) == "reported"
        sent = honest._session.store.shown()[-1].report
        assert np.linalg.norm(sent.gradients) <= bound * (1 + 1e-6)
    with live_server(tmp_path, settings, n_items=300) as live:
        assert live.rounds.server.side.max_report_norm == bound
        assert live.rounds.n_reports == 1


def test_the_service_weighs_few_reports_as_the_benchmark_does(tmp_path: Path) -> None:
    """One report of two items moves them by a twentieth of its gradients."""
    settings = small_settings(rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live, RawDevice(live) as device:
        wait_for(lambda: live.rounds.is_open)
        before = live.rounds.public["item_vectors"].copy()
        assert device.report(make_body(items=(3, 4), size=0.1)).status_code == 200
        wait_for(lambda: live.rounds.round_number == 2)
        np.testing.assert_allclose(
            (live.rounds.public["item_vectors"] - before)[[3, 4]], 0.1 / LEAST_REPORTS, rtol=1e-6
        )
