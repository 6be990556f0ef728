"""A server that lies to one device: an honest round, recorded, and answers that a test makes up."""

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from masked_kit import PHASES, joined, report
from service_kit import RUN_ID

from hushrec import Device, wire
from hushrec.messages import Address, Envelope, Offer, Receipt
from hushrec.protocols.masked.messages import Announcement, Partners, Quorum, Survivors, announce
from hushrec.protocols.masked.secagg.roster import Roster, bitmap, masks_text, partners_digest, survivors_text
from hushrec.protocols.masked.terms import MaskedTerms

DEVICES, SMALLEST = 5, 4
PLACES = dict(zip((Announcement, Roster, Partners, Survivors, Quorum), PHASES, strict=True))


@dataclass(frozen=True, eq=False)
class Honest:
    """What an honest server said to device 0 in round 1, and its store before each phase, and after the last."""

    folder: Path
    offer: Offer
    key: Ed25519PrivateKey
    public: bytes
    messages: dict[str, Any]
    identities: list[Ed25519PrivateKey]  # of all devices, in the order of the roster
    own: int  # device 0's position in the roster

    @property
    def terms(self) -> MaskedTerms:
        terms: MaskedTerms = self.offer.terms
        return terms

    @property
    def roster(self) -> Roster:
        return self.messages["shares"]

    @property
    def others(self) -> list[int]:
        return [position for position in range(DEVICES) if position != self.own]

    def announce(self, round_number: int = 1, attempt: int = 1, **changes: Any) -> Announcement:
        """An announcement with the server's own signature; `changes` are its digests, another key, or a probe."""
        true = self.messages["keys"]
        digests = {"terms_digest": true.terms_digest, "table_digest": true.table_digest, **changes}
        key = digests.pop("key", self.key)
        return announce(key, RUN_ID, round_number, attempt, **digests)

    def consents(self, survivors: list[int]) -> dict[int, bytes]:
        """Everybody's signature of this list of survivors."""
        text = survivors_text(partners_digest(self.roster, range(DEVICES)), survivors, DEVICES)
        return {position: self.identities[position].sign(text) for position in survivors}

    def survivors(self, shown: list[int], signatures: dict[int, bytes] | None = None) -> Survivors:
        """This list of survivors, with the signatures that came with their tables, or with others."""
        context = partners_digest(self.roster, range(DEVICES))
        given = {n: self.identities[n].sign(masks_text(context)) for n in shown if n != self.own} | (signatures or {})
        return Survivors(bitmap(shown, DEVICES), np.array(sorted(given)), tuple(given[n] for n in sorted(given)))


def record_round(folder: Path) -> Honest:
    """One honest round over HTTP, with what device 0 is sent and keeps."""
    messages = {}
    with joined(folder, DEVICES) as (live, devices):
        name = devices[0]._session.name
        devices[0].close()
        public = live.rounds.published()
        for phase in PHASES:
            report(live, devices[1:], phase)
            shutil.copytree(folder / "device-0", folder / phase)
            messages[phase] = live.rounds.server.inbox(name)
            with Device(folder / "device-0") as device:
                report(live, [device], phase)
        shutil.copytree(folder / "device-0", folder / "after")
        keys = {str(device._session.name): device._session.store.key() for device in devices[1:]}
        with Device(folder / "device-0") as device:
            keys[str(name)] = device._session.store.key()
        names = sorted(keys)
        return Honest(
            folder,
            live.rounds.offer,
            Ed25519PrivateKey.from_private_bytes(live.rounds.server.side.secret),
            public,
            messages,
            [Ed25519PrivateKey.from_private_bytes(keys[one].to_bytes()) for one in names],
            names.index(str(name)),
        )


@dataclass
class Told:
    """What a lying server answers, and what left the device."""

    message: Any = None
    address: Address | None = None  # None: where such a message belongs
    public: bytes = b""
    offer: bytes = b""
    page: bytes = b""  # of the catalogue
    run_id: str = RUN_ID
    alter: Callable[[bytes], bytes] = lambda body: body  # on the way
    refusal: Callable[[], httpx.Response] | None = None  # to the request for a message
    seconds: int | None = None  # that the attempt may go on, as it says
    gone: bool = False  # out of reach
    left: list[Any] = field(default_factory=list)

    def __call__(self, request: httpx.Request) -> httpx.Response:
        """Answer as a server that takes every report."""
        if self.gone:
            raise httpx.ConnectError("nobody there")
        if request.url.path == "/v1/reports":
            envelope = wire.decode(request.content, Envelope)
            self.left.append(envelope.message)
            body = wire.encode(Receipt.of(envelope.address, repeated=False))
        elif request.url.path == "/v1/inbox" and self.refusal is not None:
            return self.refusal()
        elif request.url.path == "/v1/inbox":
            address = self.address or Address(1, 1, PLACES[type(self.message)])
            body = self.alter(wire.encode(Envelope.to(self.run_id, address, self.message)))
        else:
            body = {"/v1/public": self.public, "/v1/run": self.offer, "/v1/items": self.page}[request.url.path]
        headers = {} if self.seconds is None else {"Hushrec-Attempt-Seconds": str(self.seconds)}
        return httpx.Response(200, stream=httpx.ByteStream(body), headers=headers)


def connected(folder: Path, told: Told) -> Device:
    """A device whose server lies."""
    device = Device(folder, patience=0)
    device._http = httpx.Client(base_url="http://127.0.0.1:1", transport=httpx.MockTransport(told))
    device._http_place = device._store.get_json("server")
    return device


def kept_by(device: Device) -> dict[str, bytes]:
    """All that a step may change: ledger, state, outbox and public table."""
    return {name: device._store.get(name) or b"" for name in ("ledger", "private_state", "outbox", "shown", "public")}
