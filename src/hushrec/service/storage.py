"""The server's database, through SQLAlchemy Core: a SQLite file by default, or a PostgreSQL server.

One thread per process writes. It writes in the order of the calls, except that waiting writes with `is_first` run
before other waiting writes. Consecutive waiting reports share a transaction, and so one flush to disk. `Storage.store`
returns a future for each report, which is done after the commit.

An attempt's reports are deleted in the transaction that stores the next attempt or the new public table. SQLite
overwrites their pages with zeros (`secure_delete`), and afterwards its write-ahead log is truncated. PostgreSQL runs
TRUNCATE, which removes the file of the table.

Only one process at a time may use a SQLite file. Any number may share a PostgreSQL database
(docs/decisions/0018-workers.md).
"""

import asyncio
import contextlib
import os
import secrets
import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError, SQLAlchemyError

from hushrec.errors import StorageError
from hushrec.service.partial_sums import add_to_partial_sums
from hushrec.service.reports import NewReport, store_reports
from hushrec.service.schema import CHANNEL, is_shared, migrate, schema

MOST_PER_COMMIT = 512
LOCK_TIMEOUT_SECONDS = 5
RETRY_SECONDS = 1.0  # until a broken connection for notifications is opened again
_PG_LOCK = 0x68757368  # key of the advisory lock that `lock_setup` takes
_PG_LOCK_NOT_AVAILABLE = "55P03"
_PG_SETTINGS = {"tcp_keepalives_idle": 30, "tcp_keepalives_interval": 10, "tcp_keepalives_count": 3}
_TAKEN = "the database must not be in use by another server. Stop that server first."

Outcome = TypeVar("Outcome")
Together = Callable[[sa.Connection, list[Any]], Sequence[Any]]  # returns a result or an exception for each argument


@dataclass(frozen=True, eq=False)
class _Write:
    work: Callable[..., Any]
    future: "asyncio.Future[Any]"
    scrub: bool = False
    argument: Any = field(default=None, repr=False)  # of a `Together`; None: `work` takes only the connection
    is_first: bool = False  # runs before other waiting writes


