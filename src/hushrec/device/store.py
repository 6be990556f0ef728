"""The local store of a person's device: ratings, private state, ledger and keys, readable by its owner only.

The store is one SQLite file in a folder of its own. Changes that belong together are one transaction, which is flushed
to disk before `change` returns: every report that was sent has been charged to the stored ledger. A stored value that
cannot be decoded raises the error for a damaged store.

A named value that is replaced or removed leaves no copy in any file of the store:

- Each named value, such as the ratings or the private state, is the only row of its own table. SQLite moves rows only
  when it splits or merges the pages of a table with several rows, and then leaves the old bytes of the row behind. A
  single row stays on its table's first page, and its overflow pages hold nothing else.
- `secure_delete` overwrites a replaced row and every page that becomes free with zeros.
- The write-ahead log, which holds whole pages, is truncated after every change, even if the change failed. Temporary
  data stays in memory (`temp_store`).

The catalogue is public, and the only table with several rows.
"""

import contextlib
import fcntl
import os
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import numpy as np

from hushrec import wire
from hushrec.arrays import FloatArray, pack_arrays, unpack_arrays
from hushrec.budget.accountants import ACCOUNTANTS
from hushrec.budget.ledger import Ledger
from hushrec.client import Client
from hushrec.device.budgets import Budgets
from hushrec.device.calls import not_joined
from hushrec.errors import HushrecError, RemoteProtocolError, StorageError
from hushrec.messages import Envelope, Offer
from hushrec.models.predictor import Arrays
from hushrec.protocols import PROTOCOLS
from hushrec.protocols.parties import State
from hushrec.protocols.shown import ShownReport
from hushrec.signing import DeviceKey

SCHEMA_VERSION = 3
DATABASE = "device.sqlite"
FILES = (DATABASE, f"{DATABASE}-wal", f"{DATABASE}-shm", f"{DATABASE}-journal", "lock")  # every file of a store
NAMES = (  # of all named values
    "attempt_until", "budgets", "copied", "device", "enrolled", "given_up", "key", "last_list", "ledger", "next_key",
    "offer", "outbox", "over", "past_runs", "private_state", "public", "ratings", "server", "shown",
)  # fmt: skip
_RATINGS = msgspec.json.Decoder(dict[str, float])
_REPORTS = msgspec.msgpack.Decoder(list[tuple[bytes, bytes]])

Value = TypeVar("Value")


