"""The registry of devices: their keys, nonces and states, invitations, and the admin token.

With SQLite the registry in memory is authoritative, and the database holds what a restart needs. With PostgreSQL the
database is authoritative (`admission.py`), and the registry is a copy that `take` updates.
"""

import hashlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hushrec.messages import NO_REPORT, Address, Credentials, Enrolment, LastReport, write_last_report
from hushrec.service.admission import Admitted, Bucket, Visit, admit, lock_enrolments, take_enrolment
from hushrec.service.problems import Refusal
from hushrec.service.reports import at, last_report_in
from hushrec.service.schema import ACTIVE, ASKED, LEFT, REVOKED, devices, invitations, is_shared, reports, run, stamp
from hushrec.service.settings import LimitSettings
from hushrec.service.storage import Storage
from hushrec.signing import Request, device_id_of, is_signed, load_public_key

_NO_REPORT = {"last_round": 0, "last_attempt": 0, "last_phase": 0}
_ENDED = {LEFT: "has left", REVOKED: "was revoked"}


def digest_of(secret: str) -> bytes:
    """Return the hash under which a secret is stored. Secrets are long and random, so plain SHA-256 is enough."""
    return hashlib.sha256(b"hushrec secret 1" + secret.encode()).digest()


@dataclass
class Device:
    """The server's record of one device. A new record is empty until `renew` fills it from the device's row."""

    id: str
    bucket: Bucket = field(repr=False)  # limits the rate of the device's requests to this worker
    key_bytes: bytes = field(default=b"", repr=False)
    public_key: Ed25519PublicKey = field(init=False, repr=False)
    state: str = ""  # ACTIVE, LEFT, REVOKED, or ASKED: took part in the previous run, has not yet agreed to this one
    first_round: int = 0  # the first round in which the device may report
    last_report: LastReport = NO_REPORT  # round, attempt and phase of the last report
    last_nonce: int = 0
    last_seen: float | None = None  # wall-clock time of the last request
    heard: int = 0  # the round open at the device's last request, or else the latest round that had ended

    @property
    def last_round(self) -> int:
        """The last round in which the device reported; 0 before its first report."""
        return self.last_report[0]

    @property
    def told(self) -> str:
        """The phase of the device's last report as ROUND.ATTEMPT.PHASE, for inbox replies and refusals."""
        return write_last_report(self.last_report)

    def renew(self, row: Mapping[str, Any]) -> None:
        """Update the record from the device's row in the database.

        The row may lack the latest requests, so last report, last nonce, `last_seen` and `heard` are never set back.
        """
        if self.key_bytes != bytes(row["public_key"]):
            self.key_bytes = bytes(row["public_key"])
            self.public_key = load_public_key(self.key_bytes)
        self.state, self.first_round = row["state"], row["first_round"]
        self.last_report = max(self.last_report, last_report_in(row))
        self.last_nonce = max(self.last_nonce, row["last_nonce"])
        self.last_seen = max(self.last_seen or 0.0, row["last_seen"] or 0.0) or None
        self.heard = max(self.heard, row["heard"], row["last_round"], row["first_round"] - 1)