class Storage:
    """An open database. A missing SQLite file is created; a SQLite file that another server has open is refused."""

    def __init__(self, url: str) -> None:
        self._guard = contextlib.ExitStack()
        self._url = _parsed(url)
        self.is_shared = self._url.get_backend_name() == "postgresql"  # several workers may use the database at once
        if self.is_shared:
            self._url = self._url.set(drivername="postgresql+psycopg")
        self._engine = sa.create_engine(
            self._url,
            pool_size=1,
            max_overflow=0,
            poolclass=sa.QueuePool,
            pool_pre_ping=self.is_shared,
            hide_parameters=True,  # no error may hold a report
        )
        (_configure_postgresql if self.is_shared else _configure_sqlite)(self._engine)
        self._queue: deque[_Write] = deque()
        self._writer = ThreadPoolExecutor(1, "hushrec-writer")
        self._waiting: set[asyncio.Future[Any]] = set()
        self._has_failed = False  # a write has failed since the last `check`
        self._worker = secrets.token_hex(16)  # identifies this process among those that share the database
        try:
            if self.is_shared:
                self._check_connection()
            else:
                self._lock_file()
            with _as_storage_error():
                with self._engine.begin() as connection:
                    lock_setup(connection)
                    migrate(connection)
                self.scrub()
        except BaseException:
            self._engine.dispose()
            self._guard.close()
            raise

    async def listen(self, on_change: Callable[[], None]) -> None:
        """Call `on_change` after each PostgreSQL notification that the run has changed, until the task is cancelled.

        The method uses a connection of its own, and opens a new one if it breaks. It also calls `on_change` after each
        connect, because notifications may have been missed before.
        """
        import psycopg

        address = self._url.set(drivername="postgresql").render_as_string(hide_password=False)
        while True:
            with contextlib.suppress(psycopg.Error):
                async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
                    await connection.execute(f"LISTEN {CHANNEL}")
                    on_change()
                    async for _ in connection.notifies():
                        on_change()
            await asyncio.sleep(RETRY_SECONDS)

    @property
    def waiting(self) -> int:
        """The number of reports and other writes that are not yet committed."""
        return len(self._waiting)

    def _check_connection(self) -> None:
        """Connect once, so that a wrong host, name or user raises before anything is created.

        No SQL query has run yet, so the driver's message, which the error shows, cannot contain a report.
        """
        try:
            self._engine.connect().close()
        except OperationalError as error:
            where = self._url.set(drivername="postgresql").render_as_string(hide_password=True)
            reason = str(error.orig).strip().partition("\n")[0].rstrip(".")
            raise StorageError(
                f"--database must be a database that accepts connections, got {where}: {reason}. Check host, port, name"
                " and user."
            ) from None

    def _lock_file(self) -> None:
        """Lock the SQLite file and create it if it is missing; raise `StorageError` if another server has locked it."""
        path = Path(str(self._url.database))
        with _as_storage_error():
            self._guard.enter_context(_file_lock(path.with_name(path.name + ".lock")))
            os.close(os.open(path, os.O_CREAT, 0o600))  # the write-ahead log gets the same mode

    # Reading and rare writing ----------------------------------------------------------------------------------

    def at_once(self, work: Callable[[sa.Connection], Outcome]) -> Outcome:
        """Run `work` in a transaction in the calling thread, and return its result.

        Use this only before the server accepts requests, because it blocks the thread.
        """
        with _as_storage_error(), self._engine.begin() as connection:
            return work(connection)

    async def write(
        self, work: Callable[[sa.Connection], Outcome], *, scrub: bool = False, is_first: bool = False
    ) -> Outcome:
        """Run `work` in a transaction of its own, after the writes already waiting; return its result after the commit.

        With `scrub`, the commit is followed by a call of `Storage.scrub`. With `is_first`, `work` runs before the
        writes already waiting.
        """
        outcome: Outcome = await asyncio.shield(self._submit(work, scrub=scrub, is_first=is_first))
        return outcome

    def store(self, report: NewReport) -> "asyncio.Future[None]":
        """Queue a report; return a future that is done when the report is durable.

        Later writes run after it, except those with `is_first`.
        """
        return self._submit(self._store, argument=report)

    def _store(self, connection: sa.Connection, new: list[NewReport]) -> Sequence[Any]:
        refusals, fresh = store_reports(connection, new)
        if self.is_shared:
            add_to_partial_sums(connection, self._worker, fresh)
        return refusals

    async def write_together(self, work: Together, argument: Any) -> Any:
        """Queue `argument` for `work`; after the commit, return the result for this argument, or raise its exception.

        `work` is called in one transaction with a list of the arguments that wait for it, at most `MOST_PER_COMMIT`. It
        returns a result or an exception for each of them. It runs before waiting writes without `is_first`.
        """
        return await asyncio.shield(self._submit(work, argument=argument, is_first=True))

    def _submit(self, work: Callable[..., Any], **how: Any) -> "asyncio.Future[Any]":
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        future.add_done_callback(self._waiting.discard)
        self._queue.append(_Write(work, future, **how))
        if len(self._queue) == 1:  # with more, a call of `_write_waiting` is running or submitted already
            self._writer.submit(self._write_waiting)
        return future

    async def check(self) -> None:
        """Raise `StorageError` if the database does not answer, or if a write has failed since the last check."""
        failed, self._has_failed = self._has_failed, False
        trial = schema.update().values(version=schema.c.version) if failed else sa.select(1)
        await self.write(lambda connection: connection.execute(trial))
        if failed:
            raise StorageError("a write to the database has failed. Check the log, and the space that is left.")

    def scrub(self) -> None:
        """Truncate SQLite's write-ahead log, so that no byte of a deleted report stays in it."""
        if not self.is_shared:
            with _as_storage_error(), self._engine.connect() as connection:
                connection.connection.cursor().execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def close(self) -> None:
        """Finish the queued writes, then close the database."""
        self._writer.shutdown()
        self._engine.dispose()
        self._guard.close()

    # The writing thread ----------------------------------------------------------------------------------------

    def _write_waiting(self) -> None:
        """Run the waiting writes; reports in a row, and arguments in a row for the same `work`, share a transaction."""
        while self._queue:
            writes = [self._queue.popleft() for _ in range(min(len(self._queue), MOST_PER_COMMIT))]
            writes.sort(key=lambda write: not write.is_first)
            for _, together in groupby(writes, key=lambda write: write if write.argument is None else write.work):
                self._run(list(together))

    def _run(self, writes: list[_Write]) -> None:
        """Run one write, or several writes with the same `work`, in one transaction; then resolve their futures."""
        first, outcomes = writes[0], []
        try:
            with _as_storage_error(), self._engine.begin() as connection:
                if first.argument is None:
                    outcomes = [first.work(connection)]
                else:
                    outcomes = list(first.work(connection, [write.argument for write in writes]))
        except Exception as error:
            outcomes = [error] * len(writes)
            self._has_failed |= isinstance(error, StorageError)
        else:
            if first.scrub:
                with contextlib.suppress(StorageError):  # blocked by a reader: the next round or start scrubs
                    self.scrub()
        with contextlib.suppress(RuntimeError):  # the loop is closed: no coroutine waits for the results
            first.future.get_loop().call_soon_threadsafe(_resolve, writes, outcomes)  # one wake-up for all futures


