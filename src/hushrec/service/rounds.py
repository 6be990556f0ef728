"""Rounds: when they open and close, and what becomes of an answer. The state machine of `server.py` does the rest.

    answer ──checked──▶ stored, durable ──▶ acknowledged            (any number at once, shared commits)
    round closes: read in order of device id ▶ sum ▶ new item vectors ▶ answers deleted     (one transaction)

Everything that a restart needs is in the database. What is in memory is a mirror of it, and never ahead of it.
"""

import asyncio
import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import sqlalchemy as sa

from hushrec.arrays import FloatArray
from hushrec.errors import HushrecError
from hushrec.messages import (
    REPORT,
    Catalogue,
    Credentials,
    Enrolment,
    Envelope,
    GradientReport,
    ItemVectors,
    Offer,
    Receipt,
)
from hushrec.models import make_model
from hushrec.protocols.gradient.plausible import LEAST_REPORTS, report_bound
from hushrec.protocols.gradient.server import GradientServer
from hushrec.protocols.parties import Address
from hushrec.randomness import Purpose, SystemRandomness
from hushrec.server import Server
from hushrec.service.catalogue import insert_items, read_items
from hushrec.service.history import write_round
from hushrec.service.monitor import Monitor
from hushrec.service.problems import Refusal
from hushrec.service.registry import ACTIVE, Device, Registry
from hushrec.service.reports import NewReport, delete_reports, sum_reports
from hushrec.service.schema import reports, rounds, run
from hushrec.service.settings import Settings
from hushrec.service.storage import Storage
from hushrec.signing import Request
from hushrec.wire import decode, encode

RETRY_SECONDS = 1.0
RESUMED_SECONDS = 60.0  # that a round goes on after a restart, whatever its deadline: devices are on their way back
ITEMS_PER_PAGE = 10_000  # of the catalogue, which anybody may ask for


