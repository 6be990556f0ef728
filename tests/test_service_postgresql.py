"""The same service on PostgreSQL: a real server on a Unix socket, where its programs are installed."""

import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from service_kit import OPEN_SOCKETS, RawDevice, live_server, make_body, new_device, play, small_settings, wait_for

from hushrec.errors import StorageError
from hushrec.service.reports import NewReport, insert_reports
from hushrec.service.schema import reports
from hushrec.service.storage import Storage

pytestmark = OPEN_SOCKETS


def find_programs() -> Path | None:
    """The folder of PostgreSQL's programs: of the path, or of the newest Debian package."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders else None


@pytest.fixture(scope="module")
def cluster() -> Iterator[Path]:
    """A database server of our own; as the superuser it runs under another name, as it insists."""
    programs = find_programs()
    if programs is None:
        pytest.skip("PostgreSQL is not installed: initdb is not in the path or under /usr/lib/postgresql")
    as_other: list[str] = []
    folder = Path(tempfile.mkdtemp(prefix="hushrec-pg-"))
    if os.getuid() == 0:
        try:
            account = pwd.getpwnam("postgres")
        except KeyError:
            pytest.skip("PostgreSQL does not run as the superuser, and there is no user postgres")
        os.chown(folder, account.pw_uid, account.pw_gid)
        as_other = ["runuser", "-u", "postgres", "--"]

    def run(program: str, *arguments: str) -> None:
        subprocess.run([*as_other, str(programs / program), *arguments], check=True, capture_output=True, cwd=folder)

    data = str(folder / "data")
    run("initdb", "-D", data, "-A", "trust", "-U", "postgres", "--locale=C.UTF-8", "-E", "UTF8")
    run("pg_ctl", "-D", data, "-w", "-l", str(folder / "log"), "-o", f"-k {folder} -h ''", "start")
    yield folder
    run("pg_ctl", "-D", data, "-m", "immediate", "stop")
    shutil.rmtree(folder)


@pytest.fixture
def database(cluster: Path) -> str:
    """The address of an empty database."""
    name = f"test_{time.time_ns()}"
    engine = sa.create_engine(address(cluster, "postgres").replace("postgresql:", "postgresql+psycopg:"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(sa.text(f"CREATE DATABASE {name}"))
    engine.dispose()
    return address(cluster, name)


def address(cluster: Path, name: str) -> str:
    """How a database is named in `--database`."""
    return f"postgresql://postgres@/{name}?host={cluster}"


def test_a_run_on_postgresql_goes_through_and_survives_a_restart(tmp_path: Path, database: str) -> None:
    """Two devices, six rounds, a new server process in the middle of an open round."""
    devices = [new_device(tmp_path / f"device-{n}", seed=n) for n in range(2)]
    with live_server(tmp_path, database=database) as live:
        for device in devices:
            device.join(live.url)
        token = live.admin_token
        assert devices[0].step(wait=5) == "answered"
        assert (live.rounds.round_number, live.rounds.n_answers) == (1, 1)
    with live_server(tmp_path, database=database, admin_token=token) as live:
        assert (live.rounds.round_number, live.rounds.is_open, live.rounds.n_answers) == (1, True, 1)
        for device in devices:
            place = device._store.get_json("server") | {"address": live.url}
            with device._store.change():
                device._store.put_json("server", place)
        assert play(devices) == [5, 6]
        assert live.rounds.is_over
    for device in devices:
        device.close()


def test_postgresql_keeps_no_report_in_its_tables_after_a_round(tmp_path: Path, database: str, cluster: Path) -> None:
    """The table's own file is given back: no file under base/ holds the bytes of a report."""
    body = make_body(items=tuple(range(0, 60, 7)), size=0.123456)
    piece = body[-64:]

    def holds(folder: Path) -> bool:
        return any(piece in path.read_bytes() for path in folder.rglob("*") if path.is_file())

    with (
        live_server(tmp_path, small_settings(), database=database) as live,
        RawDevice(live) as one,
        RawDevice(live) as two,
    ):
        wait_for(lambda: live.rounds.is_open)
        assert one.answer(body).status_code == 200
        live.storage.read(lambda connection: connection.execute(sa.text("CHECKPOINT")))
        assert holds(cluster / "data" / "base")
        assert two.answer(make_body()).status_code == 200
        wait_for(lambda: live.monitor.rounds_closed == 1)
        live.storage.read(lambda connection: connection.execute(sa.text("CHECKPOINT")))
        assert live.storage.read(lambda c: c.execute(sa.select(sa.func.count()).select_from(reports)).scalar()) == 0
        assert not holds(cluster / "data" / "base")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits one second for another server to go away, not five."""
    monkeypatch.setattr("hushrec.service.storage.LOCK_TIMEOUT_SECONDS", 1)


@pytest.mark.usefixtures("impatient")
def test_two_servers_do_not_share_a_postgresql_database(database: str) -> None:
    """The second is refused with one sentence; when the first is gone it may have it, at once."""
    storage = Storage(database)
    with pytest.raises(StorageError, match="another server uses this database"):
        Storage(database)
    for _ in range(5):
        storage.close()
        storage = Storage(database)
    storage.close()


@pytest.mark.usefixtures("impatient")
def test_a_server_whose_connection_was_cut_takes_the_database_anew_or_not_at_all(database: str, cluster: Path) -> None:
    """Whoever reads and writes holds the lock: after a cut the first that comes has it, and the other is refused."""

    def cut() -> None:
        engine = sa.create_engine(address(cluster, "postgres").replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as connection:
            name = sa.engine.make_url(database).database
            connection.execute(
                sa.text("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = :name"),
                {"name": name},
            )
        engine.dispose()

    def touch(storage: Storage) -> None:
        storage.read(lambda connection: connection.execute(sa.select(sa.func.count()).select_from(reports)).scalar())

    first = Storage(database)
    cut()
    touch(first)
    with pytest.raises(StorageError, match="another server uses this database"):
        Storage(database)
    cut()
    second = Storage(database)
    with pytest.raises(StorageError, match="another server uses this database"):
        touch(first)
    touch(second)
    second.close()
    touch(first)
    first.close()


def test_a_commit_whose_answer_was_lost_is_recognized(tmp_path: Path, database: str) -> None:
    """The row is there already: the same bytes count as stored, others are refused."""
    import asyncio

    async def store(report: NewReport) -> None:
        await storage.store(report)

    storage = Storage(database)
    report = NewReport(1, "device", 1, b"bytes")
    storage.read(lambda connection: insert_reports(connection, [report]))
    asyncio.run(store(report))
    with pytest.raises(StorageError, match="with other bytes"):
        asyncio.run(store(NewReport(1, "device", 2, b"others")))
    storage.close()
