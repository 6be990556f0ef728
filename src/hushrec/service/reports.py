"""Reports in the database: stored as received, by round, attempt, phase and device, until their attempt ends."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from hushrec.errors import HushrecError, StorageError
from hushrec.messages import Address, Envelope, LastReport
from hushrec.protocols.parties import Addend
from hushrec.service.problems import Refusal
from hushrec.service.schema import ACTIVE, devices, is_shared, reports, run
from hushrec.wire import decode

READ_AT_ONCE = 100
LAST_REPORT = ("last_round", "last_attempt", "last_phase")  # columns of the table `devices`

# Statements of every batch of reports, built once: building them takes longer than running them.
_NAMES: sa.BindParameter[str] = sa.bindparam("names", expanding=True)
_OPEN_PHASE = sa.select(run.c.round, run.c.attempt, run.c.phase).with_for_update(read=True)
_LOCKED_STATES = (
    sa.select(devices.c.id, devices.c.state)
    .where(devices.c.id.in_(_NAMES))
    .order_by(devices.c.id)
    .with_for_update(key_share=True)
)
_DIGESTS = sa.select(reports.c.device, reports.c.digest).where(
    reports.c.round == sa.bindparam("round"),
    reports.c.attempt == sa.bindparam("attempt"),
    reports.c.phase == sa.bindparam("phase"),
    reports.c.device.in_(_NAMES),
)
_NONCE = sa.bindparam("nonce", type_=sa.BigInteger)
_SEEN = (  # also sets the columns that its arguments name
    devices.update()
    .where(devices.c.id == sa.bindparam("name"))
    .values(last_nonce=sa.case((devices.c.last_nonce < _NONCE, _NONCE), else_=devices.c.last_nonce))
)
_INSERT = reports.insert()


@dataclass(frozen=True)
class NewReport:
    """A report of one device in one phase, received and checked but not yet stored."""

    address: Address
    phase: int  # the index of the address's phase
    device: str
    nonce: int
    body: bytes = field(repr=False)
    digest: bytes = field(repr=False)  # SHA-256 of the body
    seen: float | None = None  # wall-clock time of the request
    addend: Addend | None = field(default=None, repr=False)

    @property
    def place(self) -> LastReport:
        return self.address.round_number, self.address.attempt, self.phase


def at(address: Address, table: sa.Table = reports) -> sa.ColumnElement[bool]:
    """Return the SQL condition that selects the rows of `table` that belong to the phase `address`."""
    return sa.and_(*(table.c[name] == value for name, value in columns(address).items()))


def store_reports(
    connection: sa.Connection, new: Sequence[NewReport]
) -> tuple[list[HushrecError | None], list[NewReport]]:
    """Store new reports; return an error or None for each of them, and the list of newly stored reports.

    A report gets an error if its phase is not open, its device is not active, or the device has already sent a
    different report. If the device sends the same bytes again, perhaps to another worker, the report gets None, but is
    not newly stored.

    Locks last until the commit, so that every report with a receipt is counted. The lock on the run's row keeps the
    phase open. The locks on the devices' rows, taken in the order of ids, keep the devices from being revoked.
    """
    open_phase = lock_open_phase(connection)
    names = {"names": sorted({report.device for report in new})}
    states = {row.id: row.state for row in connection.execute(_LOCKED_STATES, names)}
    stored = connection.execute(_DIGESTS, names | columns(open_phase))
    known = {row.device: bytes(row.digest) for row in stored}
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


def lock_open_phase(connection: sa.Connection) -> Address:
    """Return the open phase, and keep it open until the transaction ends.

    Several transactions can hold this lock at once. If no round is open, the result has the number of the latest round,
    attempt 0 and the phase "".
    """
    return Address(*connection.execute(_OPEN_PHASE).one())


def _refusal(
    report: NewReport, open_phase: Address, states: Mapping[str, str], known: Mapping[str, bytes]
) -> HushrecError | None:
    if report.address != open_phase:
        return StorageError("the phase closed before the report was stored. Try again.")
    if states.get(report.device) != ACTIVE:
        return Refusal.of("not-active")
    if known.get(report.device, report.digest) != report.digest:
        return Refusal.of("reported")
    return None


def _insert(connection: sa.Connection, new: Sequence[NewReport]) -> None:
    """Store reports, and the nonces of their requests, so that the server refuses replays after a restart too."""
    rows = [{**columns(r.address), "device": r.device, "body": r.body, "digest": r.digest} for r in new]
    connection.execute(_INSERT, rows)
    seen = [{"name": r.device, "nonce": r.nonce, "last_seen": r.seen} for r in new]
    places = [dict(zip(LAST_REPORT, r.place, strict=True)) for r in new]
    connection.execute(_SEEN, [one | place for one, place in zip(seen, places, strict=True)])


def columns(address: Address) -> dict[str, Any]:
    """Return the values of an address by column name: `round`, `attempt` and `phase`."""
    return {"round": address.round_number, "attempt": address.attempt, "phase": address.phase}


def last_report_in(row: Mapping[Any, Any]) -> LastReport:
    """Return round, attempt and index of the phase of a device's last report, from its row of the table `devices`."""
    return row["last_round"], row["last_attempt"], row["last_phase"]


def read_digests(connection: sa.Connection, address: Address, since: int = 0) -> dict[str, bytes]:
    """Return the SHA-256 digests of one phase's reports, by device id.

    The result has only the reports that a PostgreSQL transaction with an id of at least `since` wrote; 0 means all.
    """
    query = sa.select(reports.c.device, reports.c.digest).where(at(address), reports.c.changed >= since)
    return {row.device: bytes(row.digest) for row in connection.execute(query)}


def read_reports(connection: sa.Connection, address: Address, devices: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield (device id, message) of these devices' reports in one phase, in the order of ids.

    The reports are read in batches of `READ_AT_ONCE`.
    """
    names = sorted(devices)  # in Python's order, which does not depend on the database's collation
    for start in range(0, len(names), READ_AT_ONCE):
        some = names[start : start + READ_AT_ONCE]
        query = sa.select(reports.c.device, reports.c.body).where(at(address), reports.c.device.in_(some))
        bodies = {row.device: bytes(row.body) for row in connection.execute(query)}
        for name in some:
            yield name, decode(bodies[name], Envelope).message


def delete_reports(connection: sa.Connection) -> None:
    """Delete all reports and partial sums.

    In PostgreSQL, TRUNCATE deletes them, so that no dead row stays in a table's file.
    """
    if is_shared(connection):
        connection.execute(sa.text("TRUNCATE reports, parts"))
    else:
        connection.execute(reports.delete())
