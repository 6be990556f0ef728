"""The local store of a person's device: ratings, private state, ledger and keys, readable by its owner only.

The store is one SQLite file in a folder of its own. Changes that belong together are one transaction, which is flushed
to disk before `change` returns: every report that was sent has been charged to the stored ledger. A stored value that
cannot be decoded raises the error for a damaged store.

A named value that is replaced or removed leaves no copy in any file of the store:

- Each named value, such as the ratings or the private state, is the only row of its own table. SQLite moves rows only
  when it splits or merges the pages of a table with several rows, and does not clear the place that a row had before.
  A single row stays on its table's first page, and its overflow pages hold nothing else.
- `secure_delete` overwrites a replaced row and every page that becomes free with zeros.
- The write-ahead log, which holds whole pages, is truncated after every change, also after one that failed. Temporary
  data stays in memory (`temp_store`).

The catalogue is public, and the only table with several rows.
"""

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from hushrec import wire
from hushrec.arrays import FloatArray, pack_arrays, unpack_arrays
from hushrec.budget.ledger import Ledger
from hushrec.device.budgets import Budgets
from hushrec.device.calls import not_joined
from hushrec.errors import HushrecError, StorageError
from hushrec.messages import Envelope, Offer
from hushrec.models.predictor import Arrays
from hushrec.protocols.parties import State
from hushrec.signing import DeviceKey

SCHEMA_VERSION = 3
DATABASE = "device.sqlite"
FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal", "lock")  # every file of a store
NAMES = (  # of all named values
    "attempt_until", "budgets", "copied", "device", "enrolled", "given_up", "key", "last_list", "ledger", "next_key",
    "offer", "outbox", "over", "past_runs", "private_state", "public", "ratings", "server", "shown",
)  # fmt: skip
_CATALOGUE = (
    "CREATE TABLE catalogue (position INTEGER PRIMARY KEY, id TEXT UNIQUE, title TEXT NOT NULL, attributes BLOB)"
)


Value = TypeVar("Value")