def lock_setup(connection: sa.Connection) -> None:
    """Lock the creation of tables and runs until the transaction ends; do nothing for SQLite.

    Raise `StorageError` if the lock is not free after `LOCK_TIMEOUT_SECONDS`. This happens if a server of an older
    version uses the database: it cannot share the database, and holds this lock as long as it runs.
    """
    if is_shared(connection):
        try:
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_PG_LOCK)))
        except OperationalError as error:
            if getattr(error.orig, "sqlstate", "") == _PG_LOCK_NOT_AVAILABLE:
                raise StorageError(_TAKEN) from None
            raise


def _parsed(url: str) -> sa.URL:
    try:
        found = sa.make_url(url)
        is_file = found.get_backend_name() == "sqlite" and found.database not in (None, "", ":memory:")
        known = is_file or found.get_backend_name() == "postgresql"
    except (SQLAlchemyError, ValueError):
        known = False
    if not known:
        raise StorageError("--database must be an address of the form sqlite:///FILE or postgresql://HOST/NAME.")
    return found


def _resolve(writes: list[_Write], outcomes: list[Any]) -> None:
    for write, outcome in zip(writes, outcomes, strict=True):
        if write.future.cancelled():
            continue
        if isinstance(outcome, BaseException):
            write.future.set_exception(outcome)
        else:
            write.future.set_result(outcome)


@contextlib.contextmanager
def _as_storage_error() -> Iterator[None]:
    """Convert database errors to `StorageError`, without the SQL query and its values, which may hold a report."""
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"--database must name a file that can be written ({error.strerror}). Choose another."
        ) from None
    except SQLAlchemyError as error:
        reason = getattr(error, "orig", None)
        if type(reason) is sqlite3.DatabaseError:
            raise StorageError(
                "--database must name an intact SQLite file, but the file is damaged or of another kind. Restore it, or"
                " choose another."
            ) from None
        raise StorageError(f"the database is unavailable ({type(reason or error).__name__}). Try again.") from None


def _configure_sqlite(engine: sa.Engine) -> None:
    @sa.event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: object) -> None:
        connection.isolation_level = None  # the driver sends no BEGIN of its own; `on_begin` does
        connection.create_function("txid_current", 0, lambda: 0)  # for the column `changed`
        cursor = connection.cursor()
        cursor.execute(f"PRAGMA busy_timeout = {LOCK_TIMEOUT_SECONDS * 1000}")
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON", "foreign_keys = ON"):
            cursor.execute(f"PRAGMA {pragma}")

    @sa.event.listens_for(engine, "begin")
    def on_begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")


def _configure_postgresql(engine: sa.Engine) -> None:
    @sa.event.listens_for(engine, "connect")
    def on_connect(connection: Any, _: object) -> None:
        """Set TCP keep-alives and the lock timeout.

        With these keep-alives, PostgreSQL ends a dead connection, and frees its locks, after a minute.
        """
        with connection.cursor() as cursor:
            for name, value in _PG_SETTINGS.items():
                cursor.execute(f"SET {name} = {value}")
            cursor.execute(f"SET lock_timeout = '{LOCK_TIMEOUT_SECONDS}s'")
        connection.commit()


@contextlib.contextmanager
def _file_lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock on a file; the operating system releases it when the process ends."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with os.fdopen(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StorageError(_TAKEN) from None
        yield
