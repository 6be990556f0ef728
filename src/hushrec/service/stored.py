"""The run in the database, and how its `Server` is restored at the start and after another worker's change.

When an attempt opens, the server's state from before the attempt is stored; when the round ends, the state after it. An
open round is restored from the stored state and from the reports of the open attempt, which are kept until the attempt
ends. Every change of the run's row locks the row, increments its `version` and notifies all workers (`NOTIFY`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import sqlalchemy as sa

from hushrec.arrays import pack_arrays, unpack_arrays
from hushrec.errors import StorageError
from hushrec.messages import Address, Offer
from hushrec.offers import make_run_model, protocol_of
from hushrec.protocols.parties import State
from hushrec.server import Server, Stage
from hushrec.service.catalogue import Entry, read_attributes, read_entries
from hushrec.service.partial_sums import read_given
from hushrec.service.reports import read_digests
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


def insert_run(
    connection: sa.Connection, offer: Offer, server: Server, admin_digest: bytes, number: int = 1, version: int = 0
) -> None:
    """Store a new run before its first round.

    `number` counts the runs of this database. `version`, which counts changes of the run's row, must be above the
    version of the previous run.
    """
    fixed = {"id": number, "is_paused": False, "admin_digest": admin_digest, "secret": server.side.secret}
    values = {**_position(server), **_between_rounds(offer, server.state()), "version": version}
    connection.execute(run.insert().values(**fixed, **values, opened_at=0.0, expected=0))
    _notify(connection)


def load_run(connection: sa.Connection, known: Stored | None = None) -> Stored:
    """Return the stored run, with a `Server` that holds the reports of the open phase.

    `known` is a copy of the run in this worker's memory, and is modified. If its round and attempt are still open, only
    the phases that closed since are read. Nothing is locked: if the run's row changes during the read, everything is
    read again.
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
            known = None
            continue
        if read_version(connection) == row.version:
            offer = decode(bytes(row.offer), Offer)
            return Stored(offer, server, row.is_paused, row.opened_at, bytes(row.admin_digest), row.version)
        known = None


def rebuild(connection: sa.Connection, row: sa.Row[Any]) -> Server:
    """Restore the server from a row of `run` and the stored reports of the closed phases."""
    offer = decode(bytes(row.offer), Offer)
    state = unpack_arrays(bytes(row.state))
    round_number = int(state.pop("round_number"))
    titles = [title for _, _, title in read_entries(connection, 0)][: offer.terms.n_items]
    attributes = read_attributes(connection)
    columns = None if attributes is None else attributes[: offer.terms.n_items]  # later items join with the next round
    model = make_run_model(offer.model, offer.options, columns, titles)
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
    """Replay on the known server the phases that other workers closed; return None if a full restore is needed."""
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
                "the stored reports of a closed phase must be those with which it was closed, but they have changed."
                " Restore the database from a backup."
            )


@dataclass(frozen=True)
class News:
    """The changes that all workers stored since the asking worker's last read."""

    since: int  # the id of the first transaction whose changes the next read must ask for
    version: int  # the present `version` of the run's row, which counts its changes
    devices: Sequence[Mapping[str, Any]] = field(repr=False)  # changed rows of the table `devices`
    digests: Mapping[str, bytes] = field(repr=False)  # SHA-256 of new reports of the open phase, by device
    items: Sequence[Entry] = field(repr=False)  # new entries of the catalogue


def read_news(connection: sa.Connection, since: int, open_phase: Address | None, n_items: int) -> News:
    """Return the changes of transaction `since` and later ones.

    `open_phase` is the open phase, and `n_items` the size of the catalogue, in the asking worker's memory.

    The column `changed` of a row is the id of the transaction that wrote it. At each read, all transactions with ids
    below the oldest running one have ended, so the worker has seen their rows. The next read asks for rows from that
    oldest id on: some rows come twice, none is missed.
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
    """Lock the run's row against changes and new reports until the transaction ends; return the row's version."""
    return int(connection.execute(sa.select(run.c.version).with_for_update()).scalar_one())


def takes_turn(connection: sa.Connection) -> bool:
    """Take the lock on opening and closing phases until the transaction ends; return False if another worker has it."""
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


def write_run(connection: sa.Connection, offer: Offer, server: Server, now: float, **values: Any) -> int:
    """Store the run after a phase has opened or a round has ended at time `now` (Unix seconds).

    The offer and the server's state are written at the end of a round, and at the beginning of an attempt together with
    the ids of the devices that it asks. `values` are further columns to set. Return the new version of the run's row.
    """
    if server.stage is Stage.IDLE:
        values |= {**_between_rounds(offer, server.state()), "members": None}
    elif server.address.phase == server.side.phases[0]:
        members = msgspec.msgpack.encode(sorted(map(str, server.asked)))
        values |= {**_between_rounds(offer, server.state_before()), "members": members}
    return update_run(connection, **values, **_position(server), opened_at=now)


def _between_rounds(offer: Offer, state: State) -> dict[str, bytes]:
    return {"offer": encode(offer), "state": pack_arrays(state)}


def _position(server: Server) -> dict[str, int | str]:
    if server.stage is Stage.IDLE:
        return {"round": server.round_number, "attempt": 0, "phase": ""}
    address = server.address
    return {"round": address.round_number, "attempt": address.attempt, "phase": address.phase}
