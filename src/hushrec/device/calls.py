"""Requests of a device and replies of a server as dataclasses, and limits on what a device accepts from a server."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hushrec.errors import ConsentNeeded, LocalProtocolError, RemoteProtocolError
from hushrec.messages import LARGEST_TABLE, LastReport
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.signing import Request

_TEMPORARY = (429, 502, 503, 504)
SMALL_REPLY = 200_000  # bytes: an offer, a receipt, a refusal
LARGEST_PAGE = 16 * 2**20  # bytes of one page of the catalogue
MOST_ITEMS = 1_000_000
WIDEST_TABLE = 1_000  # numbers per item; under model mf, a linear system of this size is solved after every rating


@dataclass(frozen=True)
class Reply:
    """A server's reply to a request."""

    status: int
    body: bytes = field(default=b"", repr=False)
    # The following fields are None if the server did not send them.
    last_report: LastReport | None = None  # the last report that the server has received under this device's key
    retry_after: int | None = None  # seconds to wait before the next try, if the server is busy
    attempt_seconds: int | None = None  # seconds to keep an attempt's secrets; 0: no open attempt needs this device

    @property
    def problem(self) -> dict[str, Any]:
        """The problem+json document of a refusal; empty if the reply is not a refusal or has no such document."""
        if self.status < 400:
            return {}
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def code(self) -> str:
        """The error code of a refusal, such as `stale-nonce`; empty if the reply has none."""
        return str(self.problem.get("type", "")).rpartition(":")[2]

    @property
    def is_temporary(self) -> bool:
        """Whether the refusal is temporary: the same request with a new signature may succeed."""
        return self.status in _TEMPORARY or self.code == "stale-nonce"


@dataclass(frozen=True)
class Call:
    """A request that a job yields to its driver, and how the driver must send it."""

    request: Request
    signed: bool = True  # False: anonymous, without the device's id and signature
    largest: int = SMALL_REPLY  # bytes; a longer reply is refused
    wait: float = 0.0  # seconds for which the server may delay its reply (long poll)
    optional: bool = False  # sent once, without retries; the reply has status 0 if the server cannot be reached


Job = Generator[Call, Reply, Any]  # yields requests, receives replies and returns a result


def check_size(protocol: ConfiguredProtocol, terms: Any) -> None:
    """Raise `RemoteProtocolError` if the public table of a run with these terms is too large for a device's memory."""
    n_items, width = terms.n_items, protocol.table_width(terms)
    n_bytes = 4 * n_items * width
    if n_items > MOST_ITEMS or width > WIDEST_TABLE or n_bytes > LARGEST_TABLE:
        raise RemoteProtocolError(
            f"a run must have at most {MOST_ITEMS} items, {WIDEST_TABLE} numbers per item and a public table of"
            f" {LARGEST_TABLE} bytes, got {n_items} items, {width} numbers per item and {n_bytes} bytes. Join another"
            " server."
        )


# Advice for the person, by the code of the refusal.
_ADVICE = {
    "not-enrolled": " If the server has lost its list of devices, use `hushrec device join --again`.",
    "not-active": " Ask the operator. To take part again, enrol again with `hushrec device join --again`.",
    "server-behind": " When the operator has begun the next run, agree to it with `hushrec device join --next`."
    " Recommendations remain available.",
    "not-invited": " Give the invitation with --invitation.",
}


def expect(reply: Reply, status: int) -> bytes:
    """Return the body of the reply if it has this status.

    Raise `ConsentNeeded` if the server refuses because it offers a next run. Raise `RemoteProtocolError` for any other
    reply, with the server's reason and advice for the person.
    """
    if reply.code == "next-run":
        raise ConsentNeeded(
            "the run that this device joined has ended, and the server offers a next run with new terms. To take part"
            " in it, agree with `hushrec device join --next`."
        )
    if reply.status != status:
        raise RemoteProtocolError(
            f"the server refused ({reply.status}): {said(reply)}{_ADVICE.get(reply.code, '')}",
            status_hint=reply.status,
            code=reply.code or "refused",
        )
    return reply.body


def not_joined() -> LocalProtocolError:
    """Return the error to raise when an action needs a server and this device has not joined one."""
    return LocalProtocolError("this device has not joined a server. Join one first.")


def said(reply: Reply) -> str:
    """Return the reason that the server gave for a refusal, shortened and without control characters."""
    return "".join(c for c in str(reply.problem.get("detail", "no reason was given."))[:300] if c.isprintable())
