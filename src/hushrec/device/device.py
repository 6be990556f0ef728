"""`hushrec.Device`: a person's device, to be embedded in an app.

The class is thread-safe: a lock guards the store, and is released during requests to the server.
"""

import contextlib
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np

from hushrec.arrays import FloatArray
from hushrec.budget.events import as_number
from hushrec.device import joining, open_attempt
from hushrec.device.budgets import Budgets
from hushrec.device.calls import not_joined
from hushrec.device.catalogue import Catalogue, Found
from hushrec.device.session import Session
from hushrec.device.store import ShownReport, Store, default_folder, erase
from hushrec.device.transport import (
    PATIENCE_SECONDS,
    SILENT_SECONDS,
    BlockingDriver,
    check_address,
    open_http,
    tls_context,
)
from hushrec.errors import HushrecError, ParameterError
from hushrec.messages import Offer

FAREWELL_SECONDS = 3.0  # timeout for telling the server when the store is erased


@dataclass(frozen=True)
class Suggestion:
    """A recommended item. Predictions are on the scale of the person's ratings."""

    item: str
    title: str
    predicted: float  # clipped to the scale, to be shown
    score: float  # the prediction before clipping


@dataclass(frozen=True, repr=False)
class Status:
    """The state of a device, to be shown to its person."""

    has_joined: bool
    server: str | None
    round_number: int  # the last round in which this device reported; 0 before the first
    rounds: int | None  # number of rounds of the run; None before joining
    in_round: bool  # whether that round has phases left
    refusal: str  # why this device dropped out of an attempt whose message it refused; "" after a finished attempt
    is_over: bool
    n_items: int  # of the catalogue
    n_ratings: int
    n_known: int  # number of ratings whose items are in the catalogue
    can_recommend: bool


@dataclass(frozen=True, repr=False)
class Sent:
    """The last reports, each with private arrays that explain it, and the ratings. Must never leave the device."""

    reports: list[ShownReport]  # the latest last
    is_waiting: bool  # whether a report has no receipt from the server yet
    rated: dict[int, float]  # present ratings by the item's position in the catalogue, on the person's scale


