"""Several workers on one PostgreSQL database: what one does, all know; what all want to do, one does."""

import asyncio
import os
import random
import re
import signal
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import sqlalchemy as sa
from command import run as run_command
from fault_kit import KILL, Recorded, ServerProcess, Zygote, set_up_recorded, strike_after, wait_for_round
from postgresql_kit import Cluster
from proxy_kit import NEEDS_NGINX, proxy
from service_kit import (
    OPEN_SOCKETS,
    PATIENCE,
    ROUND_WAIT,
    Live,
    RawDevice,
    get,
    keep_record,
    live_server,
    make_body,
    put_server,
    small_settings,
    wait_for,
)
from test_masked_service import PHASES, catalogue, masked_settings, new_people

from hushrec import wire
from hushrec.arrays import unpack_arrays
from hushrec.messages import Address, Enrolment, Envelope, Receipt
from hushrec.protocols.masked.messages import MaskedTable
from hushrec.protocols.parties import Addend
from hushrec.server import Stage
from hushrec.service import schema
from hushrec.service.partial_sums import read_given
from hushrec.service.reports import NewReport
from hushrec.service.setup import Items, prepare_run
from hushrec.service.storage import Storage
from hushrec.service.stored import rebuild
from hushrec.signing import DeviceKey, Request

OPEN_ROUND = ("pool", "round_counts")  # entries of the state that change when the next round opens
pytestmark = OPEN_SOCKETS


@contextmanager
def workers(folder: Path, database: str, count: int = 2, **given: Any) -> Iterator[list[Live]]:
    """Yield servers that share only a database, all in this process."""
    with ExitStack() as stack:
        yield [stack.enter_context(live_server(folder, database=database, **given)) for _ in range(count)]


def at(device: RawDevice, live: Live) -> RawDevice:
    """Return the same device as a client of another worker."""
    other = RawDevice(live, enrol=False)
    other.key, other.name = device.key, device.name
    return other


def test_what_happens_at_one_worker_is_known_at_the_other(tmp_path: Path, database: str) -> None:
    """Enrolment, an open round, a report, its repetition, the close, items, a pause, a new key, a revocation."""
    settings = small_settings(rounds={"automatic": False})
    with (
        workers(tmp_path, database, settings=settings) as (one, two),
        RawDevice(one) as ann,
        RawDevice(two) as bob,
        RawDevice(two),  # it never reports: the round stays open
        at(ann, two) as ann_two,
        at(bob, one) as bob_one,
    ):
        one.admin("POST", "/v1/admin/start")
        assert ann_two.send("GET", "/v1/inbox?wait=5").status_code == 200
        assert ann.report(make_body()).status_code == 200
        assert wire.decode(ann_two.report(make_body()).content, Receipt).repeated
        assert ann_two.report(make_body(size=0.002)).status_code == 409
        last = ann_two.send("GET", "/v1/inbox")
        assert (last.status_code, last.headers["Hushrec-Last-Report"]) == (204, "1.1.0")
        assert bob_one.report(make_body()).status_code == 200
        two.admin_token = one.admin_token
        assert two.admin("POST", "/v1/admin/close").json()["round"] == 1
        assert bob_one.report(make_body()).status_code == 409  # the worker has heard, or asked
        assert two.admin("POST", "/v1/admin/catalogue/items", json={"ids": ["new"]}).json() == {"added": 1}
        wait_for(lambda: len(one.rounds.catalogue) == len(two.rounds.catalogue) == 61)
        assert two.admin("POST", "/v1/admin/pause").json()["paused"]
        wait_for(lambda: one.rounds.is_paused)
        replaced, key = bob, DeviceKey.generate()
        assert bob.send("PUT", "/v1/devices/me/key", wire.encode(Enrolment(key.public_key))).status_code == 204
        assert bob_one.send("GET", "/v1/inbox").status_code == 401  # signed with the old one
        bob_one.key = replaced.key = key
        assert bob_one.send("GET", "/v1/inbox").status_code == 204
        assert one.admin("DELETE", f"/v1/admin/devices/{bob.name}").status_code == 204
        assert bob.send("GET", "/v1/inbox").status_code == 403
        assert np.array_equal(one.rounds.public["item_vectors"], two.rounds.public["item_vectors"])


