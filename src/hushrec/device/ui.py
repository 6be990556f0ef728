"""The page of a device (`hushrec device ui`), served on loopback, and its API, which answers this page only.

Three checks protect the API from other web pages, and each alone is sufficient: the token, which is part of the printed
address and is sent in a header that other origins cannot set; the host name, against DNS rebinding; and the origin.
"""

import hmac
import threading
from typing import Annotated, Any

import numpy as np
from fastapi import FastAPI, Query, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from hushrec.device.budgets import Budgets
from hushrec.device.device import Device
from hushrec.device.inference import SHOWN, Attack, Reading, describe
from hushrec.device.participation import Participation
from hushrec.errors import HushrecError
from hushrec.messages import Offer
from hushrec.offers import expectation, personal_options, protocol_of
from hushrec.pages import HEADERS, add_page
from hushrec.protocols import find_protocol

TOKEN_HEADER = "hushrec-token"
ERASED = "Everything is erased."
MOST_FOUND = 12  # search results per request
MOST_REASONS = 2
USUAL_RATINGS = 20  # for the explanation of the privacy levels, if the person has not rated yet


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Rating(_Body):
    """A rating to store; without a value, a rating to remove."""

    item: Annotated[str, Field(max_length=200)]
    value: float | None = None


class Place(_Body):
    """The address of a server, and the certificate file to trust."""

    server: Annotated[str, Field(max_length=300)]
    ca: Annotated[str | None, Field(max_length=1000)] = None


class Look(Place):
    """A server whose offer the page shows, with what the server can learn at each privacy level."""

    own: Annotated[str | None, Field(max_length=40)] = None  # a further level to explain, as the person typed it


class Joining(Place):
    """A server to join, with an invitation and a privacy level."""

    invitation: Annotated[str | None, Field(max_length=100)] = None
    level: float | None = None


class Choice(_Body):
    """Whether the device shall take part in rounds."""

    on: bool


class NewLevel(_Body):
    """The privacy level that the person chose."""

    level: float


class Consent(_Body):
    """The person's consent to further rounds or a next run; `raise_to` is the ledger's new limit, if it must rise."""

    raise_to: float | None = None


