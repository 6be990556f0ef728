"""The HTTP face of a run: devices, the admin, health and metrics. Bodies of devices are MessagePack, of people JSON.

Every refusal is problem+json. A request is refused as early as it can be: by its length before its body is read, by
the queue before its signature is checked, by its round before its numbers are.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Annotated, Any, Literal

import msgspec
import sqlalchemy as sa
from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from hushrec import signing, wire
from hushrec.errors import RemoteProtocolError, StorageError
from hushrec.messages import PROTOCOL_VERSION
from hushrec.service import schema
from hushrec.service.dashboard import add_dashboard
from hushrec.service.monitor import Monitor
from hushrec.service.problems import MEDIA_TYPE, Refusal, problem
from hushrec.service.registry import Device
from hushrec.service.rounds import Rounds
from hushrec.service.settings import LimitSettings
from hushrec.service.storage import Storage

LARGEST_SMALL_BODY = 10_000
LARGEST_ITEM_BODY = 10_000_000
LONGEST_WAIT = 60.0
_CHUNK = 128 * 1024

BINARY = {wire.MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}}


def _problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """How the description of a route lists its refusals."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {status: {"description": "Refused.", "content": content} for status in (*statuses, 422, 503)}


def _takes_binary(description: str) -> dict[str, Any]:
    return {"requestBody": {"required": True, "description": description, "content": BINARY}}


SIGNED: dict[str, Any] = {"security": [{"device": []}]}
ADMIN: dict[str, Any] = {"security": [{"admin": []}]}


class NewItems(BaseModel):
    """Items to append to the catalogue."""

    model_config = ConfigDict(extra="forbid")

    ids: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(min_length=1, max_length=100_000)
    titles: list[Annotated[str, Field(max_length=500)]] | None = None


