"""The admin API: routes that need the admin token as a bearer token.

All replies are JSON, except the public table, which is MessagePack.
"""

from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hushrec import wire
from hushrec.messages import PROTOCOL_VERSION
from hushrec.service.description import BINARY, problems
from hushrec.service.history import read_rounds
from hushrec.service.problems import Refusal
from hushrec.service.requests import Service
from hushrec.service.rounds import Rounds
from hushrec.service.storage import Storage

LARGEST_ITEM_BODY = 10_000_000  # bytes


class NewItems(BaseModel):
    """Items to append to the catalogue."""

    model_config = ConfigDict(extra="forbid")

    ids: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(min_length=1, max_length=100_000)
    titles: list[Annotated[str, Field(max_length=500)]] | None = None


_TAKES_ITEMS = {
    "requestBody": {"required": True, "content": {"application/json": {"schema": NewItems.model_json_schema()}}}
}


def add_admin(app: FastAPI, service: Service) -> None:
    """Add the admin routes to the application."""
    router = APIRouter(
        prefix="/v1/admin", tags=["admin"], dependencies=[Depends(service.check_admin)], responses=problems(401)
    )
    _add_run(router, service.rounds)
    _add_history(router, service.rounds.storage)
    _add_people_and_items(router, service)
    app.include_router(router)


def _add_run(router: APIRouter, rounds: Rounds) -> None:
    @router.get("/status")
    async def status() -> dict[str, Any]:
        """Return the current round, its state, and the numbers of reports, devices and items."""
        return _status(rounds)

    @router.post("/{action}", responses=problems(409))
    async def act(action: Literal["start", "pause", "close"]) -> dict[str, Any]:
        """Start or pause the run, or close the open phase; return the status afterwards.

        `start` ends a pause, and opens a round or the attempt that the pause withheld. `pause` keeps further rounds and
        attempts from opening; an open attempt continues. `close` closes the open phase now, even if reports are
        missing.
        """
        if action == "start":
            await rounds.start()
        elif action == "pause":
            await rounds.set_paused(True)
        else:
            await rounds.close_now()
        return _status(rounds)

    @router.post("/extend/{more}", responses=problems(409))
    async def extend(more: Annotated[int, Path(ge=1, le=10_000)]) -> dict[str, Any]:
        """Extend a finished run by `more` rounds, in which a device takes part only if its person agrees."""
        await rounds.extend(more)
        return _status(rounds)

    @router.get("/public", responses={200: {"content": BINARY}})
    async def export() -> Response:
        """Return the public table as MessagePack: `arrays` maps the name of each array to its `shape` and `float64`.

        `float64` holds the values as little-endian bytes in row-major order.
        """
        arrays = {
            name: {"shape": array.shape, "float64": array.astype("<f8").tobytes()}
            for name, array in rounds.public.items()
        }
        body = {"version": PROTOCOL_VERSION, "round_number": rounds.n_ended, "arrays": arrays}
        return Response(msgspec.msgpack.encode(body), media_type=wire.MEDIA_TYPE)


def _add_history(router: APIRouter, storage: Storage) -> None:
    @router.get("/rounds")
    async def history(after: Annotated[int, Query(ge=0, le=10**9)] = 0) -> dict[str, list[dict[str, Any]]]:
        """List the closed rounds with a number above `after`; docs/service.md explains every entry."""
        columns = await storage.write(lambda connection: read_rounds(connection, after))
        return {"rounds": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]}


def _add_people_and_items(router: APIRouter, service: Service) -> None:
    rounds = service.rounds

    @router.post("/invitations/{count}")
    async def invite(count: Annotated[int, Path(ge=1, le=10_000)]) -> dict[str, list[str]]:
        """Create `count` invitation codes, each for one device. The server stores only hashes of the codes."""
        return {"invitations": await rounds.registry.invite(count)}

    @router.post("/catalogue/items", responses=problems(408, 413), openapi_extra=_TAKES_ITEMS)
    async def add_items(request: Request) -> dict[str, int]:
        """Append items to the catalogue; the next round includes them. Known items do not change."""
        new = _new_items(await service.body(request, LARGEST_ITEM_BODY))
        titles = new.ids if new.titles is None else new.titles
        if len(titles) != len(new.ids) or len(set(new.ids)) != len(new.ids):
            raise Refusal("ids must be unique, and titles must have one title per id or be left out.", code="bad-items")
        return {"added": await rounds.add_items(new.ids, titles)}

    @router.get("/devices")
    async def listed() -> dict[str, list[dict[str, Any]]]:
        """List the devices: id, state, first and last round, time of the last request, and number of rounds missed.

        At least one of the devices marked `suspected` has probably sent a false report. The open attempt does not ask
        the devices marked `left_out`.
        """
        return {"devices": rounds.listed()}

    @router.delete("/devices/{device}", status_code=204, responses=problems(404))
    async def revoke(device: Annotated[str, Path(max_length=64)]) -> None:
        """Revoke a device; its report of the open phase is deleted."""
        await rounds.revoke(device)


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
