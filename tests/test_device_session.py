"""A person uses the device while it takes part: what the store says decides which rounds were answered."""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from service_kit import (
    N_ITEMS,
    OPEN_SOCKETS,
    PATIENCE,
    ROUND_WAIT,
    Live,
    RawDevice,
    live_server,
    make_body,
    new_device,
    put_server,
    small_settings,
    wait_for,
)
from test_service_hostile import Talk, bad_server, says

from hushrec import Device
from hushrec.audit.own_reports import read_reports
from hushrec.device import joining
from hushrec.device.calls import Call, Job, Reply
from hushrec.device.participation import Participation
from hushrec.device.transport import Stopped
from hushrec.device.ui import Page, Rating
from hushrec.errors import LocalProtocolError, RemoteProtocolError
from hushrec.signing import Request

pytestmark = OPEN_SOCKETS

Use = Callable[[Device], object]


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[Device]:
    """A device that has joined a server which is gone."""
    with new_device(tmp_path / "device") as device:
        with live_server(tmp_path) as live:
            device.join(live.url)
        yield device


def rate(device: Device) -> None:
    """What the page does when a person rates: the rating is stored, and the state is shown."""
    device.add_rating("item-1", 4.0)
    device._session.client()


def drive(device: Device, job: Job, between: Use, *, at: int = 0) -> list[tuple[Call, Reply]]:
    """Runs a job to its end, and has `between` done while a request is under way: the first, or the one at `at`."""
    driver, seen = device._driver(), []
    try:
        call = next(job)
        while True:
            reply = driver._make(call)
            seen.append((call, reply))
            if len(seen) == at + 1:
                between(device)
            call = job.send(reply)
    except StopIteration:
        return seen


def test_ratings_during_a_round_cost_neither_the_round_nor_the_next(tmp_path: Path) -> None:
    """Rated between every request and its reply, three rounds are answered, with one draw of permanent bits."""
    with (
        live_server(tmp_path, small_settings(rounds={"min_devices": 1})) as live,
        new_device(tmp_path / "device") as device,
    ):
        device.join(live.url)
        for number in (1, 2, 3):
            wait_for(lambda number=number: live.rounds.is_open and live.rounds.round_number == number)
            calls = [call for call, _ in drive(device, device._session.step(ROUND_WAIT), rate)]
            assert [call.request.target for call in calls] == [
                f"/v1/inbox?after={number - 1}&last={number - 1}.{min(number - 1, 1)}.0&wait={ROUND_WAIT:g}",
                "/v1/reports",
            ]
        statement = device.budget()
        assert (statement["permanent_draws"], statement["rounds"]) == (1, 3)
        assert device._session.client().last_round == 3
        assert device._store.get("copied") is None


def test_a_round_that_is_announced_again_is_never_answered_with_other_bytes(tmp_path: Path) -> None:
    """A server that hides what was answered, and announces it again, gets nothing, whatever was rated meanwhile."""
    with (
        live_server(tmp_path, small_settings(rounds={"min_devices": 2})) as live,
        RawDevice(live),
        new_device(tmp_path / "device") as device,
    ):
        device.join(live.url)
        wait_for(lambda: live.rounds.is_open)
        (_, announced), _ = drive(device, device._session.step(ROUND_WAIT), rate)
        spent, state = device.budget(), device._store.get("private_state")
        job = device._session.step()
        assert next(job).request.target == "/v1/inbox?after=1&last=1.1.0&wait=0"
        rate(device)
        with pytest.raises(RemoteProtocolError, match="in order"):
            job.send(replace(announced, last_report=None))
        assert device._store.get("outbox") is None
        assert (device.budget(), device._store.get("private_state")) == (spent, state)


def test_a_client_that_missed_an_answer_is_made_anew(tmp_path: Path) -> None:
    """One that was kept from before an answer is not used: the store is ahead of it."""
    with (
        live_server(tmp_path, small_settings(rounds={"min_devices": 1})) as live,
        new_device(tmp_path / "device") as device,
    ):
        device.join(live.url)
        old = device._session.client()
        device._session.forget_client()
        assert device.step(ROUND_WAIT) == "reported"
        device._session._client = old
        assert device._session.client().last_round == 1


def test_ratings_taken_back_during_a_wait_end_taking_part(tmp_path: Path) -> None:
    """With none left when the round comes nothing is sent, and the budget stays whole."""

    def take_back(device: Device) -> None:
        for item in device._store.ratings():
            device.remove_rating(item)

    with (
        live_server(tmp_path, small_settings(rounds={"min_devices": 1})) as live,
        new_device(tmp_path / "device") as device,
    ):
        device.join(live.url)
        wait_for(lambda: live.rounds.is_open)
        with pytest.raises(LocalProtocolError, match="rated"):
            drive(device, device._session.step(ROUND_WAIT), take_back)
        assert device._store.get("outbox") is None
        assert device.budget()["permanent_draws"] == 0


