"""A driver that sends the requests of a session's jobs over HTTP, with retries and exponential back-off."""

import contextlib
import re
import secrets
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from hushrec.device.calls import Call, Job, Reply, said
from hushrec.device.session import Session
from hushrec.errors import ConnectionFailed, ParameterError, RemoteProtocolError
from hushrec.messages import parse_last_report
from hushrec.signing import header_of
from hushrec.wire import MEDIA_TYPE

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CONNECT_SECONDS = 10.0  # timeout for a connection
SILENT_SECONDS = 20.0  # timeout for a reply, beyond the wait that the server was asked for
PATIENCE_SECONDS = 30.0  # for which a failed request is retried
FIRST_DELAY, LONGEST_DELAY = 0.2, 5.0  # seconds between retries; short enough to reconnect within one round
LONGEST_ASKED = 20.0  # seconds; a longer Retry-After of the server counts as this
KEEP_ALIVE_SECONDS = 100.0  # usually lasts from one round to the next; shorter than the server's timeout
LONGEST_REPLY = 600.0  # seconds to receive a whole reply
_NUMBER = re.compile(r"[0-9]{1,9}")
_ERRNO = re.compile(r"^\[[^]]*\] *")


def check_address(server: str, *, insecure: bool = False) -> str:
    """Return the server's address without a final slash; raise `ParameterError` if it is invalid.

    Plain HTTP to another machine is valid only with `insecure`.
    """
    invalid = ParameterError("server must be an address of the form https://HOST:PORT. Correct the address.")
    try:
        parts = urlsplit(server)
        is_complete = httpx.URL(server).host.encode("idna") and parts.port != 0  # each step raises for some addresses
    except (ValueError, httpx.InvalidURL):
        raise invalid from None
    if not is_complete or parts.scheme not in ("http", "https") or parts.path.strip("/") or parts.query:
        raise invalid
    if "@" in parts.netloc:
        raise ParameterError("server must not contain a user name or a password, which devices never send. Remove it.")
    if parts.scheme == "http" and parts.hostname not in LOOPBACK and not insecure:
        raise ParameterError(
            f"server must use https, because plain HTTP to {parts.hostname} is not encrypted. Use https, or --insecure."
        )
    return f"{parts.scheme}://{parts.netloc}"


def tls_context(ca: str | Path | None) -> ssl.SSLContext:
    """Return a TLS context that trusts the certificates in the file `ca` only, or the system's authorities if None."""
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError):
        raise ParameterError(f"--ca must name a readable PEM certificate, got {ca}. Check the file.") from None


class _Attempts:
    """The delays between the retries of one request: random, with a mean that doubles up to `LONGEST_DELAY`.

    A delay is not shorter than the server's Retry-After, of which at most `LONGEST_ASKED` seconds count. No retry is
    later than `patience` seconds after this object was made.
    """

    def __init__(self, patience: float) -> None:
        self._until = time.monotonic() + patience
        self._delay = FIRST_DELAY

    def next_delay(self, asked: int | None = None) -> float | None:
        """Return the seconds until the next retry; None if no time is left. `asked` is the server's Retry-After."""
        delay = self._delay * (0.5 + secrets.randbelow(1000) / 1000)
        self._delay = min(2 * self._delay, LONGEST_DELAY)
        delay = max(delay, min(asked or 0, LONGEST_ASKED))
        return delay if time.monotonic() + delay <= self._until else None


class Stopped(Exception):
    """Raised when a job is stopped between two requests. The store is consistent, as after a crash."""


class BlockingDriver:
    """A driver that runs the jobs of one device over HTTP, one request at a time.

    A failed request is retried for `patience` seconds; 0 means no retry. `lock` is held while a job uses the store, and
    released during requests.
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
        self.http = http
        self._patience = patience
        self._lock = lock or contextlib.nullcontext()

    def run(self, job: Job, *, stopped: Callable[[], bool] = lambda: False) -> Any:
        """Run a job and return its result.

        Raise `Stopped` if `stopped` returns true between two requests, or if the device is closed.
        """
        reply: Reply | None = None
        while True:
            with self._lock:
                if stopped() or self.http.is_closed:
                    job.close()
                    raise Stopped
                try:
                    call = next(job) if reply is None else job.send(reply)
                except StopIteration as end:
                    return end.value
            reply = self._make(call)

    def _make(self, call: Call) -> Reply:
        """Return the server's reply; retry after connection failures and temporary refusals."""
        attempts = _Attempts(0 if call.optional else self._patience)
        while True:
            try:
                with self.http.stream(**self._request(call)) as response:
                    reply = self._reply(response, call.largest)
                if not reply.is_temporary:
                    return reply
                failure = ConnectionFailed(
                    f"the server cannot handle the request now ({reply.status}): {said(reply)} Try again later.",
                    code="busy",
                    retry_after=reply.retry_after,
                )
            except httpx.TransportError as error:
                failure = _failure(error, self._timeout(call))
            except RuntimeError:
                if self.http.is_closed:  # by another thread, because the device was closed
                    raise Stopped from None
                raise
            delay = attempts.next_delay(failure.retry_after)
            if delay is None:
                if call.optional:
                    return Reply(0)
                raise failure
            time.sleep(delay)

    def _request(self, call: Call) -> dict[str, Any]:
        """Return the arguments of `httpx.Client.stream`. Every try of a call has a new signature and the same body."""
        request = call.request
        headers = {"Accept": MEDIA_TYPE, "Accept-Encoding": "identity"}  # no decompression bombs
        if request.body:
            headers["Content-Type"] = MEDIA_TYPE
        if call.signed:
            headers["Authorization"] = header_of(self.session.sign(request))
        sent = {"method": request.method, "url": request.target, "content": request.body or None, "headers": headers}
        return sent | {"timeout": self._timeout(call)}

    def _timeout(self, call: Call) -> httpx.Timeout:
        limits = self.http.timeout.as_dict()
        return httpx.Timeout(**{**limits, "read": (limits["read"] or 0.0) + call.wait})

    def _reply(self, response: httpx.Response, largest: int) -> Reply:
        numbers = [_number(response, name) for name in ("Retry-After", "Hushrec-Attempt-Seconds")]
        reply = Reply(response.status_code, _read(response, largest), None, *numbers)
        last = response.headers.get("Hushrec-Last-Report") or str(reply.problem.get("last_report"))
        reply = replace(reply, last_report=parse_last_report(last))
        if reply.code == "stale-nonce" and isinstance(reply.problem.get("last_nonce"), int):
            self.session.raise_nonce(reply.problem["last_nonce"])
        return reply


