"""Reports in the database: stored as they came, by (round, attempt, phase, device), until their round has ended."""

import hashlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from hushrec.arrays import WordArray
from hushrec.errors import HushrecError, StorageError
from hushrec.messages import Address, Envelope
from hushrec.service.problems import Refusal
from hushrec.service.schema import ACTIVE, devices, is_shared, reports, run, stamp
from hushrec.wire import decode

READ_AT_ONCE = 100


@dataclass(frozen=True)
class NewReport:
    """What one device reported in one phase, as it came in."""

    address: Address
    device: str
    nonce: int
    body: bytes = field(repr=False)
    seen: float | None = None  # wall clock
    addend: tuple[int, WordArray] | None = field(default=None, repr=False)  # all that counts of it: see parts.py

    @cached_property
    def digest(self) -> bytes:
        """SHA-256 of the body."""
        return hashlib.sha256(self.body).digest()


def at(address: Address, table: sa.Table = reports) -> sa.ColumnElement[bool]:
    """Return the condition for the rows of one phase."""
    place = (address.round_number, address.attempt, address.phase)
    columns = (table.c.round, table.c.attempt, table.c.phase)
    return sa.and_(*(column == value for column, value in zip(columns, place, strict=True)))


def store_reports(
    connection: sa.Connection, new: Sequence[NewReport]
) -> tuple[list[HushrecError | None], list[NewReport]]:
    """Store those reports that are of the open phase.

    Return for each why it was refused, or None: it is stored; and those that were not there before. A report that is
    stored already, with the same bytes, counts as stored: the commit of an earlier try may have succeeded although its
    reply was lost, or another worker has it. The run's row is locked against a close, and the devices' rows in order
    against each other and a revocation, until the commit: nothing is acknowledged that no sum would hold.
    """
    place = connection.execute(sa.select(run.c.round, run.c.attempt, run.c.phase).with_for_update(read=True)).one()
    open_phase = Address(*place)
    names = {report.device for report in new}
    locked = sa.select(devices.c.id, devices.c.state).where(devices.c.id.in_(names)).order_by(devices.c.id)
    states = {row.id: row.state for row in connection.execute(locked.with_for_update(key_share=True))}
    there = sa.select(reports.c.device, reports.c.digest).where(at(open_phase), reports.c.device.in_(names))
    known = {row.device: bytes(row.digest) for row in connection.execute(there)}
    refusals: list[HushrecError | None] = []
    fresh: dict[str, NewReport] = {}
    for report in new:
        refusal = _refusal(report, open_phase, states, known)
        if refusal is None and report.device not in known:
            known[report.device], fresh[report.device] = report.digest, report
        refusals.append(refusal)
    if fresh:
        _insert(connection, list(fresh.values()))
    return refusals, list(fresh.values())


def _refusal(
    report: NewReport, open_phase: Address, states: Mapping[str, str], known: Mapping[str, bytes]
) -> HushrecError | None:
    if report.address != open_phase:
        return StorageError("the phase has closed meanwhile. Try again.")
    if states.get(report.device) != ACTIVE:
        return Refusal("not-active", "this device takes part no more.")
    if known.get(report.device, report.digest) != report.digest:
        return Refusal("reported", "this device has reported in this phase already, with other bytes.")
    return None


def _insert(connection: sa.Connection, new: Sequence[NewReport]) -> None:
    """Store reports, and the nonces that came with them, so that a restart still refuses a replay."""
    connection.execute(reports.insert().values(changed=stamp(connection)), [_row(report) for report in new])
    seen = [{"name": r.device, "nonce": r.nonce, "number": r.address.round_number, "time": r.seen} for r in new]
    nonce = sa.bindparam("nonce", type_=sa.BigInteger)
    connection.execute(
        devices.update()
        .where(devices.c.id == sa.bindparam("name"))
        .values(
            last_nonce=sa.case((devices.c.last_nonce < nonce, nonce), else_=devices.c.last_nonce),
            last_round=sa.bindparam("number"),
            last_seen=sa.bindparam("time"),
            changed=stamp(connection),
        ),
        seen,
    )


def _row(report: NewReport) -> dict[str, Any]:
    place = zip(("round", "attempt", "phase"), vars(report.address).values(), strict=True)
    return {**dict(place), "device": report.device, "body": report.body, "digest": report.digest}


def read_digests(connection: sa.Connection, address: Address, since: int = 0) -> dict[str, bytes]:
    """Return the digests of one phase's reports by device: of those that transaction `since` or a later one wrote."""
    query = sa.select(reports.c.device, reports.c.digest).where(at(address), reports.c.changed >= since)
    return {row.device: bytes(row.digest) for row in connection.execute(query)}


def read_names(connection: sa.Connection, address: Address) -> Sequence[str]:
    """Return the devices whose reports one phase has."""
    return connection.execute(sa.select(reports.c.device).where(at(address))).scalars().all()


def read_reports(connection: sa.Connection, address: Address, devices: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield the messages of these devices in one phase in the order of their ids, few of them in memory at a time."""
    names = sorted(devices)  # not by collation
    for start in range(0, len(names), READ_AT_ONCE):
        some = names[start : start + READ_AT_ONCE]
        query = sa.select(reports.c.device, reports.c.body).where(at(address), reports.c.device.in_(some))
        bodies = {row.device: bytes(row.body) for row in connection.execute(query)}
        for name in some:
            yield name, decode(bodies[name], Envelope).message


def count_reports(connection: sa.Connection, address: Address) -> int:
    """Return how many reports one phase has."""
    return int(connection.execute(sa.select(sa.func.count()).where(at(address))).scalar_one())


def delete_reports(connection: sa.Connection) -> None:
    """Delete every report; in PostgreSQL by truncating, so that no dead row stays in the table's file."""
    if is_shared(connection):
        connection.execute(sa.text("TRUNCATE reports, parts"))
    else:
        connection.execute(reports.delete())