@pytest.mark.parametrize("at", [0, 1, 2])
def test_every_other_job_bears_ratings_between_its_requests(tmp_path: Path, at: int) -> None:
    """A change of key, new items, new epochs, enrolling again and leaving: all go on from what the store holds."""
    settings = small_settings(terms={"epoch_rounds": 2}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live, new_device(tmp_path / "device") as device:
        session = device._session
        device.join(live.url)
        device.raise_budget(1000)

        def answer_until(number: int) -> None:
            while session.client().last_round < number:
                drive(device, session.step(ROUND_WAIT), rate, at=at)

        answer_until(1)
        drive(device, joining.rotate_key(session), rate)
        live.admin("POST", "/v1/admin/catalogue/items", json={"ids": ["new"]}).raise_for_status()
        answer_until(3)
        assert device._store.count_items() == N_ITEMS + 1
        assert device.budget()["permanent_draws"] == 2
        drive(device, joining.rejoin(session), lambda device: device.add_rating("new", 4.0), at=at)
        assert (device.has_joined, session.client().last_round) == (True, 3)
        drive(device, joining.leave(session), rate)
        assert not device.has_joined
        assert device.budget()["permanent_draws"] == 2


@contextmanager
def answering(live: Live, raw: RawDevice) -> Iterator[None]:
    """Another device answers every round, a moment after it opened: rounds go on, and each is waited for."""
    done = threading.Event()

    def answer() -> None:
        last = 0
        while not done.wait(0.02):
            if live.rounds.is_open and live.rounds.round_number > last:
                last = live.rounds.round_number
                raw.report(make_body(last))

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(timeout=PATIENCE)


def wait_for_two_rounds(page: Page) -> None:
    """The device of a page takes part in two more rounds."""
    reported = page.participation.reported
    wait_for(lambda: page.participation.reported >= reported + 2 or not page.participation.is_on)
    assert page.participation.is_on, page.participation.words


def test_a_person_rates_while_rounds_go_on(tmp_path: Path) -> None:
    """Thirty ratings, each with a look at the page, while its thread answers: it still takes part at the end."""
    settings = small_settings(terms={"rounds": 10_000}, rounds={"min_devices": 2, "pause_seconds": 0.05})
    with (
        live_server(tmp_path, settings) as live,
        RawDevice(live) as raw,
        new_device(tmp_path / "device") as device,
        answering(live, raw),
    ):
        device.join(live.url)
        page = Page(device, read_reports)
        page.participation.start()
        for n in range(30):
            page.rate(Rating(item=f"item-{n}", value=4.0))
            page.state()
            if n % 10 == 9:
                wait_for_two_rounds(page)
        assert device.budget()["permanent_draws"] == 1
        page.participation.stop()


def test_steps_of_several_threads_take_turns(tmp_path: Path) -> None:
    """Two threads of one device report in each round once, and no message is out of order for either."""
    rounds = 5
    settings = small_settings(terms={"rounds": rounds}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)

        def outcomes(_: int) -> list[str]:
            found = [device.step(wait=5)]
            while found[-1] != "run over":
                found.append(device.step(wait=5))
            return found

        with ThreadPoolExecutor(2) as pool:
            seen = [outcome for found in pool.map(outcomes, range(2)) for outcome in found]
        assert seen.count("reported") == rounds


def test_a_device_that_is_closed_meanwhile_ends_a_request_as_if_it_was_told_to(tmp_path: Path) -> None:
    """The page's thread may be about to ask when its person ends everything: no traceback."""
    with live_server(tmp_path) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        driver = device._driver()
        driver.http.close()
        with pytest.raises(Stopped):
            driver.run(joining.ask_offer())


def test_closing_a_device_waits_until_another_thread_has_left_the_store(tmp_path: Path) -> None:
    """SQLite crashes if its connection is closed in the middle of a query; the other thread ends with `Stopped`."""
    with live_server(tmp_path) as live, ThreadPoolExecutor(2) as pool, new_device(tmp_path / "device") as device:
        device.join(live.url)
        inside, leave = threading.Event(), threading.Event()

        def stopped() -> bool:  # called while the step may use the store
            inside.set()
            assert leave.wait(PATIENCE)
            return False

        stepping = pool.submit(device.step, stopped=stopped)
        assert inside.wait(PATIENCE)
        closing = pool.submit(device.close)
        try:
            with pytest.raises(TimeoutError):
                closing.result(timeout=0.2)
            assert device._store.ratings()
        finally:
            leave.set()
        closing.result(timeout=PATIENCE)
        with pytest.raises(Stopped):
            stepping.result(timeout=PATIENCE)


def test_a_device_that_follows_its_server_to_a_new_address_goes_on_taking_part(tmp_path: Path) -> None:
    """The connection of the step in progress is closed: the page's thread begins another step at the new address."""
    settings = small_settings(rounds={"min_devices": 1, "automatic": False})
    with live_server(tmp_path, settings) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        taking = Participation(device)
        taking.start()
        wait_for(lambda: taking.code == "waiting")
        device.join(live.url.replace("127.0.0.1", "localhost"))
        live.admin("POST", "/v1/admin/start")
        wait_for(lambda: taking.reported > 0 or not taking.is_on)
        assert taking.is_on
        taking.stop()


class Waits(threading.Event):
    """Says stop after some waits, each of which is noted and takes no time."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most, self.seconds = most, []

    def wait(self, timeout: float | None = None) -> bool:
        self.seconds.append(timeout)
        if len(self.seconds) == self.most:
            self.set()
        return self.is_set()


def page_against(device: Device, talk: Talk) -> tuple[Participation, Waits]:
    """Takes part with a server that always says the same, until it was waited for three times or not at all."""
    stop, taking = Waits(3), Participation(device)
    with bad_server(talk) as url:
        put_server(device, url)
        taking._run(stop)
    return taking, stop


@pytest.mark.parametrize(
    ("head", "seconds"),
    [
        ("503 Busy\r\nRetry-After: 7", 7.0),
        ("429 Often\r\nRetry-After: 99999", 20.0),
        ("502 Gateway\r\nRetry-After: soon", 1.0),
        ("504 Gateway\r\nRetry-After: 0", 1.0),
    ],
)
def test_the_page_waits_as_long_as_a_busy_server_asks(joined: Device, head: str, seconds: float) -> None:
    """Whole seconds up to twenty, at least one; and it tries again until it is told to stop."""
    taking, stop = page_against(joined, says(head + "\r\nContent-Length: 0\r\nConnection: close"))
    assert stop.seconds == [seconds] * 3
    assert taking.code == "busy"


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf"])
def test_the_page_tries_again_after_a_server_was_killed_in_the_middle_of_a_request(joined: Device, sent: bytes) -> None:
    """No reply or half of one ends no participation: the person is told that the server does not answer."""
    taking, stop = page_against(joined, lambda connection: connection.sendall(sent))
    assert stop.seconds == [1.0] * 3
    assert taking.code == "away"


def test_the_page_goes_on_after_its_clock_went_back(joined: Device) -> None:
    """A nonce that the server has seen is raised above its last one, and the request made again."""
    ahead = time.time_ns() + 10**15
    body = msgspec.json.encode({"type": "urn:hushrec:problem:stale-nonce", "last_nonce": ahead})
    head = f"401 Stale\r\nConnection: close\r\nContent-Length: {len(body)}"
    _, stop = page_against(joined, says(head, body))
    assert stop.seconds == [1.0] * 3
    assert joined._session.sign(Request("GET", "/")).nonce > ahead


def test_a_refusal_stops_the_page_with_its_sentence(joined: Device) -> None:
    """What no waiting helps against is not tried again."""
    body = msgspec.json.encode({"type": "urn:hushrec:problem:not-active", "detail": "removed."})
    head = f"403 No\r\nConnection: close\r\nContent-Length: {len(body)}"
    taking, stop = page_against(joined, says(head, body))
    assert taking.code == "not-active"
    assert "the server refused (403): removed." in taking.words
    assert stop.seconds == []


def test_a_bug_ends_participation_with_a_sentence(
    joined: Device, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page names the exception but not its message, which may contain a rating; the terminal shows both."""

    def fail(*given: object, **more: object) -> str:
        raise ZeroDivisionError("rating 5.0")

    monkeypatch.setattr(joined, "step", fail)
    taking = Participation(joined)
    taking.start()
    wait_for(lambda: taking.code == "failed" and not taking.is_on)
    assert "ZeroDivisionError" in taking.words
    assert "5.0" not in taking.words
    assert "rating 5.0" in capsys.readouterr().err


def test_the_page_takes_part_again_when_a_full_server_has_room(tmp_path: Path) -> None:
    """Back-pressure is said in words, and participation goes on after it."""
    with (
        live_server(tmp_path, small_settings(rounds={"min_devices": 1})) as live,
        new_device(tmp_path / "device") as device,
    ):
        device.join(live.url)
        live.storage._waiting.update(range(1000))
        page = Page(device, read_reports)
        page.participation.start()
        wait_for(lambda: page.participation.code == "busy")
        assert page.participation.is_on
        live.storage._waiting.difference_update(range(1000))
        wait_for(lambda: not page.participation.is_on)
        assert page.participation.code == "off"
        assert (device.status().is_over, device.budget()["rounds"]) == (True, 6)
