"""A server reduced to its replies: drives a device's jobs without a socket, for tests that need many devices."""

import math
from typing import Any

import msgspec
import numpy as np

from hushrec import wire
from hushrec.device.calls import Call, Job, Reply
from hushrec.messages import Catalogue, Envelope, Offer, Public, Receipt
from hushrec.protocols.gradient.messages import REPORT, ItemVectors
from hushrec.service.settings import TermsSettings
from hushrec.service.setup import Items, make_run

N_ITEMS = 30


def make_small_offer(n_items: int = N_ITEMS, **terms: Any) -> Offer:
    """An offer of few items, factors and rounds."""
    settings = TermsSettings(**{"protocol": "sdcf", "factors": 3, "rounds": 6, "expected_devices": 20} | terms)
    names = [f"item-{n}" for n in range(n_items)]
    return make_run(settings, Items(names, names))[0]


class OfflineServer:
    """Answers every call as a server does whose rounds are always open, and remembers what it was asked."""

    def __init__(self, offer: Offer | None = None, *, is_over: bool = False) -> None:
        self.is_over = is_over
        self.offer = make_small_offer() if offer is None else offer
        rng, shape = np.random.default_rng(0), (self.offer.terms.n_items, self.offer.terms.n_factors)
        self.item_vectors = 1 + rng.random(shape) / math.sqrt(shape[1])
        self.asked: list[str] = []
        self.max_report_norm: float | None = None

    def run(self, job: Job) -> Any:
        """Drive a job to its end and return what it returns."""
        try:
            call = next(job)
            while True:
                call = job.send(self.reply(call))
        except StopIteration as end:
            return end.value

    def reply(self, call: Call) -> Reply:
        """Answer one request."""
        method, (path, _, query) = call.request.method, call.request.target.partition("?")
        self.asked.append(f"{method} {path}")
        numbers = dict(part.split("=") for part in query.split("&") if part)
        if path == "/v1/run":
            return Reply(200, wire.encode(self.offer))
        if path == "/v1/devices":
            return Reply(201, wire.encode(self.offer))
        if path == "/v1/items":
            return Reply(200, wire.encode(self._catalogue(int(numbers["first"]))))
        if path == "/v1/public":
            public = Public.of(
                self.offer.run_id, 6 * self.is_over, self.offer.terms, {"item_vectors": self.item_vectors}
            )
            return Reply(200, wire.encode(public))
        if path == "/v1/inbox" and self.is_over:
            return Reply(410, msgspec.json.encode({"type": "urn:hushrec:problem:run-over"}))
        if path == "/v1/inbox":
            after = int(numbers["after"])
            return Reply(200, self._announcement(after + 1), last_report=(after, min(after, 1), 0))
        assert path == "/v1/reports", path
        sent = wire.decode(call.request.body, Envelope)
        return Reply(200, wire.encode(Receipt(sent.round_number, sent.attempt, sent.phase, repeated=False)))

    def _catalogue(self, first: int) -> Catalogue:
        ids = [f"item-{n}" for n in range(first, self.offer.terms.n_items)]
        return Catalogue(first, ids, [name.title() for name in ids])

    def _announcement(self, round_number: int) -> bytes:
        vectors = ItemVectors(self.offer.terms, round_number, self.item_vectors, self.max_report_norm)
        return wire.encode(Envelope(self.offer.run_id, round_number, 1, REPORT, vectors))
