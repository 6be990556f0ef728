"""The person's page in a real browser: rate, train with a small fleet, see recommendations and what left."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from browser_kit import DRAWING, name_items, open_browser, open_page, shoot, violations
from service_kit import OPEN_SOCKETS, live_server, new_device, play, small_settings

from hushrec import Device
from hushrec.audit.rank_one import take_apart
from hushrec.device.ui import Page, make_ui

pytestmark = OPEN_SOCKETS


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of this file."""
    with open_browser() as found:
        yield found


@contextlib.contextmanager
def shown(device: Device) -> Iterator[str]:
    """The page of a device, at the address that `hushrec device ui` would print."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        page = Page(device, take_apart)
        app = make_ui(page, token="secret", hosts={place})
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://{place}/#secret"
        finally:
            page.part.stop()
            server.should_exit = True
            thread.join(timeout=20)


def rate(page: Any, words: str, stars: int) -> None:
    """Searches, then rates the first title with the keyboard."""
    page.fill("#search", words)
    page.wait_for_selector(f"#results li:first-child .title:text-is('{words}')")
    first = page.locator("#results li").first.locator("input")
    first.nth(0).focus()
    for _ in range(stars - 1):
        page.keyboard.press("ArrowRight")
    if stars == 1:
        page.keyboard.press("Space")


def test_rate_train_recommend(browser: Any, tmp_path: Path) -> None:
    """From nothing to changed recommendations: join, rate by keyboard, take part with a fleet, be forgotten."""
    settings = small_settings(terms={"rounds": 60, "factors": 8}, rounds={"min_devices": 3})
    with live_server(tmp_path, settings) as live, contextlib.ExitStack() as stack:
        device = Device.create(tmp_path / "mine")
        page = open_page(browser, stack.enter_context(shown(device)))
        page.fill("#join-server", live.url)
        page.click("#join")
        page.wait_for_selector("#results li")
        for n, stars in enumerate((5, 4, 1, 5, 2, 3)):
            rate(page, f"Item-{50 + n}", stars)
        page.wait_for_selector("#own-head:text-is('Your ratings (6)')")
        page.wait_for_selector("#part:enabled")
        wanted = {f"item-{50 + n}": float(s) for n, s in enumerate((5, 4, 1, 5, 2, 3))}
        until = time.monotonic() + 20
        while device._store.ratings() != wanted and time.monotonic() < until:
            page.wait_for_timeout(100)  # the last presses are still on their way
        assert device._store.ratings() == wanted
        page.click("#part")
        fleet = [stack.enter_context(new_device(tmp_path / f"device-{n}", seed=n)) for n in range(2)]
        for other in fleet:
            other.join(live.url)
        others = threading.Thread(target=play, args=(fleet,), daemon=True)
        others.start()
        page.wait_for_selector("#recommendations li", timeout=60_000)
        first = page.locator("#recommendations li .score").all_inner_texts()
        others.join(timeout=60)
        page.wait_for_selector("#part-words:has-text('All rounds are over')", timeout=60_000)
        until = time.monotonic() + 20
        while page.locator("#recommendations li .score").all_inner_texts() == first:
            assert time.monotonic() < until, "recommendations did not change"
            page.wait_for_timeout(200)
        assert page.locator("#recommendations li").count() == 10
        assert page.locator("#sent-rows tr").count() > 0
        assert "ε 8" in page.inner_text("#ledger")
        assert "Fixed since your first round" in page.inner_text("#level-said")
        page.click("#forget")
        page.click("#confirm-yes")
        page.wait_for_selector("#erased")
        assert not (tmp_path / "mine").exists()
        assert page.complaints == []


def test_a_server_that_is_away_shows(browser: Any, tmp_path: Path) -> None:
    """The page says so in words, keeps searching offline, and can be told to stop."""
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(new_device(tmp_path / "mine"))
        device._attempts = 2
        with live_server(tmp_path) as live:
            device.join(live.url)
        page = open_page(browser, stack.enter_context(shown(device)))
        page.click("#part")
        page.wait_for_selector("#part-words:has-text('The server does not answer')", timeout=20_000)
        page.fill("#search", "item-1")
        page.wait_for_selector("#found:has-text('11 titles')")
        page.click("#part")
        page.wait_for_selector("#part-words:has-text('Not taking part')")
        assert page.complaints == []


def test_a_page_without_the_token_shows_nothing(browser: Any, tmp_path: Path) -> None:
    """Opened without what the command printed, the page says what to do, and no rating is in it."""
    with new_device(tmp_path / "mine") as device, shown(device) as address:
        page = open_page(browser, address.partition("#")[0])
        page.wait_for_selector("#lost:has-text('open the address that')")
        assert not page.is_visible("#joined")


@pytest.mark.parametrize(("size", "scheme"), [("phone", "dark"), ("desktop", "light")])
def test_the_device_page_is_for_everyone(browser: Any, tmp_path: Path, size: str, scheme: str) -> None:
    """axe-core finds no violation, nothing is wider than the screen, and the first thing is painted within a second."""
    settings = small_settings(terms={"rounds": 40 if DRAWING else 4, "factors": 6, "reports_per_client": 10})
    with live_server(tmp_path, settings) as live, contextlib.ExitStack() as stack:
        name_items(live.storage)
        count = 8 if DRAWING else 2
        devices = [stack.enter_context(new_device(tmp_path / f"device-{n}", seed=n)) for n in range(count)]
        for device in devices:
            device.join(live.url)
        play(devices, seconds=120)
        page = open_page(browser, stack.enter_context(shown(devices[0])), size=size, scheme=scheme)
        page.wait_for_selector("#sent-rows tr")
        page.wait_for_selector("#recommendations li")
        page.wait_for_selector("#level-words li")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        paint = page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        assert paint < 1000
        shoot(page, f"device-{size}")
        assert violations(page) == []