class Device:
    """A person's device: their ratings and everything learned from them, in a folder that only the person can read.

    Nothing is sent before `join`. After `join`, each `step` reports in one phase of a round, if the ledger allows it.
    A failed request is retried for `patience` seconds.
    """

    def __init__(self, folder: str | Path | None = None, *, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience  # seconds for which a failed request is retried
        self._lock = threading.RLock()
        self._store = Store(default_folder() if folder is None else Path(folder))
        try:
            self._session = Session(self._store)
        except BaseException:
            self._store.close()
            raise
        self._catalogue: Catalogue | None = None
        self._http: httpx.Client | None = None
        self._http_place: Mapping[str, Any] = {}

    @classmethod
    def create(cls, folder: str | Path | None = None, *, patience: float = PATIENCE_SECONDS, **budgets: Any) -> Self:
        """Create a new store in `folder` (default: `default_folder()`), and return its device.

        `budgets` are fields of `Budgets`: epsilon and least_cohort for `masked`, epsilon_i, epsilon_p, epsilon_g and
        max_value_rho for `sdcf`, and scale. If one of them is invalid, nothing is created.
        """
        checked = Budgets(**budgets)
        place = default_folder() if folder is None else Path(folder)
        store = Store(place, create=True)
        try:
            Session.start(store, checked)
        finally:
            store.close()
        return cls(place, patience=patience)

    @staticmethod
    def forget(folder: str | Path | None = None) -> None:
        """Erase the store in `folder` (default: `default_folder()`), which must not be open; the server is not told."""
        erase(default_folder() if folder is None else Path(folder))

    def erase(self) -> None:
        """Leave the run, then close and erase this store, even if the server does not reply within a few seconds."""
        if self.has_joined:
            with contextlib.suppress(HushrecError):  # the store is erased even if the server cannot be reached
                self._driver(patience=0, seconds=FAREWELL_SECONDS).run(joining.leave(self._session))
        with self._lock:
            self.close()
            erase(self._store.folder)

    def __repr__(self) -> str:
        return "Device()"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the store and the connection; leaving a `with` block does the same."""
        if self._http is not None:
            self._http.close()
        self._store.close()

    # Ratings and titles ----------------------------------------------------------------------------------------

    def ratings(self) -> dict[str, float]:
        """Return this person's ratings by item id."""
        with self._lock:
            return self._store.ratings()

    def add_rating(self, item: str, value: float, *, keep_unknown: bool = False) -> None:
        """Store one rating, replacing an earlier one of the same item; for `keep_unknown` see `add_ratings`."""
        self.add_ratings({item: value}, keep_unknown=keep_unknown)

    def add_ratings(self, values: Mapping[str, float], *, keep_unknown: bool = False) -> None:
        """Store ratings on this device; predictions and later reports use them.

        After joining, the items must be in the server's catalogue. With `keep_unknown`, ratings of other items are
        stored too, and used as soon as the catalogue contains the items.
        """
        with self._lock:
            low, high = self._session.budgets.scale
            ratings = {str(item): as_number("a rating", value) for item, value in values.items()}
            if not all(low <= value <= high for value in ratings.values()):
                raise ParameterError(
                    f"ratings must be numbers from {low:g} to {high:g}, the scale of this store. Correct the ratings."
                )
            unknown = sum(item not in self.catalogue for item in ratings) if len(self.catalogue) else 0
            if unknown and not keep_unknown:
                raise ParameterError(
                    f"rated items must be in the server's catalogue, but {unknown} of {len(ratings)} "
                    f"{'is' if unknown == 1 else 'are'} not. Find ids by title with `hushrec device search`."
                )
            with self._store.change():
                self._store.put_ratings(ratings)
            self._session.forget_client()

    def remove_rating(self, item: str) -> None:
        """Remove one rating. Reports that were made from it cannot be taken back."""
        with self._lock:
            with self._store.change():
                if not self._store.drop_rating(str(item)):
                    raise ParameterError("item must be a rated item, but this store has no rating of it. Check the id.")
            self._session.forget_client()

    @property
    def catalogue(self) -> Catalogue:
        """The server's catalogue of items; empty before joining."""
        with self._lock:
            if self._catalogue is None or len(self._catalogue) != self._store.count_items():
                self._catalogue = Catalogue(self._store.catalogue())
            return self._catalogue

    def search(self, text: str = "", *, count: int = 12, first: int = 0) -> Found:
        """Return up to `count` items whose titles contain the words of `text`, from result number `first` (0, 1, …) on.

        Without words every item matches, and popular items come first if the public table shows popularity.
        """
        with self._lock:
            if text.strip() or not self.has_learned:
                return self.catalogue.search(text, count=count, first=first)
            liked = self._session.client().side.popularity(self._session.predictions.public())
            order = range(len(self.catalogue)) if liked is None else np.argsort(-liked, kind="stable").tolist()
            return self.catalogue.listed(order[first : first + count])

    # The server ------------------------------------------------------------------------------------------------

    def join(
        self,
        server: str | None = None,
        *,
        invitation: str | None = None,
        ca: str | Path | None = None,
        insecure: bool = False,
        again: bool = False,
    ) -> None:
        """Enrol with a server and accept its offer for the whole run.

        `server` is the server's address; without it, a device that has joined uses the stored address. `invitation` is
        the operator's code, which an open server does not need. `ca` is a PEM file with the only certificate to trust.
        `insecure` allows plain HTTP to another machine.

        On a device that has already joined, this stores a new address or certificate of its server, and raises if the
        server at that address has another run. `again` enrols with a new key, as after restoring or copying a store.
        """
        place = self._place(server, ca, insecure=insecure)
        if again or not self.has_joined:
            job = joining.rejoin(self._session, invitation) if again else joining.join(self._session, invitation)
        elif place != self._store.get_json("server"):
            job = joining.check_server(self._session)
        else:
            return
        self._driver(place).run(job)
        with self._lock, self._store.change():
            self._store.put_json("server", place)

    def look_at(self, server: str, *, ca: str | Path | None = None, insecure: bool = False) -> Offer:
        """Return a server's offer, by an anonymous request; nothing is joined or stored. Parameters as in `join`."""
        offer: Offer = self._driver(self._place(server, ca, insecure=insecure)).run(joining.fetch_offer(self._session))
        return offer

    def _place(self, server: str | None, ca: str | Path | None, *, insecure: bool) -> dict[str, str | None]:
        """Return a dict: the server's `address`, and `ca`, the path of its certificate file or None.

        What is not given is taken from the store. The stored `ca` is used only with the stored address.
        """
        with self._lock:
            known = self._store.get_json("server")
        if server is None and known is None:
            raise ParameterError("server must be given, because this device has not joined one yet. Give its address.")
        address = known["address"] if server is None else check_address(server, insecure=insecure)
        trusted = known["ca"] if known is not None and known["address"] == address else None
        place = {"address": address, "ca": trusted if ca is None else str(Path(ca).resolve())}
        tls_context(None if place["ca"] is None else Path(place["ca"]))
        return place

    def step(
        self, wait: float = 0, *, patience: float | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> str:
        """Report in the open phase, waiting up to `wait` seconds for one; return the outcome.

        The outcome is "reported", "run over", "no round" if no phase asked this device in time, or "refused" if this
        device refused a message and dropped out of the attempt: `status` then has the reason, and the next step waits
        for the next attempt or round.

        A failed request is retried for `patience` seconds, by default for the `patience` of this device. `stopped` is
        called between requests; if it returns true, the step raises `transport.Stopped`.
        """
        outcome: str = self._driver(patience=patience).run(self._session.step(wait), stopped=stopped)
        return outcome

    def drop_out(self) -> None:
        """Drop out of the open attempt, if any: delete its secrets and a report that the server has not confirmed.

        The next `step` waits for the next attempt or round.
        """
        with self._lock:
            open_attempt.drop_out(self._session)

    def look_next(self) -> tuple[Offer, float | None]:
        """Return the server's offer of further rounds or of a next run, and the ε that the person must allow first.

        This ε is a limit on the total cost of all runs, to be set with `raise_budget`; it is None if the present limit
        is enough. The request is anonymous, and nothing changes.
        """
        offer: Offer = self._driver().run(joining.look_next(self._session))
        with self._lock:
            return offer, joining.needs(self._session, offer)

    def follow(self) -> None:
        """Agree to further rounds or a next run; raise `BudgetExceeded` if the limit does not cover all runs."""
        self._driver().run(joining.follow(self._session))

    def leave(self, *, tell: bool = True) -> None:
        """Leave the run; ratings and ledger stay in the store. With `tell=False` the server is not contacted."""
        if tell:
            self._driver().run(joining.leave(self._session))
        else:
            with self._lock:
                joining.forget_run(self._session)

    def rotate_key(self) -> None:
        """Replace the key that signs this device's requests."""
        self._driver().run(joining.rotate_key(self._session))

    @property
    def has_joined(self) -> bool:
        """Whether this device has joined a run and not left it."""
        with self._lock:
            return self._session.is_enrolled

    @property
    def server(self) -> str | None:
        """The address of the server, or None before joining."""
        with self._lock:
            place = self._store.get_json("server")
        return None if place is None else place["address"]

    def _driver(
        self, place: Mapping[str, Any] | None = None, *, patience: float | None = None, seconds: float | None = None
    ) -> BlockingDriver:
        with self._lock:
            if place is None:
                place = self._store.get_json("server")
            if place is None:
                raise not_joined()
            if self._http is not None and self._http_place != place:
                self._http.close()
                self._http = None
            if self._http is None:
                ca = None if place["ca"] is None else Path(place["ca"])
                self._http = open_http(place["address"], tls_context(ca), seconds=SILENT_SECONDS)
                self._http_place = place
            if seconds is not None:
                self._http.timeout = seconds
        return BlockingDriver(
            self._session, self._http, patience=self._patience if patience is None else patience, lock=self._lock
        )

    # For the person --------------------------------------------------------------------------------------------

    def recommend(self, count: int = 10) -> list[Suggestion]:
        """Return the unrated items that rank highest, the best first. The device computes them offline.

        Predictions use all present ratings and the latest public table, so that ratings given after the latest
        round count, and a person who joins a finished run gets recommendations without a round. While the run has no
        public table to predict from, the previous run's list is returned, if there is one.
        """
        if count < 1:
            raise ParameterError(f"count must be at least 1, got {count}.")
        with self._lock:
            if earlier := self._earlier_list():
                found = [((item, self.catalogue.title_of(item)), score) for item, score in earlier[:count]]
            else:
                best, scores = self._session.predictions.recommend(count)
                found = [(self._store.item_at(int(n)), float(scores[n])) for n in best]
            low, high = self._session.budgets.scale
            return [Suggestion(*item, min(high, max(low, score)), score) for item, score in found]

    def reasons(self, items: list[str], count: int = 2) -> list[list[str]]:
        """Return for each of `items` the ids of the up to `count` liked items that are most similar to it.

        The most similar item is first. An item is liked if the person rated it at or above their own mean. The lists
        are empty until this device has a public table from which it can predict.
        """
        with self._lock:
            if not self.has_learned:
                return [[] for _ in items]
            positions = np.array([self.catalogue.position_of(item) for item in items], dtype=np.int64)
            found = self._session.client().reasons(self._session.predictions.public(), positions, count)
            return [[self._store.item_at(int(place))[0] for place in places] for places in found]

    @property
    def has_learned(self) -> bool:
        """Whether this device has a public table of its run from which it can predict."""
        with self._lock:
            return self._session.is_enrolled and self._session.predictions.are_possible

    def _earlier_list(self) -> list[tuple[str, float]]:
        """Return (id, prediction) of the previous run's recommendations.

        Predictions are on the person's scale. The list is empty once this run has a public table to predict from.
        """
        if not self._session.is_enrolled or self.has_learned:
            return []
        return [entry for entry in self._session.predictions.last_list() if entry[0] in self.catalogue]

    @property
    def list_order(self) -> str | None:
        """A sentence on how `recommend` ranks items; None if it ranks them by predictions alone, or before joining."""
        with self._lock:
            return self._session.client().side.order if self._session.is_enrolled else None

    def predict(self) -> FloatArray:
        """Return predicted ratings of all items in the order of the catalogue, clipped to this person's scale."""
        with self._lock:
            return np.clip(self.budgets.from_unit(self._session.predictions.scores()), *self.budgets.scale)

    def item_vectors(self) -> FloatArray | None:
        """Return the latest public item vectors, or None if the protocol publishes none."""
        with self._lock:
            table = self._session.predictions.public().get("item_vectors")
            n_items = self._session.accepted.terms.n_items
            return None if table is None else np.asarray(table[:n_items], dtype=np.float64)

    def status(self) -> Status:
        """Return the state of this device."""
        with self._lock:
            session, store = self._session, self._store
            offer, joined = session.offer, session.is_enrolled
            return Status(
                has_joined=joined,
                server=self.server if joined else None,
                round_number=session.last_round if joined else 0,
                rounds=offer.terms.max_rounds if offer is not None and joined else None,
                in_round=joined and session.client().in_round,
                refusal=session.refusal,
                is_over=session.is_over,
                n_items=store.count_items(),
                n_ratings=len(store.ratings()),
                n_known=len(store.rated_items(store.count_items())),
                can_recommend=self.has_learned or bool(self._earlier_list()),
            )

    @property
    def offer(self) -> Offer | None:
        """The latest offer that this device has accepted, by `join` or `follow`; None if there is none."""
        return self._session.offer

    @property
    def budgets(self) -> Budgets:
        """This person's privacy budgets, and the scale of their ratings."""
        return self._session.budgets

    def asks(self) -> list[str]:
        """Return sentences about what the joined run asks of this device, and whom its person must trust."""
        with self._lock:
            offer = self._session.accepted
            return self._session.budgets.protocol_for(offer).asks(offer.terms)

    def budget(self) -> dict[str, Any]:
        """Return a dict: the cost `spent` by all runs, its `limit`, the `unit` of both, and what is `not_covered`."""
        with self._lock:
            return self._session.budget()

    def choose_budget(self, epsilon_i: float) -> None:
        """Set `epsilon_i` of `sdcf`, and `epsilon_p` to twice that; raise if permanent bits have been drawn."""
        with self._lock:
            self._session.change_budgets(replace(self.budgets, epsilon_i=epsilon_i, epsilon_p=None))  # type: ignore[arg-type]

    def choose_epsilon(self, epsilon: float) -> None:
        """Set the most ε that one masked run may cost this person, from the next round on.

        The server cannot see it in the reports. Raise `BudgetExceeded` if the limit for all runs does not cover it.
        """
        with self._lock:
            self._session.change_epsilon(epsilon)

    def raise_budget(self, epsilon: float) -> None:
        """Raise the limit on the ε of all runs together, for a next run or (`sdcf`) new permanent bits."""
        with self._lock:
            self._session.allow(epsilon)

    def sent(self) -> Sent | None:
        """Return the stored reports of this run, and the ratings; None if there is no report.

        Of `masked` the last table is stored, of `sdcf` the last 50 reports.
        """
        with self._lock:
            reports = self._session.store.shown()
            if not reports:
                return None
            waiting = self._store.get("outbox") is not None
            rated = self._store.rated_items(self._store.count_items())
            return Sent(reports, waiting, rated)
