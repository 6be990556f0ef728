"""The run in the database, and how its `Server` is restored at the start and after another worker's change.

When an attempt opens, the server's state from before the attempt is stored; when the round ends, the state after it. An
open round is restored from the stored state and from the reports of the open attempt, which are kept until the attempt
ends. Every change of the run's row locks the row, increments its `version` and notifies all workers (`NOTIFY`).
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa

from hushrec.arrays import pack_arrays, unpack_arrays
from hushrec.errors import StorageError
from hushrec.messages import Address, Offer
from hushrec.models.titles import own_titles
from hushrec.offers import make_run_model, protocol_of
from hushrec.protocols.parties import State
from hushrec.server import Server, Stage
from hushrec.service.catalogue import Entry, read_attributes, read_entries
from hushrec.service.partial_sums import read_given
from hushrec.service.reports import columns, read_digests
from hushrec.service.schema import CHANNEL, devices, is_shared, run
from hushrec.wire import decode, encode

_CLOSING = 0x68757369  # key of the advisory lock that is held while a phase opens or closes


@dataclass(frozen=True, eq=False)
class Stored:
    """A run as it is stored in the database."""

    offer: Offer
    server: Server
    is_paused: bool
    opened_at: float  # wall clock: when the phase opened; between rounds, when the latest round ended
    admin_digest: bytes  # hash of the admin token
    version: int  # counts the changes of the run's row
    number: int  # 1 for the first run of this database, 2 for the next, …
    failures: Sequence[dict[str, Any]] = ()  # attempt, phase and reason of each failed attempt of the open round


def insert_run(
    connection: sa.Connection, offer: Offer, server: Server, admin_digest: bytes, number: int, version: int = 0
) -> None:
    """Store a new run before its first round.

    `number` counts the runs of this database from 1. `version` counts the changes of the run's row. If the run replaces
    another one, `version` must be above that run's version, so that workers notice the change.
    """
    fixed = {"id": number, "is_paused": False, "admin_digest": admin_digest, "secret": server.side.secret}
    values = {**_position(server), **_between_rounds(offer, server.state()), "version": version}
    connection.execute(run.insert().values(**fixed, **values, opened_at=0.0, expected=0))
    _notify(connection)


def load_run(connection: sa.Connection, known: Stored | None = None) -> Stored:
    """Return the stored run, whose `Server` has the digests of the reports of the open phase.

    `known` is an earlier copy of the run. If no attempt has begun or ended since, `known.server` itself is updated and
    returned in the result: only the phases that other workers have closed are read. Otherwise a new `Server` is made.
    Nothing is locked: if the run's row changes during the read, everything is read again.
    """
    while True:
        row = connection.execute(sa.select(run)).one()
        try:
            server = _follow(connection, row, known) or rebuild(connection, row)
            if server.stage is Stage.OPEN:
                for name, digest in read_digests(connection, server.address).items():
                    server.keep(name, server.address, digest)
        except Exception:
            if read_version(connection) == row.version:
                raise
        else:
            if read_version(connection) == row.version:
                offer = decode(bytes(row.offer), Offer)
                fixed = row.opened_at, bytes(row.admin_digest), row.version, row.id
                return Stored(offer, server, row.is_paused, *fixed, json.loads(row.failures or "[]"))
        known = None


def rebuild(connection: sa.Connection, row: sa.Row[Any]) -> Server:
    """Return a new `Server` from a row of the table `run`.

    If a round is open, its phases before the open one are closed again with their stored reports. Reports of the open
    phase are not read.
    """
    offer = decode(bytes(row.offer), Offer)
    state = unpack_arrays(bytes(row.state))
    round_number = int(state.pop("round_number"))
    entries = read_entries(connection, 0)[: offer.terms.n_items]
    titles = own_titles((item, title) for _, item, title in entries)
    attributes = read_attributes(connection)
    present = None if attributes is None else attributes[: offer.terms.n_items]  # items added later are left out
    model = make_run_model(offer.model, offer.options, present, titles)
    side = protocol_of(offer).make_network_server(offer.terms, model, state)
    side.sign_as(offer.run_id, bytes(row.secret))
    members = () if row.members is None else msgspec.msgpack.decode(row.members)
    server = Server(side, members, round_number=round_number, most_attempts=None)
    if row.attempt:
        side.n_expected = row.expected
        server.resume_round(row.attempt)
        _close_until(connection, server, row.phase)
    return server


def _follow(connection: sa.Connection, row: sa.Row[Any], known: Stored | None) -> Server | None:
    """Update `known.server` to the phase in the row, and return it.

    Phases that other workers have closed are closed again, with their stored reports. Return None if the server must be
    rebuilt instead: without `known`, if an attempt has begun or ended since, or if the number of items has changed.
    """
    if known is None or known.offer.terms.n_items != decode(bytes(row.offer), Offer).terms.n_items:
        return None
    server = known.server
    if _position(server) == {"round": row.round, "attempt": row.attempt, "phase": row.phase}:
        return server
    if server.stage is not Stage.OPEN or (row.round, row.attempt) != (server.round_number, server.address.attempt):
        return None
    phases = server.side.phases
    if phases.index(row.phase) <= phases.index(server.address.phase):
        return None
    _close_until(connection, server, row.phase)
    return server


def _close_until(connection: sa.Connection, server: Server, phase: str) -> None:
    """Close phases with their stored reports until `phase` is open."""
    place = (server.round_number, server.address.attempt)
    while server.address.phase != phase:
        server.close_phase(*read_given(connection, server.address))
        if server.stage is not Stage.OPEN or (server.round_number, server.address.attempt) != place:
            raise StorageError(
                "the stored reports of a closed phase must not change, but they have changed since it was closed."
                " Restore the database from a backup."
            )


@dataclass(frozen=True)
class News:
    """What all workers have stored since one worker's last read."""

    since: int  # id of a transaction: the argument `since` of `read_news` for the worker's next read
    version: int  # the present `version` of the run's row, which counts its changes
    devices: Sequence[Mapping[str, Any]] = field(repr=False)  # changed rows of the table `devices`
    digests: Mapping[str, bytes] = field(repr=False)  # SHA-256 of new reports of the open phase, by device
    items: Sequence[Entry] = field(repr=False)  # new entries of the catalogue


