"""A device that drops out of a masked attempt keeps none of its secrets, however the attempt ends for it."""

import asyncio
import shutil
import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import httpx
import msgspec
import pytest
from lying_kit import Honest, Told, connected, record_round
from masked_kit import PHASES, bytes_in, close_phase, joined, masked_settings, report, wait_for_phase
from service_kit import OPEN_SOCKETS, get, wait_for

from hushrec import Device
from hushrec.cli.device import _take_part as take_part
from hushrec.device import device as module
from hushrec.device.aio import Event, taking_part
from hushrec.device.open_attempt import LONGEST_SECONDS, USUAL_SECONDS
from hushrec.device.participation import Participation
from hushrec.device.ui import Page
from hushrec.errors import ConnectionFailed, HushrecError, RemoteProtocolError
from hushrec.messages import Address
from hushrec.protocols.masked.device_round import Consented, Idle, Keyed, Shared
from hushrec.protocols.masked.device_state import attempt_in
from hushrec.protocols.masked.secagg.roster import PublicKeys

pytestmark = OPEN_SOCKETS

OPEN = PHASES[1:]  # the stores before these phases have an open attempt


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Honest:
    """One round for all tests; each takes copies of its stores."""
    return record_round(tmp_path_factory.mktemp("honest"))


def secrets_of(device: Device) -> list[bytes]:
    """All secrets of the open attempt: the device's own until it has sent its table, then other devices' shares."""
    attempt = attempt_in(device._session.store.private_state())
    if isinstance(attempt, Idle):
        return []
    if isinstance(attempt, Keyed | Shared):
        own = attempt.secrets
        return [own.mask_private, own.channel_private, own.seed]
    held = (attempt.sent if isinstance(attempt, Consented) else attempt).held.values()
    return [share for shares in held for share in (shares.mask_share, shares.seed_share)]


def refused(code: str, status: int) -> Callable[[], httpx.Response]:
    """A refusal of a request for a message."""
    body = msgspec.json.encode({"type": f"urn:hushrec:problem:{code}", "detail": "no."})
    return lambda: httpx.Response(status, stream=httpx.ByteStream(body))


def waits(seconds: int) -> Callable[[], httpx.Response]:
    """No message yet; the attempt may ask the device for so many seconds more."""
    headers = {"Hushrec-Attempt-Seconds": str(seconds)}
    return lambda: httpx.Response(204, stream=httpx.ByteStream(b""), headers=headers)


def hears(answer: Callable[[], httpx.Response]) -> Callable[[Device, Told], None]:
    """The device asks for a message, and the server answers this."""

    def step(device: Device, told: Told) -> None:
        told.refusal = answer
        with suppress(RemoteProtocolError):
            device.step()

    return step


def leave_unheard(device: Device, told: Told) -> None:
    """Leave a run whose server does not answer."""
    told.gone = True
    with suppress(ConnectionFailed):
        device.leave()


def stop_taking_part(device: Device, told: Told) -> None:
    """The person presses *Stop* on the page."""
    Participation(device).stop()


def end_block(device: Device, told: Told) -> None:
    """An app leaves the block in which the device takes part."""

    async def enter() -> None:
        async with taking_part(device):
            pass

    asyncio.run(enter())


ENDINGS: dict[str, Callable[[Device, Told], None]] = {
    "the server says that the attempt does not ask it any more": hears(waits(0)),
    "the server retired it": hears(refused("not-active", 403)),
    "the run is over": hears(refused("run-over", 410)),
    "the server has another run": hears(refused("next-run", 409)),
    "the person stops taking part": stop_taking_part,
    "the app stops taking part": end_block,
    "it leaves, and the server does not answer": leave_unheard,
}


@pytest.mark.parametrize("phase", OPEN)
@pytest.mark.parametrize("ending", ENDINGS)
def test_no_secret_is_left_when_a_device_drops_out(honest: Honest, tmp_path: Path, ending: str, phase: str) -> None:
    """The store has secrets before and none afterwards; the same attempt is refused, and the next one answered."""
    shutil.copytree(honest.folder / phase, tmp_path / "device")
    told = Told(honest.messages[phase], public=honest.public)
    with connected(tmp_path / "device", told) as device:
        secrets = secrets_of(device)
        assert secrets
        assert all(secret in bytes_in(tmp_path / "device") for secret in secrets)
        with suppress(HushrecError, KeyError):  # a run that is over has no table here
            ENDINGS[ending](device, told)
        assert not any(secret in bytes_in(tmp_path / "device") for secret in secrets)
        told.refusal, told.gone = None, False
        with pytest.raises(RemoteProtocolError, match="in order"):
            device.step()
        told.message, told.address = honest.announce(1, 2), Address(1, 2, "keys")
        assert device.step() == "reported"
        assert len(told.left) == 1


