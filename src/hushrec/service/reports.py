"""Reports in the database: stored as they came, summed in order of device id, deleted with the round they belong to."""

from dataclasses import dataclass, field

import sqlalchemy as sa

from hushrec.errors import StorageError
from hushrec.messages import Envelope
from hushrec.server import Server
from hushrec.service.schema import devices, reports, run
from hushrec.wire import decode


@dataclass(frozen=True)
class NewReport:
    """One device's answer to one round, as it came in."""

    round_number: int
    device: str
    nonce: int
    body: bytes = field(repr=False)
    seen: float | None = None  # wall clock


def insert_reports(connection: sa.Connection, new: list[NewReport]) -> None:
    """Reports, with the nonces that came with them, so that a restart still refuses a replay.

    Only of the round that is open in the database: nothing is acknowledged that no sum would hold.
    """
    open_round = connection.execute(sa.select(run.c.round).where(run.c.is_open)).scalar()
    if any(report.round_number != open_round for report in new):
        raise StorageError("the round has closed meanwhile. Try again.")
    rows = [{"round": r.round_number, "device": r.device, "body": r.body} for r in new]
    connection.execute(reports.insert(), rows)
    seen = [{"name": r.device, "nonce": r.nonce, "round": r.round_number, "time": r.seen} for r in new]
    connection.execute(
        devices.update()
        .where(devices.c.id == sa.bindparam("name"))
        .values(last_nonce=sa.bindparam("nonce"), last_round=sa.bindparam("round"), last_seen=sa.bindparam("time")),
        seen,
    )


def delete_reports(connection: sa.Connection) -> None:
    """Every report; in PostgreSQL by truncating, so that no dead row stays in the table's file."""
    if connection.dialect.name == "postgresql":
        connection.execute(sa.text("TRUNCATE reports"))
    else:
        connection.execute(reports.delete())


def sum_reports(connection: sa.Connection, server: Server) -> int:
    """Gives the open round of `server` all reports that are stored for it, and closes it; returns how many."""
    query = sa.select(reports.c.device, reports.c.body).where(reports.c.round == server.round_number)
    stored = sorted(connection.execute(query).all(), key=lambda row: row.device)  # not the database's collation
    for row in stored:
        server.receive(row.device, server.address, decode(bytes(row.body), Envelope).message)
    server.close_phase()
    return len(stored)
