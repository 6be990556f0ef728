"""Who takes part: devices, their keys and nonces, invitations, and the admin's token.

With SQLite what is here in memory is the truth, and the database has what a restart needs. With PostgreSQL the database
is the truth (`admission.py`), and this is a copy that `take` brings up to date.
"""

import hashlib
import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hushrec.messages import Address, Credentials, Enrolment
from hushrec.service.admission import Admitted, Bucket, Visit, admit, lock_places, take_place
from hushrec.service.problems import Refusal
from hushrec.service.reports import at
from hushrec.service.schema import ACTIVE, ASKED, LEFT, REVOKED, devices, invitations, is_shared, reports, run, stamp
from hushrec.service.settings import LimitSettings
from hushrec.service.storage import Storage
from hushrec.signing import Request, device_id_of, is_signed, load_public_key

_ENDED = {LEFT: "has left", REVOKED: "was revoked"}


def digest_of(secret: str) -> bytes:
    """Return the hash under which a secret is kept; secrets are random and long, so that SHA-256 is enough."""
    return hashlib.sha256(b"hushrec secret 1" + secret.encode()).digest()


@dataclass
class Device:
    """What the server knows of one device."""

    id: str
    key_bytes: bytes = field(repr=False)
    public_key: Ed25519PublicKey = field(repr=False)
    state: str
    first_round: int
    last_round: int
    last_nonce: int
    last_seen: float | None  # wall clock
    heard: int  # the round that was open, or the last one, when it last asked for something
    bucket: Bucket = field(repr=False)


