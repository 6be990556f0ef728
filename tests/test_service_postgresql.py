"""The same service on PostgreSQL: a real server on a Unix socket, where its programs are installed."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
import sqlalchemy as sa
from fault_kit import KILL, Zygote, strike_and_compare
from postgresql_kit import Cluster
from service_kit import (
    OPEN_SOCKETS,
    ROUND_WAIT,
    RawDevice,
    keep_record,
    live_server,
    make_body,
    new_device,
    play,
    put_server,
    small_settings,
    wait_for,
)

from hushrec.errors import StorageError
from hushrec.messages import Address
from hushrec.service.problems import Refusal
from hushrec.service.reports import NewReport, store_reports
from hushrec.service.schema import devices, enrolments, reports, run
from hushrec.service.setup import Items, prepare_run
from hushrec.service.storage import Storage

pytestmark = OPEN_SOCKETS


@pytest.fixture
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Starts the servers that are killed."""
    made = Zygote(tmp_path_factory.mktemp("zygote"))
    yield made
    made.close()


def test_a_run_on_postgresql_goes_through_and_survives_a_restart(tmp_path: Path, database: str) -> None:
    """Two devices, six rounds, a restart of the server in an open round; then a next run."""
    devices = [new_device(tmp_path / f"device-{n}", seed=n) for n in range(2)]
    with live_server(tmp_path, database=database) as live:
        for device in devices:
            device.join(live.url)
        token = live.admin_token
        assert devices[0].step(wait=ROUND_WAIT) == "reported"
        assert (live.rounds.round_number, live.rounds.n_reports) == (1, 1)
    with live_server(tmp_path, database=database, admin_token=token) as live:
        assert (live.rounds.round_number, live.rounds.is_open, live.rounds.n_reports) == (1, True, 1)
        for device in devices:
            put_server(device, live.url)
        assert play(devices) == [5, 6]
        assert live.rounds.is_over
    with live_server(tmp_path, small_settings(terms={"run": 2}), database=database, admin_token=token) as live:
        put_server(devices[0], live.url)
        devices[0].raise_budget(16)
        devices[0].follow()
        states = [entry["state"] for entry in live.admin("GET", "/v1/admin/devices").json()["devices"]]
        assert states.count("asked") == 1
        assert (live.rounds.number, live.rounds.round_number, live.rounds.registry.count_active()) == (2, 0, 1)
    for device in devices:
        device.close()


def test_postgresql_keeps_no_report_in_its_tables_after_a_round(
    tmp_path: Path, database: str, cluster: Cluster
) -> None:
    """The file of the table is removed: no file under base/ holds the bytes of a report."""
    body = make_body(items=tuple(range(0, 60, 7)), size=0.0123456)
    piece = body[-64:]

    def is_on_disk() -> bool:
        files = (cluster.folder / "data" / "base").rglob("*")
        return any(piece in cluster.read(path) for path in files if path.is_file())

    with (
        live_server(tmp_path, small_settings(), database=database) as live,
        RawDevice(live) as one,
        RawDevice(live) as two,
    ):
        wait_for(lambda: live.rounds.is_open)
        assert one.report(body).status_code == 200
        live.storage.at_once(lambda connection: connection.execute(sa.text("CHECKPOINT")))
        assert is_on_disk()
        assert two.report(make_body()).status_code == 200
        wait_for(lambda: live.count("rounds_closed") == 1)
        live.storage.at_once(lambda connection: connection.execute(sa.text("CHECKPOINT")))
        assert live.storage.at_once(lambda c: c.execute(sa.select(sa.func.count()).select_from(reports)).scalar()) == 0
        assert not is_on_disk()


def test_a_server_of_an_older_version_keeps_its_database_to_itself(
    database: str, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It holds a lock as long as it runs, and cannot share the database: a worker is refused and disconnects."""
    monkeypatch.setattr("hushrec.service.storage.LOCK_TIMEOUT_SECONDS", 1)
    inside = sa.text("SELECT pid FROM pg_stat_activity WHERE datname = :name")
    older = sa.create_engine(database.replace("postgresql:", "postgresql+psycopg:"))
    with older.connect() as connection:
        connection.execute(sa.text("SELECT pg_advisory_lock(x'68757368'::int)"))
        with pytest.raises(StorageError, match="database"):
            Storage(database)
        own = connection.execute(sa.text("SELECT pg_backend_pid()")).scalar_one()
        assert cluster.ask(inside, name=older.url.database) == [own]
    older.dispose()
    Storage(database).close()


def test_a_worker_whose_connection_was_cut_goes_on_with_another(database: str, cluster: Cluster) -> None:
    """The next query opens a new connection; nothing that was committed is lost."""
    ended = sa.text("SELECT pg_terminate_backend(pid, 100000) FROM pg_stat_activity WHERE datname = :name")
    with closing(Storage(database)) as storage:
        count = sa.select(sa.func.count()).select_from(enrolments)
        assert storage.at_once(lambda connection: connection.execute(count).scalar()) == 1
        assert all(cluster.ask(ended, name=sa.engine.make_url(database).database))
        assert storage.at_once(lambda connection: connection.execute(count).scalar()) == 1


def test_a_commit_whose_reply_was_lost_is_recognized(tmp_path: Path, database: str) -> None:
    """The row exists already: the same bytes count as stored, others are refused."""

    async def store(report: NewReport) -> None:
        await storage.store(report)

    storage = Storage(database)
    prepare_run(storage, small_settings().terms, Items([f"item-{n}" for n in range(60)], [""] * 60))
    storage.at_once(lambda connection: connection.execute(run.update().values(round=1, attempt=1, phase="report")))
    row = {"id": "device", "public_key": b"", "state": "active", "first_round": 1, "last_round": 0, "last_nonce": 0}
    storage.at_once(lambda connection: connection.execute(devices.insert().values(**row)))
    report = NewReport(Address(1, 1, "report"), 0, "device", 1, b"bytes", sha256(b"bytes").digest())
    assert storage.at_once(lambda connection: store_reports(connection, [report])) == ([None], [report])
    asyncio.run(store(report))
    with pytest.raises(Refusal, match="different report"):
        asyncio.run(store(NewReport(Address(1, 1, "report"), 0, "device", 2, b"others", sha256(b"others").digest())))
    storage.close()


def test_a_server_killed_on_postgresql_loses_and_doubles_nothing(
    zygote: Zygote, cluster: Cluster, tmp_path: Path
) -> None:
    """Four rounds of recorded reports with kill -9: the item vectors equal those of an undisturbed run bit for bit."""
    done = strike_and_compare(
        zygote, tmp_path, KILL, n_devices=8, rounds=4, latest=0.1, databases=cluster.databases("short")
    )
    assert done["strikes"] == 4


@pytest.mark.soak
def test_fifty_rounds_with_a_kill_in_each_on_postgresql(zygote: Zygote, cluster: Cluster, tmp_path: Path) -> None:
    """The long form."""
    done = strike_and_compare(
        zygote, tmp_path, KILL, n_devices=40, rounds=50, latest=0.15, databases=cluster.databases("long")
    )
    assert done["strikes"] == 50
    assert done["cut_off"] > 0  # or nothing was hit
    keep_record("service-kill-postgresql", done)
