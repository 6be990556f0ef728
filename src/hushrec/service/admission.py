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
from hushrec.service.schema import ACTIVE, devices, enrolments, is_shared, reports, run, stamp
from hushrec.service.settings import LimitSettings

BURST_SECONDS = 5  # seconds' worth of enrolments that may arrive at once


@dataclass
class Bucket:
    """A token bucket that limits a rate: it refills by `per_second` tokens a second, up to `size` tokens."""

    size: float
    per_second: float
    tokens: float
    filled_at: float

    def take(self, now: float) -> bool:
        """Refill the bucket and take one token; return False if there is none."""
        self.tokens = min(self.size, self.tokens + max(0.0, now - self.filled_at) * self.per_second)
        self.filled_at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    @classmethod
    def stored(cls, row: Any, size: float, per_second: float) -> "Bucket":
        """Return the bucket stored in a database row; NULL tokens mean a full bucket."""
        return cls(size, per_second, size if row.tokens is None else row.tokens, row.filled_at)


@dataclass(frozen=True)
class Visit:
    """A device's request with a valid signature, which `admit` checks against the database."""

    device: str
    public_key: bytes = field(repr=False)  # the key with which the worker checked the signature
    nonce: int
    heard: int  # number of the round that was open at the request or, if none was open, of the latest round
    seen: float  # wall-clock time of the request


@dataclass(frozen=True)
class Admitted:
    """The outcome of an admitted request: facts about its device and the run, read from the database."""

    version: int  # of the run's row in the database; every change of the row adds 1
    last_report: LastReport  # the phase of the device's last report
    reported: bytes | None  # the digest of the device's report in the open phase, None if no report is stored


def admit(connection: sa.Connection, visits: Sequence[Visit], limits: LimitSettings) -> list[Admitted | Refusal]:
    """Check the key, nonce and rate of each request; return an `Admitted` or a `Refusal` per request, in order."""
    connection.execute(sa.text("SET LOCAL synchronous_commit = off"))
    open_phase = sa.select(run.c.version, run.c.round, run.c.attempt, run.c.phase, _clock())
    version, *place, now = connection.execute(open_phase).one()
    names = {visit.device for visit in visits}
    query = sa.select(devices).where(devices.c.id.in_(names)).order_by(devices.c.id)
    rows = {row.id: row for row in connection.execute(query.with_for_update(key_share=True))}
    there = sa.select(reports.c.device, reports.c.digest).where(at(Address(*place)), reports.c.device.in_(names))
    digests = {row.device: bytes(row.digest) for row in connection.execute(there)}
    buckets = {n: Bucket.stored(row, limits.burst, limits.requests_per_second) for n, row in rows.items()}
    nonces = {n: row.last_nonce for n, row in rows.items()}
    outcomes: list[Admitted | Refusal] = []
    for visit in visits:
        refusal = _refusal(visit, rows.get(visit.device), nonces, buckets, now)
        if refusal is None:
            nonces[visit.device] = visit.nonce
        row = rows.get(visit.device)
        outcomes.append(refusal or Admitted(version, last_report_in(row._mapping), digests.get(visit.device)))  # type: ignore[union-attr]
    _note(connection, visits, nonces, buckets)
    return outcomes


def _refusal(visit: Visit, row: Any, nonces: dict[str, int], buckets: dict[str, Bucket], now: float) -> Refusal | None:
    if row is None or row.state != ACTIVE:
        return Refusal("this device no longer takes part: it left or was revoked.", code="not-active")
    if bytes(row.public_key) != visit.public_key:
        return Refusal("the signature does not match this request and this device's key.", code="bad-signature")
    if visit.nonce <= nonces[visit.device]:
        sentence = "the nonce must be greater than every earlier nonce of this device. Sign the request again."
        return Refusal(sentence, code="stale-nonce", last_nonce=nonces[visit.device])
    if not buckets[visit.device].take(now):
        return Refusal("this device sends too many requests. Try again later.", code="too-many-requests", retry_after=1)
    return None


def _note(
    connection: sa.Connection, visits: Sequence[Visit], nonces: dict[str, int], buckets: dict[str, Bucket]
) -> None:
    """Store the devices' new nonces, token buckets and times last seen."""
    last = {visit.device: visit for visit in visits if visit.device in buckets}
    changes = [
        {
            "name": name,
            "nonce": nonces[name],
            "tokens": buckets[name].tokens,
            "filled_at": buckets[name].filled_at,
            "heard": visit.heard,
            "last_seen": visit.seen,
        }
        for name, visit in sorted(last.items())
    ]
    if not changes:
        return
    heard = sa.bindparam("heard", type_=sa.Integer)
    connection.execute(
        devices.update()
        .where(devices.c.id == sa.bindparam("name"))
        .values(
            last_nonce=sa.bindparam("nonce"),
            tokens=sa.bindparam("tokens"),
            filled_at=sa.bindparam("filled_at"),
            heard=sa.case((devices.c.heard < heard, heard), else_=devices.c.heard),
            last_seen=sa.bindparam("last_seen"),
            changed=stamp(is_shared(connection)),
        ),
        changes,
    )


def lock_enrolments(connection: sa.Connection, wall_clock: float, per_second: float) -> tuple[Bucket, float]:
    """Lock enrolment until the transaction ends, so that devices enrol one at a time.

    Return the token bucket that limits all enrolments together to `per_second` a second on average, and the current
    time: the database's clock in PostgreSQL, `wall_clock` in SQLite.
    """
    row = connection.execute(sa.select(enrolments).with_for_update()).one()
    now = connection.execute(sa.select(_clock())).scalar_one() if is_shared(connection) else wall_clock
    return Bucket.stored(row, BURST_SECONDS * per_second, per_second), now


def take_enrolment(connection: sa.Connection, bucket: Bucket, now: float) -> bool:
    """Take one token from the enrolment bucket and store the bucket; return False if the bucket is empty."""
    if not bucket.take(now):
        return False
    connection.execute(enrolments.update().values(tokens=bucket.tokens, filled_at=bucket.filled_at))
    return True


def _clock() -> sa.Label[float]:
    """Return an SQL expression for the database's time in Unix seconds, the only clock that all workers share."""
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Float).label("now")