@pytest.mark.parametrize("phase", OPEN)
@pytest.mark.parametrize("until", [0.0, -1.0, 2 * LONGEST_SECONDS])
def test_a_device_that_was_away_too_long_deletes_its_secrets_when_it_is_opened(
    honest: Honest, tmp_path: Path, phase: str, until: float
) -> None:
    """The time of the attempt is over, or the clock was set back by days: nothing else need happen."""
    shutil.copytree(honest.folder / phase, tmp_path / "device")
    with Device(tmp_path / "device") as device:
        secrets = secrets_of(device)
        with device._store.change():
            device._store.put_json("attempt_until", [time.time() + until] * 2)
    assert all(secret in bytes_in(tmp_path / "device") for secret in secrets)
    with Device(tmp_path / "device") as device:
        assert secrets_of(device) == []
        assert not device.status().in_round
        assert not any(secret in bytes_in(tmp_path / "device") for secret in secrets)


def test_a_running_device_deletes_its_secrets_in_time_without_a_server(honest: Honest, tmp_path: Path) -> None:
    """The server is away until the time is over."""
    shutil.copytree(honest.folder / "table", tmp_path / "device")
    told = Told(honest.messages["table"])
    with connected(tmp_path / "device", told) as device:
        told.gone = True
        for over in (False, True):
            if over:
                with device._store.change():
                    device._store.put_json("attempt_until", [time.time()] * 2)
            with pytest.raises(ConnectionFailed):
                device.step()
            assert (secrets_of(device) == []) == over


