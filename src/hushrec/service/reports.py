"""Reports in the database: stored as they came, by (round, attempt, phase, device), until their round has ended."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from hushrec.errors import StorageError
from hushrec.messages import Address, Envelope
from hushrec.service.schema import devices, reports, run
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


def at(address: Address) -> sa.ColumnElement[bool]:
    """Return the condition for the reports of one phase."""
    place = (address.round_number, address.attempt, address.phase)
    return sa.and_(*(column == value for column, value in zip(_PLACE, place, strict=True)))


_PLACE = (reports.c.round, reports.c.attempt, reports.c.phase)


def insert_reports(connection: sa.Connection, new: list[NewReport]) -> None:
    """Store reports, with the nonces that came with them, so that a restart still refuses a replay.

    Only of the phase that is open in the database: nothing is acknowledged that no sum would hold.
    """
    open_phase = connection.execute(sa.select(run.c.round, run.c.attempt, run.c.phase)).one()
    if any((r.address.round_number, r.address.attempt, r.address.phase) != tuple(open_phase) for r in new):
        raise StorageError("the phase has closed meanwhile. Try again.")
    connection.execute(reports.insert(), [_row(report) for report in new])
    seen = [{"name": r.device, "nonce": r.nonce, "round": r.address.round_number, "time": r.seen} for r in new]
    connection.execute(
        devices.update()
        .where(devices.c.id == sa.bindparam("name"))
        .values(last_nonce=sa.bindparam("nonce"), last_round=sa.bindparam("round"), last_seen=sa.bindparam("time")),
        seen,
    )


def _row(report: NewReport) -> dict[str, Any]:
    place = zip(("round", "attempt", "phase"), vars(report.address).values(), strict=True)
    return {**dict(place), "device": report.device, "body": report.body}


def read_reports(connection: sa.Connection, address: Address) -> Iterator[tuple[str, Any]]:
    """Yield the messages of one phase in the order of device ids, few of them in memory at a time."""
    names = sorted(connection.execute(sa.select(reports.c.device).where(at(address))).scalars())  # not by collation
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
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("TRUNCATE reports"))
    else:
        connection.execute(reports.delete())