def test_a_request_that_one_worker_has_seen_is_refused_by_the_other(tmp_path: Path, database: str) -> None:
    """A recorded request is refused by the second worker; the rate of a device is counted over all workers."""
    settings = small_settings(limits={"burst": 10, "requests_per_second": 0.001})
    with workers(tmp_path, database, settings=settings) as (one, two), RawDevice(one) as ann, at(ann, two) as ann_two:
        header = ann.sign(Request("GET", "/v1/inbox", b""))
        assert ann.send("GET", "/v1/inbox", header=header).status_code == 204
        replayed = ann_two.send("GET", "/v1/inbox", header=header)
        assert (replayed.status_code, replayed.json()["type"].rpartition(":")[2]) == (401, "stale-nonce")
        statuses = [device.send("GET", "/v1/inbox").status_code for _ in range(10) for device in (ann, ann_two)]
        assert statuses == [204] * 9 + [429] * 11


def test_workers_of_a_run_end_when_a_next_run_takes_its_place(tmp_path: Path, database: str) -> None:
    """They end after the notification; workers that are started later serve the next run."""
    with (
        workers(tmp_path, database) as lives,
        RawDevice(lives[0]) as ann,
        live_server(tmp_path, small_settings(terms={"run": 2}), database=database) as later,
    ):
        wait_for(lambda: not any(live.thread.is_alive() for live in lives))
        with at(ann, later) as moved:
            refused = moved.send("GET", "/v1/inbox")
        assert (refused.status_code, refused.json()["type"].rpartition(":")[2]) == (409, "next-run")


# A masked run ----------------------------------------------------------------------------------------------------


def archive_reports(cluster: Cluster, database: str) -> None:
    """Keep a copy of every report that is stored, and of the run before its first round, to compare with."""
    with connected(database) as connection:
        for statement in (
            "CREATE TABLE first_run AS SELECT * FROM run",
            "CREATE TABLE archive AS SELECT round, attempt, phase, device, body FROM reports",
            """CREATE FUNCTION keep_report() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO archive VALUES (NEW.round, NEW.attempt, NEW.phase, NEW.device, NEW.body); RETURN NEW; END $$""",
            "CREATE TRIGGER keep AFTER INSERT ON reports FOR EACH ROW EXECUTE FUNCTION keep_report()",
        ):
            connection.execute(sa.text(statement))


@contextmanager
def connected(database: str) -> Iterator[sa.Connection]:
    """Yield a connection to the database that no worker uses."""
    engine = sa.create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        yield connection
    engine.dispose()


def learned_by_one(database: str) -> dict[str, Any]:
    """Return what one server in one process learns from the archived reports, attempt by attempt."""
    with connected(database) as connection:
        first = connection.execute(sa.text("SELECT * FROM first_run")).one()
        rows = connection.execute(sa.text("SELECT round, attempt, phase, device, body FROM archive")).all()
        server = rebuild(connection, first)
    assert len({tuple(row)[:4] for row in rows}) == len(rows)  # none was stored twice
    devices = {row.device for row in rows}
    for number in range(1, max(row.round for row in rows) + 1):
        server.replace_members(devices)
        server.start_round()
        while server.stage is Stage.OPEN and server.round_number == number:
            place = vars(server.address)
            here = sorted((r.device, bytes(r.body)) for r in rows if tuple(r)[:3] == tuple(place.values()))
            if not here:
                return dict(server.side.state)  # the last round is still open
            server.close_phase([(name, wire.decode(body, Envelope).message) for name, body in here])
    return dict(server.side.state)


def test_two_workers_finish_a_masked_run_and_learn_what_one_would(
    tmp_path: Path, database: str, cluster: Cluster
) -> None:
    """Devices change the worker with every request. One server that gets the same reports learns the same bits."""
    settings = masked_settings(3, terms={"survivors": 1.0})
    with workers(tmp_path, database, settings=settings, items=catalogue()) as lives, ExitStack() as stack:
        archive_reports(cluster, database)
        devices = new_people(tmp_path, 3)
        for number, device in enumerate(devices):
            stack.callback(device.close)
            device.join(lives[number % 2].url)
        rounds = lives[0].rounds.offer.terms.max_rounds
        for turn in range(rounds * len(PHASES)):
            for number, device in enumerate(devices):
                put_server(device, lives[(number + turn) % 2].url)
                if (PHASES[turn % len(PHASES)], number) == ("table", 2):
                    assert len(lives[0].storage.at_once(lambda c: c.execute(sa.select(schema.parts)).all())) == 2
                assert device.step(wait=ROUND_WAIT) == "reported"
        for live in lives:
            wait_for(lambda live=live: live.rounds.is_over)  # type: ignore[misc]
            assert [device.budget()["rounds"] for device in devices] == [rounds] * 3
        closed = [live.count("rounds_closed") for live in lives]
        assert sum(closed) == rounds  # each by one of them
        found, expected = [live.rounds.server.side.state for live in lives], learned_by_one(database)
        for state in found:
            assert all(np.array_equal(state[name], expected[name]) for name in expected)


