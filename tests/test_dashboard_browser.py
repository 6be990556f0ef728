"""The dashboard in a real browser, with a server and devices behind it."""

import contextlib
import math
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from browser_kit import (
    DRAWING,
    LOOKS,
    SIZES,
    check_layout,
    open_browser,
    open_page,
    pleasant_titles,
    violations,
)
from fault_kit import ServerProcess, Zygote
from masked_kit import PHASES, catalogue, close_phase, joined, masked_settings, new_people, play_round, report
from service_kit import (
    OPEN_SOCKETS,
    ROUND_WAIT,
    Live,
    RawDevice,
    live_server,
    new_device,
    play,
    small_settings,
    wait_for,
)
from test_service_faults import Clock

from hushrec.protocols.masked import evaluation
from hushrec.protocols.masked.evaluation import Measured
from hushrec.service import dashboard

pytestmark = OPEN_SOCKETS
WORDS = ["Silent Harbour", "Golden Orchard", "Hidden Letters", "Frozen River", "Paper Mirror", "Electric Island"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of this file."""
    with open_browser() as found:
        yield found


def test_rounds_appear_as_they_happen(browser: Any, tmp_path: Path) -> None:
    """Without devices the page says that it waits; as devices report, numbers and charts change without a reload."""
    with live_server(tmp_path, small_settings(terms={"rounds": 8})) as live:
        page = open_page(browser, live.url)
        page.wait_for_selector("#state:has-text('Waiting for devices')")
        devices = [new_device(tmp_path / f"device-{n}", seed=n) for n in range(3)]
        for device in devices:
            device.join(live.url)
        play(devices)
        page.wait_for_selector("#state:has-text('All rounds are over')")
        page.wait_for_selector("#chart-reports svg[aria-label*='in round 8']")
        assert page.inner_text("#round") == "8 of 8"
        assert page.inner_text("#devices") == "3"
        assert page.locator("#movers li").count() > 0
        page.click("summary")
        assert page.locator("#table tr").count() == 8
        assert "up to 30 ratings" in page.inner_text("#asked")
        assert page.complaints == []
    for device in devices:
        device.close()


def test_a_masked_run_shows_phases_attempts_cohorts_drop_outs_and_accuracy(browser: Any, tmp_path: Path) -> None:
    """Ten devices in two cohorts; the first attempt gets no report, and one device drops out of the second."""
    with joined(tmp_path, 10, masked_settings(5, rounds={"min_devices": 10})) as (live, devices):
        page = open_page(browser, live.url)
        page.wait_for_selector("#reports-note:has-text('Phase keys, 1 of 5, attempt 1. 10 devices have not')")
        close_phase(live)
        page.wait_for_selector("#reports-note:has-text('Phase keys, 1 of 5, attempt 2.')")
        report(live, devices, "keys", 1, 2)
        page.wait_for_selector("#reports-note:has-text('Phase shares, 2 of 5, attempt 2. 10 devices have not')")
        assert "2 cohorts of 5 devices" in page.inner_text("#reports-note")
        report(live, devices[:9], "shares", 1, 2)
        close_phase(live)
        page.wait_for_selector("#reports-note:has-text('2 cohorts of 4 to 5 devices')")
        for phase in PHASES[2:]:
            report(live, devices[:9], phase, 1, 2)
        page.wait_for_selector("#table tr", state="attached")
        row = round_row(page)
        assert (row["round"], row["reports"], row["dropped out"], row["attempts"]) == ("1", "9", "1", "2")
        assert (row["probes"], row["cohorts"], row["discarded sums"]) == ("0", "2", "0")
        by_phase = "asked 10 · keys 10 · shares 9 · table 9 · consent 9 · unmask 9"
        assert row["reports by phase, last attempt"].replace("\u00a0", " ") == by_phase
        lines = """(cell) => { const text = document.createRange(); text.selectNodeContents(cell);
            return text.getClientRects().length; }"""
        assert page.locator("#table td:nth-last-child(2)").first.evaluate(lines) == 1
        assert page.is_hidden("#accuracy")  # of so few devices nothing can be measured: the next line is a larger run's
        live.rounds.server.side.learner.measured.append(Measured(1, 0.93, 0.02, 0.97, 0.03))
        page.wait_for_selector("#accuracy-rows tr:has-text('0.930 ± 0.020')")
        assert "at least 4 honest devices" in page.inner_text("#asked")
        assert page.complaints == []


def test_devices_that_a_sum_does_not_need_are_no_drop_outs(browser: Any, tmp_path: Path) -> None:
    """Six devices where a sum holds five; then a page that is opened while a phase is open names this phase."""
    settings = masked_settings(5, rounds={"min_devices": 6, "automatic": False})
    with joined(tmp_path, 6, settings) as (live, devices):
        page = open_page(browser, live.url)
        assert live.admin("POST", "/v1/admin/start").status_code == 200
        report(live, devices, "keys")
        page.wait_for_selector("#reports-note:has-text('5 devices have not reported yet. 1 device is not needed: a')")
        asked = [device for device in devices if device._session.name in live.rounds.server.asked]
        for phase in PHASES[1:]:
            report(live, asked, phase)
        page.wait_for_selector("#reports-note:has-text('0 drop-outs in the last round, 0 in all; 1 not needed in it')")
        assert page.inner_text("#reports-note").endswith("1 in all: a sum holds at most 5")
        row = round_row(page)
        assert (row["reports"], row["dropped out"], row["not needed"]) == ("5", "0", "1")
        assert live.admin("POST", "/v1/admin/start").status_code == 200
        page.wait_for_selector("#reports-note:has-text('Phase keys')")
        page.reload()
        page.wait_for_selector("#table tr", state="attached")
        assert page.inner_text("#reports-note").startswith("Phase keys, 1 of 5, attempt 1.")
        assert page.complaints == []


def round_row(page: Any) -> dict[str, str]:
    """The first row of the table of rounds: cells by heading, in small letters."""
    page.click("summary")
    cells = page.locator("#table tr").first.locator("th, td").all_inner_texts()
    heads = page.locator("#table-head th").all_inner_texts()
    return {head.lower(): cell for head, cell in zip(heads, cells, strict=True)}


def test_with_repeats_the_page_shows_the_last_round_that_changed_the_table(browser: Any, tmp_path: Path) -> None:
    """Groups of two rounds: of three rounds only the second changed the table, and the page says so."""
    with joined(tmp_path, 4, masked_settings(4, terms={"repeats": 2})) as (live, devices):
        page = open_page(browser, live.url)
        assert page.inner_text("#movers-note") == "No round has closed yet."
        play_round(live, devices)
        page.wait_for_selector("#movers-note:has-text('No round has changed the public table yet.')")
        assert page.inner_text("#moved-note") == "no round has changed it yet"
        assert page.locator("#chart-moved svg").get_attribute("aria-label").endswith("none yet.")
        play_round(live, devices, 2)
        page.wait_for_selector("#movers-note:text-is('Change of the public table in round 2')")
        play_round(live, devices, 3)
        page.wait_for_selector(
            "#movers-note:text-is('Change of the public table in round 2, the last that changed it')"
        )
        assert page.locator("#movers li").count() == 10
        assert page.inner_text("#moved") not in ("–", "0 %")
        assert page.inner_text("#moved-note") == "of its norm in round 2, the last that changed it"
        assert "in round 2, at most" in page.locator("#chart-moved svg").get_attribute("aria-label")
        assert page.locator("#chart-moved polyline").get_attribute("points").count(",") == 1
        assert "The public table changes after every 2nd round." in page.inner_text("#asked")
        assert page.complaints == []


def test_the_accuracy_that_devices_measure_is_on_the_page(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without noise five devices are enough: the row of round 2 is what their evaluation blocks add up to."""
    monkeypatch.setattr(evaluation, "HELD_OUT", 0.3)  # of ten ratings each
    settings = masked_settings(5, terms={"survivors": 1.0, "epsilon": math.inf, "evaluation": 0.1})
    with live_server(tmp_path, settings, items=catalogue()) as live, ExitStack() as stack:
        devices = new_people(tmp_path, 5)
        for device in devices:
            stack.callback(device.close)
            device.choose("masked", epsilon=math.inf)
            device.join(live.url)
        page = open_page(browser, live.url)
        play_round(live, devices)
        assert page.is_hidden("#accuracy")  # the first round learns counts, and measures nothing
        play_round(live, devices, 2)
        wait_for(lambda: live.rounds.round_number == 3)
        (row,) = live.rounds.server.side.accuracy
        page.wait_for_selector(f"#accuracy-rows tr:has-text('{row['rmse']:.3f} ± {row['rmse_error']:.3f}')")
        assert 0 < row["rmse"] < 3
        assert f"{row['bias_rmse']:.3f}" in page.inner_text("#accuracy-rows")


def test_an_accuracy_that_noise_hides_is_named(browser: Any, tmp_path: Path) -> None:
    """Of two measurements one can be read: it is in the table, and a sentence names the other."""
    with live_server(tmp_path, masked_settings(4, terms={"evaluation": 0.1}), items=catalogue()) as live:
        page = open_page(browser, live.url)
        page.wait_for_selector("#state:has-text('Waiting')")
        assert page.is_hidden("#accuracy")
        measured = live.rounds.server.side.learner.measured
        measured.append(Measured(1, *[math.nan] * 4))
        page.wait_for_selector(
            "#accuracy-hidden:text-is('Measured after round 1, but the noise of so few devices hides it.')"
        )
        assert page.is_hidden("#accuracy-table")
        measured.append(Measured(2, 0.93, 0.02, 0.97, 0.03))
        page.wait_for_selector("#accuracy-rows tr:has-text('0.930 ± 0.020')")
        assert page.locator("#accuracy-rows tr").count() == 1
        assert page.is_visible("#accuracy-hidden")
        assert page.complaints == []


def test_a_phase_that_waits_for_devices_says_how_many(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of four keys after the deadline: the phase waits for the fourth, and goes on."""
    monkeypatch.setattr(dashboard, "BEAT_SECONDS", 0.5)
    clock = Clock()
    with joined(tmp_path, 4, masked_settings(4, rounds={"deadline_seconds": 5}), clock=clock) as (live, devices):
        page = open_page(browser, live.url)
        page.wait_for_selector("#state:has-text('Round 1 is open')")
        report(live, devices[:1], "keys")
        clock.now += 67
        waits = "after its deadline of 5 s the phase waits for 4 reports, of which 1 has arrived"
        page.wait_for_selector(f"#round-note:text-is('open for 67 s; {waits}')")
        page.wait_for_selector("#link:text-is('Live, waiting for devices')")
        report(live, devices[1:], "keys")
        page.wait_for_selector("#reports-note:has-text('Phase shares')")
        page.wait_for_selector("#round-note:has-text('its deadline is after 5 s')")
        page.wait_for_selector("#link:text-is('Live, healthy')")
        assert page.complaints == []


def test_an_operator_acts_with_the_token_and_after_saying_yes(browser: Any, tmp_path: Path) -> None:
    """Nothing happens without the token, with a wrong one, or if the operator cancels."""
    with live_server(tmp_path, small_settings(open_enrolment=False)) as live:
        page = open_page(browser, live.url)
        page.wait_for_selector("#state:has-text('Waiting')")
        page.click("text=Pause")
        assert "needs the admin token" in page.inner_text("#done")
        page.fill("#token", "wrong")
        page.click("text=Pause")
        page.click("#confirm-yes")
        page.wait_for_selector("#done:has-text('Not done: this request needs')")
        page.fill("#token", str(live.admin_token))
        page.click("text=Pause")
        page.keyboard.press("Escape")
        assert not live.rounds.is_paused
        page.click("text=Pause")
        page.click("#confirm-yes")
        page.wait_for_selector("#state:has-text('Paused')")
        page.fill("#invitations", "3")
        page.click("text=Create invitations")
        page.click("#confirm-yes")
        page.wait_for_selector("#codes")
        assert len(page.inner_text("#codes").split()) == 3
        page.click("text=Export the public table")
        with page.expect_download() as download:
            page.click("#confirm-yes")
        assert download.value.suggested_filename == "public-table-round-0.msgpack"
        page.click("text=Open a round")
        page.click("#confirm-yes")
        page.wait_for_selector("#state:has-text('Round 1 is open')")
        page.click("text=Pause")
        page.click("#confirm-yes")
        page.wait_for_selector("#state:has-text('Round 1 is open, then a pause')")
        assert page.is_disabled("[data-action=pause]")
        page.click("text=Close the phase")
        assert "0 devices" in page.inner_text("#confirm-text")
        page.click("#confirm-yes")
        page.wait_for_selector("#state:text-is('Paused')")
        assert page.is_disabled("[data-action=close]")
        assert page.complaints == []


def test_a_killed_server_shows_and_recovers(browser: Any, tmp_path: Path) -> None:
    """The page says that the server does not answer, keeps its numbers, and reconnects by itself."""
    (tmp_path / "items.csv").write_text("id,title\n" + "".join(f"{n},The {name}\n" for n, name in enumerate(WORDS * 5)))
    (tmp_path / "config.toml").write_text("[terms]\nprotocol = 'sdcf'\nfactors = 4\n")
    (tmp_path / "server").mkdir()
    with contextlib.ExitStack() as stack:
        zygote = stack.enter_context(contextlib.closing(Zygote(tmp_path)))
        devices = [stack.enter_context(new_device(tmp_path / f"device-{n}", seed=n)) for n in range(2)]
        server = stack.enter_context(contextlib.closing(ServerProcess(zygote, tmp_path / "server")))
        server.start()
        page = open_page(browser, server.url)
        page.wait_for_selector("#state:has-text('Waiting for devices')")
        for device in devices:
            device.add_ratings({str(item): 3.0 for item in range(8)})
            device.join(server.url)
        for device in devices:
            assert device.step(wait=ROUND_WAIT) == "reported"
        page.wait_for_selector("#chart-reports svg[aria-label*='in round 1']")
        server.kill()
        page.wait_for_selector("#lost:has-text('The server does not answer')")
        assert page.inner_text("#state") == "Not reachable"
        assert page.inner_text("#devices") == "2"
        server.start()
        page.wait_for_selector("#state:has-text('Round 2 is open')")
        page.wait_for_selector("#lost", state="hidden")
        for device in devices:
            assert device.step(wait=ROUND_WAIT) == "reported"
        page.wait_for_selector("#chart-reports svg[aria-label*='in round 2']")
        page.reload()
        page.wait_for_selector("#chart-reports svg[aria-label*='in round 2']")
        assert page.locator("#table tr").count() == 2
        server.kill()
    assert page.complaints == []


def test_trouble_is_named(browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page names a round without reports, and one that most devices missed; before, it says healthy."""
    monkeypatch.setattr(dashboard, "BEAT_SECONDS", 0.5)
    settings = small_settings(terms={"rounds": 1000}, rounds={"deadline_seconds": 1, "missed_rounds": 1000})
    with live_server(tmp_path, settings) as live, contextlib.ExitStack() as stack:
        page = open_page(browser, live.url)
        page.wait_for_selector("#link:text-is('Live, healthy')")
        devices = [stack.enter_context(new_device(tmp_path / f"device-{n}", seed=n)) for n in range(3)]
        for device in devices:
            device.join(live.url)
        page.wait_for_selector("#trouble:has-text('No device reported in round 1.')")
        assert devices[0].step(wait=ROUND_WAIT) == "reported"
        page.wait_for_selector("#trouble:has-text('More devices dropped out of round')")
        assert page.complaints == []


def test_vectors_that_no_honest_devices_make_are_named(browser: Any, tmp_path: Path) -> None:
    """Item vectors four times as long as at the start: the page is no longer healthy."""
    with live_server(tmp_path) as live:
        page = open_page(browser, live.url)
        page.wait_for_selector("#link:text-is('Live, healthy')")
        live.rounds.server.side.item_vectors = 4 * live.rounds.public["item_vectors"]
        page.wait_for_selector("#trouble:has-text('times as long as honest devices make them')")
        assert page.inner_text("#link") == "Live"
        assert page.complaints == []


def test_the_operator_lists_devices_revokes_one_and_copies_invitations(browser: Any, tmp_path: Path) -> None:
    """The list has last seen, last round and missed rounds; the controls are on the first two screens of a phone."""
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live):
        page = open_page(browser, live.url, size="phone")
        page.wait_for_selector("#link:text-is('Live, healthy')")
        assert page.locator("#token").bounding_box()["y"] < 2 * page.viewport_size["height"]
        assert "2 devices are too few" in page.inner_text("#fleet")
        page.fill("#token", live.admin_token)
        page.click("[data-action=devices]")
        page.wait_for_selector("#device-rows tr >> nth=1")
        page.click(f"[aria-label='Revoke device {one.name[:8]}']")
        page.click("#confirm-yes")
        page.wait_for_selector("#done:text-is('Revoked.')")
        assert live.rounds.registry.count_active() == 1
        page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        page.click("[data-action=invite]")
        page.click("#confirm-yes")
        page.wait_for_selector("#copy:visible")
        page.click("#copy")
        page.wait_for_selector("#done:text-is('Copied.')")
        assert page.evaluate("navigator.clipboard.readText()") == page.inner_text("#codes")
        assert page.complaints == []


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """Yield a server whose run is over."""
    folder = tmp_path_factory.mktemp("watched")
    settings = small_settings(terms={"rounds": 40 if DRAWING else 4})
    with live_server(folder, settings, titles=pleasant_titles()) as live, contextlib.ExitStack() as stack:
        count = 8 if DRAWING else 2
        devices = [stack.enter_context(new_device(folder / f"device-{n}", seed=n)) for n in range(count)]
        for device in devices:
            device.join(live.url)
        play(devices)
        yield live


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_the_dashboard_is_for_everyone(browser: Any, watched: Live, size: str, scheme: str) -> None:
    """axe-core finds no violation in page and dialog; the page fits the screen and is painted within a second."""
    page = open_page(browser, watched.url, size=size, scheme=scheme)
    page.wait_for_selector("#chart-moved svg")
    check_layout(page, f"dashboard-{size}-{scheme}")
    assert page.locator("#token").bounding_box()["y"] < 1.5 * SIZES[size][1]  # controls stand above the charts
    page.click("summary")
    assert violations(page) == []
    page.fill("#token", "anything")
    page.click("text=Export the public table")
    page.wait_for_selector("#confirm[open]")
    assert page.evaluate("document.activeElement.id") == "confirm-no"
    assert violations(page, "#confirm") == []
    assert page.complaints == []
