"""Who takes part: devices, their keys and nonces, invitations, and the admin's token."""

import hashlib
import hmac
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from hushrec.messages import Credentials, Enrolment
from hushrec.service.problems import Refusal
from hushrec.service.schema import devices, invitations, reports, run
from hushrec.service.settings import LimitSettings
from hushrec.service.storage import Storage
from hushrec.signing import Request, device_id_of, is_signed, load_public_key

ACTIVE, LEFT, REVOKED = "active", "left", "revoked"
ASKED = "asked"  # took part in the run before, and has not agreed to this one
_ENDED = {LEFT: "has left", REVOKED: "was revoked"}


def digest_of(secret: str) -> bytes:
    """How secrets are kept. They are random and long, so a plain hash is enough."""
    return hashlib.sha256(b"hushrec secret 1" + secret.encode()).digest()


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


@dataclass
class Device:
    """What the server knows of one device."""

    id: str
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
        self._enrolments = self._bucket(limits.enrolments_per_second * 5, limits.enrolments_per_second)
        self._admin_digest = storage.at_once(lambda c: bytes(c.execute(sa.select(run.c.admin_digest)).scalar_one()))
        rows = storage.at_once(lambda c: c.execute(sa.select(devices)).all())
        self._devices = {row.id: self._device(row._asdict()) for row in rows}
        active = [device for device in self._devices.values() if device.state == ACTIVE]
        self._active_since = Counter(device.first_round for device in active)
        self._active_heard = Counter(device.heard for device in active)
        self._ended = {d.id for d in self._devices.values() if d.state != ACTIVE}
        unused = sa.select(invitations.c.digest).where(invitations.c.used_by.is_(None))
        self._unused = {bytes(digest) for digest in storage.at_once(lambda c: c.execute(unused).scalars().all())}

    def _device(self, row: Mapping[str, Any]) -> Device:
        return Device(
            id=row["id"],
            public_key=load_public_key(bytes(row["public_key"])),
            state=row["state"],
            first_round=row["first_round"],
            last_round=row["last_round"],
            last_nonce=row["last_nonce"],
            last_seen=row["last_seen"],
            heard=max(row["last_round"], row["first_round"] - 1),
            bucket=self._bucket(self._limits.burst, self._limits.requests_per_second),
        )

    def _bucket(self, size: float, per_second: float) -> Bucket:
        return Bucket(size, per_second, size, self._clock())

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
        """The device that signed exactly this request, never seen before, and not too often."""
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

    def check_admin(self, token: str | None) -> None:
        """Compares in constant time."""
        if token is None or not hmac.compare_digest(digest_of(token), self._admin_digest):
            raise Refusal("not-admin", "this needs 'Authorization: Bearer TOKEN' with the admin's token.")

    # Coming and going ------------------------------------------------------------------------------------------

    async def enrol(self, enrolment: Enrolment, credentials: Credentials, request: Request, first_round: int) -> Device:
        """Lets a device in. Asking again with the same key and invitation gives the same reply.

        Whoever may not come in uses up nobody's turn, and is not written about. A device of the run before this one
        agrees to this run with its key and under its name, and needs no invitation.
        """
        asked = self._devices.get(credentials.device)
        if asked is not None and asked.state == ASKED:
            return await self._agreed(asked, credentials, request, first_round)
        name = device_id_of(enrolment.public_key)
        key = load_public_key(enrolment.public_key)
        if credentials.device != name or not is_signed(request, credentials, key, self._run_id):
            raise Refusal("bad-signature", "an enrolment must be signed with the key that it brings.")
        if name in self._devices:
            return self.authenticate(credentials, request)
        invitation = None if enrolment.invitation is None else digest_of(enrolment.invitation)
        if not self._open_enrolment and invitation not in self._unused:
            raise _not_invited()
        if not self._enrolments.take(self._clock()):
            raise Refusal("too-many-requests", "too many devices are joining.", retry_after=1)
        row = {
            "id": name,
            "public_key": enrolment.public_key,
            "state": ACTIVE,
            "first_round": first_round,
            "last_round": 0,
            "last_nonce": credentials.nonce,
            "last_seen": self._wall_clock(),
        }

        def write(connection: sa.Connection) -> None:
            if connection.execute(sa.select(devices.c.id).where(devices.c.id == name)).first() is not None:
                return  # the same request, sent twice at once
            if not self._open_enrolment and not _use_invitation(connection, invitation, name):
                raise _not_invited()
            connection.execute(devices.insert().values(**row))

        await self._storage.write(write)
        if invitation is not None and not self._open_enrolment:
            self._unused.discard(invitation)
        if name not in self._devices:
            self._devices[name] = self._device(row)
            self._active_since[first_round] += 1
            self._active_heard[first_round - 1] += 1
        return self._devices[name]

    async def _agreed(self, device: Device, credentials: Credentials, request: Request, first_round: int) -> Device:
        """Let a device of the run before into this one."""
        if not is_signed(request, credentials, device.public_key, self._run_id):
            raise Refusal("bad-signature", "consent to a next run must be signed with this device's key.")
        device.last_nonce, device.last_seen = credentials.nonce, self._wall_clock()
        await self._update(device, state=ACTIVE, first_round=first_round, last_round=0)
        if device.state == ASKED:  # and not the same request, sent twice at once
            device.state, device.first_round, device.last_round = ACTIVE, first_round, 0
            device.heard = first_round - 1
            self._ended.discard(device.id)
            self._active_since[first_round] += 1
            self._active_heard[first_round - 1] += 1
        return device

    async def rotate(self, device: Device, public_key: bytes) -> None:
        """Gives a device another key; its name stays."""
        key = load_public_key(public_key)
        await self._update(device, public_key=public_key)
        device.public_key = key

    async def leave(self, device: Device) -> None:
        """A device goes. What it sent in the open round stays in the sum."""
        await self._update(device, state=LEFT)
        self._end(device, LEFT)

    async def revoke(self, name: str) -> None:
        """The admin sends a device away, and its report of the open phase with it."""
        device = self._devices.get(name)
        if device is None:
            raise Refusal("unknown-device", "there is no such device.")

        def write(connection: sa.Connection) -> None:
            connection.execute(devices.update().where(devices.c.id == name).values(state=REVOKED))
            connection.execute(reports.delete().where(reports.c.device == name))

        self._end(device, REVOKED)  # first, so that no report slips in behind the deletion
        await self._storage.write(write, scrub=True)

    def _end(self, device: Device, state: str) -> None:
        self._active_since[device.first_round] -= device.state == ACTIVE
        self._active_heard[device.heard] -= device.state == ACTIVE
        self._ended.add(device.id)
        device.state = state

    async def _update(self, device: Device, **values: object) -> None:
        statement = devices.update().where(devices.c.id == device.id)
        statement = statement.values(last_nonce=device.last_nonce, last_seen=device.last_seen, **values)
        await self._storage.write(lambda connection: connection.execute(statement))

    async def invite(self, count: int) -> list[str]:
        """New invitations, each good for one device. Only their hashes are kept."""
        codes = [secrets.token_urlsafe(16) for _ in range(count)]
        rows = [{"digest": digest_of(code)} for code in codes]
        await self._storage.write(lambda connection: connection.execute(invitations.insert(), rows))
        self._unused.update(row["digest"] for row in rows)
        return codes


def ask_everybody(connection: sa.Connection) -> None:
    """Let no device into a next run before it has agreed to it; whoever left or was revoked stays away."""
    present = devices.c.state.in_((ACTIVE, ASKED))
    connection.execute(devices.update().where(present).values(state=ASKED, last_round=0))


def _not_invited() -> Refusal:
    return Refusal("not-invited", "an invitation that nobody has used yet is needed.")


def _use_invitation(connection: sa.Connection, digest: bytes | None, device: str) -> bool:
    """Marks an invitation as used by this device; False if there is none, or another device used it."""
    row = connection.execute(sa.select(invitations).where(invitations.c.digest == digest)).first()
    if row is None or row.used_by not in (None, device):
        return False
    connection.execute(invitations.update().where(invitations.c.digest == digest).values(used_by=device))
    return True
