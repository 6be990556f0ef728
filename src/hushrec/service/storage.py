"""The server's database: SQLite by default, PostgreSQL by address, through SQLAlchemy Core.

One thread writes. It gathers every report that is waiting into one transaction, so that many reports share one
flush to the disk, and a report's future is resolved only after the commit. A round's reports are deleted in the
transaction that writes the new item vectors; in SQLite freed pages are overwritten (`secure_delete`) and the
write-ahead log is cut to nothing afterwards. In PostgreSQL the table is truncated, which gives its file back.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from hushrec.errors import StorageError
from hushrec.service.schema import devices, invitations, migrate, reports

MOST_PER_COMMIT = 512
LOCK_TIMEOUT_SECONDS = 5
_PG_LOCK = 0x68757368

Outcome = TypeVar("Outcome")


@dataclass(frozen=True)
class NewReport:
    """One device's answer to one round, as it came in."""

    round_number: int
    device: str
    nonce: int
    body: bytes = field(repr=False)


@dataclass(frozen=True)
class _Job:
    work: "NewReport | Callable[[sa.Connection], Any]"
    done: Callable[[Any, BaseException | None], None]
    scrub: bool = False


class Storage:
    """Opens, or makes, the database; refuses one that another server has open."""

    def __init__(self, url: str) -> None:
        self._guard = contextlib.ExitStack()
        self._url = sa.make_url(url)
        if self._url.get_backend_name() == "postgresql":
            self._url = self._url.set(drivername="postgresql+psycopg")
        elif self._url.get_backend_name() != "sqlite":
            raise StorageError("--database must be an address that begins with sqlite:/// or postgresql://.")
        self.is_sqlite = self._url.get_backend_name() == "sqlite"
        self._engine = sa.create_engine(
            self._url, pool_size=1, max_overflow=0, poolclass=sa.QueuePool, pool_pre_ping=not self.is_sqlite
        )
        if self.is_sqlite:
            _configure_sqlite(self._engine)
        self._queue: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._waiting = 0
        try:
            self._take()
            with _as_storage_error():
                with self._engine.begin() as connection:
                    migrate(connection)
                self.scrub()
        except BaseException:
            self._guard.close()
            raise
        self._thread = threading.Thread(target=self._write_all, name="hushrec-writer", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """Jobs that are not yet committed."""
        return self._waiting

    def _take(self) -> None:
        """Makes sure that no other server uses this database: two would each close rounds."""
        if self.is_sqlite:
            self._guard.enter_context(_file_lock(Path(str(self._url.database) + ".lock")))
            return
        with _as_storage_error():
            engine = sa.create_engine(self._url, poolclass=sa.NullPool)
            connection = self._guard.enter_context(engine.connect())
            if not connection.execute(sa.select(sa.func.pg_try_advisory_lock(_PG_LOCK))).scalar():
                raise StorageError("another server uses this database. Stop it first.")
            connection.commit()

    # Reading and rare writing ----------------------------------------------------------------------------------

    def read(self, work: Callable[[sa.Connection], Outcome]) -> Outcome:
        """Runs `work` at once, in this thread. For the start of a server, before anything is served."""
        with _as_storage_error(), self._engine.begin() as connection:
            return work(connection)

    async def write(self, work: Callable[[sa.Connection], Outcome], *, scrub: bool = False) -> Outcome:
        """Runs `work` in a transaction of its own, after all that is waiting; returns after the commit.

        With `scrub`, no byte of what was deleted is left in the database's files when it returns.
        """
        outcome: Outcome = await self._submit(work, scrub)
        return outcome

    async def store(self, report: NewReport) -> None:
        """Returns when the report is durable."""
        await self._submit(report)

    async def _submit(self, work: Any, scrub: bool = False) -> Any:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()

        def done(outcome: Any, error: BaseException | None) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits any more
                loop.call_soon_threadsafe(_resolve, future, outcome, error)

        self._waiting += 1
        try:
            self._queue.put(_Job(work, done, scrub))
            return await asyncio.shield(future)
        finally:
            self._waiting -= 1

    def scrub(self) -> None:
        """Leaves no byte of a deleted report in the write-ahead log."""
        if self.is_sqlite:
            with _as_storage_error(), self._engine.connect() as connection:
                connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Waits for what is being written, then lets the database go."""
        self._queue.put(None)
        self._thread.join()
        self._engine.dispose()
        self._guard.close()

    # The writing thread ----------------------------------------------------------------------------------------

    def _write_all(self) -> None:
        while True:
            jobs = self._gather()
            batch: list[_Job] = []
            for job in jobs:
                if job is None:
                    self._store_batch(batch)
                    return
                if isinstance(job.work, NewReport):
                    batch.append(job)
                    continue
                self._store_batch(batch)
                batch = []
                self._run(job)
            self._store_batch(batch)

    def _gather(self) -> list[_Job | None]:
        jobs = [self._queue.get()]
        while len(jobs) < MOST_PER_COMMIT:
            try:
                jobs.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return jobs

    def _run(self, job: _Job) -> None:
        assert not isinstance(job.work, NewReport)
        try:
            with _as_storage_error(), self._engine.begin() as connection:
                outcome = job.work(connection)
        except Exception as error:
            job.done(None, error)
            return
        if job.scrub:
            with contextlib.suppress(StorageError):  # a reader is in the way: the next start or round scrubs
                self.scrub()
        job.done(outcome, None)

    def _store_batch(self, jobs: list[_Job]) -> None:
        """All in one transaction; if one of them collides, each on its own."""
        if not jobs:
            return
        new = [job.work for job in jobs if isinstance(job.work, NewReport)]
        try:
            with _as_storage_error(), self._engine.begin() as connection:
                insert_reports(connection, new)
        except IntegrityError:
            for job in jobs:
                self._store_alone(job)
        except Exception as error:
            for job in jobs:
                job.done(None, error)
        else:
            for job in jobs:
                job.done(None, None)

    def _store_alone(self, job: _Job) -> None:
        """The commit of an earlier try may have succeeded although its answer was lost: the same bytes are fine."""
        assert isinstance(job.work, NewReport)
        report = job.work
        try:
            with _as_storage_error(), self._engine.begin() as connection:
                row = sa.and_(reports.c.round == report.round_number, reports.c.device == report.device)
                stored = connection.execute(sa.select(reports.c.body).where(row)).scalar()
                if stored is None:
                    insert_reports(connection, [report])
                elif bytes(stored) != report.body:
                    raise StorageError("this device's report of the round is stored already, with other bytes.")
        except Exception as error:
            job.done(None, error)
        else:
            job.done(None, None)


def insert_reports(connection: sa.Connection, new: list[NewReport]) -> None:
    """Reports, with the nonces that came with them, so that a restart still refuses a replay."""
    rows = [{"round": r.round_number, "device": r.device, "body": r.body} for r in new]
    connection.execute(reports.insert(), rows)
    seen = [{"name": r.device, "nonce": r.nonce, "round": r.round_number} for r in new]
    connection.execute(
        devices.update()
        .where(devices.c.id == sa.bindparam("name"))
        .values(last_nonce=sa.bindparam("nonce"), last_round=sa.bindparam("round")),
        seen,
    )


def delete_reports(connection: sa.Connection) -> None:
    """Every report; in PostgreSQL by truncating, so that no dead row stays in the table's file."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("TRUNCATE reports"))
    else:
        connection.execute(reports.delete())


def use_invitation(connection: sa.Connection, digest: bytes, device: str) -> bool:
    """Marks an invitation as used by this device; False if there is none, or another device used it."""
    row = connection.execute(sa.select(invitations).where(invitations.c.digest == digest)).first()
    if row is None or row.used_by not in (None, device):
        return False
    connection.execute(invitations.update().where(invitations.c.digest == digest).values(used_by=device))
    return True


def _resolve(future: "asyncio.Future[Any]", outcome: Any, error: BaseException | None) -> None:
    if future.cancelled():
        return
    if error is None:
        future.set_result(outcome)
    else:
        future.set_exception(error)


@contextlib.contextmanager
def _as_storage_error() -> Iterator[None]:
    """Errors of the database as ours, without the statement or its values: they may hold a report."""
    try:
        yield
    except IntegrityError:
        raise
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None)
        raise StorageError(f"the database cannot be used now ({type(reason or error).__name__}). Try again.") from None


def _configure_sqlite(engine: sa.Engine) -> None:
    @sa.event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: object) -> None:
        connection.isolation_level = None  # BEGIN is ours
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {LOCK_TIMEOUT_SECONDS * 1000}")
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON", "foreign_keys = ON"):
            cursor.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Held by the operating system as long as this process lives, and not longer."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError("another server uses this database. Stop it first.") from None
        yield