class Rounds:
    """The run in this database: its rounds, one after the other."""

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        monitor: Monitor,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._settings = settings.rounds
        self._monitor = monitor
        self._clock = clock
        self._wall_clock = wall_clock
        row = storage.read(lambda connection: connection.execute(sa.select(run)).one())
        self.offer = decode(bytes(row.offer), Offer)
        self._model = make_model(self.offer.terms.model, self.offer.terms.n_factors)
        self.item_vectors: FloatArray = np.frombuffer(row.item_vectors).reshape(self.offer.terms.n_items, -1)
        self.registry = Registry(
            storage,
            settings.limits,
            run_id=self.offer.run_id,
            open_enrolment=settings.open_enrolment,
            clock=clock,
            wall_clock=wall_clock,
        )
        self.round_number: int = row.round
        self.registry.round_number = row.round
        self.is_open: bool = row.is_open
        self.is_paused: bool = row.is_paused
        self.max_report_norm: float | None = row.max_report_norm
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()  # rounds open and close, and items join, one at a time, whoever asks
        self._closing = False
        self._quorum_at: float | None = None  # when enough devices had reported in the open round
        self._is_stopping = False
        self._catalogue = storage.read(lambda c: read_items(c, 0))
        self._answers: dict[str, bytes] = {}
        self._pending: dict[str, tuple[bytes, asyncio.Future[None]]] = {}
        self._server = self._make_server(row.round - row.is_open)
        self._announcement = b""
        resumed = max(0.0, self._settings.deadline_seconds - RESUMED_SECONDS)
        longest = resumed if self.is_open else self._settings.pause_seconds
        elapsed = min(max(0.0, wall_clock() - row.opened_at), longest)
        self._since = clock() - elapsed  # a wall clock that jumped back or far ahead does no more than this
        if self.is_open:
            self._resume()

    def _make_server(self, round_number: int) -> Server:
        clients = self.registry.entitled(round_number + 1)
        side = GradientServer(
            self.offer.terms,
            self._model,
            self.item_vectors,
            max_report_norm=self.max_report_norm,
            least_reports=LEAST_REPORTS,
        )
        return Server(side, clients, round_number=round_number)

    def _announced(self, server: Server) -> bytes:
        """Open the next round of a server; return the bytes that every device downloads."""
        server.start_round()
        return self._sealed(ItemVectors(self.offer.terms, server.round_number, self.item_vectors, self.max_report_norm))

    def _resume(self) -> None:
        """Goes on with the round that was open when the server stopped."""
        self._announcement = self._announced(self._server)
        query = sa.select(reports.c.device, reports.c.body).where(reports.c.round == self.round_number)
        stored = self._storage.read(lambda connection: connection.execute(query).all())
        self._answers = {row.device: hashlib.sha256(row.body).digest() for row in stored}
        self._monitor.log("round-resumed", round=self.round_number, answers=len(self._answers))

    @property
    def is_over(self) -> bool:
        return not self.is_open and self.round_number >= self.offer.terms.max_rounds

    @property
    def expected_devices(self) -> int:
        """How many devices the terms were made for: N / z."""
        terms = self.offer.terms
        return round(terms.data_weight / (terms.reports_per_client or 1))

    @property
    def n_answers(self) -> int:
        """Durable answers to the open round."""
        return len(self._answers)

    @property
    def elapsed(self) -> float:
        """Seconds since the round opened; between rounds, since the last one closed."""
        return float(self._clock() - self._since)

    @property
    def deadline_seconds(self) -> float:
        return float(self._settings.deadline_seconds)

    @property
    def largest_body(self) -> int:
        """Bytes of a report that names as many items as it may."""
        return 400 + self.offer.terms.most_items * 4 * (1 + self._model.item_width)

    def _sealed(self, message: ItemVectors) -> bytes:
        return encode(Envelope(self.offer.run_id, message.round_number, 1, REPORT, message))

    # Devices ---------------------------------------------------------------------------------------------------

    async def enrol(self, enrolment: Enrolment, credentials: Credentials, request: Request) -> Device:
        """Lets a device in from the next round on."""
        device = await self.registry.enrol(enrolment, credentials, request, self.round_number + 1)
        if self.is_open and device.first_round <= self.round_number:  # that round has opened meanwhile
            self._server = self._make_server(self.round_number - 1)
            self._server.start_round()
        self._wake.set()
        return device

    async def leave(self, device: Device) -> None:
        """Lets a device go."""
        await self.registry.leave(device)
        self._wake.set()

    async def next_round(self, device: Device, after: int, wait: float) -> bytes | None:
        """The announcement of a round above `after` that this device can still answer; None if none opens in time."""
        until = self._clock() + wait
        if not self.is_open:
            self._wake.set()  # a device that returns may be the one that a round lacks
        while not self._can_answer(device, after):
            if self.is_over:
                raise Refusal("run-over", f"all {self.offer.terms.max_rounds} rounds of this run are over.", status=410)
            if self._is_stopping:
                return None
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), timeout=until - self._clock())
            except TimeoutError:
                return None
            if device.state != ACTIVE:
                self.registry.known(device.id)
        return self._announcement

    def _can_answer(self, device: Device, after: int) -> bool:
        return (
            self.is_open
            and not self._closing
            and self.round_number > after
            and self.round_number >= device.first_round
            and device.id not in self._answers
        )

    def stop_waiting(self) -> None:
        """The server ends: whoever waits for a round is told that there is none."""
        self._is_stopping = True
        self._announce_change()

    def latest_vectors(self) -> bytes:
        """The item vectors as they stand, in the form of an announcement."""
        if self.is_open:
            return self._announcement
        latest = ItemVectors(self.offer.terms, max(1, self.round_number), self.item_vectors)
        return self._sealed(latest)

    async def answer(self, device: Device, nonce: int, request: Request) -> Receipt:
        """Checks an answer, and returns when it is durable. The same bytes may come again; others are refused."""
        envelope, digest = decode(request.body, Envelope), request.digest
        round_number = envelope.round_number
        self._check_round(device, envelope)
        if (earlier := self._earlier(device.id)) is not None:
            if earlier != digest:
                raise Refusal(
                    "reported",
                    "this device has reported in this phase already, with other bytes.",
                    status=409,
                )
            if device.id in self._pending:
                await asyncio.shield(self._pending[device.id][1])
            return Receipt(round_number, envelope.attempt, envelope.phase, repeated=True)
        self._check_message(device, envelope)
        stored = self._storage.store(NewReport(round_number, device.id, nonce, request.body, device.last_seen))
        self._pending[device.id] = digest, stored
        stored.add_done_callback(partial(self._stored, device, round_number, digest))
        await asyncio.shield(stored)  # a request that is given up loses nothing
        return Receipt(round_number, envelope.attempt, envelope.phase, repeated=False)

    def _earlier(self, name: str) -> bytes | None:
        return self._pending[name][0] if name in self._pending else self._answers.get(name)

    def _check_round(self, device: Device, envelope: Envelope) -> None:
        round_number = envelope.round_number
        if envelope.run_id != self.offer.run_id:
            raise Refusal("wrong-run", "the report is for another run.", status=409)
        if not self.is_open or self._closing or round_number != self.round_number:
            raise Refusal(
                "round-closed",
                f"round {round_number} takes no answers; the latest is round {self.round_number}.",
                status=409,
                last_round=device.last_round,
            )
        if round_number < device.first_round:
            raise Refusal("too-early", f"this device takes part from round {device.first_round} on.", status=409)

    def _check_message(self, device: Device, envelope: Envelope) -> None:
        if (envelope.attempt, envelope.phase) != (1, REPORT) or not isinstance(envelope.message, GradientReport):
            raise Refusal("wrong-phase", "the open phase takes a gradient.report: attempt 1, phase report.", status=422)
        address = Address(envelope.round_number, envelope.attempt, envelope.phase)
        self._server.check(device.id, address, envelope.message)

    def _stored(self, device: Device, round_number: int, digest: bytes, stored: "asyncio.Future[None]") -> None:
        del self._pending[device.id]
        if stored.cancelled() or stored.exception() is not None:
            return
        if self.is_open and round_number == self.round_number:
            self._answers[device.id] = digest
        device.last_round = round_number
        self._wake.set()

    # Rounds ----------------------------------------------------------------------------------------------------

    async def run_schedule(self) -> None:
        """Opens and closes rounds as the settings say, for as long as the server runs."""
        while True:
            self._wake.clear()
            try:
                delay = await self._advance()
            except Refusal:  # the admin was quicker
                delay = 0.0
            except Exception as error:  # the server goes on, and so must its rounds
                reason = str(error) if isinstance(error, HushrecError) else type(error).__name__
                self._monitor.log("round-error", reason=reason)
                delay = RETRY_SECONDS
            try:
                await asyncio.wait_for(self._wake.wait(), timeout=delay)
            except TimeoutError:
                continue

    async def _advance(self) -> float | None:
        """Does what is due now; returns the seconds until something may be due again."""
        elapsed = self.elapsed
        if self.is_open:
            left = self._seconds_left()
            if left <= 0:
                await self.close_round()
            return max(0.0, left)
        if self.is_over or self.is_paused or not self._settings.automatic:
            return None
        if elapsed < self._settings.pause_seconds and self.round_number:
            return float(self._settings.pause_seconds - elapsed)
        if self.count_present(self.round_number + 1) >= self._settings.min_devices:
            await self.open_round()
            return 0.0
        return None

    def _seconds_left(self) -> float:
        """Until the open round closes, as things stand: none once all present devices reported.

        The report of a device that left stays in the sum, and counts for nobody else.
        """
        until = self._settings.deadline_seconds - self.elapsed
        asked = self.count_present(self.round_number)
        given = self.n_answers - self.registry.count_ended(self._answers.keys())
        if self.n_answers == 0 or given < math.ceil(self._settings.quorum * asked):
            self._quorum_at = None
            return until
        if self._quorum_at is None:
            self._quorum_at = self._clock()
        grace = 0.0 if given >= asked else self._settings.grace_seconds
        return min(until, self._quorum_at + grace - self._clock())

    def count_present(self, round_number: int) -> int:
        """Devices that this round should wait for."""
        return self.registry.count_present(round_number, self._settings.missed_rounds)

    async def open_round(self) -> None:
        """Opens the next round; items that joined the catalogue are in it."""
        async with self._turn:
            await self._open_round()

    async def _open_round(self) -> None:
        if self.is_open:
            raise Refusal("round-open", f"round {self.round_number} is open already.", status=409)
        if self.is_over:
            raise Refusal("run-over", "all rounds of this run are over.", status=409)
        offer, vectors = self._with_new_items()
        bound = report_bound(offer.terms, self.round_number + 1, self.count_present(self.round_number + 1))
        values = {
            "offer": encode(offer),
            "item_vectors": vectors.tobytes(),
            "round": self.round_number + 1,
            "is_open": True,
            "opened_at": self._wall_clock(),
            "max_report_norm": bound,
        }
        await self._storage.write(lambda connection: connection.execute(run.update().values(**values)))
        self.offer, self.item_vectors, self.max_report_norm = offer, vectors, bound
        self._server = self._make_server(self.round_number)
        self._announcement = self._announced(self._server)
        self._answers = {}
        self.round_number += 1
        self.registry.round_number = self.round_number
        self._quorum_at = None
        self.is_open = True
        self._since = self._clock()
        self._monitor.log("round-opened", round=self.round_number, items=offer.terms.n_items)
        self._announce_change()

    def _with_new_items(self) -> tuple[Offer, FloatArray]:
        """Offer and vectors with a start vector for each item that was added since the last round."""
        missing = len(self._catalogue) - len(self.item_vectors)
        if missing == 0:
            return self.offer, self.item_vectors
        rng = SystemRandomness().stream(Purpose.ITEM_VECTORS)
        side = GradientServer(self.offer.terms, self._model, self.item_vectors)
        side.append_items(self._model.initial_vectors(missing, rng=rng))
        return replace(self.offer, terms=side.terms), side.item_vectors

    async def close_round(self) -> None:
        """Sums the answers in order of device id and publishes, in one transaction that also deletes them."""
        async with self._turn:
            await self._close_round()

    async def _close_round(self) -> None:
        if not self.is_open:
            raise Refusal("no-round", "no round is open.", status=409)
        self._closing = True
        seconds = self.elapsed
        asked, latency = self.count_present(self.round_number), self._monitor.latency()
        server = self._make_server(self.round_number - 1)  # here: devices come and go while the other thread writes

        def write(connection: sa.Connection) -> tuple[FloatArray, int]:
            stored = connection.execute(sa.select(run.c.is_open, run.c.item_vectors)).one()
            if not stored.is_open:  # an earlier try was committed although its answer was lost
                return np.frombuffer(stored.item_vectors).reshape(self.item_vectors.shape), self.n_answers
            server.start_round()
            n_answers = sum_reports(connection, server)
            vectors: FloatArray = server.side.public["item_vectors"]
            connection.execute(
                run.update().values(item_vectors=vectors.tobytes(), is_open=False, opened_at=self._wall_clock())
            )
            connection.execute(rounds.insert().values(round=self.round_number, answers=n_answers, seconds=seconds))
            write_round(
                connection,
                self.round_number,
                self.item_vectors,
                vectors,
                devices=max(asked, n_answers),
                latency=latency,
            )
            delete_reports(connection)
            return vectors, n_answers

        try:
            self.item_vectors, n_answers = await self._storage.write(write, scrub=True)
            self.is_open = False
        finally:
            self._closing = False
        self._answers = {}
        self._since = self._clock()
        self._monitor.round_closed(self.round_number, n_answers, seconds)
        self._announce_change()

    def _announce_change(self) -> None:
        """Wakes everyone who waits for a round."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._wake.set()

    # Admin -----------------------------------------------------------------------------------------------------

    async def set_paused(self, paused: bool) -> None:
        """Paused, no further round opens; the open one goes on."""
        await self._storage.write(lambda connection: connection.execute(run.update().values(is_paused=paused)))
        self.is_paused = paused
        self._wake.set()

    async def start(self) -> None:
        """Ends a pause, and opens a round now if none is open."""
        await self.set_paused(False)
        async with self._turn:
            if not self.is_open:
                await self._open_round()

    async def extend(self, more: int) -> None:
        """Offer further rounds of a run that is over; only devices whose person agrees take part in them."""
        async with self._turn:
            if not self.is_over:
                raise Refusal("run-on", "only a run that is over can be extended.", status=409)
            terms = replace(self.offer.terms, max_rounds=self.offer.terms.max_rounds + more)
            offer = replace(self.offer, terms=terms)
            await self._storage.write(lambda connection: connection.execute(run.update().values(offer=encode(offer))))
            self.offer = offer
        self._announce_change()

    async def revoke(self, name: str) -> None:
        """Sends a device away; its answer to the open round no longer counts."""
        await self.registry.revoke(name)
        self._answers.pop(name, None)
        self._announce_change()

    async def add_items(self, ids: list[str], titles: list[str]) -> int:
        """Adds those ids that are new; they get their vectors when the next round opens. Returns how many."""

        def write(connection: sa.Connection) -> list[tuple[str, str]]:
            insert_items(connection, ids, titles)
            return read_items(connection, len(self._catalogue))

        async with self._turn:  # one after the other: each must see what the one before it has added
            added = await self._storage.write(write)
            self._catalogue += added
        return len(added)

    @property
    def n_items(self) -> int:
        """Length of the catalogue, items that join with the next round included."""
        return len(self._catalogue)

    def catalogue_from(self, first: int) -> Catalogue:
        """A page of the catalogue, from memory."""
        page = self._catalogue[first : first + ITEMS_PER_PAGE]
        return Catalogue(first, [name for name, _ in page], [title for _, title in page])
