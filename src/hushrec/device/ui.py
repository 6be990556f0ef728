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
from hushrec.device.calls import not_joined
from hushrec.device.device import Device
from hushrec.device.inference import SHOWN, Attack, describe
from hushrec.device.participation import Participation
from hushrec.errors import HushrecError
from hushrec.json_values import to_json
from hushrec.messages import Offer
from hushrec.models.lists import NO_REASONS
from hushrec.offers import expectation, protocol_of
from hushrec.pages import HEADERS, add_page
from hushrec.protocols import find_protocol
from hushrec.protocols.shown import Reading

TOKEN_HEADER = "hushrec-token"
ERASED = "Everything is erased."
MOST_FOUND = 12  # search results per request
MOST_REASONS = 2
EARLIER_LIST = "This list is from the previous run, and has no reasons: the present run has not learned anything yet."
USUAL_RATINGS = 20  # number of ratings to assume when explaining privacy levels to a person without ratings


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class Rating(_Body):
    """A rating to store; without a value, a rating to remove."""

    item: Annotated[str, Field(max_length=200)]
    value: float | None = None


class Place(_Body):
    """The address of a server, and the path of the certificate file to trust, if any."""

    server: Annotated[str, Field(max_length=300)]
    ca: Annotated[str | None, Field(max_length=1000)] = None


class Look(Place):
    """A request to show a server's offer, and what the server could learn at each privacy level."""

    own: Annotated[str | None, Field(max_length=40)] = None  # a further level to explain, as the person typed it


class Joining(Place):
    """A server to join, with an invitation code and the privacy level that the person chose, if any."""

    invitation: Annotated[str | None, Field(max_length=100)] = None
    level: float | None = None


class Choice(_Body):
    """Whether the device shall take part in rounds."""

    on: bool


class NewLevel(_Body):
    """The privacy level that the person chose."""

    level: float


