"""The person's page on loopback: `hushrec device ui`. Its API answers this page alone.

Three locks, each enough against another web page: the token, which only the printed address holds and which travels in
a header that no foreign page may set; the host name, which defeats a name that is made to point here; the origin.
"""

import contextlib
import hmac
import math
import threading
from dataclasses import replace
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from hushrec.device.device import Device
from hushrec.device.inference import Attack
from hushrec.device.levels import LEVELS, NOT_PRIVATE, SOURCE, WITHOUT_TASTE, explain_level, level_of
from hushrec.device.part import Participation
from hushrec.device.view import View
from hushrec.errors import HushrecError, ParameterError
from hushrec.knowledge import KNOWLEDGE
from hushrec.pages import HEADERS, add_page

TOKEN_HEADER = "hushrec-token"


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Rating(_Body):
    """One rating to keep; without a value, one to forget."""

    item: Annotated[str, Field(max_length=200)]
    value: float | None = None


class Joining(_Body):
    """A server to join."""

    server: Annotated[str, Field(max_length=300)]
    invitation: Annotated[str | None, Field(max_length=100)] = None
    ca: Annotated[str | None, Field(max_length=1000)] = None


class Choice(_Body):
    """Whether to take part."""

    on: bool


class NewLevel(_Body):
    """One of the public levels."""

    epsilon_i: float


class Page:
    """One person's device behind the page. Every use of the store is under one lock."""

    def __init__(self, device: Device, attack: Attack) -> None:
        self.device = device
        self.lock = threading.RLock()
        self.part = Participation(device, self.lock)
        self.view = View(device)
        self.view.refresh()
        self.is_forgotten = False
        self._attack = attack
        self._changes = 0

    def state(self) -> dict[str, Any]:
        """All that the page's head and ledger show; `changes` tells it when to ask for more."""
        device, session = self.device, self.device._session
        terms = None if session.offer is None else session.offer.terms
        if terms is not None and terms.n_items != self.view.n_items:
            self.view.refresh()
        statement = device.budget()
        return {
            "changes": self._changes + self.part.answered,
            "joined": device.has_joined,
            "server": device.server if device.has_joined else None,
            "part": {"on": self.part.is_on, "words": self.part.words, "trouble": self.part.trouble},
            "round": session.client().last_round if device.has_joined else 0,
            "rounds": None if terms is None else terms.max_rounds,
            "n_items": self.view.n_items,
            "n_ratings": len(device._store.ratings()),
            "scale": session.budgets.scale,
            "ledger": statement,
            "epsilon_p": session.budgets.epsilon_p,
            "level": session.budgets.epsilon_i,
            "can_change_level": statement["permanent_draws"] == 0,
            "has_vectors": device._store.get("item_vectors") is not None,
        }

    def rate(self, rating: Rating) -> None:
        if not self.view.knows(rating.item):
            raise ParameterError("that item is not in the catalogue.")
        if rating.value is None:
            self.device.remove_rating(rating.item)
        else:
            self.device.add_rating(rating.item, rating.value)
        self._changes += 1

    def join(self, joining: Joining) -> None:
        self.device.join(joining.server, invitation=joining.invitation or None, ca=joining.ca or None)
        self.view.refresh()
        self._changes += 1

    def levels(self) -> dict[str, Any]:
        """The slider: every level in numbers, and what nothing on it covers."""
        session = self.device._session
        if session.offer is None:
            return {"levels": []}
        rated = len(self.device._store.ratings())
        found = [explain_level(level, session.offer, session.budgets, rated) for level in LEVELS]
        accuracy = {"source": SOURCE, "without_taste": WITHOUT_TASTE, "not_private": NOT_PRIVATE}
        return {"levels": found, "accuracy": accuracy, "can": KNOWLEDGE[session.offer.protocol].can}

    def set_level(self, epsilon_i: float) -> None:
        old = self.device._session.budgets
        new = replace(old, epsilon_i=level_of(epsilon_i).epsilon_i, epsilon_p=math.nan)  # nan: the usual 2 epsilon_i
        self.device._session.change_budgets(new)
        self._changes += 1

    def sent(self) -> dict[str, Any]:
        return {"last": self.view.last_answer(self._attack)}

    def forget(self) -> None:
        """Erases the store. The server is told if it can be reached; what was sent stays sent."""
        device, folder = self.device, self.device._store.folder
        if device.has_joined:
            with contextlib.suppress(HushrecError):  # the person's wish does not wait for a server
                device.leave()
        device.close()
        Device.forget(folder)
        self.is_forgotten = True


