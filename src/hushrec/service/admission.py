"""Admission of signed requests when several worker processes share a PostgreSQL database.

A worker checks the signature of a request; the database then checks the device's key, the nonce (against replays) and
the request rate. Meanwhile the devices' rows are locked, so that two workers never both admit the same request. Rows
are locked in the order of ids, so that workers do not deadlock. The commit does not wait for the disk: after a crash of
the database's machine, the last requests could be replayed once, as after a restart of a single server. Reports are not
affected, because each report is stored durably together with its nonce.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from hushrec.messages import Address, LastReport
from hushrec.service.problems import Refusal
from hushrec.service.reports import at, last_report_in
from hushrec.service.schema import ACTIVE, devices, enrolments, is_shared, reports, run
from hushrec.service.settings import LimitSettings

BURST_SECONDS = 5  # enrolments of this many seconds, at the average rate, may arrive at once


@dataclass
class Bucket:
    """A token bucket that limits a rate: it refills by `per_second` tokens a second, up to `size` tokens."""

    size: float
    per_second: float
    tokens: float | None  # None: the bucket is full
    filled_at: float

    def take(self, now: float) -> bool:
        """Refill the bucket up to the time `now`, and take one token; return False if there is none."""
        left = self.size if self.tokens is None else self.tokens
        self.tokens = min(self.size, left + max(0.0, now - self.filled_at) * self.per_second)
        self.filled_at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True


@dataclass(frozen=True)
class Visit:
    """A request whose signature a worker has found valid, and which `admit` checks against the database."""

    device: str
    public_key: bytes = field(repr=False)  # the key with which the worker checked the signature
    nonce: int
    round_number: int  # the open round at the time of the request; if none was open, the latest that had ended
    seen: float  # wall-clock time of the request


@dataclass(frozen=True)
class Admitted:
    """The result of `admit` for a valid request: facts about its device and the run, read from the database."""

    version: int  # counts the changes of the run's row in the database
    last_report: LastReport  # the phase of the device's last report
    reported: bytes | None  # the digest of the device's report in the open phase, None if no report is stored


def admit(connection: sa.Connection, visits: Sequence[Visit], limits: LimitSettings) -> list[Admitted | Refusal]:
    """Check each request's key, nonce and rate, and whether its device is active, against the database.

    Return an `Admitted` or a `Refusal` for each request, in the order of `visits`.
    """
    connection.execute(sa.text("SET LOCAL synchronous_commit = off"))
    open_phase = sa.select(run.c.version, run.c.round, run.c.attempt, run.c.phase, _clock())
    version, *address, now = connection.execute(open_phase).one()
    names = {visit.device for visit in visits}
    query = sa.select(devices).where(devices.c.id.in_(names)).order_by(devices.c.id)
    rows = {row.id: row for row in connection.execute(query.with_for_update(key_share=True))}
    stored = sa.select(reports.c.device, reports.c.digest).where(at(Address(*address)), reports.c.device.in_(names))
    digests = {row.device: bytes(row.digest) for row in connection.execute(stored)}
    size, rate = limits.burst, limits.requests_per_second
    buckets = {name: Bucket(size, rate, row.tokens, row.filled_at) for name, row in rows.items()}
    nonces = {name: row.last_nonce for name, row in rows.items()}
    outcomes: list[Admitted | Refusal] = []
    for visit in visits:
        row = rows.get(visit.device)
        refusal = _refusal(visit, row, nonces, buckets, now)
        if refusal is None:
            nonces[visit.device] = visit.nonce
        outcomes.append(refusal or Admitted(version, last_report_in(row._mapping), digests.get(visit.device)))  # type: ignore[union-attr]
    _note(connection, visits, nonces, buckets)
    return outcomes


def _refusal(visit: Visit, row: Any, nonces: dict[str, int], buckets: dict[str, Bucket], now: float) -> Refusal | None:
    if row is None or row.state != ACTIVE:
        return Refusal.of("not-active")
    if bytes(row.public_key) != visit.public_key:
        return Refusal.of("bad-signature")
    if visit.nonce <= nonces[visit.device]:
        return Refusal.of("stale-nonce", last_nonce=nonces[visit.device])
    if not buckets[visit.device].take(now):
        return Refusal.of("too-many-requests", retry_after=1)
    return None


def _note(
    connection: sa.Connection, visits: Sequence[Visit], nonces: dict[str, int], buckets: dict[str, Bucket]
) -> None:
    """Store each device's last nonce, its token bucket, and the round and time of its last request."""
    last = {visit.device: visit for visit in visits if visit.device in buckets}
    changes = [
        {
            "name": name,
            "round": visit.round_number,
            "last_nonce": nonces[name],
            "tokens": buckets[name].tokens,
            "filled_at": buckets[name].filled_at,
            "last_seen": visit.seen,
        }
        for name, visit in sorted(last.items())
    ]
    if changes:
        heard = sa.func.greatest(devices.c.heard, sa.bindparam("round", type_=sa.Integer))
        changed = devices.update().where(devices.c.id == sa.bindparam("name")).values(heard=heard)
        connection.execute(changed, changes)  # sets the columns that `changes` names, too


def take_enrolment(connection: sa.Connection, wall_clock: float, per_second: float) -> bool:
    """Take one token from the bucket that limits all enrolments together; return False if the bucket is empty.

    The bucket refills by `per_second` tokens a second. It stays locked until the transaction ends, so that devices
    enrol one at a time; a transaction that is rolled back takes no token. The current time is the database's clock in
    PostgreSQL, and `wall_clock` in SQLite.
    """
    row = connection.execute(sa.select(enrolments).with_for_update()).one()
    now = connection.execute(sa.select(_clock())).scalar_one() if is_shared(connection) else wall_clock
    bucket = Bucket(BURST_SECONDS * per_second, per_second, row.tokens, row.filled_at)
    is_taken = bucket.take(now)
    connection.execute(enrolments.update().values(tokens=bucket.tokens, filled_at=bucket.filled_at))
    return is_taken


def _clock() -> sa.Label[float]:
    """Return an SQL expression for the database's time in Unix seconds, the only clock that all workers share."""
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Float).label("now")
