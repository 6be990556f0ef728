"""Drives a session's jobs over HTTP. Retries with back-off live here."""

import contextlib
import re
import secrets
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from hushrec.device.calls import Call, Job, Reply, said
from hushrec.device.session import Session
from hushrec.errors import ConnectionFailed, ParameterError, RemoteProtocolError
from hushrec.signing import header_of
from hushrec.wire import MEDIA_TYPE

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CONNECT_SECONDS = 10.0  # until a server must have taken a connection
SILENT_SECONDS = 20.0  # that a server may take for a reply, beyond the wait it was asked for
PATIENCE_SECONDS = 30.0  # no try begins later than that
FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0  # a server that is back finds its devices again in one round
LONGEST_ASKED = 20.0  # that a server may send a device away for
KEEP_ALIVE_SECONDS = 100.0  # from one round to the next, mostly; less than a server waits
LONGEST_REPLY = 600.0  # seconds
_NUMBER = re.compile(r"[0-9]{1,9}")
_ERRNO = re.compile(r"^\[[^]]*\] *")


def check_address(server: str, *, insecure: bool = False) -> str:
    """The server's address without a path; plain HTTP is refused beyond this machine unless asked for."""
    parts = urlsplit(server)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ParameterError("the server must be given as https://HOST:PORT.")
    if "@" in parts.netloc:
        raise ParameterError("the server's address must hold no user name and no password: devices sign instead.")
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

    def __init__(self, patience: float) -> None:
        self._until = time.monotonic() + patience
        self._delay = FIRST_DELAY

    def next_delay(self, asked: int | None = None) -> float | None:
        """Seconds to wait, or None to give up."""
        delay = self._delay * (0.5 + secrets.randbelow(1000) / 1000)
        self._delay = min(2 * self._delay, LONGEST_DELAY)
        delay = max(delay, min(asked or 0, LONGEST_ASKED))
        return delay if time.monotonic() + delay <= self._until else None


class Stopped(Exception):
    """A job was dropped because its person said stop. What the store holds counts, as after a crash."""


class BlockingDriver:
    """Drives the jobs of one device, one request after the other. With no patience, each is tried once.

    `lock` is held while a job works on the store, and let go while the network is asked.
    """

    def __init__(
        self,
        session: Session,
        http: httpx.Client,
        *,
        patience: float = PATIENCE_SECONDS,
        lock: contextlib.AbstractContextManager[object] | None = None,
    ) -> None:
        self.session = session
        self._http = http
        self._patience = patience
        self._lock = contextlib.nullcontext() if lock is None else lock

    def run(self, job: Job, *, stopped: Callable[[], bool] = lambda: False) -> Any:
        """Drive a job to its end and return what it returns; drop it when `stopped` says so between two requests."""
        reply: Reply | None = None
        while True:
            with self._lock:
                if stopped():
                    job.close()
                    raise Stopped
                try:
                    call = next(job) if reply is None else job.send(reply)
                except StopIteration as end:
                    return end.value
            reply = self._make(call)

    def _make(self, call: Call) -> Reply:
        """Return the server's reply, tried again where that may help."""
        attempts = _Attempts(0 if call.optional else self._patience)
        while True:
            failure = None
            try:
                with self._http.stream(**self._request(call)) as response:
                    reply = self._reply(response, call.largest)
                if not reply.is_passing:
                    return reply
                failure = ConnectionFailed(
                    f"the server cannot answer now ({reply.status}): {said(reply)} Try again later.",
                    code="busy",
                    retry_after=reply.retry_after,
                )
            except httpx.TransportError as error:
                failure = _failure(error, self._timeout(call))
            except RuntimeError:
                if self._http.is_closed:  # by another thread, whose person has ended everything
                    raise Stopped from None
                raise
            delay = attempts.next_delay(failure.retry_after)
            if delay is None:
                if call.optional:
                    return Reply(0)
                raise failure
            time.sleep(delay)

    def _request(self, call: Call) -> dict[str, Any]:
        """Return the arguments of one HTTP request: signed anew for every attempt, with the same body."""
        request = call.request
        headers = {"Accept": MEDIA_TYPE, "Accept-Encoding": "identity"}  # no few bytes that unpack to many
        if request.body:
            headers["Content-Type"] = MEDIA_TYPE
        if call.signed:
            headers["Authorization"] = header_of(self.session.sign(request))
        sent = {"method": request.method, "url": request.target, "content": request.body or None, "headers": headers}
        return sent | {"timeout": self._timeout(call)}

    def _timeout(self, call: Call) -> httpx.Timeout:
        limits = self._http.timeout.as_dict()
        return httpx.Timeout(**{**limits, "read": (limits["read"] or 0.0) + call.wait})

    def _reply(self, response: httpx.Response, largest: int) -> Reply:
        last_round, asked = (_number(response, name) for name in ("Hushrec-Last-Round", "Retry-After"))
        reply = Reply(response.status_code, _read(response, largest), last_round, asked)
        if reply.code == "stale-nonce" and isinstance(reply.problem.get("last_nonce"), int):
            self.session.raise_nonce(reply.problem["last_nonce"])
        return reply


