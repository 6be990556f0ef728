"""The person's page in a real browser: rate, train with a small fleet, see recommendations and what left."""

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import masked_kit
import pytest
import uvicorn
from browser_kit import (
    DRAWING,
    LOOKS,
    check_layout,
    keep_figures,
    open_browser,
    open_page,
    pleasant_titles,
    shoot,
    violations,
)
from pace import slowness
from service_kit import (
    N_ITEMS,
    OPEN_SOCKETS,
    PATIENCE,
    ROUND_WAIT,
    held_port,
    live_server,
    new_device,
    play,
    small_settings,
    wait_for,
)

from hushrec import Device
from hushrec.audit.own_reports import read_reports
from hushrec.data import load
from hushrec.device.ui import Page, make_ui
from hushrec.messages import Address
from hushrec.models.item_columns import item_columns
from hushrec.protocols import find_protocol
from hushrec.protocols.masked import cohorts
from hushrec.service.setup import Items

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
        listening.listen()
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        page = Page(device, read_reports)
        app = make_ui(page, token="secret", hosts={place})
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, ws="none", timeout_graceful_shutdown=1))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield f"http://{place}/#secret"
        finally:
            if not page.is_forgotten:
                page.participation.stop()
            server.should_exit = True
            thread.join(timeout=PATIENCE)


def rate(page: Any, words: str, stars: int) -> None:
    """Searches, then rates the first title with the keyboard."""
    page.fill("#search", words)
    page.wait_for_selector(f"#results li:first-child .title bdi:text-is('{words}')")
    first = page.locator("#results li").first.locator("input")
    first.nth(0).focus()
    for _ in range(stars - 1):
        page.keyboard.press("ArrowRight")
    if stars == 1:
        page.keyboard.press("Space")


def welcome(page: Any, server: str, level: str | None = "Usual") -> None:
    """Through the three steps with the keyboard: Enter sends each, and the focus is where it goes on.

    Without a level the last step stays open.
    """
    page.wait_for_selector("#join-server")
    page.focus("#join-server")
    page.keyboard.type(server)
    page.keyboard.press("Enter")
    page.wait_for_selector("#step-2:not([hidden])")
    assert page.evaluate("document.activeElement.closest('form').id") == "step-2"
    page.locator("#step-2 button.main").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("#step-3:not([hidden])")
    if level is not None:
        page.get_by_label(level).check()
        page.get_by_label(level).focus()
        page.keyboard.press("Enter")


def test_rate_train_recommend(browser: Any, tmp_path: Path) -> None:
    """From nothing to changed recommendations: join, rate by keyboard, take part with a fleet, be forgotten."""
    settings = small_settings(terms={"rounds": 20, "factors": 8}, rounds={"min_devices": 3})
    with live_server(tmp_path, settings) as live, contextlib.ExitStack() as stack:
        device = Device.create(tmp_path / "mine")
        page = open_page(browser, stack.enter_context(shown(device)))
        welcome(page, live.url)
        page.wait_for_selector("#results li")
        assert page.evaluate("document.activeElement.id") == "part-head"
        for n, stars in enumerate((5, 4, 1, 5, 2, 3)):
            rate(page, f"Item-{50 + n}", stars)
        page.wait_for_selector("#own-head:text-is('Your ratings (6)')")
        page.wait_for_selector("#part:enabled")
        wanted = {f"item-{50 + n}": float(s) for n, s in enumerate((5, 4, 1, 5, 2, 3))}
        until = time.monotonic() + PATIENCE
        while device.ratings() != wanted and time.monotonic() < until:
            page.wait_for_timeout(100)  # the last presses are still on their way
        assert device.ratings() == wanted
        page.focus("#level")
        page.keyboard.press("ArrowLeft")
        assert "ε 2" in page.inner_text("#level-name")
        assert "50 devices" in page.inner_text("#level-words")
        page.click("#level-set")
        page.click("#confirm-yes")
        page.wait_for_selector("#level-name:has-text('(in use)')")
        page.click("#part")
        fleet = [stack.enter_context(new_device(tmp_path / f"device-{n}", seed=n)) for n in range(2)]
        for other in fleet:
            other.join(live.url)
        for other in 3 * fleet:
            assert other.step(wait=ROUND_WAIT) == "reported"
        page.wait_for_selector("#recommendations li")  # the fleet waits, so that these are not the last ones
        first = [entry.score for entry in device.recommend()]
        others = threading.Thread(target=play, args=(fleet,), daemon=True)
        others.start()
        others.join(timeout=5 * PATIENCE)
        page.wait_for_selector("#state:has-text('All rounds are over')")
        assert not page.is_visible("#part")
        last = device.recommend()
        assert [entry.score for entry in last] != first  # what is shown has one decimal, and may be the same
        shown_last = [f"{entry.title} {entry.predicted:.1f} ★" for entry in last]
        until = time.monotonic() + PATIENCE
        while [
            f"{row.locator('.title bdi').inner_text()} {row.locator('.score').inner_text()}"
            for row in page.locator("#recommendations li").all()
        ] != shown_last:
            assert time.monotonic() < until, "recommendations did not change"
            page.wait_for_timeout(200)
        assert page.locator("#recommendations li").count() == 10
        assert page.locator("#sent-rows tr").count() > 0
        assert "ε 2" in page.inner_text("#ledger")
        assert "fixed" in page.inner_text("#level-said")
        page.click("#forget")
        page.click("#confirm-yes")
        page.wait_for_selector("#erased")
        assert not (tmp_path / "mine").exists()
        assert page.complaints == []


