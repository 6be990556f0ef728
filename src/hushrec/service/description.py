"""Parts of the OpenAPI description that several routes share: authentication, binary bodies, and refusals."""

from typing import Any

from fastapi.security import APIKeyHeader, HTTPBearer

from hushrec import wire
from hushrec.service.problems import MEDIA_TYPE

SIGNED = APIKeyHeader(
    name="Authorization",
    scheme_name="device",
    description="Hushrec DEVICE:NONCE:SIGNATURE, Ed25519; see docs/wire.md.",
    auto_error=False,
)
ADMIN = HTTPBearer(scheme_name="admin", auto_error=False)
BINARY = {wire.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}
_ENTRIES = {"type": "string", "title": "string", "status": "integer", "detail": "string"}
_PROBLEM = {
    "type": "object",
    "required": list(_ENTRIES),
    "properties": {name: {"type": kind} for name, kind in _ENTRIES.items()},
}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a route that may refuse a request with 422, 503 or one of these statuses."""
    content = {MEDIA_TYPE: {"schema": _PROBLEM}}
    return {status: {"description": "Refused.", "content": content} for status in (*statuses, 422, 503)}


def takes_binary(description: str) -> dict[str, Any]:
    """Return the OpenAPI entry of a route with a binary request body; `description` says what the body holds."""
    return {"requestBody": {"required": True, "description": description, "content": BINARY}}
