"""`hushrec.Device`: a person's side of the system, to embed in an app."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import httpx
import numpy as np

from hushrec.arrays import FloatArray
from hushrec.budget.events import as_number
from hushrec.device.budgets import Budgets
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
from hushrec.errors import LocalProtocolError, ParameterError


@dataclass(frozen=True)
class Suggestion:
    """One recommended item. `score` ranks it; `predicted` is the rating to show, within the person's own scale."""

    item: str
    title: str
    predicted: float
    score: float


class Device:
    """A person's ratings, and what is learned from them, in a folder that only they can read.

    Nothing is sent before `join`. After it, each `step` answers one round of the server, if the ledger allows.
    """

    def __init__(self, folder: str | Path | None = None, *, patience: float = PATIENCE_SECONDS) -> None:
        self._patience = patience  # seconds of trying to reach the server, with growing waits between tries
        self._store = Store(default_folder() if folder is None else Path(folder))
        try:
            self._session = Session(self._store)
        except BaseException:
            self._store.close()
            raise
        self._http: httpx.Client | None = None

    @classmethod
    def create(cls, folder: str | Path | None = None, *, patience: float = PATIENCE_SECONDS, **budgets: Any) -> Self:
        """A new store. `budgets` are the fields of `Budgets`: epsilon_i, epsilon_p, epsilon_g, scale, …"""
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
        """Erases the store: ratings, vector, bits, ledger and keys."""
        erase(default_folder() if folder is None else Path(folder))

    def __repr__(self) -> str:
        return "Device()"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._http is not None:
            self._http.close()
        self._store.close()

    # Ratings ---------------------------------------------------------------------------------------------------

    def add_rating(self, item: str, value: float) -> None:
        """Stores one rating, in place of an earlier one of the same item."""
        self.add_ratings({item: value})

    def add_ratings(self, values: dict[str, float]) -> None:
        """Stores ratings. They train this person's vector from the next round on, and stay here."""
        low, high = self._session.budgets.scale
        ratings = {str(item): as_number("a rating", value) for item, value in values.items()}
        if not all(low <= value <= high for value in ratings.values()):
            raise ParameterError(f"ratings must be numbers from {low:g} to {high:g}, the scale of this store.")
        with self._store.change():
            self._store.put_ratings(ratings)
        self._session.forget_client()

    def remove_rating(self, item: str) -> None:
        """Forgets one rating; what was sent stays sent."""
        with self._store.change():
            if not self._store.drop_rating(str(item)):
                raise ParameterError("there is no rating of that item to remove.")
        self._session.forget_client()

    # The server ------------------------------------------------------------------------------------------------

    def join(
        self,
        server: str,
        *,
        invitation: str | None = None,
        ca: str | Path | None = None,
        insecure: bool = False,
        again: bool = False,
    ) -> None:
        """Enrols with a server, accepting what it offers for the whole run. `again`: after a lost or copied store."""
        if self.has_joined and not again:
            raise LocalProtocolError("this device has joined already. Let it leave first, or enrol it again.")
        address = check_address(server, insecure=insecure)
        place = {"address": address, "ca": None if ca is None else str(Path(ca).resolve())}
        tls_context(None if ca is None else Path(ca))
        with self._store.change():
            self._store.put_json("server", place)
        self._driver().run(self._session.rejoin(invitation) if again else self._session.join(invitation))

    def extend(self) -> None:
        """Agree to the further rounds that the server offers after its run was over."""
        self._driver().run(self._session.extend())

    def step(self, wait: float = 0) -> str:
        """Report in the open round, waiting up to `wait` seconds for it: "reported", "no round" or "run over"."""
        outcome: str = self._driver().run(self._session.step(wait))
        return outcome

    def leave(self) -> None:
        """Takes part no more. Ratings, vector and ledger stay in the store."""
        self._driver().run(self._session.leave())

    def rotate_key(self) -> None:
        """Changes the key that signs this device's requests."""
        self._driver().run(self._session.rotate_key())

    @property
    def has_joined(self) -> bool:
        return self._session.is_enrolled

    @property
    def server(self) -> str | None:
        """The address of the server, once joined."""
        place = self._store.get_json("server")
        return None if place is None else place["address"]

    def _driver(self) -> BlockingDriver:
        place = self._store.get_json("server")
        if place is None:
            raise LocalProtocolError("this device has not joined a server.")
        if self._http is not None and str(self._http.base_url).rstrip("/") != place["address"]:
            self._http.close()
            self._http = None
        if self._http is None:
            ca = None if place["ca"] is None else Path(place["ca"])
            self._http = open_http(place["address"], tls_context(ca), seconds=SILENT_SECONDS)
        return BlockingDriver(self._session, self._http, patience=self._patience)

    # For the person --------------------------------------------------------------------------------------------

    def recommend(self, count: int = 10) -> list[Suggestion]:
        """Return the unrated items with the highest scores, the best first. Computed here, offline; nothing is sent.

        The person's vector is fitted to all their ratings against the latest item vectors, so that ratings given after
        the last round count, and a newcomer to a finished run needs no round.
        """
        if count < 1:
            raise ParameterError(f"count must be at least 1, got {count}.")
        best, scores = self._session.recommend(count), self._session.predict()
        low, high = self._session.budgets.scale
        return [
            Suggestion(*self._store.item_at(int(n)), min(high, max(low, float(scores[n]))), float(scores[n]))
            for n in best
        ]

    def predict(self) -> FloatArray:
        """Return predicted ratings of all items, in the order of the catalogue, within this person's scale."""
        return np.clip(self._session.predict(), *self._session.budgets.scale)

    def budget(self) -> dict[str, Any]:
        """What was spent, in which unit, and what that does not cover."""
        statement: dict[str, Any] = self._session.protocol().ledger_statement(self._session.ledger())
        return statement

    def raise_budget(self, max_selection_epsilon: float) -> None:
        """Allows further draws of permanent bits: each costs epsilon_p."""
        ledger = self._session.ledger()
        ledger.raise_limit("selection", max_selection_epsilon)
        with self._store.change():
            self._store.put_json("ledger", ledger.to_record())
        self._session.forget_client()
