"""What a person's device keeps: ratings, user vector, permanent bits, ledger, keys. Readable by its owner only.

One SQLite file in a folder of its own. A change that belongs together is one transaction, flushed to the disk before
`change` returns: a report that was sent is always a report that is in the ledger.
"""

import contextlib
import fcntl
import os
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from hushrec.client import PrivateState
from hushrec.errors import StorageError

SCHEMA_VERSION = 1
_TABLES = (
    "CREATE TABLE ratings (item TEXT PRIMARY KEY, value REAL NOT NULL)",
    "CREATE TABLE catalogue (position INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, title TEXT NOT NULL)",
    "CREATE TABLE kept (name TEXT PRIMARY KEY, value BLOB NOT NULL)",
)


def default_folder() -> Path:
    """$XDG_DATA_HOME/hushrec, or ~/.local/share/hushrec."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "hushrec"


class Store:
    """An open store. Only one process can have it open."""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder = folder
        self._path = folder / "device.sqlite"
        if create:
            self._make()
        self._check()
        self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StorageError(f"the store in {folder} is in use by another process.") from None
        try:
            self._connect(new=create)
        except BaseException:
            self._lock.close()
            raise

    def __repr__(self) -> str:
        return "Store()"

    def _make(self) -> None:
        if self._path.exists():
            raise StorageError(f"{self.folder} holds a store already. Use it, or `hushrec device forget` it first.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o700)
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))

    def _check(self) -> None:
        if not self._path.exists():
            raise StorageError(f"there is no store in {self.folder}. Make one with `hushrec device init`.")
        if (self._path.stat().st_mode | self.folder.stat().st_mode) & 0o077:
            raise StorageError(f"the store in {self.folder} must be readable by its owner only: chmod -R go= it.")

    def _connect(self, *, new: bool) -> None:
        self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON"):
                self._database.execute(f"PRAGMA {pragma}")
            if new:
                with self.change():
                    for table in _TABLES:
                        self._database.execute(table)
                    self._database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
            (version,) = self._database.execute("PRAGMA user_version").fetchone()
        except sqlite3.Error as error:
            self._database.close()
            state = "is damaged" if type(error) is sqlite3.DatabaseError else "cannot be opened now"
            raise StorageError(f"the store in {self.folder} {state} ({type(error).__name__}).") from None
        if version == 0:
            self._database.close()
            raise StorageError(f"the store in {self.folder} was never finished. Remove the folder, and make it anew.")
        if version != SCHEMA_VERSION:
            self._database.close()
            raise StorageError(f"the store has version {version}, this hushrec knows {SCHEMA_VERSION}.")

    def close(self) -> None:
        self._database.close()
        self._lock.close()

    @contextlib.contextmanager
    def change(self, *, durable: bool = True) -> Iterator[None]:
        """All that is written inside happens, or nothing. `durable=False`: a crash may undo it, whole."""
        try:
            self._database.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._database.execute("BEGIN IMMEDIATE")
            yield
            self._database.execute("COMMIT")
        except BaseException as error:
            with contextlib.suppress(sqlite3.Error):
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise StorageError(f"the store cannot be written now ({type(error).__name__}).") from None
            raise

    # Named values ----------------------------------------------------------------------------------------------

    def get(self, name: str) -> bytes | None:
        row = self._database.execute("SELECT value FROM kept WHERE name = ?", (name,)).fetchone()
        return None if row is None else bytes(row[0])

    def get_json(self, name: str) -> Any:
        value = self.get(name)
        return None if value is None else msgspec.json.decode(value)

    def put(self, name: str, value: bytes) -> None:
        """Inside `change` only."""
        assert self._database.in_transaction
        self._database.execute("INSERT OR REPLACE INTO kept VALUES (?, ?)", (name, value))

    def put_json(self, name: str, value: Any) -> None:
        self.put(name, msgspec.json.encode(value))

    def drop(self, *names: str) -> None:
        assert self._database.in_transaction
        self._database.executemany("DELETE FROM kept WHERE name = ?", [(name,) for name in names])

    # Ratings and items -----------------------------------------------------------------------------------------

    def ratings(self) -> dict[str, float]:
        return dict(self._database.execute("SELECT item, value FROM ratings ORDER BY item").fetchall())

    def put_ratings(self, values: dict[str, float]) -> None:
        assert self._database.in_transaction
        self._database.executemany("INSERT OR REPLACE INTO ratings VALUES (?, ?)", list(values.items()))

    def drop_rating(self, item: str) -> bool:
        """Whether there was one."""
        assert self._database.in_transaction
        return self._database.execute("DELETE FROM ratings WHERE item = ?", (item,)).rowcount == 1

    def rated_positions(self, n_items: int) -> dict[int, float]:
        """Ratings by position, of the first `n_items` of the catalogue."""
        query = "SELECT position, value FROM ratings JOIN catalogue ON id = item WHERE position < ? ORDER BY position"
        return dict(self._database.execute(query, (n_items,)).fetchall())

    def count_items(self) -> int:
        return int(self._database.execute("SELECT count(*) FROM catalogue").fetchone()[0])

    def item_at(self, position: int) -> tuple[str, str]:
        """(id, title)."""
        found: tuple[str, str] = self._database.execute(
            "SELECT id, title FROM catalogue WHERE position = ?", (position,)
        ).fetchone()
        return found

    def catalogue(self) -> list[tuple[str, str]]:
        """(id, title) by position."""
        return self._database.execute("SELECT id, title FROM catalogue ORDER BY position").fetchall()

    def append_items(self, first: int, ids: list[str], titles: list[str]) -> None:
        assert self._database.in_transaction
        rows = [(first + n, name, title) for n, (name, title) in enumerate(zip(ids, titles, strict=True))]
        self._database.executemany("INSERT INTO catalogue VALUES (?, ?, ?)", rows)

    def drop_catalogue(self) -> None:
        assert self._database.in_transaction
        self._database.execute("DELETE FROM catalogue")


def pack_state(state: PrivateState) -> bytes:
    """A client's private state as bytes, for the store and nothing else."""
    return msgspec.msgpack.encode({name: (a.dtype.str, a.shape, a.tobytes()) for name, a in state.items()})


def unpack_state(packed: bytes) -> PrivateState:
    """The inverse of `pack_state`."""
    entries: dict[str, tuple[str, list[int], bytes]] = msgspec.msgpack.decode(packed)
    return {name: np.frombuffer(data, dtype=dtype).reshape(shape) for name, (dtype, shape, data) in entries.items()}


def erase(folder: Path) -> None:
    """Overwrites every file of a store, then removes the folder. Copies and old disk blocks are out of reach."""
    Store(folder).close()  # refuses a folder that is no store, or is in use
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.is_symlink():
            with path.open("r+b") as file:
                file.write(os.urandom(path.stat().st_size))
                os.fsync(file.fileno())
    shutil.rmtree(folder)