class Registry:
    """The table of devices, in memory and in the database."""

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
        self._run_id = run_id
        self._open_enrolment = open_enrolment
        self._clock = clock
        self._wall_clock = wall_clock
        self.round_number = 0  # the open round, or the last one: `Rounds` says
        self.admin_digest = storage.at_once(lambda c: bytes(c.execute(sa.select(run.c.admin_digest)).scalar_one()))
        rows = storage.at_once(lambda c: c.execute(sa.select(devices)).all())
        self._devices: dict[str, Device] = {}
        self._active_since: Counter[int] = Counter()
        self._active_heard: Counter[int] = Counter()
        self._ended: set[str] = set()
        self.take(row._asdict() for row in rows)

    def take(self, rows: Iterable[Mapping[str, Any]]) -> list[str]:
        """Bring what is in memory up to date with these rows; return the names of those that take part no more."""
        ended = []
        for row in rows:
            device = self._devices.get(row["id"])
            if device is None:
                device = self._devices[row["id"]] = self._device(row)
            else:
                self._count(device, -1)
                self._renew(device, row)
            self._count(device, 1)
            if device.state == ACTIVE:
                self._ended.discard(device.id)
            elif device.id not in self._ended:
                self._ended.add(device.id)
                ended.append(device.id)
        return ended

    def _count(self, device: Device, change: int) -> None:
        if device.state == ACTIVE:
            self._active_since[device.first_round] += change
            self._active_heard[device.heard] += change

    def _device(self, row: Mapping[str, Any]) -> Device:
        size = self._limits.burst
        return Device(
            id=row["id"],
            key_bytes=bytes(row["public_key"]),
            public_key=load_public_key(bytes(row["public_key"])),
            state=row["state"],
            first_round=row["first_round"],
            last_round=row["last_round"],
            last_nonce=row["last_nonce"],
            last_seen=row["last_seen"],
            heard=max(row["heard"], row["last_round"], row["first_round"] - 1),
            bucket=Bucket(size, self._limits.requests_per_second, size, self._clock()),
        )

    def _renew(self, device: Device, row: Mapping[str, Any]) -> None:
        """Take over what another worker wrote; what rises is never lowered by a row that was read before."""
        if device.key_bytes != bytes(row["public_key"]):
            device.key_bytes = bytes(row["public_key"])
            device.public_key = load_public_key(device.key_bytes)
        device.state, device.first_round = row["state"], row["first_round"]
        device.last_round = max(device.last_round, row["last_round"])
        device.last_nonce = max(device.last_nonce, row["last_nonce"])
        device.last_seen = max(device.last_seen or 0.0, row["last_seen"] or 0.0) or None
        device.heard = max(device.heard, row["heard"], row["last_round"], row["first_round"] - 1)

    # Who is there ----------------------------------------------------------------------------------------------

    def entitled(self, round_number: int) -> list[str]:
        """Return the active devices that take part in this round, in order."""
        active = (d for d in self._devices.values() if d.state == ACTIVE)
        return sorted(d.id for d in active if d.first_round <= round_number)

    def count_active(self, round_number: int | None = None) -> int:
        """Devices that take part; with a round, those from which a report can still come."""
        since = self._active_since.items()  # short: asked for after every report
        return sum(count for first, count in since if round_number is None or first <= round_number)

    def count_present(self, round_number: int, missed_rounds: int) -> int:
        """Devices that a round should wait for: they may report in it, and were heard of in the rounds before."""
        heard = sum(self._active_heard[n] for n in range(max(0, round_number - missed_rounds), self.round_number + 1))
        newcomers = sum(count for first, count in self._active_since.items() if first > round_number)
        return heard - newcomers

    def _hear(self, device: Device) -> None:
        """Note that a device was heard of: it counts for the quorum again."""
        device.last_seen = self._wall_clock()
        if device.heard < self.round_number:
            self._active_heard[device.heard] -= 1
            self._active_heard[self.round_number] += 1
            device.heard = self.round_number

    def count_ended(self, names: AbstractSet[int | str]) -> int:
        """How many of these take part no more."""
        return len(self._ended & names)

    def listed(self, *, is_open: bool) -> list[dict[str, Any]]:
        """What the admin may see of them; `missed` counts closed rounds since the last that a device reported in."""
        names = ("id", "state", "first_round", "last_round", "last_seen")
        closed = self.round_number - is_open
        return [
            {name: getattr(device, name) for name in names}
            | {"missed": max(0, closed - max(device.last_round, device.first_round - 1))}
            for device in self._devices.values()
        ]

    def __contains__(self, device: str) -> bool:
        return device in self._devices

    def known(self, device: str) -> Device:
        """The device of this name, if it takes part; cheap, before any body is read."""
        found = self._devices.get(device)
        if found is None:
            raise Refusal("not-enrolled", "this device is not enrolled.")
        if found.state == ASKED:
            raise Refusal("next-run", "the run that this device joined has ended: a next one waits for its consent.")
        if found.state != ACTIVE:
            raise Refusal("not-active", f"this device takes part no more: it {_ENDED[found.state]}.")
        return found

    def authenticate(self, credentials: Credentials, request: Request) -> Device:
        """Return the device that signed this request; refuse replays and too many requests, as far as is known here.

        Where other workers may know more, `admit` asks the database as well.
        """
        device = self.known(credentials.device)
        if not is_signed(request, credentials, device.public_key, self._run_id):
            raise Refusal("bad-signature", "the signature does not fit this request and device.")
        if credentials.nonce <= device.last_nonce:
            raise Refusal(
                "stale-nonce",
                "the nonce of a request must be above all earlier ones of its device.",
                last_nonce=device.last_nonce,
            )
        device.last_nonce = credentials.nonce
        self._hear(device)
        if not device.bucket.take(self._clock()):
            raise Refusal("too-many-requests", "this device asks too often.", retry_after=1)
        return device

    async def admit(self, device: Device, nonce: int) -> Admitted:
        """Ask the database, for all workers, whether this request is new and not too often; note that it was made."""
        visit = Visit(device.id, device.key_bytes, nonce, self.round_number, self._wall_clock())
        admitted: Admitted = await self._storage.first(self._admit, visit)
        device.last_round = max(device.last_round, admitted.last_round)
        return admitted

    def _admit(self, connection: sa.Connection, visits: Sequence[Visit]) -> list[Admitted | Refusal]:
        return admit(connection, visits, self._limits)

    def check_admin(self, token: str | None) -> None:
        """Check the admin's token, in constant time."""
        if token is None or not hmac.compare_digest(digest_of(token), self.admin_digest):
            raise Refusal("not-admin", "this needs 'Authorization: Bearer TOKEN' with the admin's token.")

    # Coming and going ------------------------------------------------------------------------------------------

    def check_enrolment(self, enrolment: Enrolment, credentials: Credentials, request: Request) -> None:
        """Refuse an enrolment that is not signed with the key that it brings."""
        key = load_public_key(enrolment.public_key)
        is_named = credentials.device == device_id_of(enrolment.public_key)
        if not (is_named and is_signed(request, credentials, key, self._run_id)):
            raise Refusal("bad-signature", "an enrolment must be signed with the key that it brings.")

    async def enrol(self, enrolment: Enrolment, nonce: int) -> Device:
        """Lets a device in, from the next round on. Asking again with the same key and invitation changes nothing.

        Whoever may not come in uses up nobody's turn, and is not written about.
        """
        name = device_id_of(enrolment.public_key)
        invitation = None if enrolment.invitation is None else digest_of(enrolment.invitation)
        new = {"id": name, "public_key": enrolment.public_key, "state": ACTIVE, "last_round": 0, "heard": 0}
        new |= {"last_nonce": nonce, "last_seen": self._wall_clock()}

        def write(connection: sa.Connection) -> Mapping[str, Any]:
            next_round = connection.execute(sa.select(run.c.round).with_for_update(read=True)).scalar_one() + 1
            places, now = lock_places(connection, self._wall_clock(), self._limits.enrolments_per_second)
            known = connection.execute(sa.select(devices).where(devices.c.id == name)).first()
            if known is not None:
                return known._asdict()  # the same request, sent twice at once
            if not self._open_enrolment and not _use_invitation(connection, invitation, name):
                raise _not_invited()
            if not take_place(connection, places, now):
                raise Refusal("too-many-requests", "too many devices are joining.", retry_after=1)
            row = {**new, "first_round": next_round}
            connection.execute(devices.insert().values(**row, changed=stamp(is_shared(connection))))
            return row

        self.take([await self._storage.write(write)])
        return self.known(name)

    def is_asked(self, name: str) -> bool:
        """Whether this device took part in the run before, and has not agreed to this one."""
        return name in self._devices and self._devices[name].state == ASKED

    async def agree(self, credentials: Credentials, request: Request) -> Device:
        """Let a device of the run before into this one: with its key and under its name, without an invitation."""
        device = self._devices[credentials.device]
        if not is_signed(request, credentials, device.public_key, self._run_id):
            raise Refusal("bad-signature", "consent to a next run must be signed with this device's key.")
        device.last_nonce, device.last_seen = max(credentials.nonce, device.last_nonce), self._wall_clock()
        first_round = sa.select(run.c.round + 1).scalar_subquery()
        await self._update(device, ASKED, state=ACTIVE, first_round=first_round, last_round=0, heard=0)
        return self.known(device.id)

    async def rotate(self, device: Device, public_key: bytes) -> None:
        """Gives a device another key; its name stays."""
        load_public_key(public_key)
        await self._update(device, ACTIVE, public_key=public_key)

    async def leave(self, device: Device) -> None:
        """Let a device leave. What it sent in the open round stays in the sum."""
        await self._update(device, ACTIVE, state=LEFT)

    async def revoke(self, name: str) -> None:
        """The admin sends a device away, and its report of the open phase with it.

        Reports of phases that were closed stay until the round ends: what was made of them does too.
        """
        device = self._devices.get(name)
        if device is None:
            raise Refusal("unknown-device", "there is no such device.")

        def write(connection: sa.Connection) -> None:
            place = sa.select(run.c.round, run.c.attempt, run.c.phase).with_for_update(read=True)
            open_phase = Address(*connection.execute(place).one())
            ended = devices.update().where(devices.c.id == name)
            connection.execute(ended.values(state=REVOKED, changed=stamp(is_shared(connection))))
            connection.execute(reports.delete().where(at(open_phase), reports.c.device == name))

        self._set_state(device, REVOKED)  # first, so that no report slips in behind the deletion
        await self._storage.write(write, scrub=True)

    def _set_state(self, device: Device, state: str) -> None:
        self._count(device, -1)
        self._ended.add(device.id)
        device.state = state

    async def _update(self, device: Device, state_before: str, **values: object) -> None:
        """Change a device's row, if it still is in this state, and then what is in memory."""
        mine = devices.c.id == device.id
        nonce = sa.case((devices.c.last_nonce < device.last_nonce, device.last_nonce), else_=devices.c.last_nonce)

        def write(connection: sa.Connection) -> Mapping[str, Any]:
            fixed = {"last_nonce": nonce, "last_seen": device.last_seen, "changed": stamp(is_shared(connection))}
            expected = sa.and_(mine, devices.c.state == state_before)
            connection.execute(devices.update().where(expected).values(**fixed, **values))
            return connection.execute(sa.select(devices).where(mine)).one()._asdict()

        self.take([await self._storage.write(write)])

    async def invite(self, count: int) -> list[str]:
        """New invitations, each good for one device. Only their hashes are kept."""
        codes = [secrets.token_urlsafe(16) for _ in range(count)]
        rows = [{"digest": digest_of(code)} for code in codes]
        await self._storage.write(lambda connection: connection.execute(invitations.insert(), rows))
        return codes


def ask_everybody(connection: sa.Connection) -> None:
    """Let no device into a next run before it has agreed to it; whoever left or was revoked stays away."""
    present = devices.c.state.in_((ACTIVE, ASKED))
    asked = {"state": ASKED, "last_round": 0, "heard": 0, "changed": stamp(is_shared(connection))}
    connection.execute(devices.update().where(present).values(**asked))


def _not_invited() -> Refusal:
    return Refusal("not-invited", "an invitation that nobody has used yet is needed.")


def _use_invitation(connection: sa.Connection, digest: bytes | None, device: str) -> bool:
    """Marks an invitation as used by this device; False if there is none, or another device used it."""
    row = connection.execute(sa.select(invitations).where(invitations.c.digest == digest).with_for_update()).first()
    if row is None or row.used_by not in (None, device):
        return False
    connection.execute(invitations.update().where(invitations.c.digest == digest).values(used_by=device))
    return True