def test_each_worker_adds_up_the_tables_that_it_takes(database: str) -> None:
    """Two partial sums modulo 2³²; no sum that is used contains the table of a revoked device."""
    first, second = Storage(database), Storage(database)
    prepare_run(first, small_settings().terms, Items([f"item-{n}" for n in range(60)], [""] * 60))
    first.at_once(lambda connection: connection.execute(schema.run.update().values(round=1, attempt=1, phase="table")))
    row = {"public_key": b"", "state": "active", "first_round": 1, "last_round": 0, "last_nonce": 0}
    address, rng = Address(1, 1, "table"), np.random.default_rng(0)
    tables = {
        f"device-{n}": MaskedTable(rng.integers(2**32, size=9, dtype=np.uint32), bytes([n]) * 64) for n in range(6)
    }
    for name in tables:
        first.at_once(lambda connection, name=name: connection.execute(schema.devices.insert().values(id=name, **row)))  # type: ignore[misc]

    async def store(storage: Storage, names: list[str]) -> None:
        for name in names:
            body = wire.encode(Envelope.to("ab" * 16, address, tables[name]))
            addend = Addend(0, tables[name].numbers, tables[name].signature)
            await storage.store(NewReport(address, 2, name, 1, body, sha256(body).digest(), addend=addend))

    names = list(tables)
    asyncio.run(store(first, names[:2]))
    asyncio.run(store(second, names[2:5]))
    asyncio.run(store(first, names[5:]))
    asyncio.run(store(second, names[5:]))  # sent again, to the other: it counts once
    _, sums = first.at_once(lambda connection: read_given(connection, address))
    assert sorted(len(kept) for kept, _ in sums) == [3, 3]
    assert {name: kept[name] for kept, _ in sums for name in kept} == {
        name: table.signature for name, table in tables.items()
    }
    total = sum((table.numbers for table in tables.values()), np.zeros(9, dtype=np.uint32))
    assert np.array_equal(sum((part for _, part in sums), np.zeros(9, dtype=np.uint32)), total)
    gone = schema.reports.delete().where(schema.reports.c.device == names[0])

    def read(connection: sa.Connection) -> tuple[Any, list[tuple[str, Any]]]:
        connection.execute(gone)
        reports, sums = read_given(connection, address)
        return sums, list(reports)

    sums, others = first.at_once(read)
    assert [sorted(kept) for kept, _ in sums] == [names[2:5]]
    assert [name for name, _ in others] == [names[1], names[5]]
    assert np.array_equal(others[0][1].numbers, tables[names[1]].numbers)
    first.close()
    second.close()


def test_two_workers_that_close_a_phase_at_the_same_time_close_it_once(tmp_path: Path, database: str) -> None:
    """Both see the last report: one closes the phase, the other loads the result; ten times."""
    settings = small_settings(terms={"rounds": 100}, rounds={"automatic": False})
    with workers(tmp_path, database, settings=settings) as lives, RawDevice(lives[0]) as ann, RawDevice(lives[1]):
        lives[1].admin_token = lives[0].admin_token
        for number in range(1, 11):
            together(lives, "start")
            wait_for(lambda opened=number: [live.rounds.round_number for live in lives] == [opened] * 2)  # type: ignore[misc]
            assert ann.report(make_body(number)).status_code == 200
            together(lives, "close")
            wait_for(lambda: not any(live.rounds.is_open for live in lives))
        query = sa.select(schema.rounds.c.round, schema.rounds.c.reports).order_by(schema.rounds.c.round)
        stored = lives[0].storage.at_once(lambda connection: connection.execute(query).all())
        assert stored == [(number, 1) for number in range(1, 11)]
        assert sum(live.count("rounds_closed") for live in lives) == 10