def read_news(connection: sa.Connection, since: int, open_phase: Address | None, n_items: int) -> News:
    """Return what all workers have stored since this worker's last read; only for PostgreSQL.

    `since` is `News.since` of the last read, or 0 before the first. `open_phase` and `n_items` are what this worker
    knows: the phase that is open (None between rounds), and the number of items in the catalogue.

    The column `changed` of a row is the id of the transaction that wrote it. A transaction may commit after others
    with higher ids. Therefore `News.since` is the id of the oldest transaction that still runs: the next read may
    return some rows a second time, but misses none.
    """
    running = sa.func.txid_snapshot_xmin(sa.func.txid_current_snapshot())
    following = connection.execute(sa.select(running)).scalar_one()
    changed = connection.execute(sa.select(devices).where(devices.c.changed >= since)).all()
    digests = {} if open_phase is None else read_digests(connection, open_phase, since)
    items, version = read_entries(connection, n_items), read_version(connection)
    return News(following, version, [row._asdict() for row in changed], digests, items)


def read_version(connection: sa.Connection) -> int:
    """Return the version of the run's row, which counts its changes."""
    return int(connection.execute(sa.select(run.c.version)).scalar_one())


def lock_run(connection: sa.Connection) -> int:
    """Lock the run's row until the transaction ends, against changes and new reports; return the row's version."""
    return int(connection.execute(sa.select(run.c.version).with_for_update()).scalar_one())


def takes_turn(connection: sa.Connection) -> bool:
    """Take the lock for opening and closing phases until the transaction ends; return False if another worker has it.

    With SQLite there is only one worker, and the result is True.
    """
    return not is_shared(connection) or bool(
        connection.execute(sa.select(sa.func.pg_try_advisory_xact_lock(_CLOSING))).scalar()
    )


def update_run(connection: sa.Connection, **values: Any) -> int:
    """Change the run's row and notify all workers on commit; return the row's new version."""
    connection.execute(run.update().values(version=run.c.version + 1, **values))
    _notify(connection)
    return read_version(connection)


def _notify(connection: sa.Connection) -> None:
    if is_shared(connection):
        connection.execute(sa.text(f"NOTIFY {CHANNEL}"))


def write_run(
    connection: sa.Connection, offer: Offer, server: Server, now: float, *, opens_round: bool, **others: Any
) -> int:
    """Store the run after a phase has opened or a round has ended; return the new version of the run's row.

    `now` is the time at which this happened, in Unix seconds. The time, round, attempt, phase and number of expected
    devices are always written. After the end of a round, the offer and the server's state are written too. When the
    first phase of an attempt opens, the offer, the state before the attempt, and the ids of the devices that the
    attempt asks are written too. With `opens_round`, `now` is also written as the time at which the round opened.
    `others` are values of further columns.
    """
    values: dict[str, Any] = {**_position(server), "expected": server.side.n_expected, "opened_at": now} | others
    if opens_round:
        values["round_opened_at"] = now
    if server.stage is Stage.IDLE:
        values |= {**_between_rounds(offer, server.state()), "members": None}
    elif server.address.phase == server.side.phases[0]:
        members = msgspec.msgpack.encode(sorted(map(str, server.asked)))
        values |= {**_between_rounds(offer, server.state_before()), "members": members}
    return update_run(connection, **values)


def _between_rounds(offer: Offer, state: State) -> dict[str, bytes]:
    return {"offer": encode(offer), "state": pack_arrays(state)}


def _position(server: Server) -> dict[str, Any]:
    if server.stage is Stage.IDLE:
        return {"round": server.round_number, "attempt": 0, "phase": ""}
    return columns(server.address)