def _number(response: httpx.Response, name: str) -> int | None:
    """Return the value of a header that is a whole number, else None."""
    value = response.headers.get(name, "")
    return int(value) if _NUMBER.fullmatch(value) else None


def _read(response: httpx.Response, largest: int) -> bytes:
    """Return the reply's body; raise if it is longer than `largest` bytes or takes too long to arrive."""
    until = time.monotonic() + LONGEST_REPLY
    chunks, length = [], 0
    for chunk in response.iter_raw():
        length += len(chunk)
        if length > largest:
            raise RemoteProtocolError(f"the server's reply must be at most {largest} bytes long. Ask the operator.")
        if time.monotonic() > until:
            raise ConnectionFailed(
                f"the server's reply must arrive within {LONGEST_REPLY:g} s, but took longer. Try again later.",
                code="silent",
            )
        chunks.append(chunk)
    return b"".join(chunks)


def open_http(address: str, context: ssl.SSLContext, *, seconds: float) -> httpx.Client:
    """Return an HTTP client for a server, which uses the environment's proxies for https only.

    A request fails if nothing arrives for `seconds`, or if connecting takes longer than `seconds` or `CONNECT_SECONDS`.
    """
    kept = httpx.Limits(keepalive_expiry=KEEP_ALIVE_SECONDS)
    encrypted = address.startswith("https:")
    limits = httpx.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
    return httpx.Client(base_url=address, verify=context, timeout=limits, limits=kept, trust_env=encrypted)


_UNTRUSTED = (
    "certificate-untrusted",
    "the server's certificate is not signed by an authority that this device trusts. Give the right one with --ca.",
)
_WRONG_NAME = (
    "certificate-name",
    "the server's certificate is for another host name. Use the address in the certificate, or ask the operator.",
)
_CERTIFICATE_REASONS = {  # code and message of the error, by OpenSSL's code of the failed check
    9: ("certificate-early", "the server's certificate is not valid yet. Check this device's clock."),
    10: (
        "certificate-expired",
        "the server's certificate has expired, or this device's clock is wrong. Ask the operator to renew it.",
    ),
    62: _WRONG_NAME,
    64: _WRONG_NAME,
}


def _certificate_error(error: BaseException | None) -> ssl.SSLCertVerificationError | None:
    """Return the certificate error in an exception's chain of causes, or None."""
    while error is not None:
        if isinstance(error, ssl.SSLCertVerificationError):
            return error
        error = error.__cause__ or error.__context__
    return None


def _failure(error: httpx.TransportError, limits: httpx.Timeout) -> ConnectionFailed:
    """Return the error to raise if no retry succeeds. If the certificate is refused, raise the error at once."""
    if isinstance(error, httpx.ConnectTimeout):
        return ConnectionFailed(f"the server could not be reached within {limits.connect:g} s. Check its address.")
    if isinstance(error, httpx.TimeoutException):
        return ConnectionFailed(
            f"the server accepted the connection, but did not reply within {limits.read:g} s. Try again later.",
            code="silent",
        )
    refused = _certificate_error(error)
    if refused is not None:
        code, sentence = _CERTIFICATE_REASONS.get(refused.verify_code, _UNTRUSTED)
        raise ConnectionFailed(sentence, code=code) from None
    reason = _ERRNO.sub("", str(error)).rstrip(".") or type(error).__name__
    if isinstance(error, httpx.RemoteProtocolError):
        return ConnectionFailed(
            f"the server ended the connection without a complete HTTP reply ({reason}). Try again later, or check"
            " whether the address must begin with https.",
            code="not-http",
        )
    return ConnectionFailed(
        f"the server could not be reached ({reason}). Check its address, and whether the server is running."
    )