class Page:
    """The device that the page shows, and the thread that takes part in rounds. Most methods are routes of the API."""

    def __init__(self, device: Device, attack: Attack) -> None:
        self.device = device
        self.participation = Participation(device)
        self.is_forgotten = False
        self._attack = attack
        self._attacking = threading.Lock()
        self._read: tuple[int, Reading] | None = None
        self._changes = 0

    def state(self) -> dict[str, Any]:
        """Return the device's status, the data for the page's header and ledger, and two counters.

        `changes` counts what the person changed, such as ratings. `reported` counts the device's reports since the page
        was opened, and the end of the run as one more. The page reloads its lists when one of them has changed.
        """
        device, part, status, statement = self.device, self.participation, self.device.status(), self.device.budget()
        has_own_epsilon = device.offer is not None and _takes_own_budget(device.offer)
        return {
            **vars(status),
            "changes": self._changes,
            "reported": part.reported + status.is_over,  # the end of the run brings a last public table
            "part": {"on": part.is_on, "code": part.code, "words": part.words},
            "form": device.budgets.form_values().tolist(),
            "ledger": statement,
            "epsilon_p": device.budgets.epsilon_p,
            "level": device.budgets.epsilon if has_own_epsilon else device.budgets.epsilon_i,
            "can_change_level": statement.get("permanent_draws", 0) == 0,
            "has_learned": device.has_learned,
        }

    def search(
        self, text: Annotated[str, Query(max_length=200)] = "", first: Annotated[int, Query(ge=0, le=10**7)] = 0
    ) -> dict[str, Any]:
        """Return search results from number `first` on, with the person's ratings, and the number of all results."""
        found, rated = self.device.search(text, count=MOST_FOUND, first=first), self.device.ratings()
        items = [{"item": item, "title": title, "rating": rated.get(item)} for item, title in found.items]
        return {"count": found.count, "items": items}

    def ratings(self) -> dict[str, Any]:
        """Return this person's ratings, sorted by title."""
        catalogue = self.device.catalogue
        items = [
            {"item": item, "title": catalogue.title_of(item), "rating": value, "is_known": item in catalogue}
            for item, value in self.device.ratings().items()
        ]
        return {"items": sorted(items, key=lambda entry: str(entry["title"]))}

    def recommendations(self) -> dict[str, Any]:
        """Return the recommended items, each with the most similar items among those that the person likes."""
        suggestions, rated, catalogue = self.device.recommend(SHOWN), self.device.ratings(), self.device.catalogue
        reasons = self.device.reasons([suggestion.item for suggestion in suggestions], MOST_REASONS)
        items = [
            vars(suggestion)
            | {"reasons": [{"title": catalogue.title_of(item), "rating": rated[item]} for item in similar]}
            for suggestion, similar in zip(suggestions, reasons, strict=True)
        ]
        return {"items": items, "order": self.device.list_order}

    def rate(self, rating: Rating) -> dict[str, Any]:
        """Store or remove a rating; return the earlier value, so that the page can undo the change."""
        before = self.device.ratings().get(rating.item)
        if rating.value is None:
            self.device.remove_rating(rating.item)
        else:
            self.device.add_rating(rating.item, rating.value)
        self._changes += 1
        return {"before": before}

    def look(self, place: Look) -> dict[str, Any]:
        """Fetch a server's offer by an anonymous request; return what the welcome page shows of it."""
        offer = self.device.look_at(place.server, ca=place.ca or None)
        rated = self.device.status().n_ratings or USUAL_RATINGS
        told = {"n_items": offer.terms.n_items, "rounds": offer.terms.max_rounds, "n_rated": rated}
        return told | _explain(offer, self.device.budgets, rated, place.own)

    def join(self, joining: Joining) -> None:
        """Set the privacy level, if one was chosen, and join the server."""
        if joining.level is not None:
            offer = self.device.look_at(joining.server, ca=joining.ca or None)
            if _takes_own_budget(offer) or joining.level != self.device.budgets.epsilon_i:
                self._set_level(joining.level, offer)
        self.device.join(joining.server, invitation=joining.invitation or None, ca=joining.ca or None)
        self._changes += 1

    def take_part(self, choice: Choice) -> None:
        self.participation.start() if choice.on else self.participation.stop()

    def levels(self, own: Annotated[str | None, Query(max_length=40)] = None) -> dict[str, Any]:
        """Return what a server can learn at each privacy level of the run, and at `own`, a level that was typed."""
        if self.device.offer is None:
            return {"levels": []}
        return _explain(self.device.offer, self.device.budgets, self.device.status().n_known, own)

    def change_level(self, new: NewLevel) -> None:
        self._set_level(new.level, self.device.offer)

    def _set_level(self, level: float, offer: Offer | None) -> None:
        """Set the privacy level: the most ε of a run if `offer` is of a masked run, otherwise `epsilon_i` of `sdcf`.

        `offer` is None before joining. Before `epsilon_i` is set, the device stops taking part. Under `masked` it goes
        on, because the server could see from a pause that the level has changed.
        """
        budgets = self.device.budgets
        if offer is not None and _takes_own_budget(offer):
            self.device.choose_epsilon(budgets.protocol_for(offer).read_level(level, offer.terms))
        else:
            self.participation.stop()
            self.device.choose_budget(budgets.selecting().read_level(level, None))
        self._changes += 1

    def allow_draw(self) -> None:
        """Raise the ledger's limit by the cost of one draw of permanent bits (`sdcf`)."""
        self.participation.stop()
        self.device.raise_budget(self.device.budget()["limit"] + self.device.budgets.epsilon_p)

    def look_next(self) -> dict[str, Any]:
        """Return the offer of further rounds or a next run.

        `raise_to` is the ε to which the person must first raise the limit of all runs; None if the limit is enough.
        """
        (offer, needed), accepted = self.device.look_next(), self.device.offer
        assert accepted is not None
        return {
            "is_next_run": offer.run_id != accepted.run_id,
            "rounds": offer.terms.max_rounds,
            "asks": protocol_of(offer).asks(offer.terms),
            "raise_to": needed,
        }

    def follow(self, consent: Consent) -> None:
        """Raise the limit if the person agreed to a new one, accept the further rounds or next run, and take part."""
        if consent.raise_to is not None:
            self.device.raise_budget(consent.raise_to)
        self.device.follow()
        self._changes += 1
        self.participation.start()

    def sent(self) -> dict[str, Any]:
        """Return what the last report reveals: sentences in `table`, or under `sdcf` the results of attacks in `last`.

        Both are None if no report is stored. Attacks are slow: they run once for each round, without the device's lock.
        """
        sent, offer, budgets = self.device.sent(), self.device.offer, self.device.budgets
        if sent is None or offer is None:
            return {"last": None, "table": None}
        protocol, last = budgets.protocol_for(offer), sent.reports[-1]
        words = protocol.describe_report(offer.terms, last.round_number, last.report)
        if words is not None:
            return {"last": None, "table": words}
        with self._attacking:
            if self._read is None or self._read[0] != last.round_number:
                given = budgets.to_unit(np.union1d(budgets.form_values(), list(sent.rated.values())))
                self._read = last.round_number, self._attack(offer.terms, protocol, sent.reports, given)
            reading = self._read[1]
        return {"last": describe(self.device, sent, reading)}

    def forget(self) -> None:
        self.participation.stop()
        self.device.erase()
        self.is_forgotten = True