def make_ui(page: Page, *, token: str, hosts: set[str]) -> FastAPI:
    """The application; `hosts` are the names under which it may be asked, with their port."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_page(app, "device")
    _guard(app, page, token, hosts)
    _add_reading(app, page)
    _add_changing(app, page)

    @app.exception_handler(HushrecError)
    async def refused(_: Request, error: HushrecError) -> Response:
        return JSONResponse({"detail": str(error)}, 409)

    return app


def _guard(app: FastAPI, page: Page, token: str, hosts: set[str]) -> None:
    @app.middleware("http")
    async def check(request: Request, call_next: Any) -> Response:
        reason = _refusal(request, token, hosts)
        if reason is None and page.is_forgotten and request.url.path.startswith("/api/"):
            return JSONResponse({"detail": "this store was erased."}, 410, HEADERS)
        if reason is not None:
            return JSONResponse({"detail": reason}, 403, HEADERS)
        response: Response = await call_next(request)
        for name, value in HEADERS.items():
            response.headers[name] = value
        return response


def _refusal(request: Request, token: str, hosts: set[str]) -> str | None:
    """Why a request is not from this page; None if it is."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if host not in hosts:
        return "this page answers on its own address only."
    if origin is not None and origin != f"http://{host}":
        return "this page answers to itself only."
    if not request.url.path.startswith("/api/"):
        return None
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "this page answers to itself only."
    given = request.headers.get(TOKEN_HEADER, "")
    if not hmac.compare_digest(given.encode(), token.encode()):
        return "the token is missing or wrong: open the address that `hushrec device ui` printed."
    return None


def _add_reading(app: FastAPI, page: Page) -> None:
    @app.get("/api/state")
    def state() -> dict[str, Any]:
        with page.lock:
            return page.state()

    @app.get("/api/search")
    def search(text: Annotated[str, Query(max_length=200)] = "") -> dict[str, Any]:
        with page.lock:
            return page.view.search(text)

    @app.get("/api/ratings")
    def ratings() -> dict[str, Any]:
        with page.lock:
            return {"items": page.view.ratings()}

    @app.get("/api/recommendations")
    def recommendations() -> dict[str, Any]:
        with page.lock:
            return {"items": page.view.recommendations()}

    @app.get("/api/levels")
    def levels() -> dict[str, Any]:
        with page.lock:
            return page.levels()

    @app.get("/api/sent")
    def sent() -> dict[str, Any]:
        with page.lock:
            return page.sent()


def _add_changing(app: FastAPI, page: Page) -> None:
    @app.post("/api/rate", status_code=204)
    def rate(rating: Rating) -> None:
        with page.lock:
            page.rate(rating)

    @app.post("/api/join", status_code=204)
    def join(joining: Joining) -> None:
        with page.lock:
            page.join(joining)

    @app.post("/api/part", status_code=204)
    def take_part(choice: Choice) -> None:
        page.part.start() if choice.on else page.part.stop()

    @app.post("/api/level", status_code=204)
    def level(new: NewLevel) -> None:
        page.part.stop()
        with page.lock:
            page.set_level(new.epsilon_i)

    @app.post("/api/allow-draw", status_code=204)
    def allow_draw() -> None:
        page.part.stop()
        with page.lock:
            device = page.device
            device.raise_budget(device.budget()["limit"] + device._session.budgets.epsilon_p)

    @app.post("/api/forget", status_code=204)
    def forget() -> None:
        page.part.stop()
        with page.lock:
            page.forget()