def test_a_server_that_goes_away_shows_and_is_found_again(browser: Any, tmp_path: Path) -> None:
    """The page says so in words, searches and recommends offline, goes on by itself, and can be told to stop."""
    settings = small_settings(terms={"rounds": 10_000}, rounds={"min_devices": 1, "pause_seconds": 0.3})
    with held_port() as port, contextlib.ExitStack() as stack:
        device = stack.enter_context(new_device(tmp_path / "mine"))
        with live_server(tmp_path, settings, port=port) as live:
            device.join(live.url)
            page = open_page(browser, stack.enter_context(shown(device)))
            page.click("#part")
            page.wait_for_selector("#recommendations li")
        page.wait_for_selector("#part-words:has-text('The server does not answer')")
        assert page.inner_text("#state") == "Server away"
        page.fill("#search", "item-1")
        page.wait_for_selector("#found:has-text('11 titles')")
        assert page.locator("#recommendations li .why").count() == 10
        with live_server(tmp_path, settings, port=port):
            page.wait_for_selector("#state:has-text('Taking part')")
            page.click("#part")
            page.wait_for_selector("#part-words:has-text('Not taking part')")
        assert page.complaints == []


def test_a_person_agrees_to_further_rounds_on_the_page(browser: Any, tmp_path: Path) -> None:
    """After the last round the page asks the server when told to, and takes part only after a yes."""
    settings = small_settings(terms={"rounds": 1}, rounds={"min_devices": 1})
    with (
        live_server(tmp_path, settings) as live,
        new_device(tmp_path / "mine") as device,
        shown(device) as address,
    ):
        device.join(live.url)
        play([device])
        page = open_page(browser, address)
        page.wait_for_selector("#next:not([hidden])")
        page.click("#next")
        page.wait_for_selector("#next-said:not(:empty)")
        assert device.status().rounds == 1  # there are none
        live.admin("POST", "/v1/admin/extend/2")
        page.click("#next")
        page.click("#confirm-no")
        assert device.status().rounds == 1
        page.click("#next")
        page.click("#confirm-yes")
        wait_for(lambda: device.budget()["rounds"] == 3)
        page.wait_for_selector("#next:not([hidden])")  # over again
        assert device.budget()["permanent_draws"] == 1


