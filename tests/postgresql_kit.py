"""A PostgreSQL server of our own on a Unix socket, where its programs are installed."""

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from fault_kit import Databases

START_SECONDS = "300"  # that pg_ctl waits for its server


class Cluster:
    """A running database server: its folder, and its databases."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def address(self, name: str) -> str:
        """How a database is named in `--database`."""
        return f"postgresql://postgres@/{name}?host={self.folder}"

    def ask(self, statement: sa.TextClause, **values: Any) -> list[Any]:
        """The first column of what the server answers, outside any transaction."""
        engine = sa.create_engine(self.address("postgres").replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            found = connection.execute(statement, values)
            rows = found.scalars().all() if found.returns_rows else []
        engine.dispose()
        return list(rows)

    def new_database(self) -> str:
        """The address of an empty one."""
        name = f"test_{time.time_ns()}"
        self.ask(sa.text(f"CREATE DATABASE {name}"))
        return self.address(name)

    def databases(self, prefix: str) -> "PostgresqlDatabases":
        return PostgresqlDatabases(self, prefix)

    def read(self, path: Path) -> bytes:
        """A file of the cluster; nothing, if its server has just removed it."""
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return b""


class PostgresqlDatabases(Databases):
    """A database for each server's folder; a copy is made from it as a template, when nobody is in it."""

    def __init__(self, cluster: Cluster, prefix: str) -> None:
        self._cluster = cluster
        self._prefix = prefix

    def address(self, folder: Path) -> str:
        name = self._name(folder)
        if not self._cluster.ask(sa.text("SELECT 1 FROM pg_database WHERE datname = :name"), name=name):
            self._cluster.ask(sa.text(f"CREATE DATABASE {name}"))
        return self._cluster.address(name)

    def copy(self, base: Path, folder: Path) -> None:
        super().copy(base, folder)
        self._cluster.ask(sa.text(f"CREATE DATABASE {self._name(folder)} TEMPLATE {self._name(base)}"))

    def files(self, folder: Path) -> dict[str, bytes]:
        """Those of the tables, written out before; the write-ahead log keeps what it has until it is used again."""
        self._cluster.ask(sa.text("CHECKPOINT"))
        tables = (path for path in (self._cluster.folder / "data" / "base").rglob("*") if path.is_file())
        return super().files(folder) | {str(path): self._cluster.read(path) for path in tables}

    def is_free(self, folder: Path) -> bool:
        """Whether the connections of a killed server are gone: its process is, they may not be yet."""
        inside = sa.text("SELECT 1 FROM pg_stat_activity WHERE datname = :name")
        return not self._cluster.ask(inside, name=self._name(folder))

    def _name(self, folder: Path) -> str:
        return f"{self._prefix}_{folder.name}"


def find_programs() -> Path | None:
    """The folder of PostgreSQL's programs: of the path, or of the newest Debian package."""
    found = shutil.which("initdb")
    folders = [Path(found).parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    return folders[-1] if folders else None


@contextlib.contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Runs until the block ends; for the superuser under another name, as PostgreSQL insists."""
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
    waiting = ("-D", data, "-w", "-t", START_SECONDS)
    run("pg_ctl", *waiting, "-l", str(folder / "log"), "-o", f"-k {folder} -h ''", "start")
    try:
        yield Cluster(folder)
    finally:
        run("pg_ctl", *waiting, "-m", "immediate", "stop")
        shutil.rmtree(folder)