def default_folder() -> Path:
    """Return the default folder of a device's store: $XDG_DATA_HOME/hushrec, or ~/.local/share/hushrec."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "hushrec"


@dataclass(frozen=True, eq=False, repr=False)
class ShownReport:
    """A report that the device sent, and the arrays that its protocol stores to show it to the person."""

    round_number: int
    report: Any  # the message, as the protocol declares it
    arrays: State
    n_bytes: int  # size of the encoded report with its envelope, as sent


class Store:
    """An open store. Only one process at a time can open it."""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder = folder
        self._path = folder / DATABASE
        with self._reachable():
            if create:
                self._make()
            self._check()
            self._lock = (folder / "lock").open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StorageError(f"the store in {folder} must not be open in another process. Close it there.") from None
        try:
            self._connect(new=create)
        except BaseException:
            self._lock.close()
            raise

    def __repr__(self) -> str:
        return "Store()"

    @contextlib.contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StorageError(
                f"--store must be a folder that can be read and written, got {self.folder} ({reason}). Choose another."
            ) from None

    def _make(self) -> None:
        if self._path.exists():
            raise StorageError(
                f"{self.folder} must not hold a store already. Use the store, or erase it with `hushrec device forget`."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise StorageError(f"{self.folder} must be a new or empty folder, but holds other files. Choose another.")
        self.folder.chmod(0o700)
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))

    def _check(self) -> None:
        if not self._path.exists():
            raise StorageError(f"there is no store in {self.folder}. Create one with `hushrec device init`.")
        if (self._path.stat().st_mode | self.folder.stat().st_mode) & 0o077:
            raise StorageError(
                f"the store in {self.folder} must be readable by its owner only. Run `chmod -R go= {self.folder}`."
            )

    def _connect(self, *, new: bool) -> None:
        self._database = sqlite3.connect(self._path, isolation_level=None, check_same_thread=False)
        try:
            for pragma in ("journal_mode = WAL", "synchronous = FULL", "secure_delete = ON", "temp_store = MEMORY"):
                self._rows(f"PRAGMA {pragma}")
            ((version,),) = self._rows("PRAGMA user_version")
            if new or version == 2:
                with self.change():
                    self._make_tables()
                    if new:
                        self._rows(_CATALOGUE)
                    else:
                        self._migrate()
                version = SCHEMA_VERSION
            if version == 0:
                raise StorageError(
                    f"the store in {self.folder} is incomplete: its creation was interrupted. Remove the folder, and"
                    " create the store again."
                )
            if version != SCHEMA_VERSION:
                raise StorageError(
                    f"the store's schema version must be {SCHEMA_VERSION}, got {version}. Use the hushrec version that"
                    " made it."
                )
            self._scrub()  # a process that was killed left its log
        except BaseException:
            self._database.close()
            raise

    def _make_tables(self) -> None:
        for name in NAMES:
            self._rows(f"CREATE TABLE kept_{name} (only INTEGER PRIMARY KEY CHECK (only = 1), value BLOB NOT NULL)")
        self._rows(f"PRAGMA user_version = {SCHEMA_VERSION}")

    def _migrate(self) -> None:
        """Move the values of schema version 2 to their own tables. Dropping the old tables overwrites their pages."""
        for name, value in self._rows("SELECT name, value FROM kept"):
            self.put(name, value)
        self.put_ratings(dict(self._rows("SELECT item, value FROM ratings")))
        self.put_json("attempt_until", [0, 0])  # it is not known how old an open attempt is
        for table in ("kept", "ratings"):
            self._rows(f"DROP TABLE {table}")

    def close(self) -> None:
        self._database.close()
        self._lock.close()

    def _rows(self, query: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a query; raise `StorageError` if the database fails."""
        try:
            return self._database.execute(query, values).fetchall()
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter from decoding SQLite's own error message
            if type(error) in (sqlite3.DatabaseError, UnicodeDecodeError):
                raise self.damaged("the database file") from None
            raise StorageError(f"the store in {self.folder} is unavailable ({error}). Try again.") from None

    def damaged(self, what: str) -> StorageError:
        """Return the error for a damaged store; `what` names the part that cannot be read."""
        return StorageError(
            f"the store in {self.folder} is damaged: {what} cannot be read. Nothing was overwritten. Move the folder "
            "away, create a new store with `hushrec device init`, and import the ratings that you exported."
        )

    @contextlib.contextmanager
    def intact(self, what: str) -> Iterator[None]:
        """Raise the error of `damaged` if the `with` block cannot decode a stored value; `what` names the value."""
        try:
            yield
        except StorageError:
            raise
        except (HushrecError, msgspec.MsgspecError, ValueError, TypeError, KeyError, AttributeError):
            raise self.damaged(what) from None

    @contextlib.contextmanager
    def change(self, *, durable: bool = True) -> Iterator[None]:
        """Run all writes of the block in one transaction. With `durable=False` a crash may undo the transaction."""
        try:
            self._rows(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._rows("BEGIN IMMEDIATE")
            yield
            self._rows("COMMIT")
        except BaseException:
            with contextlib.suppress(sqlite3.Error):
                if self._database.in_transaction:
                    self._database.execute("ROLLBACK")
            raise
        finally:
            self._scrub()

    def _scrub(self) -> None:
        """Truncate the write-ahead log, so that no byte of a replaced value stays in it; call after a transaction only.

        A database error is ignored, because the transaction has ended already; the next change truncates the log.
        """
        with contextlib.suppress(StorageError):
            self._rows("PRAGMA wal_checkpoint(TRUNCATE)")

    def _write(self, query: str, values: Sequence[Any] = ()) -> None:
        assert self._database.in_transaction
        self._rows(query, values)

    # Named values ----------------------------------------------------------------------------------------------

    def get(self, name: str) -> bytes | None:
        """Return a named value, or None if the store does not have it."""
        rows = self._rows(f"SELECT value FROM kept_{name}")
        with self.intact(name):
            return bytes(rows[0][0]) if rows else None

    def get_json(self, name: str) -> Any:
        value = self.get(name)
        with self.intact(name):
            return None if value is None else msgspec.json.decode(value)

    def put(self, name: str, value: bytes) -> None:
        """Store a value under one of `NAMES`; call only inside `change`."""
        self._write(f"INSERT OR REPLACE INTO kept_{name} VALUES (1, ?)", (value,))

    def put_json(self, name: str, value: Any) -> None:
        self.put(name, msgspec.json.encode(value))

    def drop(self, *names: str) -> None:
        """Remove named values; call only inside `change`."""
        for name in names:
            self._write(f"DELETE FROM kept_{name}")

    def required(self, name: str) -> bytes:
        """Return the bytes of a named value; if the store does not have it, raise the error for a device not joined."""
        value = self.get(name)
        if value is None:
            raise not_joined()
        return value

    def budgets(self) -> Budgets:
        value = self.required("budgets")
        with self.intact("budgets"):
            return Budgets(**msgspec.json.decode(value))

    def ledger(self) -> Ledger:
        value = self.required("ledger")
        with self.intact("the ledger"):
            record = msgspec.json.decode(value)
        return Ledger.from_record(record)

    def _decoded(self, name: str, what: str, decode: Callable[[bytes], Value]) -> Value | None:
        value = self.get(name)
        with self.intact(what):
            return None if value is None else decode(value)

    def offer(self) -> Offer | None:
        return self._decoded("offer", "the offer", lambda value: wire.decode(value, Offer))

    def key(self, name: str = "key") -> DeviceKey | None:
        return self._decoded(name, "the key", DeviceKey.from_bytes)

    def device(self) -> str | None:
        """Return the id under which the server knows this device, or None before joining."""
        return self._decoded("device", "the device's name", bytes.decode)

    def private_state(self) -> State:
        """Return the `Client`'s private state: user vector, permanent bits, secrets. Must never leave the device."""
        packed = self.required("private_state")
        with self.intact("the private state"):
            return unpack_arrays(packed)

    def put_private_state(self, state: State) -> None:
        self.put("private_state", pack_arrays(state))

    def public(self) -> Arrays | None:
        """Return the arrays of the latest public table by name, or None if this device has none."""
        arrays = self._decoded("public", "item vectors", _finite_arrays)
        return None if arrays is None else {name: array.astype(np.float64) for name, array in arrays.items()}

    def put_public(self, arrays: Arrays) -> None:
        """Store the public table in float32, the precision in which it was sent."""
        self.put("public", pack_arrays({name: array.astype("<f4") for name, array in arrays.items()}))

    def shown(self) -> list[ShownReport]:
        """Return the last reports of this run to show to the person, the latest last. Must never leave the device."""
        found = []
        with self.intact("the last reports"):
            for body, packed in self._packed_reports():
                envelope = wire.decode(body, Envelope)
                found.append(ShownReport(envelope.round_number, envelope.message, _finite_arrays(packed), len(body)))
        return found

    def put_shown(self, body: bytes, arrays: State, most: int) -> None:
        """Store an encoded report with its arrays, and discard all but the last `most` reports."""
        with self.intact("the last reports"):
            earlier = self._packed_reports()
        self.put("shown", msgspec.msgpack.encode([*earlier, (body, pack_arrays(arrays))][-most:]))

    def _packed_reports(self) -> list[tuple[bytes, bytes]]:
        packed = self.get("shown")
        return [] if packed is None else msgspec.msgpack.decode(packed, type=list[tuple[bytes, bytes]])

    def ratings(self) -> dict[str, float]:
        """Return this person's ratings by item id, in the order of ids."""
        packed = self.get("ratings")
        with self.intact("a rating"):
            return {} if packed is None else msgspec.json.decode(packed, type=dict[str, float])

    def put_ratings(self, values: dict[str, float]) -> None:
        """Add ratings, or replace earlier ratings of the same items; call only inside `change`."""
        self.put_json("ratings", dict(sorted((self.ratings() | values).items())))

    def drop_rating(self, item: str) -> bool:
        """Remove a rating, and return whether there was one; call only inside `change`."""
        kept = self.ratings()
        found = kept.pop(item, None) is not None
        self.put_json("ratings", kept)
        return found

    # Items -----------------------------------------------------------------------------------------------------

    def rated_items(self, n_items: int) -> dict[int, float]:
        """Return the ratings of the first `n_items` items of the catalogue, by position."""
        kept, rated = self.ratings(), "SELECT value FROM json_each(?)"
        query = f"SELECT position, id FROM catalogue WHERE id IN ({rated}) AND position < ? ORDER BY position"
        rows = self._rows(query, (msgspec.json.encode([*kept]).decode(), n_items))
        return {position: kept[item] for position, item in rows}

    def count_items(self) -> int:
        return int(self._rows("SELECT count(*) FROM catalogue")[0][0])

    def item_at(self, position: int) -> tuple[str, str]:
        """Return (id, title) of the item at a position."""
        rows = self._rows("SELECT id, title FROM catalogue WHERE position = ?", (position,))
        if not rows:
            raise self.damaged("an item of the catalogue")
        found: tuple[str, str] = rows[0]
        return found

    def catalogue(self) -> list[tuple[str, str]]:
        """Return (id, title) of all items, in the order of positions."""
        return self._rows("SELECT id, title FROM catalogue ORDER BY position")

    def append_items(self, first: int, ids: list[str], titles: list[str], attributes: FloatArray | None = None) -> None:
        """Append catalogue items from position `first` on; `attributes`, if the model uses any, has a row for each."""
        columns = [None] * len(ids) if attributes is None else [row.tobytes() for row in attributes.astype("<f4")]
        for position, entry in enumerate(zip(ids, titles, columns, strict=True), first):
            self._write("INSERT INTO catalogue VALUES (?, ?, ?, ?)", (position, *entry))

    def attributes(self) -> FloatArray | None:
        """Return the attributes of all items, `(n_items, n_columns)`, or None if the items have no attributes."""
        rows = self._rows("SELECT attributes FROM catalogue ORDER BY position")
        if not rows or rows[0][0] is None:
            return None
        with self.intact("the catalogue"):
            return np.stack([np.frombuffer(row[0], dtype="<f4") for row in rows]).astype(np.float64)

    def drop_catalogue(self) -> None:
        self._write("DELETE FROM catalogue")


def erase(folder: Path) -> None:
    """Overwrite and remove a store's files, and remove its folder unless it holds other files.

    This does not reach backups, or old disk blocks that the file system kept.
    """
    Store(folder).close()  # raises if the folder is not a store or is in use
    for path in (folder / name for name in FILES):
        if path.is_file() and not path.is_symlink():
            with path.open("r+b") as file:
                file.write(os.urandom(path.stat().st_size))
                os.fsync(file.fileno())
            path.unlink()
    with contextlib.suppress(OSError):  # the folder holds other files
        folder.rmdir()


def _finite_arrays(packed: bytes) -> dict[str, Any]:
    arrays = unpack_arrays(packed)
    if not all(np.all(np.isfinite(array)) for array in arrays.values()):
        raise ValueError
    return arrays