def test_what_is_read_or_has_the_focus_stays(browser: Any, tmp_path: Path) -> None:
    """Rounds go on underneath: open numbers stay open, and removing a rating keeps the focus. Titles are text."""
    settings = small_settings(
        terms={"rounds": 10_000, "factors": 8, "reports_per_client": 20},
        rounds={"min_devices": 1, "pause_seconds": 0.5},
    )
    hostile = "<img src=x onerror=alert(1)>"
    with (
        live_server(tmp_path, settings, titles=[hostile] * N_ITEMS) as live,
        contextlib.ExitStack() as stack,
    ):
        device = stack.enter_context(new_device(tmp_path / "mine"))
        device.join(live.url)
        page = open_page(browser, stack.enter_context(shown(device)))
        page.click("#part")
        page.wait_for_selector("#recommendations .why")
        for place in ("#results", "#recommendations", "#sent-rows"):
            assert page.locator(place).get_by_text(hostile).count() > 0
            assert page.locator(f"{place} img").count() == 0
        page.locator("#sent-rows summary").first.click()
        answered = page.inner_text("#part-note")
        page.wait_for_function("text => document.querySelector('#part-note').textContent !== text", arg=answered)
        assert page.locator("#sent-rows details[open]").count() == 1
        page.click("#own-head")
        page.locator("#ratings button").first.click()
        page.wait_for_selector("#own-head:text-is('Your ratings (11)')")
        page.wait_for_function("() => document.querySelectorAll('#ratings li').length === 11")
        assert page.evaluate("document.activeElement.id") == "own-head"
        assert page.complaints == []


def test_search_and_list_are_quick_on_a_hundred_thousand_items(browser: Any, tmp_path: Path) -> None:
    """In the browser, from a key to the titles and from a question to the list: below 0.1 s.

    The best of many, longer on a slower machine: what else runs there takes its time too.
    """
    settings = small_settings(terms={"factors": 10, "reports_per_client": 50}, rounds={"min_devices": 1})
    typed = """async (text) => {
        const started = performance.now(), list = document.querySelector("#results");
        const drawn = new Promise((done) => new MutationObserver(done).observe(list, { childList: true }));
        document.querySelector("#search").value = text;
        document.querySelector("#search").dispatchEvent(new Event("input"));
        await drawn;
        return performance.now() - started;
    }"""
    listed = """async () => {
        const headers = { "Hushrec-Token": "secret" }, started = performance.now();
        await (await fetch("/api/recommendations", { headers })).json();
        return performance.now() - started;
    }"""
    with live_server(tmp_path, settings, n_items=100_000) as live, contextlib.ExitStack() as stack:
        device = stack.enter_context(new_device(tmp_path / "mine"))
        device.join(live.url)
        while device.step(wait=ROUND_WAIT) != "reported":
            pass
        page = open_page(browser, stack.enter_context(shown(device)))
        page.wait_for_selector("#results li")
        page.wait_for_selector("#recommendations li")
        for name, script in (("search_ms", typed), ("list_ms", listed)):
            for n in range(50 * DRAWING):
                keep_figures("device", **{name: page.evaluate(script, f"item-{n}")})
            assert any(page.evaluate(script, f"item-{n}") < 100 * slowness() for n in range(50))
        assert page.complaints == []


def test_another_open_page_keeps_nothing_after_forgetting(browser: Any, tmp_path: Path) -> None:
    """Erased in one window, ratings disappear from the others too."""
    with new_device(tmp_path / "mine") as device, shown(device) as address:
        pages = [open_page(browser, address) for _ in range(2)]
        pages[0].click("#forget")
        pages[0].keyboard.press("Escape")
        assert (tmp_path / "mine").exists()
        pages[0].click("#forget")
        pages[0].click("#confirm-yes")
        for page in pages:
            page.wait_for_selector("#erased")
            assert page.locator("main *").count() == 1
            assert page.complaints == []


def test_half_stars_and_ratings_between_them_are_shown(browser: Any, tmp_path: Path) -> None:
    """A scale from 0.5 to 5 has ten stars; an imported 3.3 lights the nearest, and stays 3.3 until it is changed."""
    with (
        live_server(tmp_path) as live,
        Device.create(tmp_path / "mine", scale=(0.5, 5.0)) as device,
        shown(device) as address,
    ):
        device.add_rating("item-1", 3.3)
        device.join(live.url)
        page = open_page(browser, address)
        page.click("#own-head")
        page.wait_for_selector("#ratings li")
        assert page.locator("#ratings input").count() == 10
        assert page.locator("#ratings input:checked").get_attribute("value") == "3.5"
        assert device.ratings() == {"item-1": 3.3}
        assert page.complaints == []