class Registry:
    """The registry of a run's devices: it authenticates them, lets them join and leave, and counts them."""

    def __init__(
        self,
        storage: Storage,
        limits: LimitSettings,
        *,
        run_id: str,
        open_enrolment: bool,
        clock: Callable[[], float],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._limits = limits
        self._admit = partial(admit, limits=limits)
        self._run_id = run_id
        self._open_enrolment = open_enrolment
        self._clock = clock
        self._wall_clock = wall_clock
        self.round_number = 0  # the open round, or else the latest that ended; set by `RunCopy`
        rows = storage.at_once(lambda c: c.execute(sa.select(devices)).all())
        self._devices: dict[str, Device] = {}
        self._active_since: Counter[int] = Counter()
        self._active_heard: Counter[int] = Counter()
        self.ended: set[int | str] = set()  # ids of all devices that no longer take part
        self.take(row._asdict() for row in rows)

    def take(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Update the registry from rows of the table `devices`.

        Return the ids of the devices that are not active (left, revoked or asked) and were not known to be so.
        """
        ended = []
        for row in rows:
            device = self._devices.get(row["id"])
            if device is None:
                size = self._limits.burst
                bucket = Bucket(size, self._limits.requests_per_second, size, self._clock())
                device = self._devices[row["id"]] = Device(row["id"], bucket)
            self._count(device, -1)
            device.renew(row)
            self._count(device, 1)
            if device.state == ACTIVE:
                self.ended.discard(device.id)
            elif device.id not in self.ended:
                self.ended.add(device.id)
                ended.append(device.id)
        return ended

    def _count(self, device: Device, change: int) -> None:
        if device.state == ACTIVE:
            self._active_since[device.first_round] += change
            self._active_heard[device.heard] += change

    # Counting devices ------------------------------------------------------------------------------------------

    def entitled(self, round_number: int) -> list[str]:
        """Return the sorted ids of the active devices that may report in this round."""
        active = (d for d in self._devices.values() if d.state == ACTIVE)
        return sorted(d.id for d in active if d.first_round <= round_number)

    def count_active(self) -> int:
        return sum(self._active_since.values())  # a short table, because this is called after every report

    def count_present(self, round_number: int, missed_rounds: int) -> int:
        """Count the devices that may report in a round and sent a request in it or in the `missed_rounds` before it."""
        heard = sum(self._active_heard[n] for n in range(max(0, round_number - missed_rounds), self.round_number + 1))
        newcomers = sum(count for first, count in self._active_since.items() if first > round_number)
        return heard - newcomers

    def _hear(self, device: Device) -> None:
        """Record that a device sent a request now, so that `count_present` counts it."""
        device.last_seen = self._wall_clock()
        if device.heard < self.round_number:
            self._active_heard[device.heard] -= 1
            self._active_heard[self.round_number] += 1
            device.heard = self.round_number

    def listed(self, *, is_open: bool) -> list[dict[str, Any]]:
        """Return the facts about each device that the operator sees.

        `missed` counts the rounds that have ended since the device last reported, or since it joined. `is_open` says
        whether a round is open; that round is not counted.
        """
        names = ("id", "state", "first_round", "last_round", "last_seen")
        closed = self.round_number - is_open
        return [
            {name: getattr(device, name) for name in names}
            | {"missed": max(0, closed - max(device.last_round, device.first_round - 1))}
            for device in self._devices.values()
        ]

    def __contains__(self, device: str) -> bool:
        return device in self._devices

    def known(self, device: str, **extra: Any) -> Device:
        """Return the active device with this id; refuse an id that is unknown or whose device does not take part.

        `extra` are further entries of the problem document for a device that left or was revoked.
        """
        found = self._devices.get(device)
        if found is None:
            raise Refusal("this device is not enrolled. Enrol it first.", code="not-enrolled")
        if found.state == ASKED:
            raise Refusal(
                "the run that this device joined has ended. If the person agrees, join the server's next run.",
                code="next-run",
            )
        if found.state != ACTIVE:
            sentence = f"this device no longer takes part: it {_ENDED[found.state]}."
            raise Refusal(sentence, code="not-active", **extra)
        return found

    def authenticate(self, credentials: Credentials, request: Request) -> Device:
        """Check the signature, nonce and rate of a request; return its device.

        Nonce and rate are compared with the requests that this worker received. Where several workers share the
        database, `admit` compares them with the requests of all workers. The refusal of a device that left or was
        revoked names the phase of its last report. A device that was restored from an old backup learns from it which
        reports its ledger lacks, and charges them before it joins again.
        """
        found = self._devices.get(credentials.device)
        signed = found is not None and is_signed(request, credentials, found.public_key, self._run_id)
        device = self.known(credentials.device, **({"last_report": found.told} if found and signed else {}))
        if not signed:
            raise Refusal(
                "the signature does not match this request and this device's key. Sign it with the current key.",
                code="bad-signature",
            )
        if credentials.nonce <= device.last_nonce:
            raise Refusal(
                "the nonce must be greater than every earlier nonce of this device. Sign the request again.",
                code="stale-nonce",
                last_nonce=device.last_nonce,
            )
        device.last_nonce = credentials.nonce
        self._hear(device)
        if not device.bucket.take(self._clock()):
            raise Refusal(
                "this device sends too many requests. Try again later.", code="too-many-requests", retry_after=1
            )
        return device

    async def admit(self, device: Device, nonce: int) -> Admitted:
        """Check a request's key, nonce and rate in the database that workers share; raise `Refusal` if one is invalid.

        Return what the database says about the device and the run.
        """
        visit = Visit(device.id, device.key_bytes, nonce, self.round_number, self._wall_clock())
        admitted: Admitted = await self._storage.write_together(self._admit, visit)
        device.last_report = max(device.last_report, admitted.last_report)
        return admitted

    # Joining and leaving ---------------------------------------------------------------------------------------

    def check_enrolment(self, enrolment: Enrolment, credentials: Credentials, request: Request) -> None:
        """Check that an enrolment is signed with the key that it contains."""
        key = load_public_key(enrolment.public_key)
        is_named = credentials.device == device_id_of(enrolment.public_key)
        if not (is_named and is_signed(request, credentials, key, self._run_id)):
            raise Refusal("an enrolment must be signed with the key that it contains.", code="bad-signature")

    async def enrol(self, enrolment: Enrolment, nonce: int) -> Device:
        """Enrol a device from the next round on. Enrolling again with the same key changes nothing.

        A refused enrolment does not count towards the limit `enrolments_per_second`, and leaves no row in the database.
        """
        name = device_id_of(enrolment.public_key)
        invitation = None if enrolment.invitation is None else digest_of(enrolment.invitation)
        new = {"id": name, "public_key": enrolment.public_key, "state": ACTIVE, **_NO_REPORT, "heard": 0}
        new |= {"last_nonce": nonce, "last_seen": self._wall_clock()}

        def write(connection: sa.Connection) -> Mapping[str, Any]:
            next_round = connection.execute(sa.select(run.c.round).with_for_update(read=True)).scalar_one() + 1
            bucket, now = lock_enrolments(connection, self._wall_clock(), self._limits.enrolments_per_second)
            known = connection.execute(sa.select(devices).where(devices.c.id == name)).first()
            if known is not None:
                return known._asdict()  # the same request, sent twice at once
            if not self._open_enrolment and not _use_invitation(connection, invitation, name):
                raise Refusal("joining needs an unused invitation. Ask the operator for one.", code="not-invited")
            if not take_enrolment(connection, bucket, now):
                raise Refusal("too many devices are joining. Try again later.", code="too-many-requests", retry_after=1)
            row = {**new, "first_round": next_round}
            connection.execute(devices.insert().values(**row, changed=stamp(is_shared(connection))))
            return row

        self.take([await self._storage.write(write)])
        return self.known(name)

    def is_asked(self, name: str) -> bool:
        """Return whether this device of the previous run has not yet agreed to this one."""
        return name in self._devices and self._devices[name].state == ASKED

    async def agree(self, credentials: Credentials, request: Request) -> Device:
        """Let a device of the previous run join this one with its old key and id, without an invitation."""
        device = self._devices[credentials.device]
        if not is_signed(request, credentials, device.public_key, self._run_id):
            raise Refusal("consent to the next run must be signed with this device's key.", code="bad-signature")
        device.last_nonce, device.last_seen = max(credentials.nonce, device.last_nonce), self._wall_clock()
        first_round = sa.select(run.c.round + 1).scalar_subquery()
        await self._update(device, ASKED, state=ACTIVE, first_round=first_round, **_NO_REPORT, heard=0)
        return self.known(device.id)

    async def rotate(self, device: Device, public_key: bytes) -> None:
        """Replace a device's key; its id stays the same."""
        load_public_key(public_key)
        await self._update(device, ACTIVE, public_key=public_key)

    async def leave(self, device: Device) -> None:
        """Mark a device as having left the run. Its report of the open phase still counts."""
        await self._update(device, ACTIVE, state=LEFT)

    async def revoke(self, name: str) -> None:
        """Revoke a device and delete its report of the open phase.

        Its reports of phases that are already closed stay until the attempt ends, because their results are in use.
        """
        device = self._devices.get(name)
        if device is None:
            raise Refusal("no device has this id. List the devices for their ids.", code="unknown-device")

        def write(connection: sa.Connection) -> None:
            place = sa.select(run.c.round, run.c.attempt, run.c.phase).with_for_update(read=True)
            open_phase = Address(*connection.execute(place).one())
            ended = devices.update().where(devices.c.id == name)
            connection.execute(ended.values(state=REVOKED, changed=stamp(is_shared(connection))))
            connection.execute(reports.delete().where(at(open_phase), reports.c.device == name))

        self._count(device, -1)
        self.ended.add(name)
        device.state = REVOKED  # first, so that no report slips in behind the deletion
        await self._storage.write(write, scrub=True)

    async def _update(self, device: Device, state_before: str, **values: object) -> None:
        """Set these columns of a device's row, then update the registry from the row.

        If the state in the row is no longer `state_before`, the row is not changed.
        """
        mine = devices.c.id == device.id
        nonce = sa.case((devices.c.last_nonce < device.last_nonce, device.last_nonce), else_=devices.c.last_nonce)

        def write(connection: sa.Connection) -> Mapping[str, Any]:
            fixed = {"last_nonce": nonce, "last_seen": device.last_seen, "changed": stamp(is_shared(connection))}
            expected = sa.and_(mine, devices.c.state == state_before)
            connection.execute(devices.update().where(expected).values(**fixed, **values))
            return connection.execute(sa.select(devices).where(mine)).one()._asdict()

        self.take([await self._storage.write(write)])

    async def invite(self, count: int) -> list[str]:
        """Create `count` invitation codes, each for one device; only hashes of the codes are stored."""
        codes = [secrets.token_urlsafe(16) for _ in range(count)]
        rows = [{"digest": digest_of(code)} for code in codes]
        await self._storage.write(lambda connection: connection.execute(invitations.insert(), rows))
        return codes


def ask_everybody(connection: sa.Connection) -> None:
    """Ask every device to agree to the next run (state `ASKED`). Devices that left or were revoked stay out."""
    present = devices.c.state.in_((ACTIVE, ASKED))
    asked = {"state": ASKED, **_NO_REPORT, "heard": 0, "changed": stamp(is_shared(connection))}
    connection.execute(devices.update().where(present).values(**asked))


def _use_invitation(connection: sa.Connection, digest: bytes | None, device: str) -> bool:
    """Mark an invitation as used by this device; return False if it does not exist or another device used it.

    `digest` is the hash of the invitation code; it is None, and the result False, if the device gave no code.
    """
    row = connection.execute(sa.select(invitations).where(invitations.c.digest == digest).with_for_update()).first()
    if row is None or row.used_by not in (None, device):
        return False
    connection.execute(invitations.update().where(invitations.c.digest == digest).values(used_by=device))
    return True
