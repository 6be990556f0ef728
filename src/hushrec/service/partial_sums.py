"""Partial sums of masked tables, with PostgreSQL: each worker process adds up, modulo 2³², the tables it receives.

When a phase closes, only a few sums are then left to add. A worker writes its partial sum in the transaction that
stores the reports, together with the ids of their devices and `Addend.kept` of each report, so that the sum is correct
even if the worker is killed. If a device is revoked, the partial sum that contains its report is not used: that sum's
other reports are read one by one.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import sqlalchemy as sa

from hushrec.arrays import WordArray
from hushrec.messages import Address
from hushrec.protocols.parties import Addend, Name
from hushrec.service.reports import NewReport, at, columns, read_reports
from hushrec.service.schema import parts, reports

Reports = Iterator[tuple[str, Any]]  # id of the device, message
Sums = Sequence[tuple[Mapping[Name, bytes], WordArray]]  # `Addend.kept` by the id of the device, partial sum
_KEPT = msgspec.msgpack.Decoder(dict[Name, bytes])


def add_to_partial_sums(connection: sa.Connection, worker: str, new: Sequence[NewReport]) -> None:
    """Add newly stored reports of one phase to the partial sums of this process, whose id is `worker`.

    A worker has one partial sum for each cohort. A report whose `addend` is None is skipped, because it is not a table;
    `read_given` returns it as a single report.
    """
    cohorts: dict[int, dict[str, Addend]] = {}
    for report in new:
        if report.addend is not None:
            cohorts.setdefault(report.addend.cohort, {})[report.device] = report.addend
    for number, tables in cohorts.items():
        key = {**columns(new[0].address), "number": number, "worker": worker}
        mine = sa.and_(*(parts.c[name] == value for name, value in key.items()))
        stored = connection.execute(sa.select(parts).where(mine)).first()
        kept: dict[Name, bytes] = {device: table.kept for device, table in tables.items()}
        total = np.zeros_like(next(iter(tables.values())).integers)
        if stored is not None:
            kept |= _KEPT.decode(stored.devices)
            total += _unpacked(stored.total)
            connection.execute(parts.delete().where(mine))
        for table in tables.values():
            total += table.integers  # modulo 2³²
        values = {"devices": msgspec.msgpack.encode(kept), "total": total.astype("<u4").tobytes()}
        connection.execute(parts.insert().values(**key, **values))


def _unpacked(total: bytes) -> WordArray:
    return np.frombuffer(total, dtype="<u4").astype(np.uint32)


def read_given(connection: sa.Connection, address: Address) -> tuple[Reports, Sums]:
    """Return all reports of one phase as a pair: an iterator over single reports, and partial sums of all others.

    A single report is a pair (device id, message), in the order of ids. A partial sum is a pair (`Addend.kept` by id of
    the device, integers). A partial sum that contains the report of a revoked device is not returned: its other
    reports are returned as single reports.
    """
    names = set(connection.execute(sa.select(reports.c.device).where(at(address))).scalars())
    covered, sums = set[Name](), []
    for row in connection.execute(sa.select(parts).where(at(address, parts)).order_by(parts.c.number, parts.c.worker)):
        kept = _KEPT.decode(row.devices)
        if names.issuperset(kept) and covered.isdisjoint(kept):
            covered.update(kept)
            sums.append((kept, _unpacked(row.total)))
    return read_reports(connection, address, names - covered), sums
