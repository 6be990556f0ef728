"""Refusals as problem+json: an error code that a device can act on, one sentence, and the HTTP status."""

from typing import Any

from hushrec.errors import RemoteProtocolError

MEDIA_TYPE = "application/problem+json"


class Refusal(RemoteProtocolError):
    """Raised to refuse a request; holds its error code, and extra entries of the reply such as `last_nonce`."""

    def __init__(
        self, message: str, *, code: str, status: int | None = None, retry_after: int | None = None, **extra: Any
    ) -> None:
        super().__init__(message, code=code, status_hint=status)
        self.retry_after = retry_after
        self.extra = extra