class Consent(_Body):
    """The person's consent to take part in further rounds; `raise_to` is their new limit for all runs, if any."""

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

        `changes` counts the person's changes, such as new ratings. `reported` counts the device's reports since this
        object was made, plus 1 if the run is over. The page reloads its lists when a counter has changed.
        """
        device, part, status = self.device, self.participation, self.device.status()
        return {
            **vars(status),
            "changes": self._changes,
            "reported": part.reported + status.is_over,  # the end of the run brings a last public table
            "part": {"on": part.is_on, "code": part.code, "words": part.words, "needed": to_json(part.needed)},
            "form": device.budgets.mapping.form_values().tolist(),
            "scale": list(device.budgets.scale),
            "ledger": to_json(device.budget()),
            "has_learned": device.has_learned,
        }

    def search(
        self, text: Annotated[str, Query(max_length=200)] = "", first: Annotated[int, Query(ge=0, le=10**7)] = 0
    ) -> dict[str, Any]:
        """Return search results with the person's ratings, and the number of all results; skip the first `first`."""
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
        """Return the recommended items, each with the most similar items among those that the person likes.

        `no_reasons` is a sentence if this device cannot compare items, for example because the present run has not
        learned anything yet and the list is from the previous run. Otherwise it is None.
        """
        suggestions, rated, catalogue = self.device.recommend(SHOWN), self.device.ratings(), self.device.catalogue
        reasons = self.device.reasons([suggestion.item for suggestion in suggestions], MOST_REASONS)
        items = [
            vars(suggestion)
            | {"reasons": [{"title": catalogue.title_of(item), "rating": rated[item]} for item in similar]}
            for suggestion, similar in zip(suggestions, reasons, strict=True)
        ]
        no_reasons = None if self.device.compares_items else NO_REASONS if self.device.has_learned else EARLIER_LIST
        return {"items": items, "order": self.device.list_order, "no_reasons": no_reasons}

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
            self._set_level(joining.level, self.device.look_at(joining.server, ca=joining.ca or None))
        self.device.join(joining.server, invitation=joining.invitation or None, ca=joining.ca or None)
        self._changes += 1

    def take_part(self, choice: Choice) -> None:
        self.participation.start() if choice.on else self.participation.stop()

    def levels(self, own: Annotated[str | None, Query(max_length=40)] = None) -> dict[str, Any]:
        """Return what the server can learn at each privacy level of the run, and at the level that the person typed."""
        if self.device.offer is None:
            return {"levels": []}
        return _explain(self.device.offer, self.device.budgets, self.device.status().n_known, own)

    def change_level(self, new: NewLevel) -> None:
        if self.device.offer is None:
            raise not_joined()
        self._set_level(new.level, self.device.offer)

    def _set_level(self, level: float, offer: Offer) -> None:
        """Set the person's privacy level in the run of this offer.

        If the protocol has `pauses_for_level`, as `sdcf` does, the device stops taking part before the change: an open
        round could still draw permanent bits at the old level. `masked` does not pause, because the server could see
        from the pause that the level has changed.
        """
        protocol = self.device.budgets.protocol_for(offer)
        options = protocol.options_at(level, offer.terms)
        if level in (one.level for one in protocol.privacy_levels(offer.terms, USUAL_RATINGS) if one.in_use):
            return
        if protocol.pauses_for_level:
            self.participation.stop()
        self.device.choose(offer.protocol, **options)
        self._changes += 1

    def allow(self, consent: Consent) -> None:
        """Raise the limit for all runs together, if the person agreed to this, and take part again."""
        if consent.raise_to is not None:
            self.device.raise_budget(consent.raise_to)
        self.participation.start()

    def look_next(self) -> dict[str, Any]:
        """Return the offer of further rounds or a next run.

        `raise_to` is the ε to which the person must first raise the limit for all runs together; None if the present
        limit is enough.
        """
        (offer, needed), accepted = self.device.look_next(), self.device.offer
        assert accepted is not None
        return {
            "is_next_run": offer.run_id != accepted.run_id,
            "rounds": offer.terms.max_rounds,
            "asks": protocol_of(offer).asks(offer.terms),
            "raise_to": to_json(needed),
        }

    def follow(self, consent: Consent) -> None:
        """Accept the further rounds or next run that the server offers, and take part.

        If the person agreed to a higher limit for all runs together (`raise_to`), raise the limit first.
        """
        if consent.raise_to is not None:
            self.device.raise_budget(consent.raise_to)
        self.device.follow()
        self._changes += 1
        self.participation.start()

    def sent(self) -> dict[str, Any]:
        """Return what the last report reveals, as a dict with `table` and `last`; both are None if no report is stored.

        Under the gradient protocols, `last` has the results of attacks (`describe`), which are slow: they run once for
        each round, without the device's lock. Under other protocols, `table` has sentences, and `round` is the round of
        the report. It may be earlier than the last round of `state`, in which a device need not have sent a table.
        """
        sent, offer, budgets = self.device.sent(), self.device.offer, self.device.budgets
        if sent is None or offer is None:
            return {"last": None, "table": None}
        protocol, last = budgets.protocol_for(offer), sent.reports[-1]
        words = protocol.describe_report(offer.terms, last.round_number, last.report)
        if words is not None:
            return {"last": None, "table": words, "round": last.round_number}
        with self._attacking:
            if self._read is None or self._read[0] != last.round_number:
                given = budgets.mapping.to_unit(np.union1d(budgets.mapping.form_values(), list(sent.rated.values())))
                self._read = last.round_number, self._attack(offer.terms, protocol, sent.reports, given)
            reading = self._read[1]
        return {"last": describe(self.device, sent, reading)}

    def forget(self) -> None:
        self.participation.stop()
        self.device.erase()
        self.is_forgotten = True


def _explain(offer: Offer, budgets: Budgets, n_rated: int, own: str | None) -> dict[str, Any]:
    known = find_protocol(offer.protocol).knowledge
    words = {"can": known.can, "risk": known.risk, "choice": known.choice, "expectation": expectation(offer)}
    protocol = budgets.protocol_for(offer)
    levels = [to_json(vars(level)) for level in protocol.privacy_levels(offer.terms, n_rated, own)]
    return {"levels": levels, "takes_own": protocol.takes_own_level, **words}


def make_ui(page: Page, *, token: str, hosts: set[str]) -> FastAPI:
    """Return the web application of the page.

    It refuses a request with a Host header that is not in `hosts` (names with ports), a request from another origin,
    and a request to the API without `token`, which is part of the address that `hushrec device ui` prints.
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
    app.post("/api/allow", status_code=204)(page.allow)
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
