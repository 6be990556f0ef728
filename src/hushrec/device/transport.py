"""Drives a session's jobs over HTTP: blocking for an app, asynchronous for a fleet. Retries with back-off live here."""

import asyncio
import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from hushrec.device.session import Call, Job, Reply, Session
from hushrec.errors import ConnectionFailed, ParameterError
from hushrec.wire import MEDIA_TYPE

LOOPBACK = ("localhost", "127.0.0.1", "::1")
FIRST_DELAY, LONGEST_DELAY = 0.2, 20.0
_RETRIED = (429, 502, 503, 504)


def check_address(server: str, *, insecure: bool = False) -> str:
    """The server's address without a path; plain HTTP is refused beyond this machine unless asked for."""
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ParameterError("the server must be given as https://HOST:PORT.")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK and not insecure:
        raise ParameterError(f"plain HTTP to {parts.hostname} can be read on the way. Use https, or --insecure.")
    return f"{parts.scheme}://{parts.netloc}"


def tls_context(ca: Path | None) -> ssl.SSLContext:
    """Trusts the system's authorities, or only the given certificate."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError):
        raise ParameterError(f"--ca must name a readable PEM certificate, got {ca}.") from None


class _Attempts:
    """Whether and when to try again: delays double, each with a random part, as the server asks if it does."""

    def __init__(self, limit: int) -> None:
        self._left = limit
        self._delay = FIRST_DELAY

    def next_delay(self, asked: str | None = None) -> float | None:
        """Seconds to wait, or None to give up."""
        self._left -= 1
        if self._left <= 0:
            return None
        delay = self._delay * (0.5 + secrets.randbelow(1000) / 1000)
        self._delay = min(2 * self._delay, LONGEST_DELAY)
        if asked is not None and asked.isdigit():
            delay = max(delay, min(float(asked), LONGEST_DELAY))
        return delay


class _Driver:
    """What both drivers share: how a call becomes a request, and what a response means."""

    def __init__(self, session: Session, attempts: int) -> None:
        self._session = session
        self._attempts = attempts

    def _request(self, call: Call) -> dict[str, Any]:
        """Signed anew for every attempt; the body stays the same."""
        request = call.request
        headers = {"Accept": MEDIA_TYPE}
        if request.body:
            headers["Content-Type"] = MEDIA_TYPE
        if call.signed:
            headers["Authorization"] = self._session.sign(request).header()
        return {"method": request.method, "url": request.target, "content": request.body or None, "headers": headers}

    def _reply(self, response: httpx.Response) -> Reply:
        answered = response.headers.get("Hushrec-Answered", "")
        reply = Reply(response.status_code, response.content, int(answered) if answered.isdigit() else None)
        if reply.kind == "stale-nonce" and isinstance(reply.problem.get("last_nonce"), int):
            self._session.raise_nonce(reply.problem["last_nonce"])
        return reply

    @staticmethod
    def _should_retry(reply: Reply) -> bool:
        return reply.status in _RETRIED or reply.kind == "stale-nonce"

    @staticmethod
    def _failure(error: httpx.TransportError) -> ConnectionFailed:
        """What to say if no try succeeds; a certificate that is not trusted is refused at once."""
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            raise ConnectionFailed("the server's certificate is not trusted. Give its authority with --ca.") from None
        return ConnectionFailed(f"the server could not be reached ({type(error).__name__}).")


class BlockingDriver(_Driver):
    """For one device in one process."""

    def __init__(
        self, session: Session, http: httpx.Client, *, attempts: int = 8, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        super().__init__(session, attempts)
        self._http = http
        self._sleep = sleep

    def run(self, job: Job) -> Any:
        """Drives a job to its end, and returns what it returns."""
        try:
            call = next(job)
            while True:
                call = job.send(self._make(call))
        except StopIteration as end:
            return end.value

    def _make(self, call: Call) -> Reply:
        attempts = _Attempts(self._attempts)
        while True:
            asked = None
            try:
                response = self._http.request(**self._request(call))
                reply = self._reply(response)
                if not self._should_retry(reply):
                    return reply
                asked = response.headers.get("Retry-After")
                failure: Exception | None = None
            except httpx.TransportError as error:
                failure = self._failure(error)
            delay = attempts.next_delay(asked)
            if delay is None:
                if failure is None:
                    return reply
                raise failure
            self._sleep(delay)


class AsyncDriver(_Driver):
    """For many devices in one process. The device's own work, with its disk writes, runs in threads."""

    def __init__(self, session: Session, http: httpx.AsyncClient, *, attempts: int = 20) -> None:
        super().__init__(session, attempts)
        self._http = http

    async def run(self, job: Job) -> Any:
        call = await asyncio.to_thread(_advance, job, None)
        while isinstance(call, Call):
            call = await asyncio.to_thread(_advance, job, await self._make(call))
        return call

    async def _make(self, call: Call) -> Reply:
        attempts = _Attempts(self._attempts)
        while True:
            asked = None
            try:
                response = await self._http.request(**self._request(call))
                reply = self._reply(response)
                if not self._should_retry(reply):
                    return reply
                asked = response.headers.get("Retry-After")
                failure: Exception | None = None
            except httpx.TransportError as error:
                failure = self._failure(error)
            delay = attempts.next_delay(asked)
            if delay is None:
                if failure is None:
                    return reply
                raise failure
            await asyncio.sleep(delay)


def _advance(job: Job, reply: Reply | None) -> Any:
    """One step of a job: the next call, or what the job returned."""
    try:
        return next(job) if reply is None else job.send(reply)
    except StopIteration as end:
        return end.value
