"""Faults that really kill and cut: servers and devices with SIGKILL, full disks, locked databases, dead connections."""

import asyncio
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from fault_kit import (
    FULL_DISK,
    FULL_DISK_UNTIL_HEARD,
    KILL,
    N_ITEMS,
    WIDTH,
    Databases,
    Recorded,
    ServerProcess,
    Zygote,
    send_until_acknowledged,
    set_up_recorded,
    strike_and_compare,
)
from service_kit import (
    OPEN_SOCKETS,
    PATIENCE,
    ROUND_WAIT,
    RawDevice,
    get,
    keep_record,
    live_server,
    make_body,
    new_device,
    prepare_known_run,
    small_settings,
    wait_for,
)

from hushrec import Device, wire
from hushrec.device import joining
from hushrec.device.budgets import Budgets
from hushrec.device.fleet import Member, Orders, Outcome, run_fleet
from hushrec.errors import StorageError
from hushrec.messages import Enrolment, Offer
from hushrec.service.rounds import Rounds
from hushrec.service.setup import Items
from hushrec.service.storage import Storage
from hushrec.signing import DeviceKey, Request, device_id_of

pytestmark = OPEN_SOCKETS


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """One for all tests here; each test ends the processes that it started."""
    made = Zygote(tmp_path_factory.mktemp("zygote"))
    yield made
    made.close()


def test_a_server_killed_at_random_moments_loses_and_doubles_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """Five rounds of recorded reports with kill -9: the item vectors equal those of an undisturbed run bit for bit."""
    done = strike_and_compare(zygote, tmp_path, KILL, n_devices=12, rounds=5, latest=0.1, share=0.8)
    assert done["strikes"] >= 2


def test_a_disk_that_is_full_for_a_while_loses_and_doubles_nothing(zygote: Zygote, tmp_path: Path) -> None:
    """In each round no write succeeds until a report was refused: no report is lost, and every round ends."""
    done = strike_and_compare(zygote, tmp_path, FULL_DISK_UNTIL_HEARD, n_devices=12, rounds=3, latest=0.0)
    assert done["strikes"] == 3
    assert done["told_to_come_back"] >= 3


@pytest.mark.soak
def test_fifty_rounds_with_a_full_disk_in_each(zygote: Zygote, tmp_path: Path) -> None:
    """The long form."""
    done = strike_and_compare(zygote, tmp_path, FULL_DISK, n_devices=40, rounds=50, latest=0.1)
    assert done["strikes"] == 50
    keep_record("service-full-disk", done)


@pytest.mark.soak
def test_fifty_rounds_with_a_kill_in_each(zygote: Zygote, tmp_path: Path) -> None:
    """The long form."""
    done = strike_and_compare(zygote, tmp_path, KILL, n_devices=40, rounds=50, latest=0.15)
    assert done["strikes"] == 50
    assert done["cut_off"] > 0  # or nothing was hit
    keep_record("service-kill", done)


def kill_device_everywhere(zygote: Zygote, folder: Path, *, at_most: int) -> int:
    """Kill a device before each action of two steps; return the number of different moments."""
    settings = small_settings(terms={"rounds": 1000}, rounds={"min_devices": 1})
    with live_server(folder, settings) as live:
        with new_device(folder / "device") as device:
            device.join(live.url)
        moment = 0
        while moment < at_most:
            moment += 1
            with Device(folder / "device") as device:
                before = device.budget()["rounds"]
            status = zygote.ask(step=str(folder / "device"), times=2, kill_at=moment)["status"]
            with Device(folder / "device") as device:
                assert device.step(wait=ROUND_WAIT) == "reported"  # goes on, with the same bytes where some were stored
                rounds = device.budget()["rounds"]
                assert before + 1 <= rounds <= before + 3
                # Each round is charged exactly once: the next one is open, and stays so without a report.
                wait_for(lambda opened=rounds + 1: live.rounds.is_open and live.rounds.round_number == opened)  # type: ignore[misc]
                assert device.budget()["committed"] == 8.0  # and no permanent bit was drawn again
            if status == 0:
                break
            assert status == -signal.SIGKILL
    return moment