class Service:
    """Everything that the routes share."""

    def __init__(self, storage: Storage, rounds: Rounds, monitor: Monitor, limits: LimitSettings) -> None:
        self.storage = storage
        self.rounds = rounds
        self.monitor = monitor
        self.limits = limits
        self.downloads = asyncio.Semaphore(limits.waiting_downloads)
        self._answering = 0

    async def body(self, request: Request, largest: int) -> bytes:
        """The request's body, or a refusal as soon as it is too long or too slow."""
        declared = request.headers.get("content-length", "0")
        if not declared.isdigit() or int(declared) > largest:
            raise _too_large(largest)
        chunks, length = [], 0
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                async for chunk in request.stream():
                    length += len(chunk)
                    if length > largest:
                        raise _too_large(largest)
                    chunks.append(chunk)
        except TimeoutError:
            raise Refusal("too-slow", "the body of this request did not arrive in time.", status=408) from None
        return b"".join(chunks)

    async def signed(self, request: Request, largest: int) -> tuple[Device, signing.Credentials, signing.Request]:
        """The device behind a request, its credentials, and what they cover."""
        credentials = signing.Credentials.parse(request.headers.get("authorization"))
        self.rounds.registry.known(credentials.device)
        body = await self.body(request, largest)
        told = signing.Request(request.method, _target(request), body, credentials.round_number)
        return self.rounds.registry.authenticate(credentials, told), credentials, told

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Back-pressure: better a short wait for a device than a long queue here, before its body is read."""
        if max(self._answering, self.storage.waiting) >= self.limits.waiting_reports:
            raise Refusal("busy", "the server has all it can do. Try again in a moment.", status=503, retry_after=1)
        self._answering += 1
        try:
            yield
        finally:
            self._answering -= 1

    def check_admin(self, request: Request) -> None:
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        self.rounds.registry.check_admin(token if scheme == "Bearer" else None)


class _Download(Response):
    """A large body, the same for every device: few are sent at once, in pieces, so that memory stays bounded."""

    def __init__(self, service: Service, content: bytes, headers: dict[str, str]) -> None:
        super().__init__(status_code=200, headers=headers, media_type=wire.MEDIA_TYPE)
        self.headers["content-length"] = str(len(content))
        self._service = service
        self._content = content

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._service.downloads:
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            for start in range(0, len(self._content), _CHUNK):
                piece = self._content[start : start + _CHUNK]
                more = start + _CHUNK < len(self._content)
                await send({"type": "http.response.body", "body": piece, "more_body": more})


def make_app(storage: Storage, rounds: Rounds, monitor: Monitor, limits: LimitSettings) -> FastAPI:
    """The application. Its lifespan runs the schedule, and closes the database at the end."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        schedule = asyncio.create_task(rounds.run_schedule())
        yield
        schedule.cancel()
        with suppress(asyncio.CancelledError):
            await schedule
        await asyncio.to_thread(storage.close)

    app = FastAPI(
        title="hushrec",
        version=str(PROTOCOL_VERSION),
        summary="Recommendations learned from ratings that never leave the device.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    service = Service(storage, rounds, monitor, limits)
    _describe(app)
    _refuse(app, monitor)
    _add_public(app, service)
    _add_device(app, service)
    _add_admin(app, service)
    add_dashboard(app, storage, rounds, monitor)
    return app


def _add_public(app: FastAPI, service: Service) -> None:
    rounds = service.rounds

    @app.get("/v1/run", tags=["devices"], responses={200: {"content": BINARY}, **_problems()})
    async def offer(request: Request) -> Response:
        """What this run asks of devices, before they join."""
        return _for_reader(request, wire.encode_offer(rounds.offer))

    @app.get("/v1/items", tags=["devices"], responses={200: {"content": BINARY}, **_problems()})
    async def catalogue(request: Request, first: Annotated[int, Query(ge=0, le=10**9)] = 0) -> Response:
        """Ids and titles of the items, from a position on."""
        table = schema.items
        query = sa.select(table.c.id, table.c.title).where(table.c.position >= first).order_by(table.c.position)
        rows = await service.storage.write(lambda connection: connection.execute(query).all())
        found = wire.Catalogue(first, [row.id for row in rows], [row.title for row in rows])
        return _for_reader(request, wire.encode_catalogue(found))

    @app.get("/v1/vectors", tags=["devices"], responses={200: {"content": BINARY}, **_problems()})
    async def vectors() -> Response:
        """The item vectors as they are now, for those who only want recommendations."""
        return _Download(service, rounds.latest_vectors(), {})

    @app.get("/healthz", tags=["operation"], responses=_problems())
    async def health() -> dict[str, str]:
        """Whether the server runs and its database answers."""
        await service.storage.write(lambda connection: connection.execute(sa.select(1)))
        return {"status": "ok"}

    @app.get("/metrics", tags=["operation"], responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Counters and gauges for Prometheus; none of them is about one device."""
        gauges = {
            "round": rounds.round_number,
            "round_open": float(rounds.is_open),
            "answers_in_round": rounds.n_answers,
            "devices_active": rounds.registry.count_active(),
            "items": rounds.offer.terms.n_items,
            "waiting_writes": service.storage.waiting,
        }
        return Response(service.monitor.exposition(gauges), media_type="text/plain; version=0.0.4")


def _add_device(app: FastAPI, service: Service) -> None:
    rounds = service.rounds

    @app.post(
        "/v1/devices",
        tags=["devices"],
        status_code=201,
        responses={201: {"content": BINARY}, **_problems(400, 401, 403, 408, 413, 426, 429)},
        openapi_extra=SIGNED | _takes_binary("Map: version, public_key (32 bytes), invitation (text or nil)."),
    )
    async def enrol(request: Request) -> Response:
        """Joins a device; the answer is the offer. Signed with the key that it brings."""
        credentials = signing.Credentials.parse(request.headers.get("authorization"))
        body = await service.body(request, LARGEST_SMALL_BODY)
        told = signing.Request(request.method, _target(request), body, credentials.round_number)
        await rounds.enrol(wire.decode_enrolment(body), credentials, told)
        return Response(wire.encode_offer(rounds.offer), status_code=201, media_type=wire.MEDIA_TYPE)

    @app.get(
        "/v1/round",
        tags=["devices"],
        responses={
            200: {"content": BINARY, "description": "The open round. `Hushrec-Answered`: this key's last round."},
            204: {"description": "No round that this device can answer opened in time."},
            **_problems(401, 403, 410, 413, 429),
        },
        openapi_extra=SIGNED,
    )
    async def next_round(
        request: Request,
        after: Annotated[int, Query(ge=0, le=10**9)] = 0,
        wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT)] = 0,
    ) -> Response:
        """The round above `after` that this device can answer, waiting up to `wait` seconds for it to open."""
        device, _, _ = await service.signed(request, 0)
        headers = {"Hushrec-Answered": str(device.last_round)}
        announcement = await rounds.next_round(device, max(after, 0), wait)
        if announcement is None:
            return Response(status_code=204, headers=headers)
        return _Download(service, announcement, headers)

    @app.post(
        "/v1/rounds/{round_number}/answer",
        tags=["devices"],
        responses={200: {"content": BINARY}, **_problems(400, 401, 403, 408, 409, 413, 426, 429)},
        openapi_extra=SIGNED
        | _takes_binary("Map: version, round_number, items (uint32 buffer), gradients (float32 buffer, row by row)."),
    )
    async def answer(request: Request, round_number: Annotated[int, Path(ge=1, le=10**9)]) -> Response:
        """All that a device says in a round. Acknowledged when it is durable; the same bytes may be sent again."""
        started = time.perf_counter()
        with service.answering():
            device, credentials, told = await service.signed(request, rounds.largest_body)
            if credentials.round_number != round_number:
                raise Refusal("wrong-round", "the signed round must be that of the address.", status=422)
            receipt = await rounds.answer(device, credentials.nonce, told)
        service.monitor.answered(time.perf_counter() - started, repeated=receipt.repeated)
        return Response(wire.encode_receipt(receipt), media_type=wire.MEDIA_TYPE)

    @app.put(
        "/v1/devices/me/key",
        tags=["devices"],
        status_code=204,
        responses=_problems(400, 401, 403, 408, 413, 426, 429),
        openapi_extra=SIGNED | _takes_binary("Map: version, public_key (the new one), invitation (nil)."),
    )
    async def rotate(request: Request) -> Response:
        """Changes a device's key; the request is signed with the old one."""
        device, _, told = await service.signed(request, LARGEST_SMALL_BODY)
        await rounds.registry.rotate(device, wire.decode_enrolment(told.body).public_key)
        return Response(status_code=204)

    @app.delete(
        "/v1/devices/me",
        tags=["devices"],
        status_code=204,
        responses=_problems(401, 403, 413, 429),
        openapi_extra=SIGNED,
    )
    async def leave(request: Request) -> Response:
        """A device leaves; its key is never accepted again."""
        device, _, _ = await service.signed(request, 0)
        await rounds.leave(device)
        return Response(status_code=204)


def _add_admin(app: FastAPI, service: Service) -> None:
    rounds = service.rounds
    common: dict[str, Any] = {"tags": ["admin"], "openapi_extra": ADMIN}

    @app.get("/v1/admin/status", responses=_problems(401), **common)
    async def status(request: Request) -> dict[str, Any]:
        """Where the run stands."""
        service.check_admin(request)
        return _status(rounds)

    @app.post("/v1/admin/{action}", responses=_problems(401, 409), **common)
    async def act(request: Request, action: Literal["start", "pause", "close"]) -> dict[str, Any]:
        """`start`: end a pause and open a round; `pause`: open no further round; `close`: close the round now."""
        service.check_admin(request)
        if action == "start":
            await rounds.start()
        elif action == "pause":
            await rounds.set_paused(True)
        else:
            await rounds.close_round()
        return _status(rounds)

    @app.post("/v1/admin/invitations/{count}", responses=_problems(401), **common)
    async def invite(request: Request, count: Annotated[int, Path(ge=1, le=10_000)]) -> dict[str, list[str]]:
        """New invitation codes, each for one device. They are shown once."""
        service.check_admin(request)
        return {"invitations": await rounds.registry.invite(count)}

    @app.post("/v1/admin/catalogue/items", responses=_problems(400, 401, 413), **common)
    async def add_items(request: Request, new: NewItems) -> dict[str, int]:
        """Appends items; they take part from the next round on. Ids that are known already are left as they are."""
        service.check_admin(request)
        titles = new.ids if new.titles is None else new.titles
        if len(titles) != len(new.ids) or len(set(new.ids)) != len(new.ids):
            raise Refusal("bad-items", "ids must be different, with one title each or none at all.", status=422)
        return {"added": await rounds.add_items(new.ids, titles)}

    @app.delete("/v1/admin/devices/{device}", status_code=204, responses=_problems(401, 404), **common)
    async def revoke(request: Request, device: Annotated[str, Path(max_length=64)]) -> Response:
        """Sends a device away; its answer to the open round no longer counts."""
        service.check_admin(request)
        await rounds.revoke(device)
        return Response(status_code=204)

    @app.get("/v1/admin/vectors", responses={200: {"content": BINARY}, **_problems(401)}, **common)
    async def export(request: Request) -> Response:
        """The item vectors: raw little-endian float64, row by row, in the order of the catalogue."""
        service.check_admin(request)
        vectors = rounds.item_vectors
        body = {"version": PROTOCOL_VERSION, "round_number": rounds.round_number, "n_items": len(vectors)}
        packed = msgspec.msgpack.encode(body | {"item_vectors": vectors.astype("<f8").tobytes()})
        return Response(packed, media_type=wire.MEDIA_TYPE)


def _status(rounds: Rounds) -> dict[str, Any]:
    return {
        "round": rounds.round_number,
        "open": rounds.is_open,
        "paused": rounds.is_paused,
        "over": rounds.is_over,
        "answers": rounds.n_answers,
        "devices": rounds.registry.count_active(),
        "items": rounds.offer.terms.n_items,
    }


def _for_reader(request: Request, packed: bytes) -> Response:
    """MessagePack for devices; JSON, with buffers in base64, for people who ask for it."""
    if "application/json" in request.headers.get("accept", ""):
        return Response(msgspec.json.encode(msgspec.msgpack.decode(packed)), media_type="application/json")
    return Response(packed, media_type=wire.MEDIA_TYPE)


def _target(request: Request) -> str:
    """Path and query exactly as they came."""
    path: bytes = request.scope["raw_path"]
    query: bytes = request.scope["query_string"]
    return (path + (b"?" + query if query else b"")).decode("latin-1")


def _too_large(largest: int) -> Refusal:
    return Refusal("too-large", f"the body of this request must have at most {largest} bytes.", status=413)


def _refuse(app: FastAPI, monitor: Monitor) -> None:
    """Our errors, and those of the framework, as problem+json."""
    from fastapi.exceptions import RequestValidationError

    def respond(error: RemoteProtocolError, retry_after: int | None = None) -> Response:
        monitor.refused(error.kind if isinstance(error, Refusal) else "malformed")
        headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        if error.status_hint in (408, 413):
            headers["Connection"] = "close"  # the rest of the body is not read
        return JSONResponse(problem(error), error.status_hint, headers, MEDIA_TYPE)

    @app.exception_handler(RemoteProtocolError)
    async def refused(_: Request, error: RemoteProtocolError) -> Response:
        return respond(error, error.retry_after if isinstance(error, Refusal) else None)

    @app.exception_handler(StorageError)
    async def not_stored(_: Request, error: StorageError) -> Response:
        monitor.log("storage-error", reason=str(error))
        return respond(Refusal("storage", "the database cannot be used now. Try again.", status=503), retry_after=1)

    @app.exception_handler(RequestValidationError)
    async def malformed(_: Request, error: RequestValidationError) -> Response:
        names = sorted({".".join(str(part) for part in entry["loc"]) for entry in error.errors()})
        return respond(Refusal("malformed", f"not as described: {', '.join(names)[:200]}.", status=422))

    @app.exception_handler(HTTPException)
    async def other(_: Request, error: HTTPException) -> Response:
        return respond(Refusal("http", f"{error.detail}.", status=error.status_code))


def _describe(app: FastAPI) -> None:
    """The OpenAPI description: how requests are signed, and what a refusal looks like."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            components = make().setdefault("components", {})
            components["securitySchemes"] = {
                "device": {
                    "type": "apiKey",
                    "in": "header",
                    "name": "Authorization",
                    "description": "Hushrec DEVICE:ROUND:NONCE:SIGNATURE, Ed25519; see docs/service.md.",
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
