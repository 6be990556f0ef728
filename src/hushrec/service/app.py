"""The HTTP application of a run: routes for devices, the operator, health checks and metrics.

Devices send and receive MessagePack; the operator's tools send and receive JSON, except that they get the public table
as MessagePack. A refused request gets a problem+json reply as early as possible. A body whose declared length is too
large is refused before it is read. An overloaded server refuses a report before it checks the signature. A report for
the wrong round is refused before its numbers are checked.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.exceptions import HTTPException

from hushrec import signing, wire
from hushrec.errors import RemoteProtocolError, StorageError
from hushrec.messages import NO_REPORT, PROTOCOL_VERSION, Enrolment, Problem, parse_last_report
from hushrec.service.admin import add_admin
from hushrec.service.dashboard import add_dashboard
from hushrec.service.description import BINARY, SIGNED, problems, takes_binary
from hushrec.service.monitor import Monitor, log_event
from hushrec.service.problems import MEDIA_TYPE, Refusal
from hushrec.service.requests import Download, Service, target_of
from hushrec.service.rounds import Rounds

LARGEST_SMALL_BODY = 10_000  # bytes of an enrolment or a new key
LONGEST_WAIT = 60.0  # seconds of one long poll
DAY_SECONDS = 86_400.0


def make_app(rounds: Rounds) -> FastAPI:
    """Return the FastAPI application. While it runs, it opens and closes rounds; at its end it closes the database."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(rounds.run_schedule()), asyncio.create_task(_repeat_daily(rounds))]
        if rounds.storage.is_shared:
            tasks.append(asyncio.create_task(rounds.storage.listen(rounds.wake)))
        yield
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        await asyncio.to_thread(rounds.storage.close)

    app = FastAPI(
        title="hushrec",
        version=str(PROTOCOL_VERSION),
        summary="Recommendations learned from ratings that never leave the device.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    monitor = rounds.monitor
    monitor.watch("round", "The open round, or the latest that has ended.", lambda: rounds.round_number)
    monitor.watch("round_open", "1 while a round is open.", lambda: rounds.is_open)
    monitor.watch("reports_in_round", "Durable reports of the open phase.", lambda: rounds.n_reports)
    monitor.watch("devices_active", "Devices that take part.", rounds.registry.count_active)
    monitor.watch("items", "Items of the catalogue.", lambda: rounds.offer.terms.n_items)
    monitor.watch("waiting_writes", "Writes that wait for the database.", lambda: rounds.storage.waiting)
    service = Service(rounds)
    _add_error_handlers(app, monitor)
    _add_public(app, service)
    signed = APIRouter(
        prefix="/v1", tags=["devices"], dependencies=[Depends(SIGNED)], responses=problems(401, 403, 413, 429)
    )
    _add_membership(signed, service)
    _add_rounds(signed, service)
    app.include_router(signed)
    add_admin(app, service)
    add_dashboard(app, rounds)
    return app


async def _repeat_daily(rounds: Rounds) -> None:
    while True:
        await asyncio.sleep(DAY_SECONDS)
        rounds.daily()


def _add_public(app: FastAPI, service: Service) -> None:
    rounds = service.rounds
    router = APIRouter(responses={200: {"content": BINARY}, **problems()})

    @router.get("/v1/run", tags=["devices"])
    async def offer(request: Request) -> Response:
        """Return the run's offer: the protocol, model and terms that a device accepts when it joins."""
        return _for_reader(request, wire.encode(rounds.offer))

    @router.get("/v1/items", tags=["devices"])
    async def catalogue(request: Request, first: Annotated[int, Query(ge=0, le=10**9)] = 0) -> Response:
        """Return one page of the catalogue, starting at position `first`: ids, titles and attributes of items."""
        return _for_reader(request, wire.encode(rounds.catalogue.page(first)))

    @router.get("/v1/public", tags=["devices"])
    async def public() -> Response:
        """Return the public table after the latest round that has ended. Anyone may request it."""
        return Download(service.public_downloads(), rounds.published(), {})

    app.include_router(router)

    @app.get("/healthz", tags=["operation"], responses=problems())
    async def health() -> dict[str, str]:
        """Return status ok if the server runs, its database answers, and no write has failed since the last check."""
        await service.check_health()
        return {"status": "ok"}

    @app.get("/metrics", tags=["operation"], responses={200: {"content": {"text/plain": {}}}})
    async def metrics() -> Response:
        """Return counters and gauges for Prometheus; no series describes a single device."""
        return Response(rounds.monitor.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def _add_membership(router: APIRouter, service: Service) -> None:
    rounds = service.rounds

    @router.post(
        "/devices",
        status_code=201,
        responses={201: {"content": BINARY}, **problems(400, 408, 426)},
        openapi_extra=takes_binary("An enrolment: docs/wire.md."),
    )
    async def enrol(request: Request) -> Response:
        """Enrol a device and return the offer. The request is signed with the key that the enrolment contains."""
        credentials = signing.parse_header(request.headers.get("authorization"))
        body = await service.body(request, LARGEST_SMALL_BODY)
        sent = signing.Request(request.method, target_of(request), body)
        await rounds.enrol(wire.decode(body, Enrolment), credentials, sent)
        return Response(wire.encode(rounds.offer), status_code=201, media_type=wire.MEDIA_TYPE)

    @router.put(
        "/devices/me/key",
        status_code=204,
        responses=problems(400, 408, 426),
        openapi_extra=takes_binary("An enrolment with the new key and no invitation: docs/wire.md."),
    )
    async def rotate(request: Request) -> None:
        """Replace a device's key. The request is signed with the old key."""
        device, _, sent = await service.signed(request, LARGEST_SMALL_BODY)
        await rounds.registry.rotate(device, wire.decode(sent.body, Enrolment).public_key)

    @router.delete("/devices/me", status_code=204)
    async def leave(request: Request) -> None:
        """Let a device leave the run. The server refuses all later requests with its id, also in next runs."""
        device, _, _ = await service.signed(request, 0)
        await rounds.leave(device)


def _add_rounds(router: APIRouter, service: Service) -> None:
    rounds = service.rounds

    @router.get(
        "/inbox",
        responses={
            200: {
                "content": BINARY,
                "description": "The message. `Hushrec-Last-Report`: this device's last report, as in `last`."
                " `Hushrec-Attempt-Seconds`: for how long it must keep the secrets of the attempt.",
            },
            204: {
                "description": "There was no message for this device within `wait` seconds."
                " `Hushrec-Attempt-Seconds` is 0 if the open attempt does not ask this device."
            },
            **problems(409, 410),
        },
    )
    async def next_round(
        request: Request,
        after: Annotated[int, Query(ge=0, le=10**9)] = 0,
        wait: Annotated[float, Query(ge=0, le=LONGEST_WAIT)] = 0,
        last: Annotated[str, Query(pattern=r"^[0-9]{1,9}\.[0-9]{1,9}\.[0-9]{1,2}$")] = "0.0.0",
    ) -> Response:
        """Return the server's message for this device in a round above `after`; wait up to `wait` seconds (long poll).

        If there is no message by then, the reply is 204 without a body. The device replies to the message with a
        report. `last` names the phase of the device's last report as ROUND.ATTEMPT.PHASE, where PHASE is the index of
        the phase from 0; a device that has not reported yet gives 0.0.0.
        """
        device, _, _ = await service.signed(request, 0)
        last_report = device.last_report_text
        announcement = await rounds.inbox(device, after, wait, parse_last_report(last) or NO_REPORT)
        headers = {"Hushrec-Last-Report": last_report, "Hushrec-Attempt-Seconds": str(rounds.attempt_seconds(device))}
        if announcement is None:
            return Response(status_code=204, headers=headers)
        return Download(service.downloads, announcement, headers)

    @router.post(
        "/reports",
        responses={200: {"content": BINARY}, **problems(400, 408, 409, 426)},
        openapi_extra=takes_binary("An envelope with this device's report: docs/wire.md."),
    )
    async def report(request: Request) -> Response:
        """Store a device's report of one phase, and reply when it is durable. The same report may be sent again."""
        started = time.perf_counter()
        with service.reporting(request):
            device, credentials, sent = await service.signed(request, rounds.server.side.largest_report)
            receipt = await rounds.report(device, credentials.nonce, sent)
        rounds.monitor.reported(time.perf_counter() - started, repeated=receipt.repeated)
        return Response(wire.encode(receipt), media_type=wire.MEDIA_TYPE)


def _for_reader(request: Request, packed: bytes) -> Response:
    """Return a reply with the body `packed`, converted to JSON (bytes as base64) if the request accepts JSON."""
    if "application/json" in request.headers.get("accept", ""):
        return Response(msgspec.json.encode(msgspec.msgpack.decode(packed)), media_type="application/json")
    return Response(packed, media_type=wire.MEDIA_TYPE)


def _add_error_handlers(app: FastAPI, monitor: Monitor) -> None:
    """Register handlers that turn every exception, of hushrec or of the framework, into a problem+json reply."""

    def respond(request: Request, error: RemoteProtocolError) -> Response:
        extra, retry_after = (error.extra, error.retry_after) if isinstance(error, Refusal) else ({}, None)
        monitor.refused(error.code)
        headers = {"Retry-After": str(retry_after)} if retry_after else {}
        if error.status_hint in (408, 413) or _is_long(request):
            headers["Connection"] = "close"  # the rest of the body is not read
        problem = Problem(error.code, error.status_hint, str(error), extra)
        return JSONResponse(problem.as_json(), error.status_hint, headers, MEDIA_TYPE)

    @app.exception_handler(RemoteProtocolError)
    async def refused(request: Request, error: RemoteProtocolError) -> Response:
        return respond(request, error)

    @app.exception_handler(StorageError)
    async def not_stored(request: Request, error: StorageError) -> Response:
        log_event("storage-error", reason=str(error))
        refusal = Refusal("the server's database is unavailable. Try again.", code="storage", retry_after=1)
        return respond(request, refusal)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        names = sorted({".".join(str(part) for part in entry["loc"]) for entry in error.errors()})
        listed = ", ".join(names)[:200]
        sentence = f"these fields are missing or invalid: {listed}. See /openapi.json."
        return respond(request, Refusal(sentence, code="malformed"))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        log_event("error", kind=type(error).__name__)
        return respond(request, Refusal("an internal error occurred; the server has logged it.", code="internal"))

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        return respond(request, Refusal(f"{error.detail}.", code="http", status=error.status_code))


def _is_long(request: Request) -> bool:
    """Return whether the body may be too long to read and discard: at least 1 MB, or of undeclared length."""
    return "transfer-encoding" in request.headers or len(request.headers.get("content-length", "")) > 6