def _takes_own_budget(offer: Offer) -> bool:
    return "own_epsilon" in personal_options(offer.protocol, offer.model)


def _explain(offer: Offer, budgets: Budgets, n_rated: int, own: str | None) -> dict[str, Any]:
    known = find_protocol(offer.protocol).knowledge
    words = {"can": known.can, "risk": known.risk, "choice": known.choice, "expectation": expectation(offer)}
    levels = budgets.protocol_for(offer).privacy_levels(offer.terms, n_rated, own)
    return {"levels": levels, "takes_own": _takes_own_budget(offer), **words}


def make_ui(page: Page, *, token: str, hosts: set[str]) -> FastAPI:
    """Return the application of the page.

    It refuses a request with a Host header that is not in `hosts`, the accepted names with their ports, and a request
    to the API without `token`, which is part of the printed address.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    add_page(app, "device")
    _guard(app, token, hosts)
    app.get("/api/state")(page.state)
    app.get("/api/search")(page.search)
    app.get("/api/ratings")(page.ratings)
    app.get("/api/recommendations")(page.recommendations)
    app.get("/api/levels")(page.levels)
    app.get("/api/next")(page.look_next)
    app.get("/api/sent")(page.sent)
    app.post("/api/rate")(page.rate)
    app.post("/api/look")(page.look)
    app.post("/api/join", status_code=204)(page.join)
    app.post("/api/part", status_code=204)(page.take_part)
    app.post("/api/level", status_code=204)(page.change_level)
    app.post("/api/allow-draw", status_code=204)(page.allow_draw)
    app.post("/api/next", status_code=204)(page.follow)
    app.post("/api/forget", status_code=204)(page.forget)

    @app.exception_handler(HushrecError)
    async def refused(_: Request, error: HushrecError) -> Response:
        if page.is_forgotten:
            return JSONResponse({"code": "erased", "detail": ERASED}, 410)
        return JSONResponse({"code": error.code, "detail": str(error)}, 409)

    return app


def _guard(app: FastAPI, token: str, hosts: set[str]) -> None:
    @app.middleware("http")
    async def check(request: Request, call_next: Any) -> Response:
        reason = _refusal(request, token, hosts)
        if reason is not None:
            return JSONResponse({"code": "not-this-page", "detail": reason}, 403, HEADERS)
        response: Response = await call_next(request)
        for name, value in HEADERS.items():
            response.headers[name] = value
        return response


def _refusal(request: Request, token: str, hosts: set[str]) -> str | None:
    """Return why a request is refused, or None if it comes from this page."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if host not in hosts:
        return "the request must use the address that `hushrec device ui` printed."
    if origin is not None and origin != f"http://{host}":
        return "the request must come from this page, not from another origin."
    if not request.url.path.startswith("/api/"):
        return None
    if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
        return "the request must come from this page, not from another origin."
    given = request.headers.get(TOKEN_HEADER, "")
    if not hmac.compare_digest(given.encode(), token.encode()):
        return "the token is missing or wrong. Open the address that `hushrec device ui` printed."
    return None
