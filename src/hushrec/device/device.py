"""`hushrec.Device`: a person's device, to be embedded in an app.

The class is thread-safe: a lock guards the store, and is released during requests to the server.
"""

import contextlib
import threading
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np

from hushrec.arrays import FloatArray
from hushrec.budget.events import as_number
from hushrec.device import joining, open_attempt
from hushrec.device.budgets import Budgets, check_ratings
from hushrec.device.calls import not_joined
from hushrec.device.catalogue import Catalogue, Found
from hushrec.device.session import Session
from hushrec.device.store import Store, default_folder, erase
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
from hushrec.models.predictor import Arrays
from hushrec.protocols.shown import ShownReport

FAREWELL_SECONDS = 3.0  # timeout for telling the server when the store is erased
EXPIRY_SECONDS = 60.0  # interval at which the secrets of an open attempt are checked for their end


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
    in_round: bool  # whether round `round_number` has phases left for this device
    refusal: str  # why this device refused a message and left the attempt; "" if it has finished an attempt since
    is_over: bool
    n_items: int  # number of items in the catalogue
    n_ratings: int
    n_known: int  # number of ratings whose items are in the catalogue
    can_recommend: bool


@dataclass(frozen=True, repr=False)
class Sent:
    """The last reports of this device, with private data that explains them. Must never leave the device."""

    reports: list[ShownReport]  # in the order in which they were sent
    is_waiting: bool  # whether a report has no receipt from the server yet
    rated: dict[int, float]  # the person's ratings now, by the item's position in the catalogue


