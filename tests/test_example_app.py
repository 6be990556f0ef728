"""examples/app.py: a device in an app, against a real server."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from service_kit import OPEN_SOCKETS, live_server, new_device, play, put_server, small_settings
from test_service_hostile import bad_server, says

from hushrec import Device
from hushrec.device import aio, session
from hushrec.device.aio import taking_part
from hushrec.device.transport import LONGEST_ASKED
from hushrec.errors import StorageError

ROOT = Path(__file__).parents[1]
pytestmark = OPEN_SOCKETS


def run_app(*arguments: str) -> subprocess.CompletedProcess[str]:
    """The app in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "examples" / "app.py"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=100)


def test_the_app_takes_part_and_shows_recommendations(tmp_path: Path) -> None:
    """With one other device, through two rounds, to its person's list and budget; started again, it goes on."""
    with live_server(tmp_path, small_settings(terms={"rounds": 2}), tls=True) as live:
        ratings = [part for number in range(6) for part in ("--rate", f"item-{number}={1 + number % 5}")]
        with new_device(tmp_path / "other", seed=1) as other:
            other.join(live.url, ca=live.ca)
            thread = threading.Thread(target=play, args=([other],), daemon=True)
            thread.start()
            first = run_app(str(tmp_path / "store"), live.url, "--ca", str(live.ca), *ratings)
            thread.join(timeout=120)
        again = run_app(str(tmp_path / "store"), live.url, "--ca", str(live.ca), "--rate", "item-9=5")
    assert first.returncode == 0, first.stderr
    assert "round 2 of 2: reported" in first.stdout
    assert "spent so far" in first.stdout
    assert "spent so far" in again.stdout
    assert "reported" not in again.stdout


@pytest.mark.parametrize(("rating", "code"), [("1=9", "parameter"), ("1=5", "unreachable")])
def test_errors_are_shown_with_their_code(rating: str, code: str, tmp_path: Path) -> None:
    """A rating off the scale; a server that is not there."""
    done = run_app(str(tmp_path / "store"), "http://127.0.0.1:9", "--rate", rating, "--patience", "0")
    assert done.returncode == 0, done.stderr
    assert f"[{code}]" in done.stdout
    assert "9" not in done.stdout.partition("]")[2].replace("127.0.0.1:9", "")


def test_leaving_the_block_ends_a_step_that_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that opens no round: the app closes after the request under way, not after the step's ten minutes."""
    monkeypatch.setattr(session, "LONGEST_WAIT", 0.2)  # of one request

    async def leave_soon(device: Device) -> list[str]:
        kinds: list[str] = []

        async def listen() -> None:
            async with taking_part(device, wait=600) as events:
                kinds.extend([event.kind async for event in events])

        listening = asyncio.create_task(listen())
        await asyncio.sleep(0.2)
        listening.cancel()
        with suppress(asyncio.CancelledError):
            await listening
        return kinds

    with live_server(tmp_path, small_settings(terms={"rounds": 2})) as live, new_device(tmp_path / "one") as device:
        device.join(live.url, insecure=True)
        started = time.monotonic()
        assert asyncio.run(leave_soon(device)) == []
        assert time.monotonic() - started < 60


async def kinds_of(device: Device, most: int) -> list[str]:
    """The first events of a device that takes part, by kind."""
    async with taking_part(device) as events:
        kinds: list[str] = []
        async for event in events:
            kinds.append(event.kind)
            if len(kinds) == most:
                break
        return kinds


def test_a_busy_server_cannot_stop_a_device_for_years(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device keeps other devices' shares while it waits: a Retry-After counts as `LONGEST_ASKED` at most."""
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    with new_device(tmp_path / "one", patience=0) as device:
        with live_server(tmp_path) as live:
            device.join(live.url)
        busy = says("503 Busy\r\nRetry-After: 999999999\r\nContent-Length: 0\r\nConnection: close")
        with bad_server(busy) as url:
            put_server(device, url)
            monkeypatch.setattr(aio.asyncio, "sleep", sleep)
            assert asyncio.run(kinds_of(device, 3)) == ["unreachable"] * 3
    assert waits == [LONGEST_ASKED] * 2


def test_a_device_that_another_thread_closes_ends_with_an_event(tmp_path: Path) -> None:
    """The app hears that the store is closed, in place of nothing."""

    async def hear(device: Device) -> list[str]:
        closing = threading.Timer(0.3, device.close)
        closing.start()
        with suppress(StorageError):  # the block cannot drop out of a round any more
            async with taking_part(device, wait=1) as events:
                kinds = [event.kind async for event in events]
        closing.join()
        return kinds

    with live_server(tmp_path) as live, new_device(tmp_path / "one") as device:
        device.join(live.url)
        assert asyncio.run(hear(device)) == ["failed"]


def test_a_refusal_is_the_last_event(tmp_path: Path) -> None:
    """A device that has not joined cannot take part: one event, with the code of its error."""

    async def hear(device: Device) -> list[tuple[str, str | None]]:
        async with taking_part(device) as events:
            return [(event.kind, event.error.code if event.error else None) async for event in events]

    with new_device(tmp_path / "one") as device:
        assert asyncio.run(hear(device)) == [("failed", "not-now")]
