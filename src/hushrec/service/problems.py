"""Refusals that a device can act on: one sentence, a kind, and the HTTP status, as problem+json."""

from typing import Any

from hushrec.errors import RemoteProtocolError
from hushrec.messages import Problem

MEDIA_TYPE = "application/problem+json"


class Refusal(RemoteProtocolError):
    """The service refuses a request, perhaps with further entries for the code: `last_nonce`, `last_round`."""

    def __init__(
        self, code: str, message: str, *, status: int | None = None, retry_after: int | None = None, **extra: Any
    ) -> None:
        super().__init__(message, code=code, status_hint=status)
        self.retry_after = retry_after
        self.extra = extra


def problem(error: RemoteProtocolError) -> Problem:
    """Return the problem document of a refusal."""
    extra = error.extra if isinstance(error, Refusal) else {}
    return Problem(error.code, error.status_hint, str(error), extra)
