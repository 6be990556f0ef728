"""One request of a device and the server's reply to it, as values; and how much of a server's words a device takes."""

from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from hushrec.errors import ConsentNeeded, RemoteProtocolError
from hushrec.messages import LARGEST_TABLE, Offer
from hushrec.signing import Request

_PASSING = (429, 502, 503, 504)
SMALL_REPLY = 200_000  # bytes: an offer, a receipt, a refusal
LARGEST_PAGE = 16 * 2**20  # of the catalogue
MOST_ITEMS = 1_000_000
MOST_FACTORS = 1_000  # a system of equations of this size is solved for every change of ratings


@dataclass(frozen=True)
class Reply:
    """What a server said."""

    status: int
    body: bytes = field(default=b"", repr=False)
    last_round: int | None = None  # the header Hushrec-Last-Round
    retry_after: int | None = None  # seconds, the header Retry-After

    @property
    def problem(self) -> dict[str, Any]:
        """Return the body of a refusal; empty where it is not one."""
        if self.status < 400:
            return {}
        try:
            found = msgspec.json.decode(self.body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    @property
    def code(self) -> str:
        return str(self.problem.get("type", "")).rpartition(":")[2]

    @property
    def is_passing(self) -> bool:
        """Whether the same request, signed anew, may find the server in a better state."""
        return self.status in _PASSING or self.code == "stale-nonce"


@dataclass(frozen=True)
class Call:
    """One request to make; `signed` unless the server need not know who asks. A longer reply is not taken."""

    request: Request
    signed: bool = True
    largest: int = SMALL_REPLY
    wait: float = 0.0  # seconds that the server is asked to wait with its reply
    optional: bool = False  # tried once; where nothing comes of it the reply has status 0


Job = Generator[Call, Reply, Any]


def check_size(offer: Offer) -> None:
    """Refuse a reply that is longer than what was asked for, so that no server can fill a device's memory."""
    n_items = offer.terms.n_items
    n_factors = max(int(offer.options.get("factors", 1)), getattr(offer.terms, "n_factors", 1))
    numbers = n_items * n_factors  # of a table with one vector per item
    if n_items > MOST_ITEMS or n_factors > MOST_FACTORS or numbers * 4 > LARGEST_TABLE:
        raise RemoteProtocolError(
            f"a run must have at most {MOST_ITEMS} items, {MOST_FACTORS} factors and {LARGEST_TABLE} bytes of item"
            f" vectors for this device, got {n_items} items of {n_factors} factors."
        )


# What a person can do about a refusal, by its code.
_ADVICE = {
    "not-enrolled": " It may have lost its list of devices. Enrol again with `hushrec device join --again`.",
    "not-active": " Ask its operator. To come back, enrol again with `hushrec device join --again`.",
    "server-behind": " Wait until its operator begins a next run, and agree to it with `hushrec device join --next`."
    " Recommendations stay.",
    "not-invited": " Ask its operator for an invitation, and give it with --invitation.",
}


def expect(reply: Reply, status: int) -> bytes:
    """Return the body of a reply with the wanted status, or raise the server's refusal with advice."""
    if reply.code == "next-run":
        raise ConsentNeeded(
            "the run that this device joined has ended, and its server offers a next one, with terms of its own. To"
            " take part in it, agree with `hushrec device join --next`."
        )
    if reply.status != status:
        raise RemoteProtocolError(
            f"the server refused ({reply.status}): {said(reply)}{_ADVICE.get(reply.code, '')}",
            status_hint=reply.status,
            code=reply.code or "refused",
        )
    return reply.body


def said(reply: Reply) -> str:
    """Return the sentence of a refusal, cut and made harmless for a screen."""
    return "".join(c for c in str(reply.problem.get("detail", "no reason was given."))[:300] if c.isprintable())