def together(lives: list[Live], action: str) -> None:
    """Send the same admin request to all workers at the same moment."""
    barrier, statuses = threading.Barrier(len(lives)), []

    def ask(live: Live) -> None:
        barrier.wait()
        statuses.append(live.admin("POST", f"/v1/admin/{action}").status_code)

    threads = [threading.Thread(target=ask, args=(live,)) for live in lives]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=PATIENCE)
    assert set(statuses) <= {200, 409}  # another, or the schedule, was quicker


# Kill -9 ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Starts workers that can be killed; each test ends those that it started."""
    made = Zygote(tmp_path_factory.mktemp("zygote"))
    yield made
    made.close()


def strike_phases(
    zygote: Zygote,
    cluster: Cluster,
    folder: Path,
    *,
    count: int,
    rounds: int,
    phases: tuple[str, ...] = PHASES,
    proxied: bool = False,
) -> int:
    """Kill one of so many workers in these phases of so many rounds; return how often.

    Two of three devices have reported when a worker dies, one of them to it; the third reports to another while the
    dead one is away, which is then started again. What was learned is what one server learns from the same reports.
    If `proxied`, each worker has a host of its own, all devices know a proxy alone, and the first worker is killed: one
    that was away is left out by the proxy for a while.
    """
    folder.mkdir()
    (folder / "items.csv").write_text("id,title\n" + "".join(f"item-{n},Film {n}\n" for n in range(24)))
    (folder / "config.toml").write_text(
        "[terms]\nexpected_devices = 3\n[rounds]\nmin_devices = 3\nearly_fraction = 1.0\n"
    )
    (folder / "server").mkdir()
    databases = cluster.databases(folder.name)
    database = databases.address(folder / "server")
    with ExitStack() as stack:
        hosts = [f"127.0.0.{number + 1 if proxied else 1}" for number in range(count)]
        servers = [ServerProcess(zygote, folder / "server", databases, host) for host in hosts]
        for server in servers:
            stack.callback(server.close)
        for server in servers:
            server.start()
        archive_reports(cluster, database)
        devices = [stack.enter_context(device) for device in new_people(folder, 3)]
        address, authority = servers[0].url, None
        if proxied:
            address, authority = stack.enter_context(proxy(folder / "nginx", *(server.url for server in servers)))
        for device in devices:
            device.join(address, ca=authority)
        for turn in range(rounds * len(PHASES)):
            victim = servers[0 if proxied else turn % count]
            others = [server for server in servers if server is not victim]
            for device, server in zip(devices, (victim, others[0], others[-1]), strict=True):
                if not proxied:
                    put_server(device, server.url)
            assert [device.step(wait=ROUND_WAIT) for device in devices[:2]] == ["reported"] * 2
            is_struck = PHASES[turn % len(PHASES)] in phases
            if is_struck:
                victim.kill()
            assert devices[2].step(wait=ROUND_WAIT) == "reported"
            if is_struck:
                victim.start()
        check_learned(database, rounds)
        assert [device.budget()["rounds"] for device in devices] == [rounds] * 3  # charged once: nothing was repeated
        for server in servers:
            server.kill()
    return rounds * len(phases)


def check_learned(database: str, rounds: int) -> None:
    """Check that the database holds what one server learns from the same reports, each stored once."""
    ended = sa.select(sa.or_(schema.run.c.round > rounds, schema.run.c.attempt == 0))
    with connected(database) as connection:
        wait_for(lambda: connection.execute(ended).scalar_one())
        state = unpack_arrays(bytes(connection.execute(sa.select(schema.run.c.state)).scalar_one()))
    expected = learned_by_one(database)
    assert all(np.array_equal(state[name], expected[name]) for name in expected if name not in OPEN_ROUND)


def test_one_of_two_workers_that_is_killed_takes_nothing_along(
    zygote: Zygote, cluster: Cluster, tmp_path: Path
) -> None:
    """One round, with kills in two phases: ledgers are charged once, and the sum is that of an undisturbed server."""
    strike_phases(zygote, cluster, tmp_path / "short", count=2, rounds=1, phases=("table", "unmask"))