def test_a_prediction_on_another_scale_is_no_number_of_stars(browser: Any, tmp_path: Path) -> None:
    """On a scale up to 100 a prediction says of how many; on the scales up to 5 it has a star."""
    settings = small_settings(terms={"rounds": 1}, rounds={"min_devices": 1})
    for number, (scale, words) in enumerate(
        {(0.0, 100.0): " of 100", (0.5, 5.0): " ★", (-10.0, 10.0): " (-10 to 10)"}.items()
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        with (
            live_server(folder, settings) as live,
            Device.create(folder / "mine", scale=scale) as device,
            shown(device) as address,
        ):
            device.add_ratings({f"item-{n}": scale[n % 2] for n in range(12)})
            device.join(live.url)
            play([device])
            page = open_page(browser, address)
            page.wait_for_selector("#recommendations li")
            score = f"{device.recommend()[0].predicted:.1f}{words}"
            assert page.locator("#recommendations .score").first.inner_text() == score
            assert page.complaints == []


def test_long_titles_fit_a_phone(browser: Any, tmp_path: Path) -> None:
    """A title without spaces, in the list, in a reason, in the search, and on the operator's page."""
    titles = [f"{n}{'Donaudampfschifffahrt' * 6}" for n in range(N_ITEMS)]
    settings = small_settings(terms={"rounds": 2}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings, titles=titles) as live, contextlib.ExitStack() as stack:
        device = stack.enter_context(new_device(tmp_path / "mine"))
        device.join(live.url)
        play([device])
        page = open_page(browser, stack.enter_context(shown(device)), size="phone")
        page.wait_for_selector("#recommendations .why bdi")
        page.wait_for_selector("#sent-rows bdi")
        page.wait_for_selector("#results bdi")
        page.locator("#results input:not(:checked)").first.check()
        page.wait_for_selector("#undo-words bdi")
        operator = open_page(browser, live.url, size="phone")
        operator.wait_for_selector("#movers bdi")
        for one in (page, operator):
            assert one.evaluate("document.documentElement.scrollWidth <= innerWidth")
            assert one.complaints == []


def test_a_round_without_a_table_of_this_device_is_named(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Six devices where a sum holds five: one sends its keys, and hears that no table of it is needed."""
    spares = itertools.count()

    def draw(names: Iterable[bytes], *_: Any) -> list[list[bytes]]:
        order, spare = sorted(names), next(spares)  # another one in each round
        return [order[:spare] + order[spare + 1 :]]

    monkeypatch.setattr(cohorts, "draw_cohorts", draw)
    settings = masked_kit.masked_settings(5, rounds={"min_devices": 6})
    with masked_kit.joined(tmp_path, 6, settings) as (live, devices), contextlib.ExitStack() as stack:
        masked_kit.report(live, devices, "keys")
        first = open_page(browser, stack.enter_context(shown(devices[0])))
        first.wait_for_selector("#sent-later:has-text('takes part in round 1, and has not sent its table')")
        assert not first.is_visible("#sent-none")
        masked_kit.wait_for_phase(live, Address(1, 1, "shares"))
        asked = [device for device in devices if device._session.name in live.rounds.server.asked]
        for phase in masked_kit.PHASES[1:]:
            masked_kit.report(live, asked, phase)
        masked_kit.report(live, devices, "keys", 2)
        masked_kit.wait_for_phase(live, Address(2, 1, "shares"))
        (spare,) = (device for device in devices if device._session.name not in live.rounds.server.asked)
        page = open_page(browser, stack.enter_context(shown(spare)))
        page.wait_for_selector("#sent-none:has-text('Round 1:')")
        page.wait_for_selector(
            "#sent-later:has-text('takes part in round 2, and has not sent its table of this round')"
        )
        assert spare.step(wait=0.1) == "no round"
        page.wait_for_selector("#sent-later:has-text('In round 2 the device has sent its keys, but no table: the sum')")
        assert page.complaints == []


def test_a_page_without_the_token_shows_nothing(browser: Any, tmp_path: Path) -> None:
    """Opened without what the command printed, the page says what to do, and no rating is in it."""
    with new_device(tmp_path / "mine") as device, shown(device) as address:
        page = open_page(browser, address.partition("#")[0])
        page.wait_for_selector("#lost:has-text('Open the address that')")
        assert not page.is_visible("#joined")


def film_people(folder: Path, count: int) -> tuple[Items, list[Device]]:
    """Return the films of the synthetic set, and devices of its first people with their ratings."""
    known = load("synthetic")
    assert known.titles is not None
    assert known.values is not None
    films = Items.of(
        known.item_ids, known.titles, {"columns": item_columns(known.n_items, known.titles, known.attributes)}
    )
    devices = []
    for user in range(count):
        rated = known.users == user
        device = Device.create(folder / f"device-{user}", patience=5)
        values = zip(known.items[rated], known.values[rated].tolist(), strict=True)
        device.add_ratings({known.item_ids[item]: value for item, value in values})
        devices.append(device)
    return films, devices


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The page of a device whose run is over."""
    folder = tmp_path_factory.mktemp("trained")
    settings = small_settings(terms={"rounds": 40 if DRAWING else 4, "factors": 6, "reports_per_client": 10})
    with live_server(folder, settings, titles=pleasant_titles()) as live, contextlib.ExitStack() as stack:
        count = 8 if DRAWING else 2
        devices = [stack.enter_context(new_device(folder / f"device-{n}", seed=n)) for n in range(count)]
        for device in devices:
            device.join(live.url)
        play(devices)
        yield stack.enter_context(shown(devices[0]))


@pytest.mark.parametrize(("size", "scheme"), LOOKS)
def test_the_device_page_is_for_everyone(browser: Any, trained: str, size: str, scheme: str) -> None:
    """axe-core finds no violation, in the page or in its dialog; it fits the screen, and is painted within a second."""
    page = open_page(browser, trained, size=size, scheme=scheme)
    page.wait_for_selector("#sent-rows tr")
    page.wait_for_selector("#recommendations li")
    page.wait_for_selector("#level-words li")
    check_layout(page, f"device-{size}-{scheme}")
    page.click("#own-head")
    page.locator("#sent-rows summary").first.click()
    assert violations(page) == []
    page.click("#forget")
    page.wait_for_selector("#confirm[open]")
    assert page.evaluate("document.activeElement.id") == "confirm-no"
    assert violations(page, "#confirm") == []
    assert page.complaints == []


@pytest.mark.parametrize(
    ("protocol", "option", "usual", "strict"), [("sdcf", "epsilon_i", 4, 0.25), ("masked", "epsilon", 8, 1)]
)
def test_the_first_page_is_for_everyone(
    browser: Any, tmp_path: Path, protocol: str, option: str, usual: float, strict: float
) -> None:
    """Every step of the welcome, too; nothing is joined before the last, and each can be gone back from."""
    settings = small_settings() if protocol == "sdcf" else masked_kit.masked_settings(100)
    with (
        live_server(tmp_path, settings, items=film_people(tmp_path, 0)[0]) as live,
        Device.create(tmp_path / "mine") as device,
        shown(device) as address,
    ):
        page = open_page(browser, address, size="phone")
        page.wait_for_selector("#step-1 button")
        assert violations(page) == []
        shoot(page, "device-welcome-1")
        page.fill("#join-server", live.url)
        page.keyboard.press("Enter")
        for step in (2, 3):
            page.wait_for_selector(f"#step-{step}:not([hidden])")
            assert violations(page) == []
            assert small_targets(page) == []
            if protocol == "masked":
                shoot(page, f"device-welcome-{step}")
            if step == 2:
                assert page.inner_text(".risk") == find_protocol(protocol).knowledge.risk
                page.click("#step-2 .back")
                page.keyboard.press("Tab")
                page.keyboard.press("Enter")  # the address is still there
                page.wait_for_selector("#step-2:not([hidden])")
                page.click("#step-2 button.main")
        assert page.inner_text("#welcome-choice") == find_protocol(protocol).knowledge.choice
        assert live.rounds.registry.count_active() == 0
        assert device.budgets.by_protocol()[protocol][option] == usual
        page.get_by_label("Strict").check()
        page.click("#join")
        page.wait_for_selector("#joined:not([hidden])")
        assert (device.budgets.by_protocol()[protocol][option], live.rounds.registry.count_active()) == (strict, 1)
        assert page.complaints == []


@pytest.mark.parametrize(
    ("settings", "code", "words"),
    [
        (None, "unreachable", "could not be reached"),
        ({"tls": True}, "certificate-untrusted", "does not trust"),
        ({"settings": small_settings(open_enrolment=False)}, "not-invited", "requires an invitation"),
    ],
)
def test_a_server_that_cannot_be_joined_is_named_in_plain_words(
    browser: Any, tmp_path: Path, settings: dict[str, Any] | None, code: str, words: str
) -> None:
    """No option of the command line and no name of an exception; the focus is on the field that can mend it."""
    with contextlib.ExitStack() as stack:
        device = stack.enter_context(Device.create(tmp_path / "mine", patience=0))
        if settings is None:
            url = f"http://127.0.0.1:{stack.enter_context(held_port())}"
        else:
            url = stack.enter_context(live_server(tmp_path, **settings)).url
        page = open_page(browser, stack.enter_context(shown(device)))
        page.wait_for_selector("#join-server")
        page.fill("#join-server", url)
        page.keyboard.press("Enter")
        if code == "not-invited":
            page.click("#step-2 button.main")
            page.click("#join")
        page.wait_for_selector(f"#step-1-said:has-text('{words}')")
        said = page.inner_text("main")
        assert "--" not in said
        assert "Error" not in said
        focused = {"unreachable": "join-server", "certificate-untrusted": "join-ca", "not-invited": "join-invitation"}
        assert page.evaluate("document.activeElement.id") == focused[code]
        assert page.complaints == []


def small_targets(page: Any) -> list[str]:
    """What can be pressed and is smaller than 44 by 44 pixels; a control counts with its label."""
    return page.evaluate("""() => [...document.querySelectorAll("button, input, summary, [role=button]")]
        .filter((one) => one.checkVisibility())
        .map((one) => [one, (one.closest("label") ?? one).getBoundingClientRect()])
        .filter(([one, box]) => box.height < 43.5 || (box.width < 43.5))
        .map(([one, box]) => `${one.tagName} ${one.id} ${one.textContent.slice(0, 20)} ${box.width}x${box.height}`)""")


def test_a_rating_can_be_undone_and_more_titles_shown(browser: Any, tmp_path: Path) -> None:
    """Undo brings the earlier rating back, or none; more than twelve titles come on demand; the focus stays."""
    with live_server(tmp_path) as live, Device.create(tmp_path / "mine") as device, shown(device) as address:
        device.add_rating("item-51", 2)
        device.join(live.url)
        page = open_page(browser, address)
        page.wait_for_selector("#results li")
        assert page.locator("#results li").count() == 12
        page.click("#more")
        page.wait_for_selector("#results li:nth-child(24)")
        assert page.evaluate("document.activeElement.name") == "found-item-12"
        for item, before in (("51", {"item-51": 2.0}), ("52", {"item-51": 2.0})):
            rate(page, f"Item-{item}", 4)
            page.wait_for_selector("#undo-row:has-text('Rated 4')")
            assert page.evaluate("document.activeElement.name") == f"found-item-{item}"
            wait_for(lambda item=item: device.ratings().get(f"item-{item}") == 4.0)
            page.click("#undo")
            wait_for(lambda before=before: device.ratings() == before)
            page.wait_for_function("name => document.activeElement.name === name", arg=f"found-item-{item}")
        page.wait_for_selector("#own-head:text-is('Your ratings (1)')")
        page.click("#own-head")
        page.locator("#ratings button").first.click()
        wait_for(lambda: device.ratings() == {})
        page.click("#undo")
        wait_for(lambda: device.ratings() == {"item-51": 2.0})
        assert page.complaints == []


def test_a_title_cannot_turn_the_words_around_it(browser: Any, tmp_path: Path) -> None:
    """U+202E in a title reverses that title alone: the words after it stand to its right, as written."""
    hostile = "Evil \u202eemit"
    settings = small_settings(terms={"rounds": 2}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings, titles=[hostile] * N_ITEMS) as live, contextlib.ExitStack() as stack:
        device = stack.enter_context(new_device(tmp_path / "mine"))
        device.join(live.url)
        play([device])
        page = open_page(browser, stack.enter_context(shown(device)))
        page.wait_for_selector("#recommendations .why")
        rated = page.locator("#recommendations .why bdi").first
        assert rated.inner_text() == hostile
        after = """(node) => { const text = document.createRange(); text.selectNode(node.nextSibling);
            return [node.getBoundingClientRect().right, text.getBoundingClientRect().left]; }"""
        right, left = rated.evaluate(after)
        assert left >= right - 1
        for place in ("#results .title", "#recommendations .title", "#sent-rows th"):
            found = page.locator(place)
            assert found.count() == page.locator(f"{place} > bdi").count()
        assert page.complaints == []


def test_recommendations_come_before_settings_on_a_phone(browser: Any, trained: str) -> None:
    """Taking part, recommendations, ratings; then level and ledger. A budget that is paid is no alarm."""
    page = open_page(browser, trained, size="phone")
    page.wait_for_selector("#recommendations li")
    page.wait_for_selector("#level-words li")
    tops = [page.locator(name).bounding_box()["y"] for name in ("#part-head", "#for-you", "#rate-head", "#level-head")]
    assert tops == sorted(tops)
    assert tops[1] < 844  # the first screen shows where they begin
    assert small_targets(page) == []
    assert "further rounds add nothing" in page.inner_text("#ledger-note")
    assert page.locator("#ledger-head ~ .bar").count() == 0


def test_a_person_types_a_level_of_their_own(browser: Any, tmp_path: Path) -> None:
    """In the welcome, where Enter joins with what was typed or says why not; then beside the slider, and back."""
    settings = masked_kit.masked_settings(4)
    with live_server(tmp_path, settings, items=masked_kit.catalogue()) as live, contextlib.ExitStack() as stack:
        device = Device.create(tmp_path / "mine")
        page = open_page(browser, stack.enter_context(shown(device)), size="phone")
        welcome(page, live.url, level=None)
        field = page.get_by_label("Your own ε over all rounds")
        field.fill("99")
        assert page.locator("#welcome-other").is_checked()
        field.press("Enter")
        page.wait_for_selector("#step-3-said:has-text('from 0')")
        assert not device.has_joined
        field.fill("3,5")
        field.blur()
        page.wait_for_selector("#welcome-own-words:has-text('of 100 cases')")
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        field.press("Enter")
        page.wait_for_selector("#level-name:text-is('Your own, ε 3.5 over all rounds (in use)')")
        assert device.budgets.by_protocol()["masked"]["epsilon"] == 3.5
        field = page.get_by_label("Another level: your own ε")
        field.fill("lots")
        field.press("Enter")
        page.wait_for_selector("#own-said:has-text('from 0')")
        field.fill("0.5")
        field.press("Enter")
        page.wait_for_selector("#level-name:text-is('Your own, ε 0.5 over all rounds')")
        assert page.evaluate("document.activeElement.id") == "level"
        assert (page.inner_text("#own-said"), device.budgets.by_protocol()["masked"]["epsilon"]) == ("", 3.5)
        for wanted in (0.5, 8.0):
            page.click("#level-set")
            page.click("#confirm-yes")
            page.wait_for_selector("#level-name:has-text('(in use)')")
            assert device.budgets.by_protocol()["masked"]["epsilon"] == wanted
            page.focus("#level")
            page.keyboard.press("End")
        assert small_targets(page) == []
        assert page.complaints == []
        assert violations(page) == []


def test_both_pages_after_a_masked_run(browser: Any, tmp_path: Path) -> None:
    """The person sees a list, what the run cost, and that a table of random numbers left; the operator sees rounds.

    Until the other devices report, the person's page says that it waits for them.
    """
    count = 100 if DRAWING else 5
    films, devices = film_people(tmp_path, count)
    settings = masked_kit.masked_settings(count, rounds={"deadline_seconds": 600})
    with live_server(tmp_path, settings, items=films) as live, contextlib.ExitStack() as stack:
        for device in devices:
            stack.callback(device.close)
            device.join(live.url)
        page = open_page(browser, stack.enter_context(shown(devices[0])))
        page.click("#part")
        page.wait_for_selector("#part-words:has-text('has reported, and waits for the other devices')")
        masked_kit.take_part(devices[1:], lambda: False)
        page.wait_for_selector("#state:has-text('All rounds are over')")
        page.wait_for_selector("#recommendations li")
        page.wait_for_selector("#level-words li")
        assert "ε" in page.inner_text("#ledger")
        page.wait_for_selector("text=random numbers")
        assert page.complaints == []
        shoot(page, "device-masked-light")
        operator = open_page(browser, live.url, scheme="dark")
        operator.wait_for_selector("#state:has-text('All rounds are over')")
        operator.wait_for_selector("#cannot li")
        honest = live.rounds.offer.terms.priced.cohort.honest
        assert f"at least {honest} honest devices" in operator.inner_text("#asked")
        assert operator.complaints == []
        shoot(operator, "dashboard-masked-dark")
