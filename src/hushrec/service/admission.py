"""Whether a request is let in, where several workers share a database: nonces, rates and keys as the database has them.

A worker has checked the signature, and refused what it knows to be wrong. The rows of the devices are locked in the
order of their ids, so that of two workers with the same request one is refused. The commit does not wait for the disk:
if the database's machine fails, the last requests could be repeated once, as after a restart of a single server;
reports are durable with their own nonces.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from hushrec.messages import Address
from hushrec.service.problems import Refusal
from hushrec.service.reports import at
from hushrec.service.schema import ACTIVE, devices, enrolments, is_shared, reports, run, stamp
from hushrec.service.settings import LimitSettings

BURST_SECONDS = 5  # of enrolments, at once


@dataclass
class Bucket:
    """A rate: `tokens` are refilled as time goes on, up to `size`."""

    size: float
    per_second: float
    tokens: float
    filled_at: float

    def take(self, now: float) -> bool:
        self.tokens = min(self.size, self.tokens + max(0.0, now - self.filled_at) * self.per_second)
        self.filled_at = now
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    @classmethod
    def stored(cls, row: Any, size: float, per_second: float) -> "Bucket":
        """Return the bucket that a row of the database holds."""
        return cls(size, per_second, size if row.tokens is None else row.tokens, row.filled_at)


@dataclass(frozen=True)
class Visit:
    """A signed request of a device."""

    device: str
    public_key: bytes = field(repr=False)  # with which its signature was checked
    nonce: int
    heard: int  # the round that is open, or the last one
    seen: float  # wall clock


@dataclass(frozen=True)
class Admitted:
    """What the database says of a device whose request is let in."""

    version: int  # of the run
    last_round: int
    reported: bytes | None  # the digest of its report in the open phase, if that is stored


def admit(connection: sa.Connection, visits: Sequence[Visit], limits: LimitSettings) -> list[Admitted | Refusal]:
    """Let these requests in, or say why not, in the order in which they are given."""
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
        outcomes.append(refusal or Admitted(version, row.last_round, digests.get(visit.device)))  # type: ignore[union-attr]
    _note(connection, visits, nonces, buckets)
    return outcomes


def _refusal(visit: Visit, row: Any, nonces: dict[str, int], buckets: dict[str, Bucket], now: float) -> Refusal | None:
    if row is None or row.state != ACTIVE:
        return Refusal("not-active", "this device takes part no more.")
    if bytes(row.public_key) != visit.public_key:
        return Refusal("bad-signature", "the signature does not fit this request and device.")
    if visit.nonce <= nonces[visit.device]:
        sentence = "the nonce of a request must be above all earlier ones of its device."
        return Refusal("stale-nonce", sentence, last_nonce=nonces[visit.device])
    if not buckets[visit.device].take(now):
        return Refusal("too-many-requests", "this device asks too often.", retry_after=1)
    return None


def _note(
    connection: sa.Connection, visits: Sequence[Visit], nonces: dict[str, int], buckets: dict[str, Bucket]
) -> None:
    """Store what the visits have changed."""
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


def lock_places(connection: sa.Connection, wall_clock: float, per_second: float) -> tuple[Bucket, float]:
    """Let devices join one after the other until the transaction ends; return their common rate, and the time."""
    row = connection.execute(sa.select(enrolments).with_for_update()).one()
    now = connection.execute(sa.select(_clock())).scalar_one() if is_shared(connection) else wall_clock
    return Bucket.stored(row, BURST_SECONDS * per_second, per_second), now


def take_place(connection: sa.Connection, bucket: Bucket, now: float) -> bool:
    """Whether one more device may join now; store that it does."""
    if not bucket.take(now):
        return False
    connection.execute(enrolments.update().values(tokens=bucket.tokens, filled_at=bucket.filled_at))
    return True


def _clock() -> sa.Label[float]:
    """The clock of the database: workers on several machines have no other in common."""
    return sa.cast(sa.extract("epoch", sa.func.clock_timestamp()), sa.Float).label("now")
