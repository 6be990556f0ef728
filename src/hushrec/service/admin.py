"""The admin API: JSON routes that need the admin token as a bearer token."""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import FastAPI, Path, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hushrec import wire
from hushrec.messages import PROTOCOL_VERSION
from hushrec.service.description import ADMIN, BINARY, problems
from hushrec.service.problems import Refusal
from hushrec.service.requests import Service
from hushrec.service.rounds import Rounds

LARGEST_ITEM_BODY = 10_000_000  # bytes


class NewItems(BaseModel):
    """Items to append to the catalogue."""

    model_config = ConfigDict(extra="forbid")

    ids: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(min_length=1, max_length=100_000)
    titles: list[Annotated[str, Field(max_length=500)]] | None = None


TAKES_ITEMS = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": NewItems.model_json_schema()}}}
}
COMMON: dict[str, Any] = {"tags": ["admin"], "openapi_extra": ADMIN}  # arguments of every route in this module


def add_admin(app: FastAPI, service: Service) -> None:
    """Add the admin routes to the application."""
    _add_run(app, service)
    _add_people_and_items(app, service)


def _add_run(app: FastAPI, service: Service) -> None:
    rounds = service.rounds

    @app.get("/v1/admin/status", responses=problems(401), **COMMON)
    async def status(request: Request) -> dict[str, Any]:
        """Return the current round, its state, and the numbers of reports, devices and items."""
        service.check_admin(request)
        return _status(rounds)

    @app.post("/v1/admin/{action}", responses=problems(401, 409), **COMMON)
    async def act(request: Request, action: Literal["start", "pause", "close"]) -> dict[str, Any]:
        """Start, pause or close rounds; return the status afterwards.

        `start` ends a pause and opens a round if none is open. `pause` keeps further rounds from opening. `close`
        closes the open phase now, even if reports are missing.
        """
        service.check_admin(request)
        if action == "start":
            await rounds.start()
        elif action == "pause":
            await rounds.set_paused(True)
        else:
            await rounds.close_now()
        return _status(rounds)

    @app.post("/v1/admin/extend/{more}", responses=problems(401, 409), **COMMON)
    async def extend(request: Request, more: Annotated[int, Path(ge=1, le=10_000)]) -> dict[str, Any]:
        """Extend a finished run by `more` rounds. A device takes part in them only if its person agrees."""
        service.check_admin(request)
        await rounds.extend(more)
        return _status(rounds)

    @app.get("/v1/admin/public", responses={200: {"content": BINARY}, **problems(401)}, **COMMON)
    async def export(request: Request) -> Response:
        """Return the public table as MessagePack: `arrays` maps the name of each array to its `shape` and `float64`.

        `float64` holds the values as little-endian bytes in row-major order.
        """
        service.check_admin(request)
        arrays = {
            name: {"shape": array.shape, "float64": array.astype("<f8").tobytes()}
            for name, array in rounds.public.items()
        }
        body = {"version": PROTOCOL_VERSION, "round_number": rounds.round_number, "arrays": arrays}
        return Response(msgspec.msgpack.encode(body), media_type=wire.MEDIA_TYPE)


def _add_people_and_items(app: FastAPI, service: Service) -> None:
    rounds = service.rounds

    @app.post("/v1/admin/invitations/{count}", responses=problems(401), **COMMON)
    async def invite(request: Request, count: Annotated[int, Path(ge=1, le=10_000)]) -> dict[str, list[str]]:
        """Create `count` invitation codes, each for one device. The server stores only hashes of the codes."""
        service.check_admin(request)
        return {"invitations": await rounds.registry.invite(count)}

    @app.post(
        "/v1/admin/catalogue/items",
        responses=problems(401, 408, 413),
        **COMMON | {"openapi_extra": ADMIN | TAKES_ITEMS},
    )
    async def add_items(request: Request) -> dict[str, int]:
        """Append items to the catalogue from the next round on. Items that the catalogue already has do not change."""
        service.check_admin(request)  # before the long body is read
        new = _new_items(await service.body(request, LARGEST_ITEM_BODY))
        titles = new.ids if new.titles is None else new.titles
        if len(titles) != len(new.ids) or len(set(new.ids)) != len(new.ids):
            raise Refusal("ids must be unique, and titles must hold one title per id or be left out.", code="bad-items")
        return {"added": await rounds.add_items(new.ids, titles)}

    @app.get("/v1/admin/devices", responses=problems(401), **COMMON)
    async def listed(request: Request) -> dict[str, list[dict[str, Any]]]:
        """List the devices: id, state, first and last round, time last seen, and number of rounds missed."""
        service.check_admin(request)
        return {"devices": rounds.registry.listed(is_open=rounds.is_open)}

    @app.delete("/v1/admin/devices/{device}", status_code=204, responses=problems(401, 404), **COMMON)
    async def revoke(request: Request, device: Annotated[str, Path(max_length=64)]) -> Response:
        """Revoke a device; its report of the open phase is deleted."""
        service.check_admin(request)
        await rounds.revoke(device)
        return Response(status_code=204)


def _status(rounds: Rounds) -> dict[str, Any]:
    return {
        "round": rounds.round_number,
        "open": rounds.is_open,
        "paused": rounds.is_paused,
        "over": rounds.is_over,
        "reports": rounds.n_reports,
        "devices": rounds.registry.count_active(),
        "items": rounds.offer.terms.n_items,
    }


def _new_items(body: bytes) -> NewItems:
    try:
        return NewItems.model_validate_json(body)
    except ValidationError as error:
        raise RequestValidationError(error.errors(include_input=False, include_context=False)) from None
