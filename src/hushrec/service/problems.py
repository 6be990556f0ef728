"""Refusals that a device can act on: one sentence, a kind, and the HTTP status, as problem+json."""

from typing import Any

from hushrec.errors import RemoteProtocolError
from hushrec.messages import Problem

MEDIA_TYPE = "application/problem+json"


class Refusal(RemoteProtocolError):
    """The service refuses a request. `kind` is for programs, the message for people."""

    def __init__(self, kind: str, message: str, *, status: int, retry_after: int | None = None, **extra: Any) -> None:
        super().__init__(message, status_hint=status, code=kind)
        self.retry_after = retry_after
        self.extra = extra


def problem(error: RemoteProtocolError) -> Problem:
    """Return the refusal that says so."""
    extra = error.extra if isinstance(error, Refusal) else {}
    return Problem(error.code, error.status_hint, str(error), extra)