def default_folder() -> Path:
    """Return the default folder of a device's store: $XDG_DATA_HOME/hushrec, or ~/.local/share/hushrec."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "hushrec"


def named(command: str, folder: Path) -> str:
    """Return the command `hushrec device COMMAND` for the store in this folder, as a person types it."""
    place = "" if folder == default_folder() else f" --store {shlex.quote(str(folder))}"
    return f"`hushrec device {command}{place}`"


class Store:
    """An open store. Only one process at a time can open it."""

    def __init__(self, folder: Path, *, create: bool = False) -> None:
        self.folder = folder
        self._path = folder / DATABASE
        try:
            if create:
                self._make()
            self._check()
            self._lock = (folder / "lock").open("w")
        except OSError as error:
            reason = error.strerror or type(error).__name__
            raise StorageError(
                f"--store must be a folder that can be read and written, got {folder} ({reason}). Choose another."
            ) from None
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

    def _make(self) -> None:
        if self._path.exists():
            raise StorageError(
                f"{self.folder} must not hold a store already. Use the store, or erase it with"
                f" {named('forget', self.folder)}."
            )
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(self.folder.iterdir()):
            raise StorageError(f"{self.folder} must be a new or empty folder, but holds other files. Choose another.")
        self.folder.chmod(0o700)
        os.close(os.open(self._path, os.O_CREAT | os.O_EXCL, 0o600))

    def _check(self) -> None:
        if not self._path.exists():
            raise StorageError(f"there is no store in {self.folder}. Create one with {named('init', self.folder)}.")
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
                    if not new:
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
        columns = "position INTEGER PRIMARY KEY, id TEXT UNIQUE, title TEXT NOT NULL, attributes BLOB"
        self._rows(f"CREATE TABLE IF NOT EXISTS catalogue ({columns})")  # schema version 2 has the same table
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
        """Return a context manager that raises `damaged(what)` if its block cannot decode a stored value."""
        try:
            yield
        except StorageError:
            raise
        except (HushrecError, msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            raise self.damaged(what) from None

    @contextlib.contextmanager
    def change(self, *, durable: bool = True) -> Iterator[None]:
        """Return a context manager that makes all writes of its block one transaction.

        With `durable=False`, a crash of the machine may undo the transaction.
        """
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

        Ignore a database error, because the transaction has ended already; the next change truncates the log.
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
        return self._decoded(name, name, msgspec.json.decode)

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
        """Return a named value; raise the error that `calls.not_joined` returns if the store does not have it."""
        value = self.get(name)
        if value is None:
            raise not_joined()
        return value

    def budgets(self) -> Budgets:
        record = self._record("budgets")
        with self.intact("budgets"):
            return Budgets.from_record(record)

    def ledger(self) -> Ledger:
        return Ledger.from_record(self._record("ledger"))

    def _record(self, name: str) -> Any:
        """Return the stored record called `name`, which is "budgets" or "ledger".

        Raise `StorageError` if it has a unit of a plug-in that is not installed.
        """
        value = self.required(name)
        with self.intact(name):
            record = msgspec.json.decode(value)
        parts = [record.get(part) for part in ("limits", "totals")] if isinstance(record, dict) else []
        missing = {unit for part in parts if isinstance(part, dict) for unit in part} - ACCOUNTANTS.keys()
        if missing:
            raise self._not_installed(f"the plug-in of unit {min(missing)}")
        return record

    def _not_installed(self, what: str) -> StorageError:
        return StorageError(f"the store in {self.folder} needs {what}, which is not installed. Install its package.")

    def _decoded(self, name: str, what: str, decode: Callable[[bytes], Value]) -> Value | None:
        value = self.get(name)
        with self.intact(what):
            return None if value is None else decode(value)

    def offer(self) -> Offer | None:
        name = self._decoded("offer", "the offer", lambda value: str(msgspec.msgpack.decode(value)["protocol"]))
        if name is not None and name not in PROTOCOLS:
            raise self._not_installed(f"protocol {name}")
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

    def put_client(self, client: Client) -> None:
        """Store a client's ledger and private state; call only inside `change`."""
        self.put_json("ledger", client.ledger.to_record())
        self.put("private_state", pack_arrays(client.private_state()))

    def public(self) -> Arrays | None:
        """Return the arrays of the latest public table by name, or None if this device has none."""
        arrays = self._decoded("public", "the public table", _finite_arrays)
        return None if arrays is None else {name: array.astype(np.float64) for name, array in arrays.items()}

    def put_public(self, arrays: Arrays) -> None:
        """Store the public table in float32, the precision in which it was sent."""
        self.put("public", pack_arrays({name: array.astype("<f4") for name, array in arrays.items()}))

    def shown(self) -> list[ShownReport]:
        """Return the last reports of this run to show to the person, the latest last. Must never leave the device."""
        found = []
        with self.intact("the last reports"):
            for body, packed in self._packed_reports():
                try:
                    envelope = wire.decode(body, Envelope)
                except RemoteProtocolError:  # made by an earlier version, whose reports had other fields
                    continue
                found.append(ShownReport(envelope.round_number, envelope.message, _finite_arrays(packed), len(body)))
        return found

    def put_shown(self, body: bytes, arrays: State, most: int) -> None:
        """Store an encoded report with private arrays that explain it; discard all but the last `most` reports."""
        self.put("shown", msgspec.msgpack.encode([*self._packed_reports(), (body, pack_arrays(arrays))][-most:]))

    def _packed_reports(self) -> list[tuple[bytes, bytes]]:
        return self._decoded("shown", "the last reports", _REPORTS.decode) or []

    def ratings(self) -> dict[str, float]:
        """Return this person's ratings by item id, in the order of ids."""
        return self._decoded("ratings", "a rating", _RATINGS.decode) or {}

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
        """Return the person's ratings of the first `n_items` items of the catalogue, by the item's position."""
        kept, rated = self.ratings(), "SELECT value FROM json_each(?)"
        query = f"SELECT position, id FROM catalogue WHERE id IN ({rated}) AND position < ? ORDER BY position"
        rows = self._rows(query, (msgspec.json.encode([*kept]).decode(), n_items))
        return {position: kept[item] for position, item in rows}

    def count_items(self) -> int:
        return int(self._rows("SELECT count(*) FROM catalogue")[0][0])

    def count_attributes(self) -> int:
        """Return how many attributes each item of the catalogue has; 0 if items have none, or if there are none."""
        rows = self._rows("SELECT length(attributes) FROM catalogue WHERE position = 0")
        return (rows[0][0] or 0) // 4 if rows else 0

    def item_at(self, position: int) -> tuple[str, str]:
        """Return (id, title) of the item at a position in the catalogue."""
        rows = self._rows("SELECT id, title FROM catalogue WHERE position = ?", (position,))
        if not rows:
            raise self.damaged("an item of the catalogue")
        found: tuple[str, str] = rows[0]
        return found

    def catalogue(self) -> list[tuple[str, str]]:
        """Return (id, title) of all items, in the order of the catalogue."""
        return self._rows("SELECT id, title FROM catalogue ORDER BY position")

    def append_items(self, first: int, ids: list[str], titles: list[str], attributes: FloatArray | None = None) -> None:
        """Append items to the catalogue from position `first` on; `attributes`, if any, has a row for each item."""
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

    Backups, and old disk blocks that the file system has not overwritten, may still hold copies of the data.
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
