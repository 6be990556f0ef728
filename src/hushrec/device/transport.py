"""Drives a session's jobs over HTTP. Retries with back-off live here."""

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


class BlockingDriver:
    """Drives the jobs of one device, one request after the other."""

    def __init__(
        self, session: Session, http: httpx.Client, *, attempts: int = 8, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self.session = session
        self._http = http
        self._attempts = attempts
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
        """The server's reply, tried again where that may help; the last refusal if nothing did."""
        attempts = _Attempts(self._attempts)
        while True:
            asked, failure = None, None
            try:
                response = self._http.request(**self._request(call))
                reply = self._reply(response)
                if reply.status not in _RETRIED and reply.kind != "stale-nonce":
                    return reply
                asked = response.headers.get("Retry-After")
            except httpx.TransportError as error:
                failure = _failure(error)
            delay = attempts.next_delay(asked)
            if delay is None:
                if failure is None:
                    return reply
                raise failure
            self._sleep(delay)

    def _request(self, call: Call) -> dict[str, Any]:
        """Signed anew for every attempt; the body stays the same."""
        request = call.request
        headers = {"Accept": MEDIA_TYPE}
        if request.body:
            headers["Content-Type"] = MEDIA_TYPE
        if call.signed:
            headers["Authorization"] = self.session.sign(request).header()
        return {"method": request.method, "url": request.target, "content": request.body or None, "headers": headers}

    def _reply(self, response: httpx.Response) -> Reply:
        answered = response.headers.get("Hushrec-Answered", "")
        reply = Reply(response.status_code, response.content, int(answered) if answered.isdigit() else None)
        if reply.kind == "stale-nonce" and isinstance(reply.problem.get("last_nonce"), int):
            self.session.raise_nonce(reply.problem["last_nonce"])
        return reply


def _failure(error: httpx.TransportError) -> ConnectionFailed:
    """What to say if no try succeeds; a certificate that is not trusted is refused at once."""
    if "CERTIFICATE_VERIFY_FAILED" in str(error):
        raise ConnectionFailed("the server's certificate is not trusted. Give its authority with --ca.") from None
    return ConnectionFailed(f"the server could not be reached ({type(error).__name__}).")