def test_a_reply_that_never_ends_keeps_no_secrets(
    honest: Honest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server sends one header after another, each in time; the secrets' time passes meanwhile."""
    monkeypatch.setattr(module, "EXPIRY_SECONDS", 0.05)
    shutil.copytree(honest.folder / "unmask", tmp_path / "device")
    ended = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening, Device(tmp_path / "device", patience=0) as device:

        def drip() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.sendall(b"HTTP/1.1 200 OK\r\n")
                while not ended.wait(0.02):
                    connection.sendall(b"x: y\r\n")

        with device._store.change():
            device._store.put_json("server", {"address": f"http://127.0.0.1:{listening.getsockname()[1]}", "ca": None})
            device._store.put_json("attempt_until", [time.time() + 0.5] * 2)
        with ThreadPoolExecutor(2) as pool:
            dripping, stepping = pool.submit(drip), pool.submit(device.step)
            try:
                assert secrets_of(device) != []
                wait_for(lambda: secrets_of(device) == [])
                assert not stepping.done()
            finally:
                ended.set()
            dripping.result()
            with pytest.raises(ConnectionFailed):
                stepping.result()


@pytest.mark.parametrize("is_over", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_a_report_that_did_not_leave_is_deleted_when_the_device_drops_out(
    honest: Honest, tmp_path: Path, phase: str, is_over: bool
) -> None:
    """The last one holds other devices' shares in plain. The person stops, or the time is over at the next start."""
    shutil.copytree(honest.folder / phase, tmp_path / "device")
    told = Told(honest.messages[phase], public=honest.public)

    def lose(body: bytes) -> bytes:
        told.gone = True
        return body

    told.alter = lose
    with connected(tmp_path / "device", told) as device:
        secrets = secrets_of(device)
        with pytest.raises(ConnectionFailed):
            device.step()
        secrets += secrets_of(device)
        assert device._store.get("outbox") is not None
        assert any(secret in bytes_in(tmp_path / "device") for secret in secrets)
        if is_over:
            with device._store.change():
                device._store.put_json("attempt_until", [time.time()] * 2)
        else:
            device.drop_out()
    with Device(tmp_path / "device") as device:
        assert device._store.get("outbox") is None
        assert device._store.get("attempt_until") is None
        assert not any(secret in bytes_in(tmp_path / "device") for secret in secrets)


def test_nothing_of_a_finished_attempt_is_kept(honest: Honest, tmp_path: Path) -> None:
    """Neither its time nor its last report, once the server has it."""
    shutil.copytree(honest.folder / "unmask", tmp_path / "device")
    with connected(tmp_path / "device", Told(honest.messages["unmask"])) as device:
        assert device._store.get("attempt_until") is not None
        assert device.step() == "reported"
        assert (device._store.get("attempt_until"), device._store.get("outbox")) == (None, None)


def refuse_once(honest: Honest) -> Told:
    """A server whose partners are refused; it then announces the next attempt, and removes the device."""
    told = Told(replace(honest.messages["table"], partners=bytes(1)), public=honest.public)

    def go_on(body: bytes) -> bytes:
        if told.address is None:
            told.message, told.address = honest.announce(1, 2), Address(1, 2, "keys")
        else:
            told.refusal = refused("not-active", 403)
        return body

    told.alter = go_on
    return told


def page_takes_part(device: Device) -> str:
    """The thread of the page; it shows why a message was refused."""
    page = Page(device, lambda *_: pytest.fail("nothing to attack"))
    page.participation._run(threading.Event())
    assert (page.participation.reported, page.participation.code) == (1, "not-active")
    return page.state()["refusal"]


def app_takes_part(device: Device) -> str:
    """An app that embeds the device; one event says why."""

    async def collect() -> list[Event]:
        async with taking_part(device) as events:
            return [event async for event in events]

    events = asyncio.run(collect())
    assert [event.kind for event in events] == ["refused", "reported", "failed"]
    return str(events[0].error)


def command_takes_part(device: Device) -> str:
    """`hushrec device join`."""
    with pytest.raises(RemoteProtocolError, match="403"):
        take_part(device, None)
    return device.status().refusal


@pytest.mark.parametrize("way", [page_takes_part, app_takes_part, command_takes_part])
def test_a_refused_message_of_an_attempt_does_not_end_participation(
    honest: Honest, tmp_path: Path, capsys: pytest.CaptureFixture[str], way: Callable[[Device], str]
) -> None:
    """Other devices can cause it: the device reports in the next attempt, and its person is told the reason."""
    shutil.copytree(honest.folder / "table", tmp_path / "device")
    told = refuse_once(honest)
    with connected(tmp_path / "device", told) as device:
        secrets = secrets_of(device)
        assert "partners" in way(device)
        assert [type(message) for message in told.left] == [PublicKeys]
        assert not any(secret in bytes_in(tmp_path / "device") for secret in secrets)
    assert ("partners" in capsys.readouterr().err) == (way is command_takes_part)


def test_a_device_that_changes_its_key_drops_out_of_the_attempt(tmp_path: Path) -> None:
    """Its stored keys name the old identity, and the server would refuse them: it reports in the next round."""
    with joined(tmp_path, 5, masked_settings(5)) as (live, devices):
        *others, changing = devices
        wait_for_phase(live, Address(1, 1, "keys"))
        driver, job = changing._driver(), changing._session.step(5)
        call = next(job)
        while call.request.target != "/v1/reports":
            call = job.send(driver._make(call))
        job.close()  # as if it were stopped here
        assert changing._store.get("outbox") is not None
        changing.rotate_key()
        assert changing.step() == "no round"
        report(live, others, "keys")
        close_phase(live)
        for phase in PHASES[1:]:
            report(live, others, phase)
        report(live, devices, "keys", 2)


@pytest.mark.parametrize(("named", "kept"), [(None, USUAL_SECONDS), (200, 200)])
def test_the_server_names_the_time(honest: Honest, tmp_path: Path, named: int | None, kept: int) -> None:
    """Seconds from the report on."""
    shutil.copytree(honest.folder / "shares", tmp_path / "device")
    told = Told(honest.messages["shares"], seconds=named)
    with connected(tmp_path / "device", told) as device:
        before = time.time()
        assert device.step() == "reported"
        assert before + kept <= device._store.get_json("attempt_until")[0] <= time.time() + kept
        told.refusal = waits(500)  # the phase is still open
        assert device.step() == "no round"
        assert device._store.get_json("attempt_until")[0] >= before + max(kept, 500)
        assert secrets_of(device)
        told.refusal, told.message, told.public = None, honest.messages["table"], honest.public
        assert device.step() == "reported"


def test_a_server_that_names_years_does_not_move_the_end_of_an_attempt(
    honest: Honest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Secrets are kept for at most a day after the keys, whatever the server names with messages and polls."""
    shutil.copytree(honest.folder / "shares", tmp_path / "device")
    told = Told(honest.messages["shares"], seconds=10**9 - 1)
    hour, now, say = 3_600, time.time(), waits(10**9 - 1)
    monkeypatch.setattr(time, "time", lambda: now)
    with connected(tmp_path / "device", told) as device:
        told.refusal = say
        assert device.step() == "no round"
        told.refusal, now = None, now + 12 * hour
        assert device.step() == "reported"
        secrets = secrets_of(device)
        told.refusal, now = say, now + 11 * hour
        assert device.step() == "no round"
        assert secrets_of(device) == secrets
        now += hour
        device.step()
        assert secrets_of(device) == []
        assert not any(secret in bytes_in(tmp_path / "device") for secret in secrets)


def test_a_device_that_sleeps_through_a_phase_wakes_without_secrets(tmp_path: Path) -> None:
    """The others went on without it: the server says so at once, and the device reports in the next round."""
    with joined(tmp_path, 5, masked_settings(5)) as (live, devices):
        *others, sleeper = devices
        report(live, devices, "keys")
        report(live, others, "shares")
        close_phase(live)
        secrets = secrets_of(sleeper)
        assert secrets
        assert sleeper.step() == "no round"
        assert not any(secret in bytes_in(tmp_path / "device-4") for secret in secrets)
        for phase in PHASES[2:]:
            report(live, others, phase)
        report(live, devices, "keys", 2)
        past = get(f"{live.url}/dashboard/rounds?after=0").json()["rounds"]
        assert (past["devices"], past["reports"]) == ([5], [4])  # one drop-out, as the operator's page counts it
