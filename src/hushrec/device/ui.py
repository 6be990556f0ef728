"""The person's page on loopback: `hushrec device ui`. Its API answers this page alone.

Three locks, each enough against another web page: the token, which only the printed address holds and which travels in
a header that no foreign page may set; the host name, which defeats a name that is made to point here; the origin.
"""

import contextlib
import hmac
import threading
from collections.abc import Iterator
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from hushrec.device.device import Device
from hushrec.device.inference import Attack, Reading
from hushrec.device.levels import NOT_PRIVATE, SOURCE, WITHOUT_TASTE, explain_level, level_of, levels_for
from hushrec.device.part import Participation
from hushrec.device.transport import BlockingDriver
from hushrec.device.view import View
from hushrec.errors import HushrecError, ParameterError
from hushrec.offers import make_run_protocol, personal_options
from hushrec.pages import HEADERS, add_page
from hushrec.protocols import find_protocol

TOKEN_HEADER = "hushrec-token"
FAREWELL_SECONDS = 3.0  # that erasing waits for the server to hear of it


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
        self._is_forgotten = False
        self._attack = attack
        self._attacking = threading.Lock()
        self._read: tuple[int, Reading] | None = None
        self._changes = 0

    @contextlib.contextmanager
    def use(self) -> Iterator[None]:
        """Alone with the store, if there still is one."""
        with self.lock:
            if self._is_forgotten:
                raise HTTPException(410, "Everything is erased.")
            yield

    def state(self) -> dict[str, Any]:
        """All that the page's head and ledger show; two counters tell it when to ask for more."""
        device, session = self.device, self.device._session
        terms = None if session.offer is None else session.offer.terms
        if terms is not None and terms.n_items != self.view.n_items:
            self.view.refresh()
        statement = device.budget()
        return {
            "changes": self._changes,  # by the person
            "answered": self.part.answered + session.is_over,
            "over": session.is_over,
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
            "has_vectors": device._store.get("public") is not None,
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
        offer = session.offer
        if offer is None or "epsilon_i" not in personal_options(offer.protocol, offer.model):
            return {"levels": []}
        rated = len(self.device._store.ratings())
        levels = levels_for(session.budgets.epsilon_i)
        found = [explain_level(level, offer, session.budgets, rated) for level in levels]
        accuracy = {"source": SOURCE, "without_taste": WITHOUT_TASTE, "not_private": NOT_PRIVATE}
        return {"levels": found, "accuracy": accuracy, "can": find_protocol(offer.protocol).knowledge.can}

    def set_level(self, epsilon_i: float) -> None:
        session = self.device._session
        session.change_budgets(session.budgets.with_selection(level_of(epsilon_i).epsilon_i))
        self._changes += 1

    def sent(self) -> dict[str, Any]:
        """What left, and the attacks on it: they take a moment, so the store is not held meanwhile."""
        with self.use():
            session = self.device._session
            uploads, offer, budgets = session.kept.uploads(), session.offer, session.budgets
            if not uploads or offer is None:
                return {"last": None}
            user_vector = session.kept.last_user_vector()
        last = uploads[-1].report.round_number
        with self._attacking:
            if self._read is None or self._read[0] != last:
                own = budgets.options_for(offer.protocol, offer.model)
                protocol = make_run_protocol(offer.protocol, offer.model, offer.options, own)
                self._read = last, self._attack(offer.terms, protocol, uploads)
            reading = self._read[1]
        with self.use():
            return {"last": self.view.sent(uploads, user_vector, reading)}

    def forget(self) -> None:
        """Erases the store. The server is told if it answers soon; what was sent stays sent."""
        device, folder = self.device, self.device._store.folder
        if device.has_joined:
            with contextlib.suppress(HushrecError):  # the person's wish does not wait for a server
                http = device._driver()._http
                http.timeout = FAREWELL_SECONDS
                BlockingDriver(device._session, http, patience=0).run(device._session.leave())
        device.close()
        Device.forget(folder)
        self._is_forgotten = True


def make_ui(page: Page, *, token: str, hosts: set[str]) -> FastAPI:
    """The application; `hosts` are the names under which it may be asked, with their port."""
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_page(app, "device")
    _guard(app, token, hosts)
    _add_reading(app, page)
    _add_changing(app, page)

    @app.exception_handler(HushrecError)
    async def refused(_: Request, error: HushrecError) -> Response:
        return JSONResponse({"detail": str(error)}, 409)

    return app


def _guard(app: FastAPI, token: str, hosts: set[str]) -> None:
    @app.middleware("http")
    async def check(request: Request, call_next: Any) -> Response:
        reason = _refusal(request, token, hosts)
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
        with page.use():
            return page.state()

    @app.get("/api/search")
    def search(text: Annotated[str, Query(max_length=200)] = "") -> dict[str, Any]:
        with page.use():
            return page.view.search(text)

    @app.get("/api/ratings")
    def ratings() -> dict[str, Any]:
        with page.use():
            return {"items": page.view.ratings()}

    @app.get("/api/recommendations")
    def recommendations() -> dict[str, Any]:
        with page.use():
            return {"items": page.view.recommendations()}

    @app.get("/api/levels")
    def levels() -> dict[str, Any]:
        with page.use():
            return page.levels()

    @app.get("/api/sent")
    def sent() -> dict[str, Any]:
        return page.sent()


def _add_changing(app: FastAPI, page: Page) -> None:
    @app.post("/api/rate", status_code=204)
    def rate(rating: Rating) -> None:
        with page.use():
            page.rate(rating)

    @app.post("/api/join", status_code=204)
    def join(joining: Joining) -> None:
        with page.use():
            page.join(joining)

    @app.post("/api/part", status_code=204)
    def take_part(choice: Choice) -> None:
        with page.use():
            page.part.start() if choice.on else page.part.stop()

    @app.post("/api/level", status_code=204)
    def level(new: NewLevel) -> None:
        with page.use():
            page.part.stop()
            page.set_level(new.epsilon_i)

    @app.post("/api/allow-draw", status_code=204)
    def allow_draw() -> None:
        with page.use():
            page.part.stop()
            device = page.device
            device.raise_budget(device.budget()["limit"] + device._session.budgets.epsilon_p)

    @app.post("/api/forget", status_code=204)
    def forget() -> None:
        with page.use():
            page.part.stop()
            page.forget()