def test_a_device_killed_at_every_step_never_reports_twice_or_is_charged_twice(zygote: Zygote, tmp_path: Path) -> None:
    """The server refuses a second report with other bytes, so every step that succeeds is a proof."""
    assert kill_device_everywhere(zygote, tmp_path, at_most=200) > 20


@pytest.mark.parametrize("n_replies", [0, 1, 2])
@pytest.mark.parametrize("heard", [False, True])
def test_a_device_killed_while_it_joins_joins_the_next_time(tmp_path: Path, n_replies: int, heard: bool) -> None:
    """Killed before each request and after the server handled it: key and invitation still work."""
    settings = small_settings(open_enrolment=False, rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live:
        (code,) = live.admin("POST", "/v1/admin/invitations/1").json()["invitations"]
        with new_device(tmp_path / "device") as device:
            with device._store.change():
                device._store.put_json("server", {"address": live.url, "ca": None})
            driver, job = device._driver(), joining.join(device._session, code)
            call = next(job)
            for _ in range(n_replies):
                call = job.send(driver._make(call))
            if heard:
                driver._make(call)
            job.close()  # killed here
        with Device(tmp_path / "device") as device:
            device.join(live.url, invitation=code)
            assert device.step(wait=ROUND_WAIT) == "reported"
        assert live.rounds.registry.count_active() == 1


def test_a_store_that_was_never_finished_says_so(tmp_path: Path) -> None:
    """The device was killed while its store was made."""
    folder = tmp_path / "device"
    folder.mkdir(mode=0o700)
    os.close(os.open(folder / "device.sqlite", os.O_CREAT, 0o600))
    with pytest.raises(StorageError, match="incomplete"):
        Device(folder)
    (folder / "device.sqlite").write_bytes(b"x" * 5000)
    with pytest.raises(StorageError, match="is damaged"):
        Device(folder)


def test_a_device_on_a_full_disk_says_so_and_goes_on_later(tmp_path: Path) -> None:
    """A real process that cannot write: one sentence; nothing is sent, charged or damaged."""
    command = [sys.executable, "-m", "hushrec", "device", "join", "--rounds", "1", "--store", str(tmp_path / "device")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with live_server(tmp_path, small_settings(rounds={"min_devices": 1})) as live:
        with new_device(tmp_path / "device") as device:
            device.join(live.url)
        full = subprocess.run(
            ["bash", "-c", 'ulimit -f 0; exec "$0" "$@"', *command],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            timeout=5 * PATIENCE,
            check=False,
        )
        assert full.returncode == 1
        assert "is unavailable" in full.stderr
        assert full.stderr.count("\n") == 1
        assert live.rounds.n_reports == 0
        with Device(tmp_path / "device") as device:
            assert device.budget()["rounds"] == 0
            assert device.step(wait=ROUND_WAIT) == "reported"


def fill_up(connection: sa.Connection) -> None:
    """Keep the database from growing, with only a page or two of free space in it."""
    free = connection.exec_driver_sql("PRAGMA freelist_count").scalar_one()
    connection.exec_driver_sql(f"CREATE TABLE filler AS SELECT zeroblob({max(0, free - 3) * 4000}) AS x")
    connection.exec_driver_sql("PRAGMA max_page_count = 1")  # means: no more than it has


def test_a_full_disk_refuses_and_then_goes_on(tmp_path: Path) -> None:
    """While the database cannot grow, reports get no receipt; afterwards they do, and none is lost."""
    settings = small_settings(terms={"factors": 50, "reports_per_client": 590})
    with live_server(tmp_path, settings, n_items=600) as live, RawDevice(live) as one, RawDevice(live) as two:
        wait_for(lambda: live.rounds.is_open)
        assert one.report(make_body(width=50)).status_code == 200
        big = make_body(items=tuple(range(600)), width=50, size=1e-4)
        live.storage.at_once(fill_up)
        reply = two.report(big)
        assert (reply.status_code, reply.json()["type"]) == (503, "urn:hushrec:problem:storage")
        assert reply.headers["retry-after"] == "1"
        assert get(f"{live.url}/healthz").status_code == 503
        assert live.rounds.n_reports == 1
        live.storage.at_once(lambda c: c.exec_driver_sql("PRAGMA max_page_count = 1000000"))
        assert two.report(big).status_code == 200
        assert get(f"{live.url}/healthz").status_code == 200
        wait_for(lambda: live.count("rounds_closed") == 1)


def test_the_health_check_fails_as_long_as_no_write_succeeds(tmp_path: Path) -> None:
    """Queries still succeed while writes are refused."""
    tables = ("run", "schema")
    with live_server(tmp_path) as live:
        assert get(f"{live.url}/healthz").status_code == 200
        for table in tables:
            refuse = f"CREATE TRIGGER no_{table} BEFORE UPDATE ON {table} BEGIN SELECT RAISE(ABORT, 'full'); END"
            live.storage.at_once(lambda c, sql=refuse: c.exec_driver_sql(sql))
        assert live.admin("POST", "/v1/admin/pause").status_code == 503
        assert [get(f"{live.url}/healthz").status_code for _ in range(3)] == [503] * 3
        for table in tables:
            live.storage.at_once(lambda c, sql=f"DROP TRIGGER no_{table}": c.exec_driver_sql(sql))
        assert live.admin("POST", "/v1/admin/pause").status_code == 200
        wait_for(lambda: get(f"{live.url}/healthz").status_code == 200)


def test_a_locked_database_refuses_and_then_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process that locks the database delays reports, but none is lost."""
    monkeypatch.setattr("hushrec.service.storage.LOCK_TIMEOUT_SECONDS", 0.1)
    with live_server(tmp_path) as live, RawDevice(live) as one, RawDevice(live) as two:
        wait_for(lambda: live.rounds.is_open)
        other = sqlite3.connect(tmp_path / "server.sqlite", isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        assert one.report(make_body()).json()["type"] == "urn:hushrec:problem:storage"
        assert get(f"{live.url}/healthz").status_code == 503
        other.execute("ROLLBACK")
        other.close()
        for device in (one, two):
            assert device.report(make_body()).status_code == 200
        wait_for(lambda: live.count("rounds_closed") == 1)


def test_a_device_whose_disk_is_full_sends_nothing(tmp_path: Path) -> None:
    """What cannot be stored is not sent, and not charged."""
    settings = small_settings(terms={"factors": 50}, rounds={"min_devices": 1})
    with live_server(tmp_path, settings) as live, new_device(tmp_path / "device") as device:
        device.join(live.url)
        device._store._database.execute("PRAGMA max_page_count = 1")  # means: no more than it has
        with pytest.raises(StorageError, match=r"store .*full"):
            device.step(wait=ROUND_WAIT)
        assert live.rounds.n_reports == 0
        assert device.budget()["rounds"] == 0
        device._store._database.execute("PRAGMA max_page_count = 1000000")
        assert device.step(wait=ROUND_WAIT) == "reported"


def test_connections_that_say_nothing_or_too_little_are_closed(tmp_path: Path) -> None:
    """Silent connections, half a head and half a body end in time, and do not block other clients."""
    settings = small_settings(limits={"body_seconds": 3})  # enough for the honest one, on any machine
    with live_server(tmp_path, settings) as live, RawDevice(live) as one, RawDevice(live) as slow:
        wait_for(lambda: live.rounds.is_open)
        port = int(live.url.rpartition(":")[2])
        header = slow.sign(Request("POST", "/v1/reports", make_body()))
        half_body = f"POST /v1/reports HTTP/1.1\r\nHost: x\r\nAuthorization: {header}\r\nContent-Length: 99\r\n\r\nab"
        said = [b"", b"GET /v1/run HTTP/1.1\r\nHost: x\r\nX-Slow", half_body.encode()]
        sockets = []
        for words in said * 4:
            sockets.append(socket.create_connection(("127.0.0.1", port)))
            sockets[-1].sendall(words)
        assert one.report(make_body()).status_code == 200
        for number, open_socket in enumerate(sockets):
            open_socket.settimeout(PATIENCE)
            reply = b""
            while piece := open_socket.recv(10_000):
                reply += piece
            assert (b"408" in reply) == (number % 3 == 2)
            open_socket.close()
        assert live.rounds.n_reports == 1


class Clock:
    """A clock that a test moves."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


def make_rounds(
    tmp_path: Path, clock: Clock, wall: Clock, *, deadline: float = 60, pause: float = 0
) -> tuple[Storage, Rounds]:
    """Return a run without a socket, and its database."""
    settings = small_settings(rounds={"deadline_seconds": deadline, "pause_seconds": pause, "min_devices": 2})
    storage = Storage(f"sqlite:///{tmp_path / 'server.sqlite'}")
    prepare_known_run(storage, settings, Items([f"item-{n}" for n in range(60)], [""] * 60))
    return storage, Rounds(storage, settings, clock=clock, wall_clock=wall)


async def join_two(rounds: Rounds) -> list[Any]:
    """Enrol two devices."""
    joined = []
    for _ in range(2):
        key = DeviceKey.generate()
        enrolment = Enrolment(key.public_key)
        request = Request("POST", "/v1/devices", wire.encode(enrolment))
        name = device_id_of(key.public_key)
        credentials = key.sign(request, run_id=rounds.offer.run_id, device=name, nonce=1)
        joined.append(await rounds.enrol(enrolment, credentials, request))
    return joined


@pytest.mark.parametrize("jump", [-1e9, 0.0, 1e9])
def test_a_clock_that_jumps_closes_no_round_early_and_none_never(tmp_path: Path, jump: float) -> None:
    """Deadlines follow the monotonic clock; after a restart a round waits for its deadline at most."""

    async def scenario() -> None:
        clock, wall = Clock(), Clock(1e9 + 5)
        storage, rounds = make_rounds(tmp_path, clock, wall)
        devices = await join_two(rounds)
        await rounds._advance()
        assert rounds.is_open
        await rounds.report(devices[0], 2, Request("POST", "/v1/reports", make_body()))
        wall.now += jump  # while the server runs, the wall clock counts for nothing
        clock.now += 59
        assert await rounds._advance() == pytest.approx(1)
        assert rounds.is_open
        storage.close()
        clock.now = 5.0  # a steady clock starts anew with the machine
        storage, again = make_rounds(tmp_path, clock, wall)
        assert (again.is_open, again.n_reports) == (True, 1)
        clock.now += 60
        await again._advance()
        assert not again.is_open  # with one report of two
        storage.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("away", "left"), [(-1e9, 86400), (86_000, 400), (1e9, 0)])
def test_a_pause_between_rounds_goes_on_through_a_restart(tmp_path: Path, away: float, left: float) -> None:
    """It keeps its length, also if the deadline is short; after a jump of the clock it lasts one pause at most."""

    async def scenario() -> None:
        clock, wall = Clock(), Clock(1e9)
        storage, rounds = make_rounds(tmp_path, clock, wall, deadline=3600, pause=86_400)
        devices = await join_two(rounds)
        await rounds._advance()
        for device in devices:
            await rounds.report(device, 2, Request("POST", "/v1/reports", make_body()))
        await rounds._advance()
        assert await rounds._advance() == pytest.approx(86_400)
        storage.close()
        wall.now += away
        storage, again = make_rounds(tmp_path, clock, wall, deadline=3600, pause=86_400)
        assert await again._advance() == pytest.approx(left)
        assert again.is_open == (left == 0)
        storage.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(("deadline", "left"), [(30, 30), (300, 60)])
def test_a_deadline_that_passed_while_the_server_was_away_waits_for_devices(
    tmp_path: Path, deadline: float, left: float
) -> None:
    """After a restart the open phase lasts a minute, or its whole deadline if that is shorter."""

    async def scenario() -> None:
        clock, wall = Clock(), Clock(1e9)
        storage, rounds = make_rounds(tmp_path, clock, wall, deadline=deadline)
        devices = await join_two(rounds)
        await rounds._advance()
        await rounds.report(devices[0], 2, Request("POST", "/v1/reports", make_body()))
        storage.close()
        wall.now += 5 * deadline
        storage, again = make_rounds(tmp_path, clock, wall, deadline=deadline)
        assert await again._advance() == pytest.approx(left)
        assert again.is_open
        clock.now += left
        await again._advance()
        assert not again.is_open
        storage.close()

    asyncio.run(scenario())


def reports_in_round(server: ServerProcess) -> int:
    """Return the number of reports of the open phase, from /metrics."""
    found = re.search(r"^hushrec_reports_in_round (\d+)\.0$", get(f"{server.url}/metrics").text, re.M)
    assert found is not None
    return int(found[1])


def test_a_fleet_finds_a_killed_server_again_in_the_same_round(zygote: Zygote, tmp_path: Path) -> None:
    """More devices than may connect at once, kill -9 in the middle of three rounds: every round has all reports.

    One more device reports after each kill, so that no round ends before the kill.
    """
    count, rounds = 24, 4
    (tmp_path / "items.csv").write_text("id,title\n" + "".join(f"{n},Item {n}\n" for n in range(N_ITEMS)))
    terms = f"[terms]\nprotocol = 'sdcf'\nfactors = {WIDTH}\nrounds = {rounds}\n"
    (tmp_path / "config.toml").write_text(f"{terms}[rounds]\nmin_devices = {count + 1}\n")
    (tmp_path / "server").mkdir()
    server = ServerProcess(zygote, tmp_path / "server")
    server.start()
    ratings = [{str((7 * n + k) % N_ITEMS): 1.0 + (n + k) % 5 for k in range(12)} for n in range(count)]
    members = [Member(tmp_path / f"device-{n}", rated) for n, rated in enumerate(ratings)]
    outcomes: list[Outcome] = []
    orders = Orders(server=server.url, budgets=Budgets())
    fleet = threading.Thread(target=lambda: outcomes.append(run_fleet(members, orders)))
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        by_hand = Recorded(1, wire.decode(http.get("/v1/run").content, Offer).run_id)
        by_hand.enrol(http)
    fleet.start()
    for number in range(1, rounds + 1):
        wait_for(lambda: reports_in_round(server) >= count // 2)
        if number < rounds:
            server.kill()
            server.start()
        asyncio.run(report_alone(server, by_hand, number))
        if number < rounds:
            wait_for(lambda opened=number + 1: f"hushrec_round {opened}.0\n" in get(f"{server.url}/metrics").text)  # type: ignore[misc]
    fleet.join(timeout=5 * PATIENCE)
    server.kill()
    server.close()
    assert outcomes[0].reports == count * rounds
    assert Databases().final_state(server.folder)[1] == [(number, count + 1) for number in range(1, rounds + 1)]


async def report_alone(server: ServerProcess, recorded: Recorded, round_number: int) -> None:
    """Send the recorded report of one device in that round."""
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE) as http:
        await send_until_acknowledged(http, server, recorded, 0, round_number)


def test_two_servers_do_not_share_a_database(tmp_path: Path) -> None:
    """The second server is refused with one sentence."""
    storage = Storage(f"sqlite:///{tmp_path / 'server.sqlite'}")
    with pytest.raises(StorageError, match="database"):
        Storage(f"sqlite:///{tmp_path / 'server.sqlite'}")
    storage.close()
    Storage(f"sqlite:///{tmp_path / 'server.sqlite'}").close()


def test_a_newer_schema_is_refused_and_an_older_one_migrated(tmp_path: Path) -> None:
    """Each migration runs once, in order; all of them or none."""
    from hushrec.service.schema import MIGRATIONS, migrate

    storage = Storage(f"sqlite:///{tmp_path / 'server.sqlite'}")
    steps: list[int] = []
    longer = [*MIGRATIONS, lambda _: steps.append(1), lambda _: steps.append(2)]
    storage.at_once(lambda connection: migrate(connection, longer))
    storage.at_once(lambda connection: migrate(connection, longer))
    assert steps == [1, 2]
    with pytest.raises(StorageError, match=f"schema version .* {len(MIGRATIONS)}, got {len(longer)}"):
        storage.at_once(migrate)
    storage.close()
    with pytest.raises(StorageError, match="--database"):
        Storage("mysql://host/name")


def test_exported_vectors_are_those_of_the_database(zygote: Zygote, tmp_path: Path) -> None:
    """The operator's export, from a real process with its token file."""
    base, _ = set_up_recorded(zygote, tmp_path, 2)
    server = ServerProcess(zygote, base)
    server.start()
    token = (base / "admin-token").read_text()
    assert (base / "admin-token").stat().st_mode & 0o777 == 0o600
    reply = httpx.get(f"{server.url}/v1/admin/public", headers={"Authorization": f"Bearer {token}"}, timeout=PATIENCE)
    exported = msgspec.msgpack.decode(reply.content)["arrays"]["item_vectors"]["float64"]
    server.stop()
    server.close()
    assert exported == Databases().final_state(base)[0]
