"""Refusals as problem+json: an error code that a device can act on, one sentence, and the HTTP status."""

from typing import Any

from hushrec.errors import RemoteProtocolError

MEDIA_TYPE = "application/problem+json"
_SENTENCES = {  # by code, of refusals that are raised in several places
    "busy": "the server is overloaded. Try again in a moment.",
    "bad-signature": "the signature does not match this request and this device's key. Sign it with the current key.",
    "not-active": "this device no longer takes part: it left or was revoked.",
    "reported": "this device has already sent a different report in this phase. The first report counts.",
    "stale-nonce": "the nonce must be greater than every earlier nonce of this device. Sign the request again.",
    "too-many-requests": "this device sends too many requests. Try again later.",
}


class Refusal(RemoteProtocolError):
    """Raised to refuse a request. Holds the error code, and `extra` entries of the reply such as `last_nonce`."""

    def __init__(
        self, message: str, *, code: str, status: int | None = None, retry_after: int | None = None, **extra: Any
    ) -> None:
        super().__init__(message, code=code, status_hint=status)
        self.retry_after = retry_after
        self.extra = extra

    @classmethod
    def of(cls, code: str, **given: Any) -> "Refusal":
        """Return a refusal with this code and its usual sentence; `given` are further arguments of `Refusal`."""
        return cls(_SENTENCES[code], code=code, **given)
