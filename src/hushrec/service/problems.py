"""Refusals that a device can act on: one sentence, a kind, and the HTTP status, as problem+json."""

from typing import Any

from hushrec.errors import RemoteProtocolError

MEDIA_TYPE = "application/problem+json"
_PREFIX = "urn:hushrec:problem:"


class Refusal(RemoteProtocolError):
    """The service refuses a request. `kind` is for programs, the message for people."""

    def __init__(self, kind: str, message: str, *, status: int, retry_after: int | None = None, **extra: Any) -> None:
        super().__init__(message, status_hint=status)
        self.kind = kind
        self.retry_after = retry_after
        self.extra = extra


def problem(error: RemoteProtocolError) -> dict[str, Any]:
    """The body of a refusal (RFC 9457)."""
    kind = error.kind if isinstance(error, Refusal) else "malformed"
    extra = error.extra if isinstance(error, Refusal) else {}
    return {"type": _PREFIX + kind, "title": kind.replace("-", " "), "status": error.status_hint} | {
        "detail": str(error),
        **extra,
    }
