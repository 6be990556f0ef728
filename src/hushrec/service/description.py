"""Additions to the OpenAPI description: request signatures, binary bodies, and the form of refusals."""

from typing import Any

from fastapi import FastAPI

from hushrec import wire
from hushrec.service.problems import MEDIA_TYPE

BINARY = {wire.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI responses of a route that may refuse with these statuses, with 422 or with 503."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": "Refused.", "content": content} for status in (*statuses, 422, 503)}


def takes_binary(description: str) -> dict[str, Any]:
    """Return the OpenAPI entry for a binary request body."""
    return {"requestBody": {"required": True, "description": description, "content": BINARY}}


SIGNED: dict[str, Any] = {"security": [{"device": []}]}
ADMIN: dict[str, Any] = {"security": [{"admin": []}]}


def describe(app: FastAPI) -> None:
    """Add the security schemes and the schema of refusals to the framework's OpenAPI description."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            components = make().setdefault("components", {})
            components["securitySchemes"] = {
                "device": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "Hushrec DEVICE:NONCE:SIGNATURE, Ed25519; see docs/wire.md.",
                },
                "admin": {"type": "http", "scheme": "bearer"},
            }
            names = {"type": "string", "title": "string", "status": "integer", "detail": "string"}
            properties = {name: {"type": kind} for name, kind in names.items()}
            components.setdefault("schemas", {})["Problem"] = {
                "type": "object",
                "required": list(names),
                "properties": properties,
            }
        assert app.openapi_schema is not None
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]