def _number(response: httpx.Response, name: str) -> int | None:
    """A header that is a whole number; None for any other."""
    value = response.headers.get(name, "")
    return int(value) if _NUMBER.fullmatch(value) else None


def _read(response: httpx.Response, largest: int) -> bytes:
    """The body as it came; a server that sends more than the device asked for, or never ends, is refused."""
    until = time.monotonic() + LONGEST_REPLY
    chunks, length = [], 0
    for chunk in response.iter_raw():
        length += len(chunk)
        if length > largest:
            raise RemoteProtocolError(f"the server's reply is longer than the {largest} bytes that this device takes.")
        if time.monotonic() > until:
            raise ConnectionFailed("the server's reply did not end in time.", code="silent")
        chunks.append(chunk)
    return b"".join(chunks)


def open_http(address: str, context: ssl.SSLContext, *, seconds: float) -> httpx.Client:
    """Return connections to a server; unencrypted ones ignore the proxies that the environment names."""
    kept = httpx.Limits(keepalive_expiry=KEEP_ALIVE_SECONDS)
    encrypted = address.startswith("https:")
    limits = httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
    return httpx.Client(base_url=address, verify=context, timeout=limits, limits=kept, trust_env=encrypted)


_UNTRUSTED = (
    "certificate-untrusted",
    "the server's certificate is signed by nobody whom this device trusts. Give the right one with --ca.",
)
_WRONG_NAME = (
    "certificate-name",
    "the server's certificate is for another name. Use the address that it names, or ask the operator.",
)
_CERTIFICATE_REASONS = {  # by OpenSSL's verify codes
    9: ("certificate-early", "the server's certificate is not valid yet. Check this device's clock."),
    10: (
        "certificate-expired",
        "the server's certificate has expired, or this device's clock is wrong. Ask the operator to renew it.",
    ),
    62: _WRONG_NAME,
    64: _WRONG_NAME,
}


def _certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return the certificate error that a failed connection came from; None for another failure."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _failure(error: httpx.TransportError, limits: httpx.Timeout) -> ConnectionFailed:
    """Return what to say if no try succeeds; raise it at once where a certificate is wrong: no try helps then."""
    if isinstance(error, httpx.ConnectTimeout):
        return ConnectionFailed(f"the server could not be reached within {limits.connect:g} s. Is its address right?")
    if isinstance(error, httpx.TimeoutException):
        return ConnectionFailed(
            f"the server took the connection, and then said nothing for {limits.read:g} s.", code="silent"
        )
    refused = _certificate_error(error)
    if refused is not None:
        code, sentence = _CERTIFICATE_REASONS.get(refused.verify_code, _UNTRUSTED)
        raise ConnectionFailed(sentence, code=code) from None
    reason = _ERRNO.sub("", str(error)) or type(error).__name__
    if isinstance(error, httpx.RemoteProtocolError):
        return ConnectionFailed(
            f"what answers at this address speaks no HTTP ({reason}). Does the address begin with https?",
            code="not-http",
        )
    return ConnectionFailed(f"the server could not be reached ({reason}). Is its address right, and does it run?")
