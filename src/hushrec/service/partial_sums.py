"""Partial sums of masked tables, with PostgreSQL: each worker process adds up, modulo 2³², the tables it receives.

When a phase closes, only a few sums are then left to add. A worker writes its partial sum in the transaction that
stores the reports, together with the ids of their devices, so that the sum is correct even if the worker is killed. If
a device is revoked, the partial sum that contains its report is not used: that sum's other reports are read one by one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa

from hushrec.arrays import WordArray
from hushrec.messages import Address
from hushrec.service.reports import NewReport, at, columns, read_reports
from hushrec.service.schema import parts, reports

Reports = Iterator[tuple[str, Any]]  # id of the device, message
Sums = Sequence[tuple[Sequence[str], WordArray]]  # ids of the devices, partial sum


def add_to_partial_sums(connection: sa.Connection, worker: str, new: Sequence[NewReport]) -> None:
    """Add newly stored reports of one phase to the partial sums of this process, whose id is `worker`.

    A worker has one partial sum for each cohort. A report whose `addend` is None is skipped, because it is not a table;
    `read_given` returns it as a single report.
    """
    cohorts: dict[int, dict[str, WordArray]] = {}
    for report in new:
        if report.addend is not None:
            cohorts.setdefault(report.addend[0], {})[report.device] = report.addend[1]
    for number, tables in cohorts.items():
        key = {**columns(new[0].address), "number": number, "worker": worker}
        mine = sa.and_(*(parts.c[name] == value for name, value in key.items()))
        stored = connection.execute(sa.select(parts).where(mine)).first()
        names, total = list(tables), np.zeros_like(next(iter(tables.values())))
        if stored is not None:
            names += msgspec.msgpack.decode(stored.devices)
            total += _unpacked(stored.total)
            connection.execute(parts.delete().where(mine))
        for table in tables.values():
            total += table  # modulo 2³²
        values = {"devices": msgspec.msgpack.encode(names), "total": total.astype("<u4").tobytes()}
        connection.execute(parts.insert().values(**key, **values))


def _unpacked(total: bytes) -> WordArray:
    return np.frombuffer(total, dtype="<u4").astype(np.uint32)


def read_given(connection: sa.Connection, address: Address) -> tuple[Reports, Sums]:
    """Return all reports of one phase as a pair: an iterator over single reports, and partial sums of all others.

    A single report is a pair (device id, message), in the order of ids. A partial sum is a pair (device ids, integers).
    A partial sum that contains the report of a revoked device is not returned: its other reports are returned as single
    reports.
    """
    names = set(connection.execute(sa.select(reports.c.device).where(at(address))).scalars())
    covered, sums = set[str](), []
    for row in connection.execute(sa.select(parts).where(at(address, parts)).order_by(parts.c.number, parts.c.worker)):
        devices: list[str] = msgspec.msgpack.decode(row.devices)
        if names.issuperset(devices) and covered.isdisjoint(devices):
            covered.update(devices)
            sums.append((devices, _unpacked(row.total)))
    return read_reports(connection, address, names - covered), sums
