"""The registry of devices: their keys, nonces and states, and the invitations to join.

With SQLite the registry in memory is authoritative, and the database holds what a restart needs. With PostgreSQL the
database is authoritative (`admission.py`), and the registry is a copy that `update` changes.
"""

import hashlib
import secrets
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hushrec.messages import NO_REPORT, Credentials, Enrolment, LastReport, write_last_report
from hushrec.service.admission import Admitted, Bucket, Visit, admit, take_enrolment
from hushrec.service.problems import Refusal
from hushrec.service.reports import LAST_REPORT, at, last_report_in, lock_open_phase
from hushrec.service.schema import ACTIVE, ASKED, LEFT, REVOKED, devices, invitations, reports, run
from hushrec.service.settings import Settings
from hushrec.service.storage import Storage
from hushrec.signing import Request, device_id_of, is_signed, load_public_key

_NO_REPORT = dict.fromkeys(LAST_REPORT, 0)
_ENDED = {LEFT: "has left", REVOKED: "was revoked"}


def digest_of(secret: str) -> bytes:
    """Return the SHA-256 hash that the database stores for a secret. Secrets are long and random: no salt is needed."""
    return hashlib.sha256(b"hushrec secret 1" + secret.encode()).digest()


@dataclass
class Device:
    """The server's record of one device. A new record has no content until `renew` copies the device's row into it."""

    id: str
    bucket: Bucket = field(repr=False)  # limits the rate of the device's requests to this worker
    key_bytes: bytes = field(default=b"", repr=False)
    public_key: Ed25519PublicKey = field(init=False, repr=False)
    state: str = ""  # ACTIVE, LEFT, REVOKED, or ASKED: took part in the previous run, has not yet agreed to this one
    first_round: int = 0  # the first round in which the device may report
    last_report: LastReport = NO_REPORT  # round, attempt and phase of the last report
    last_nonce: int = 0
    last_seen: float | None = None  # wall-clock time of the last request
    heard: int = 0  # the open round at the device's last request; if none was open, the latest that had ended

    @property
    def last_round(self) -> int:
        """The last round in which the device reported; 0 before its first report."""
        return self.last_report[0]

    @property
    def last_report_text(self) -> str:
        """The phase of the device's last report as ROUND.ATTEMPT.PHASE, for inbox replies and refusals."""
        return write_last_report(self.last_report)

    def renew(self, row: Mapping[str, Any]) -> None:
        """Update the record from the device's row in the database.

        The row may lack the latest requests, so `last_report`, `last_nonce`, `last_seen` and `heard` never decrease.
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
        settings: Settings,
        run_id: str,
        round_number: Callable[[], int],
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        self._storage = storage
        self._limits = settings.limits
        self._admit = partial(admit, limits=settings.limits)
        self._run_id = run_id
        self._round_number = round_number  # returns the open round, or else the latest that has ended
        self._open_enrolment = settings.open_enrolment
        self._clock = clock
        self._wall_clock = wall_clock
        rows = storage.at_once(lambda c: c.execute(sa.select(devices)).all())
        self._devices: dict[str, Device] = {}
        self._active_since: Counter[int] = Counter()  # number of active devices by `first_round`
        self._active_heard: Counter[int] = Counter()  # number of active devices by `heard`
        self.ended: set[int | str] = set()  # ids of all devices that are not active: left, revoked or asked
        self.update(row._asdict() for row in rows)

    def update(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Update the registry from rows of the table `devices`; return the ids of devices that have become inactive.

        A device is inactive if it has left, is revoked, or took part in the previous run and has not yet agreed to this
        one. The result includes inactive devices that the registry did not know before.
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
        return sum(self._active_since.values())  # not over all devices, because this is called after every report

    def count_present(self, round_number: int, missed_rounds: int) -> int:
        """Return the number of present devices: those that may report in a round and sent a request lately.

        Lately means in this round or in one of the `missed_rounds` rounds before it.
        """
        first, latest = max(0, round_number - missed_rounds), self._round_number()
        heard = sum(self._active_heard[n] for n in range(first, latest + 1))
        newcomers = sum(count for first, count in self._active_since.items() if first > round_number)
        return heard - newcomers

    def _record_request(self, device: Device) -> None:
        """Record that a device sent a request now, so that `count_present` counts the device."""
        device.last_seen = self._wall_clock()
        if device.heard < (latest := self._round_number()):
            self._active_heard[device.heard] -= 1
            self._active_heard[latest] += 1
            device.heard = latest

    def listed(self, n_ended: int) -> list[dict[str, Any]]:
        """Return one dict per device with the facts that the operator may see; `n_ended` rounds of the run have ended.

        Entry `missed` is the number of rounds that have ended since the device last reported, or since it joined.
        """
        names = ("id", "state", "first_round", "last_round", "last_seen")
        return [
            {name: getattr(device, name) for name in names}
            | {"missed": max(0, n_ended - max(device.last_round, device.first_round - 1))}
            for device in self._devices.values()
        ]

    def __contains__(self, device: str) -> bool:
        return device in self._devices

    def known(self, device: str, **extra: Any) -> Device:
        """Return the active device with this id; raise `Refusal` if no active device has this id.

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
            raise Refusal(f"this device no longer takes part: it {_ENDED[found.state]}.", code="not-active", **extra)
        return found

    def authenticate(self, credentials: Credentials, request: Request) -> Device:
        """Check the signature, nonce and rate of a request; return its device.

        Nonce and rate are compared with the requests that this worker received. Where several workers share the
        database, `admit` compares them with the requests of all workers. The refusal of a device that left or was
        revoked names the phase of its last report. From this phase, a device that was restored from an old backup
        learns which reports its ledger lacks, and charges them before it joins again.
        """
        found = self._devices.get(credentials.device)
        signed = found is not None and is_signed(request, credentials, found.public_key, self._run_id)
        device = self.known(credentials.device, **({"last_report": found.last_report_text} if found and signed else {}))
        if not signed:
            raise Refusal.of("bad-signature")
        if credentials.nonce <= device.last_nonce:
            raise Refusal.of("stale-nonce", last_nonce=device.last_nonce)
        device.last_nonce = credentials.nonce
        self._record_request(device)
        if not device.bucket.take(self._clock()):
            raise Refusal.of("too-many-requests", retry_after=1)
        return device

    async def admit(self, device: Device, nonce: int) -> Admitted:
        """Check a request's key, nonce and rate in the database that workers share; raise `Refusal` if one is invalid.

        Return facts about the device and the run, read from the database.
        """
        visit = Visit(device.id, device.key_bytes, nonce, self._round_number(), self._wall_clock())
        admitted: Admitted = await self._storage.write_together(self._admit, visit)
        device.last_report = max(device.last_report, admitted.last_report)
        return admitted

    # Joining and leaving ---------------------------------------------------------------------------------------

    def check_enrolment(self, enrolment: Enrolment, credentials: Credentials, request: Request) -> None:
        """Raise `Refusal` unless an enrolment is signed with the key that it contains."""
        key = load_public_key(enrolment.public_key)
        is_named = credentials.device == device_id_of(enrolment.public_key)
        if not (is_named and is_signed(request, credentials, key, self._run_id)):
            raise Refusal("an enrolment must be signed with the key that it contains.", code="bad-signature")

    async def enrol(self, enrolment: Enrolment, nonce: int) -> Device:
        """Enrol a device from the next round on, and return its record. A second enrolment of a key changes nothing.

        A refused enrolment does not count towards the limit `enrolments_per_second`, and leaves no row in the database.
        """
        name = device_id_of(enrolment.public_key)
        invitation = None if enrolment.invitation is None else digest_of(enrolment.invitation)
        new = {"id": name, "public_key": enrolment.public_key, "state": ACTIVE, **_NO_REPORT, "heard": 0}
        new |= {"last_nonce": nonce, "last_seen": self._wall_clock()}

        def write(connection: sa.Connection) -> Mapping[str, Any]:
            next_round = connection.execute(sa.select(run.c.round).with_for_update(read=True)).scalar_one() + 1
            is_taken = take_enrolment(connection, self._wall_clock(), self._limits.enrolments_per_second)
            known = connection.execute(sa.select(devices).where(devices.c.id == name)).first()
            if known is not None:
                return known._asdict()  # the same request, sent twice at once
            if not self._open_enrolment and not _use_invitation(connection, invitation, name):
                raise Refusal("joining needs an unused invitation. Ask the operator for one.", code="not-invited")
            if not is_taken:
                raise Refusal("too many devices are joining. Try again later.", code="too-many-requests", retry_after=1)
            row = {**new, "first_round": next_round}
            connection.execute(devices.insert().values(**row))
            return row

        self.update([await self._storage.write(write)])
        return self.known(name)

    def is_asked(self, name: str) -> bool:
        """Return whether the device with this id took part in the previous run and has not yet agreed to this one."""
        return name in self._devices and self._devices[name].state == ASKED

    async def agree(self, credentials: Credentials, request: Request) -> Device:
        """Let a device of the previous run join this run with its old key and id, without an invitation."""
        device = self._devices[credentials.device]
        if not is_signed(request, credentials, device.public_key, self._run_id):
            raise Refusal("consent to the next run must be signed with this device's key.", code="bad-signature")
        device.last_nonce, device.last_seen = max(credentials.nonce, device.last_nonce), self._wall_clock()
        first_round = sa.select(run.c.round + 1).scalar_subquery()
        await self._change_row(device, ASKED, state=ACTIVE, first_round=first_round, **_NO_REPORT, heard=0)
        return self.known(device.id)

    async def rotate(self, device: Device, public_key: bytes) -> None:
        """Replace a device's key; its id stays the same."""
        load_public_key(public_key)
        await self._change_row(device, ACTIVE, public_key=public_key)

    async def leave(self, device: Device) -> None:
        """Mark a device as having left the run. Its report of the open phase still counts."""
        await self._change_row(device, ACTIVE, state=LEFT)

    async def revoke(self, name: str) -> None:
        """Revoke a device and delete its report of the open phase.

        Its reports of phases that are already closed stay until the attempt ends, because their results are in use.
        """
        device = self._devices.get(name)
        if device is None:
            raise Refusal("no device has this id. List the devices for their ids.", code="unknown-device")

        def write(connection: sa.Connection) -> None:
            open_phase = lock_open_phase(connection)
            connection.execute(devices.update().where(devices.c.id == name).values(state=REVOKED))
            connection.execute(reports.delete().where(at(open_phase), reports.c.device == name))

        self._count(device, -1)
        self.ended.add(name)
        device.state = REVOKED  # before the write, so that no report is accepted after the deletion
        await self._storage.write(write, scrub=True)

    async def _change_row(self, device: Device, state_before: str, **values: object) -> None:
        """Set the columns `values` of a device's row in the database, then update the registry from the row.

        If the state in the row is no longer `state_before`, the row is not changed.
        """
        mine = devices.c.id == device.id
        nonce = sa.case((devices.c.last_nonce < device.last_nonce, device.last_nonce), else_=devices.c.last_nonce)

        def write(connection: sa.Connection) -> Mapping[str, Any]:
            update = devices.update().where(mine, devices.c.state == state_before)
            connection.execute(update.values(last_nonce=nonce, last_seen=device.last_seen, **values))
            return connection.execute(sa.select(devices).where(mine)).one()._asdict()

        self.update([await self._storage.write(write)])

    async def invite(self, count: int) -> list[str]:
        """Return `count` new invitation codes, each for one device; only hashes of the codes are stored."""
        codes = [secrets.token_urlsafe(16) for _ in range(count)]
        rows = [{"digest": digest_of(code)} for code in codes]
        await self._storage.write(lambda connection: connection.execute(invitations.insert(), rows))
        return codes


def ask_everybody(connection: sa.Connection) -> None:
    """Set the state of all devices to `ASKED`, except those that left or were revoked.

    A device in this state takes part in the next run only after its person has agreed to it.
    """
    present = devices.c.state.in_((ACTIVE, ASKED))
    connection.execute(devices.update().where(present).values(state=ASKED, **_NO_REPORT, heard=0))


def _use_invitation(connection: sa.Connection, digest: bytes | None, device: str) -> bool:
    """Mark an invitation as used by this device; return False if it does not exist or another device used it.

    `digest` is the hash of the invitation code. If the device gave no code, `digest` is None, and the result False.
    """
    row = connection.execute(sa.select(invitations).where(invitations.c.digest == digest).with_for_update()).first()
    if row is None or row.used_by not in (None, device):
        return False
    connection.execute(invitations.update().where(invitations.c.digest == digest).values(used_by=device))
    return True