@NEEDS_NGINX
def test_a_worker_of_two_hosts_behind_a_proxy_that_is_killed_takes_nothing_along(
    zygote: Zygote, cluster: Cluster, tmp_path: Path
) -> None:
    """The same with servers at 127.0.0.1 and 127.0.0.2 behind nginx; devices know only the address of nginx."""
    phases = ("shares", "table")
    strike_phases(zygote, cluster, tmp_path / "hosts", count=2, rounds=1, phases=phases, proxied=True)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("count", "proxied"), [(2, False), (4, False), pytest.param(2, True, marks=NEEDS_NGINX)], ids=["2", "4", "proxied"]
)
def test_a_worker_killed_in_every_phase_of_fifty_rounds(
    zygote: Zygote, cluster: Cluster, tmp_path: Path, count: int, proxied: bool
) -> None:
    """The long form: ten runs of all five rounds."""
    name = f"workers-kill-{count}{'-proxied' if proxied else ''}"
    kills = sum(
        strike_phases(
            zygote, cluster, tmp_path / f"{name}-{number}".replace("-", "_"), count=count, rounds=5, proxied=proxied
        )
        for number in range(10)
    )
    assert kills == 250
    done = {"workers": count, "rounds": 50, "kills": kills, "devices": 3, "reports": 3 * kills}
    shown = {"acknowledged_lost": 0, "counted_twice": 0, "attempts_repeated": 0, "learned_equal_bit_for_bit": True}
    keep_record(name, done | shown)


# Kill -9 with reports on their way -------------------------------------------------------------------------------


async def report_somewhere(clients: list[httpx.AsyncClient], recorded: Recorded, number: int, place: int) -> int:
    """Send recorded bytes to the addresses in turn until one stores them; return how often a request was cut off."""
    body, cut_off, worker = recorded.body(number, place), 0, number
    while True:
        worker += 1
        try:
            request = recorded.request(number, "POST", "/v1/reports", body)
            reply = await clients[worker % len(clients)].request(**request)
        except httpx.TransportError as error:
            cut_off += not isinstance(error, httpx.ConnectError)
            await asyncio.sleep(0.02)
            continue
        if reply.status_code == 200:
            return cut_off
        if reply.status_code == 502:  # the proxy's
            cut_off += 1
            await asyncio.sleep(0.02)
            continue
        problem = reply.json()
        if problem["type"].endswith("phase-closed"):
            assert int(problem["last_report"].split(".")[0]) >= place, "a report was lost"
            return cut_off
        assert reply.status_code in (503, 429), problem
        await asyncio.sleep(0.02)


Proxy = tuple[str, Path]  # its address, and the authority to trust


async def play_among(
    servers: list[ServerProcess], recorded: Recorded, rounds: int, latest: float | None, through: Proxy | None = None
) -> int:
    """All devices report in all rounds; in each one worker is killed after up to `latest` seconds, if that is given.

    Behind a proxy that is the last worker every time.
    """
    rng, cut_off = random.Random(rounds), 0
    victims = servers if through is None else servers[-1:]
    options: dict[str, Any] = {"timeout": PATIENCE, "limits": httpx.Limits(max_connections=len(recorded.keys))}
    addresses = [server.url for server in servers]
    if through is not None:
        addresses, options["verify"] = [through[0]], ssl.create_default_context(cafile=through[1])
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(httpx.AsyncClient(base_url=address, **options)) for address in addresses
        ]
        for place in range(1, rounds + 1):
            tasks = [
                asyncio.create_task(report_somewhere(clients, recorded, number, place))
                for number in range(len(recorded.keys))
            ]
            if latest is not None:
                await strike_after(rng.uniform(0, latest), KILL, victims[place % len(victims)])
            cut_off += sum(await asyncio.gather(*tasks))
            await wait_for_round(clients[0], place + 1)
    return cut_off


