"""Partial sums of masked tables: each worker process adds up, modulo 2³², the reports that it receives.

When a phase closes, only a few sums are then left to add. A worker writes its partial sum in the transaction that
stores the reports, together with the ids of their devices, so that the sum is correct even if the worker is killed. If
a device is revoked, the partial sum that contains its report is not used: the other reports in it are read one by one.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa

from hushrec.arrays import WordArray
from hushrec.messages import Address
from hushrec.service.reports import NewReport, at, columns, read_names, read_reports
from hushrec.service.schema import parts

Reports = Iterator[tuple[str, Any]]  # id of the device, message
Sums = Sequence[tuple[Sequence[str], WordArray]]  # ids of the devices, partial sum


def add_to_partial_sums(connection: sa.Connection, worker: str, new: Sequence[NewReport]) -> None:
    """Add newly stored reports of one phase to the partial sums of this process, whose id is `worker`.

    A worker has one partial sum for each cohort. A report whose `addend` is None is skipped, because it is not a table
    to add; `read_given` reads it from its own row.
    """
    numbered: dict[int, list[tuple[str, WordArray]]] = {}
    for report in new:
        if report.addend is not None:
            numbered.setdefault(report.addend[0], []).append((report.device, report.addend[1]))
    for number, added in numbered.items():
        _add(connection, new[0].address, number, worker, added)


def _add(
    connection: sa.Connection, address: Address, number: int, worker: str, added: Sequence[tuple[str, WordArray]]
) -> None:
    mine = sa.and_(at(address, parts), parts.c.number == number, parts.c.worker == worker)
    known = connection.execute(sa.select(parts.c.devices, parts.c.total).where(mine)).first()
    names: list[str] = [] if known is None else msgspec.msgpack.decode(known.devices)
    total = np.zeros_like(added[0][1]) if known is None else np.frombuffer(known.total, dtype="<u4").astype(np.uint32)
    for _, numbers in added:
        total += numbers  # modulo 2³²
    values = {
        "devices": msgspec.msgpack.encode([*names, *(name for name, _ in added)]),
        "total": total.astype("<u4").tobytes(),
    }
    if known is None:
        connection.execute(parts.insert().values(**columns(address), number=number, worker=worker, **values))
    else:
        connection.execute(parts.update().where(mine).values(**values))


def read_given(connection: sa.Connection, address: Address) -> tuple[Reports, Sums]:
    """Return all reports of one phase, in two parts: single reports, and partial sums of the remaining reports.

    Single reports are (device id, message) in the order of ids; a partial sum has the ids of its devices. A partial sum
    that contains the report of a revoked device is not returned. Its other reports are returned as single reports.
    """
    names, covered, sums = set(read_names(connection, address)), set[str](), []
    for row in connection.execute(sa.select(parts).where(at(address, parts)).order_by(parts.c.number, parts.c.worker)):
        devices: list[str] = msgspec.msgpack.decode(row.devices)
        if names.issuperset(devices) and covered.isdisjoint(devices):
            covered.update(devices)
            sums.append((devices, np.frombuffer(row.total, dtype="<u4").astype(np.uint32)))
    return read_reports(connection, address, names - covered), sums
