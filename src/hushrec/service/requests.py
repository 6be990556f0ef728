"""Helpers of all routes: limits on request bodies, authentication, back-pressure, and large replies."""

import asyncio
import hmac
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

from fastapi import Depends, Request, Response
from fastapi.security import HTTPAuthorizationCredentials
from starlette.types import Receive, Scope, Send

from hushrec import signing, wire
from hushrec.messages import Credentials
from hushrec.service.description import ADMIN
from hushrec.service.problems import Refusal
from hushrec.service.registry import Device, digest_of
from hushrec.service.rounds import Rounds

MOST_PER_DEVICE = 4  # bodies of one device that are received at once
_CHUNK = 128 * 1024  # bytes
_AT_ONCE = 0.0  # a time of the event loop that has passed


class Service:
    """The objects and limits that the routes share."""

    def __init__(self, rounds: Rounds) -> None:
        self.rounds = rounds
        self.limits = rounds.settings.limits
        self.downloads = asyncio.Semaphore(self.limits.waiting_downloads)
        self._public_downloads = asyncio.Semaphore(self.limits.waiting_downloads)
        self._checking: asyncio.Future[None] | None = None
        self._sending = 0  # number of reports being received or stored
        self._bytes = 0  # total size of these reports
        self._arriving: dict[str, list[asyncio.Timeout]] = {}  # time limits of bodies, the oldest first, by device

    async def body(self, request: Request, largest: int, device: str = "") -> bytes:
        """Return the request's body; refuse it as soon as it exceeds `largest` bytes or the time limit.

        `device` is the id that the request names, if any. At most `MOST_PER_DEVICE` bodies of one device are received
        at once (see `_count_body`).
        """
        declared = request.headers.get("content-length", "0")
        if not declared.isdecimal() or int(declared) > largest:
            raise _too_large(largest)
        chunks, length = [], 0
        limit = asyncio.timeout(self.limits.body_seconds)
        try:
            async with limit:
                with self._count_body(device, limit):
                    async for chunk in request.stream():
                        length += len(chunk)
                        if length > largest:
                            raise _too_large(largest)
                        chunks.append(chunk)
        except TimeoutError:
            if limit.when() == _AT_ONCE:
                raise Refusal(
                    f"a device must send at most {MOST_PER_DEVICE} requests at once. Try again.",
                    code="too-many-requests",
                    retry_after=1,
                ) from None
            raise Refusal(
                f"the body of a request must arrive within {self.limits.body_seconds:g} seconds. Try again.",
                code="too-slow",
            ) from None
        return b"".join(chunks)

    @contextmanager
    def _count_body(self, device: str, limit: asyncio.Timeout) -> Iterator[None]:
        """Count a body as being received for `device` while this context is open; end its oldest body if it has many.

        A signature covers the body, so it cannot be checked before. Until then, anybody who knows the device's id may
        have sent the request. By sending slowly they cannot keep out the body of the device itself, which comes last.
        """
        own = self._arriving.setdefault(device, [])
        own.append(limit)
        if device and len(own) > MOST_PER_DEVICE and not (oldest := own.pop(0)).expired():
            oldest.reschedule(_AT_ONCE)
        try:
            yield
        finally:
            if limit in own:
                own.remove(limit)
            if not own and self._arriving.get(device) is own:
                del self._arriving[device]

    async def signed(self, request: Request, largest: int) -> tuple[Device, Credentials, signing.Request]:
        """Authenticate a request whose body has at most `largest` bytes; raise `Refusal` if it is not valid.

        Return the request's device, its credentials, and its signed parts: method, target and body.
        """
        credentials = signing.parse_header(request.headers.get("authorization"))
        if largest:  # the body of a device that does not take part is not read
            await self.rounds.known(credentials.device)
        body = await self.body(request, largest, credentials.device)
        sent = signing.Request(request.method, target_of(request), body)
        return await self.rounds.authenticate(credentials, sent), credentials, sent

    @contextmanager
    def reporting(self, request: Request) -> Iterator[None]:
        """Count a report as being received while this context is open (back-pressure).

        Refuse the report, before its body is read, if too many reports are being received or stored, or if the reports
        being received have too many bytes.
        """
        declared = request.headers.get("content-length", "")
        size = int(declared) if declared.isdecimal() else self.rounds.server.side.largest_report
        full = max(self._sending, self.rounds.storage.waiting) >= self.limits.waiting_reports
        if full or (self._bytes and self._bytes + size > self.limits.waiting_megabytes * 10**6):
            raise Refusal.of("busy", retry_after=1)
        self._sending += 1
        self._bytes += size
        try:
            yield
        finally:
            self._bytes -= size
            self._sending -= 1

    async def check_health(self) -> None:
        """Raise `StorageError` if the database does not answer or a write has failed since the last check.

        Concurrent checks share one query, because each query delays reports.
        """
        if self._checking is None or self._checking.done():
            self._checking = asyncio.ensure_future(self.rounds.storage.check())
        await asyncio.shield(self._checking)

    def public_downloads(self) -> asyncio.Semaphore:
        """Return the semaphore that limits concurrent downloads without a signature; refuse if the limit is reached."""
        if self._public_downloads.locked():
            raise Refusal.of("busy", retry_after=1)
        return self._public_downloads

    async def check_admin(self, given: Annotated[HTTPAuthorizationCredentials | None, Depends(ADMIN)]) -> None:
        """Refuse a request that does not carry the admin token; the comparison takes constant time."""
        if given is None or not hmac.compare_digest(digest_of(given.credentials), self.rounds.admin_digest):
            raise Refusal(
                "this request needs the header 'Authorization: Bearer TOKEN' with the admin token.", code="not-admin"
            )


class Download(Response):
    """A large response, sent in chunks. A semaphore limits concurrent downloads, so that memory stays bounded."""

    def __init__(self, room: asyncio.Semaphore, content: bytes, headers: dict[str, str]) -> None:
        super().__init__(status_code=200, headers=headers, media_type=wire.MEDIA_TYPE)
        self.headers["content-length"] = str(len(content))
        self._room = room
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._room:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for start in range(0, len(self._content), _CHUNK):
                piece = self._content[start : start + _CHUNK]
                more = start + _CHUNK < len(self._content)
                await send({"type": "http.response.body", "body": piece, "more_body": more})


def target_of(request: Request) -> str:
    """Return the request's path and query exactly as received."""
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + (b"?" + query if query else b"")).decode("latin-1")


def _too_large(largest: int) -> Refusal:
    return Refusal(f"the body of this request must be at most {largest} bytes long.", code="too-large")