def strike_among(
    zygote: Zygote,
    cluster: Cluster,
    folder: Path,
    *,
    count: int,
    n_devices: int,
    rounds: int,
    latest: float,
    proxied: bool = False,
) -> int:
    """The same recorded reports to one calm worker and to several of which one is killed in each round: equal bits."""
    databases = cluster.databases(f"among{count}_{rounds}{'_proxied' if proxied else ''}")
    base, recorded = set_up_recorded(zygote, folder, n_devices, databases)
    states, cut_off = {}, 0
    for name, workers in (("calm", 1), ("struck", count)):
        wait_for(lambda: databases.is_free(base))
        databases.copy(base, folder / name)
        hosts = [f"127.0.0.{number + 1 if proxied else 1}" for number in range(workers)]
        servers = [ServerProcess(zygote, folder / name, databases, host) for host in hosts]
        for server in servers:
            server.start()
        with ExitStack() as stack:
            through = None
            if proxied and workers > 1:
                through = stack.enter_context(proxy(folder / "nginx", *(server.url for server in servers)))
            cut_off += asyncio.run(play_among(servers, recorded, rounds, latest if workers > 1 else None, through))
        for server in servers:
            server.kill()
            server.close()
        states[name] = databases.final_state(folder / name)
    assert states["calm"][0] == states["struck"][0]  # every bit of the item vectors
    assert states["calm"][1] == states["struck"][1] == [(number, n_devices) for number in range(1, rounds + 1)]
    return cut_off


def test_reports_on_their_way_to_a_worker_that_dies_are_taken_by_another_once(
    zygote: Zygote, cluster: Cluster, tmp_path: Path
) -> None:
    """Two rounds of recorded reports, one of two workers killed in each: same item vectors as without a kill."""
    strike_among(zygote, cluster, tmp_path, count=2, n_devices=8, rounds=2, latest=0.05)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("count", "proxied"), [(2, False), (4, False), pytest.param(2, True, marks=NEEDS_NGINX)], ids=["2", "4", "proxied"]
)
def test_fifty_rounds_with_a_worker_killed_in_each(
    zygote: Zygote, cluster: Cluster, tmp_path: Path, count: int, proxied: bool
) -> None:
    """The long form; behind nginx as well, with each worker on a host of its own."""
    options = {"count": count, "n_devices": 40, "rounds": 50, "latest": 0.2, "proxied": proxied}
    cut_off = strike_among(zygote, cluster, tmp_path, **options)  # type: ignore[arg-type]
    assert cut_off > 0  # or nothing was hit
    done = {"workers": count, "rounds": 50, "kills": 50, "devices": 40, "reports": 2000, "cut_off": cut_off}
    shown = {"acknowledged_lost": 0, "counted_twice": 0, "vectors_equal_bit_for_bit": True}
    keep_record(f"workers-cut-off-{count}{'-proxied' if proxied else ''}", done | shown)


# The command -----------------------------------------------------------------------------------------------------


def test_more_than_one_worker_needs_postgresql(tmp_path: Path) -> None:
    """With SQLite it is refused with one sentence, before any file is created."""
    (tmp_path / "items.csv").write_text("id,title\n1,Film\n")
    file = tmp_path / "server.sqlite"
    refused = run_command("serve", "--items", tmp_path / "items.csv", "--workers", 2, "--database", f"sqlite:///{file}")
    assert (refused.code, refused.err.count("\n")) == (1, 1)
    assert "--workers" in refused.err
    assert not file.exists()


def test_serve_starts_workers_and_replaces_one_that_dies(tmp_path: Path, database: str) -> None:
    """Two processes at one address; after kill -9 of one there are two again; SIGTERM ends all of them."""
    (tmp_path / "items.csv").write_text("id,title\n" + "".join(f"{n},Film {n}\n" for n in range(5)))
    options = ["--items", "items.csv", "--database", database, "--workers", "2", "--port", "0", "--open"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)}
    command = [sys.executable, "-m", "hushrec", "serve", *options]
    parent = subprocess.Popen(command, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True)
    with ExitStack() as stack:
        stack.callback(parent.wait)
        stack.callback(parent.terminate)
        assert parent.stderr is not None
        lines = iter(parent.stderr.readline, "")
        (url,) = next(
            found for line in lines if (found := re.findall(r"serving 5 items on (\S+) with 2 workers", line))
        )
        wait_for(lambda: len(serving(parent.pid)) == 2 and get(f"{url}/healthz").status_code == 200)
        victim = min(serving(parent.pid))
        os.kill(victim, signal.SIGKILL)
        assert '"event": "worker-died"' in next(line for line in lines if "worker-died" in line)
        wait_for(lambda: len(serving(parent.pid) - {victim}) == 2)
        left = serving(parent.pid)
        parent.terminate()
        assert parent.wait(timeout=PATIENCE) == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in left)


def serving(parent: int) -> set[int]:
    """Return the worker processes: the children of the server, except the resource tracker."""
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return {int(pid) for pid in children if "spawn_main" in Path(f"/proc/{pid}/cmdline").read_text()}