class Device:
    """A person's device: their ratings and everything learned from them, in a folder that only the person can read.

    Before `join`, only `look_at` contacts a server, anonymously. After `join`, each `step` reports in one phase of a
    round, and never costs more than the ledger allows. A failed request is retried for `patience` seconds.
    """

    def __init__(self, folder: str | Path | None = None, *, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience
        self._lock = threading.RLock()
        self._stepping = threading.Lock()
        self._closed = threading.Event()
        self._expiry: threading.Thread | None = None
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
    def create(
        cls,
        folder: str | Path | None = None,
        *,
        patience: float = PATIENCE_SECONDS,
        scale: tuple[float, float] = (1.0, 5.0),
        max_value_rho: float | None = None,
        limits: Mapping[str, float] | None = None,
        protocol: str | None = None,
        **options: Any,
    ) -> Self:
        """Create a new store in `folder` (default: `default_folder()`), and return its device.

        `scale` is the lowest and the highest rating. `options` are the person's options of `protocol`. Without
        `protocol`, each option is for the first protocol that has it: `epsilon` and `least_cohort` for `masked`;
        `epsilon_i`, `epsilon_p` and `epsilon_g` for `sdcf`. `limits` maps a unit of the ledger to the most that all
        runs together may cost in it; `max_value_rho` is the limit of unit `value`, the gradient values of `sdcf`, in ρ
        of zero-concentrated differential privacy. If a value is invalid, nothing is created.
        """
        known = {**({} if max_value_rho is None else {"value": max_value_rho}), **(limits or {})}
        checked = Budgets(limits=known, scale=scale).choosing(options, protocol)
        place = default_folder() if folder is None else Path(folder)
        store = Store(place, create=True)
        try:
            Session.start(store, checked)
        finally:
            store.close()
        return cls(place, patience=patience)

    @staticmethod
    def forget(folder: str | Path | None = None) -> None:
        """Erase the store in `folder` (default: `default_folder()`), which must not be open. No server is contacted."""
        erase(default_folder() if folder is None else Path(folder))

    def erase(self) -> None:
        """Leave the run, then close and erase this store, even if the server does not reply within a few seconds."""
        if self.has_joined:
            with contextlib.suppress(HushrecError):  # the store is erased even if the server cannot be reached
                driver = self._driver(patience=0)
                driver.http.timeout = FAREWELL_SECONDS
                driver.run(joining.leave(self._session))
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
        """Close the store and the connection; leaving a `with` block does the same.

        A job of another thread raises `transport.Stopped`, at the latest when its present request has ended.
        """
        self._closed.set()
        if self._http is not None:
            self._http.close()
        with self._lock:  # SQLite crashes if it is closed while another thread uses it
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
            ratings = {str(item): as_number("a rating", value) for item, value in values.items()}
            check_ratings(ratings, self.budgets.scale)
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
        """Return up to `count` items whose titles contain every word of `text`; skip the first `first` results.

        If `text` has no words, every item matches; popular items come first if the public table shows popularity.
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
        with self._lock:
            is_known = place == self._store.get_json("server")
        if again:
            job = joining.rejoin(self._session, invitation)
        elif not self.has_joined:
            job = joining.join(self._session, invitation)
        elif not is_known:
            job = joining.check_server(self._session)
        else:
            return
        self._driver(place).run(job)
        with self._lock, self._store.change():
            self._store.put_json("server", place)

    def look_at(self, server: str, *, ca: str | Path | None = None, insecure: bool = False) -> Offer:
        """Fetch and return a server's offer anonymously; store nothing. `ca` and `insecure` are as in `join`."""
        offer: Offer = self._driver(self._place(server, ca, insecure=insecure)).run(joining.fetch_offer(self._session))
        return offer

    def _place(self, server: str | None, ca: str | Path | None, *, insecure: bool) -> dict[str, str | None]:
        """Return a dict with `address`, the server's address, and `ca`, the path of the certificate to trust or None.

        If `server` is None, return the stored address. If `ca` is None, return the path that is stored for the address.
        Raise `ParameterError` if the address is missing or invalid, or if the certificate cannot be read.
        """
        with self._lock:
            known = self._store.get_json("server")
        if server is None and known is None:
            raise ParameterError("server must be given, because this device has not joined one yet. Give its address.")
        address = known["address"] if server is None else check_address(server, insecure=insecure)
        trusted = known["ca"] if known is not None and known["address"] == address else None
        place = {"address": address, "ca": trusted if ca is None else str(Path(ca).resolve())}
        tls_context(place["ca"])
        return place

    def step(
        self, wait: float = 0, *, patience: float | None = None, stopped: Callable[[], bool] = lambda: False
    ) -> str:
        """Wait up to `wait` seconds for an open phase, and report in it; return the outcome.

        The outcome is "reported", even if this device has nothing to send in the phase; "run over"; "no round" if no
        phase has asked this device for a report in time; or "refused" if this device refused a message and dropped out
        of the attempt. Then `status` has the reason, and the next step waits for the next attempt or round.

        A failed request is retried for `patience` seconds, by default for the `patience` of this device. `stopped` is
        called between requests; if it returns true, the step raises `transport.Stopped`. If another thread's step is in
        progress, this one begins after it.
        """
        with self._stepping:
            self._watch_expiry()
            outcome: str = self._driver(patience=patience).run(self._session.step(wait), stopped=stopped)
        return outcome

    def _watch_expiry(self) -> None:
        """Start a thread that drops out of an open attempt when its time is over, unless it has been started.

        It does so even if a request never ends, or if the app makes no further step.
        """
        with self._lock:
            if self._expiry is None:
                self._expiry = threading.Thread(
                    target=_drop_expired, args=(weakref.ref(self), self._closed), name="hushrec-expiry", daemon=True
                )
                self._expiry.start()

    def drop_out(self) -> None:
        """Drop out of the open attempt, if any: delete its secrets and a report that the server has not confirmed.

        The next `step` waits for the next attempt or round.
        """
        with self._lock:
            open_attempt.drop_out(self._session)

    def look_next(self) -> tuple[Offer, float | None]:
        """Fetch the server's offer of further rounds or of a next run; return it with the ε that `follow` needs.

        This ε is the limit on the cost of all runs together that the person must first set with `raise_budget`; it is
        None if the present limit is enough. The request is anonymous, and nothing changes.
        """
        offer: Offer = self._driver().run(joining.look_next(self._session))
        with self._lock:
            return offer, joining.needs(self._session, offer)

    def follow(self) -> None:
        """Agree to the server's offer of further rounds or of a next run.

        Raise `BudgetExceeded` if the person's limit for all runs together does not cover the next run as well.
        """
        self._driver().run(joining.follow(self._session))

    def leave(self, *, tell: bool = True) -> None:
        """Leave the run; ratings and ledger stay in the store. With `tell=False` the server is not contacted."""
        if tell:
            self._driver().run(joining.leave(self._session))
        else:
            with self._lock:
                joining.forget_run(self._session)

    def rotate_key(self) -> None:
        """Replace the key that signs this device's requests. If a step is in progress, wait until it has ended."""
        with self._stepping:
            self._driver().run(joining.rotate_key(self._session))

    @property
    def has_joined(self) -> bool:
        """Whether this device has joined a run and not left it."""
        with self._lock:
            return self._session.is_enrolled

    @property
    def server(self) -> str | None:
        """The address of the server; None before the first `join`. After `leave` it stays in the store."""
        with self._lock:
            place = self._store.get_json("server")
        return None if place is None else place["address"]

    def _driver(self, place: Mapping[str, Any] | None = None, *, patience: float | None = None) -> BlockingDriver:
        with self._lock:
            place = place or self._store.get_json("server")
            if place is None:
                raise not_joined()
            if self._http is None or self._http_place != place:
                http = open_http(place["address"], tls_context(place["ca"]), seconds=SILENT_SECONDS)
                if self._http is not None:
                    self._http.close()
                self._http, self._http_place = http, place
        patience = self._patience if patience is None else patience
        return BlockingDriver(self._session, self._http, patience=patience, lock=self._lock)

    # For the person --------------------------------------------------------------------------------------------

    def recommend(self, count: int = 10) -> list[Suggestion]:
        """Return the unrated items that rank highest, the best first. The device computes them offline.

        Predictions use all ratings in the store and the latest public table. So ratings given after the latest round
        count, and a person who joins a finished run gets recommendations without a round. While the run has no public
        table to predict from, return the previous run's recommendations, if there are any.
        """
        if count < 1:
            raise ParameterError(f"count must be at least 1, got {count}.")
        with self._lock:
            if earlier := self._earlier_list():
                found = [((item, self.catalogue.title_of(item)), score) for item, score in earlier[:count]]
            else:
                best, scores = self._session.predictions.recommend(count)
                found = [(self._store.item_at(int(n)), float(scores[n])) for n in best]
            low, high = self.budgets.scale
            return [Suggestion(*item, min(high, max(low, score)), score) for item, score in found]

    def reasons(self, items: list[str], count: int = 2) -> list[list[str]]:
        """Return for each of `items` a list of ids: up to `count` liked items that are similar, the most similar first.

        An item is liked if the person rated it at or above their own mean. The lists are empty until this device has a
        public table from which it can predict, and if it cannot compare items (`compares_items`).
        """
        with self._lock:
            if not self.has_learned:
                return [[] for _ in items]
            positions = np.array([self.catalogue.position_of(item) for item in items], dtype=np.int64)
            found = self._session.client().reasons(self._session.predictions.public(), positions, count)
            return [[self._store.item_at(int(place))[0] for place in places] for places in found]

    @property
    def compares_items(self) -> bool:
        """Whether this device can tell which items are similar; False if the run knows too little of the items."""
        with self._lock:
            session = self._session
            return self.has_learned and session.client().compares_items(session.predictions.public())

    @property
    def has_learned(self) -> bool:
        """Whether this device has a public table of its run from which it can predict."""
        with self._lock:
            return self._session.is_enrolled and self._session.predictions.are_possible

    def _earlier_list(self) -> list[tuple[str, float]]:
        """Return (id, prediction) of the previous run's recommendations, the best first, on the person's scale.

        Rated items, and items that are not in this run's catalogue, are left out. The list is empty once this run has a
        public table to predict from.
        """
        if not self._session.is_enrolled or self.has_learned:
            return []
        rated, entries = self._store.ratings(), self._store.get_json("last_list") or []
        return [(item, score) for item, score in entries if item in self.catalogue and item not in rated]

    @property
    def list_order(self) -> str | None:
        """A sentence that says how `recommend` ranks items; None if predictions alone decide, and before joining."""
        with self._lock:
            return self._session.client().side.order if self._session.is_enrolled else None

    def predict(self) -> FloatArray:
        """Return predicted ratings of all items in the order of the catalogue, clipped to this person's scale."""
        with self._lock:
            return np.clip(self.budgets.mapping.from_unit(self._session.predictions.scores()), *self.budgets.scale)

    def public_table(self) -> Arrays:
        """Return the arrays of the run's latest public table by name."""
        with self._lock:
            return self._session.predictions.public()

    def status(self) -> Status:
        """Return the state of this device."""
        with self._lock:
            session, store = self._session, self._store
            offer, address = session.offer, self.server
            joined = session.is_enrolled and address is not None  # `join` stores the address last
            return Status(
                has_joined=joined,
                server=address if joined else None,
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
        """The latest offer that this device has accepted (`join`, `follow`); None before `join` and after `leave`."""
        return self._session.offer

    @property
    def budgets(self) -> Budgets:
        """This person's privacy budgets, and the scale of their ratings."""
        return self._session.budgets

    def asks(self) -> list[str]:
        """Return sentences that say what the joined run requires of this device and, under `masked`, whom to trust."""
        with self._lock:
            offer = self._session.accepted
            return self.budgets.protocol_for(offer).asks(offer.terms)

    def budget(self) -> dict[str, Any]:
        """Return what this device has spent in all runs, as a dict.

        Its entries are the fields of `LedgerStatement` (protocols/configured.py), such as `spent`, `limit`, `unit` and
        `not_covered`, and further numbers of the joined protocol.
        """
        with self._lock:
            return self._session.budget().to_dict()

    def choose(self, protocol: str | None = None, **options: Any) -> None:
        """Set options that the person chooses for a protocol, such as `epsilon` of `masked`, from the next round on.

        `protocol` is by default that of the joined run; before joining, an option is set for the first registered
        protocol that has one of this name. Raise `LocalProtocolError` if the options can no longer change, as under
        `sdcf` after the first round, and `BudgetExceeded` if the limit for all runs together does not cover this run
        with the new options.
        """
        with self._lock:
            joined = None if self.offer is None else self.offer.protocol
            self._session.change_budgets(self.budgets.choosing(options, protocol or joined))

    def raise_budget(self, epsilon: float, protocol: str | None = None) -> None:
        """Raise the limit on the ε of all runs together, for a next run or (`sdcf`) new permanent bits.

        `protocol` is by default that of the joined run; before joining, the limits of all protocols are raised. For a
        protocol without personal options, call this before `join`, which otherwise refuses the cost.
        """
        with self._lock:
            self._session.allow(epsilon, protocol)

    def sent(self) -> Sent | None:
        """Return the stored reports of this run, and the ratings; None if there is no report.

        Under `masked` the last table is stored, under the gradient protocols the last 50 reports.
        """
        with self._lock:
            reports = self._store.shown()
            rated = self._store.rated_items(self._store.count_items())
            return Sent(reports, self._store.get("outbox") is not None, rated) if reports else None


def _drop_expired(weak: "weakref.ref[Device]", closed: threading.Event) -> None:
    """Drop out of expired attempts of a device, every `EXPIRY_SECONDS`, until it is closed or nobody uses it."""
    while not closed.wait(EXPIRY_SECONDS):
        device = weak()
        if device is None:
            return
        with device._lock, contextlib.suppress(HushrecError):  # the next step reports a store that cannot be read
            if not closed.is_set():
                open_attempt.drop_expired(device._session)
        del device  # a device that nobody else uses must not be kept alive while the thread waits
