"""What a worker knows of the run: its devices, its items and where it stands, and how it learns what others did.

What is in memory is never ahead of what is stored. With SQLite nobody else writes. Where several workers share the
database, a request is let in by the database (`authenticate`), which also says whether this worker knows the open
phase; if not, `refresh` brings memory up to date before the request goes on.
"""

import asyncio
import copy
import time
from collections.abc import Callable

import sqlalchemy as sa

from hushrec.arrays import FloatArray
from hushrec.errors import StorageError
from hushrec.messages import Credentials, Enrolment
from hushrec.models.predictor import Arrays
from hushrec.offers import expectation, expected_devices
from hushrec.server import Stage
from hushrec.service.catalogue import CatalogueCopy
from hushrec.service.monitor import Monitor
from hushrec.service.problems import Refusal
from hushrec.service.registry import Device, Registry
from hushrec.service.schema import run
from hushrec.service.settings import Settings
from hushrec.service.sharing import Asked, News, read_news
from hushrec.service.storage import Storage
from hushrec.service.stored import Stored, load_run, read_offer
from hushrec.signing import Request

RESUMED_SECONDS = 60.0  # that a phase goes on after a restart, whatever its deadline: devices are on their way back


class Standing:
    """The run in this database as far as this worker knows: its devices, its items, and where it stands."""

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
        self.registry = Registry(
            storage,
            settings.limits,
            run_id=storage.at_once(read_offer).run_id,
            open_enrolment=settings.open_enrolment,
            clock=clock,
            wall_clock=wall_clock,
        )
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()  # phases open and close, and items join, one at a time, whoever asks
        self._quorum_at: float | None = None  # when enough devices had reported in the open phase
        self.catalogue = storage.at_once(CatalogueCopy.read)
        self.number = storage.at_once(lambda c: int(c.execute(sa.select(run.c.id)).scalar_one()))  # of the run
        self._heard_of = 0  # the first transaction of which this worker may not know
        self._refreshing: asyncio.Future[None] | None = None
        self.end_worker: Callable[[], None] = lambda: None  # whoever runs this worker says how
        self._take(storage.at_once(load_run))
        if self.is_open:
            self._monitor.log("round-resumed", **vars(self.server.address), reports=self.n_reports)

    def _take(self, stored: Stored) -> None:
        """Continue with the state that the database holds."""
        self._adopt(stored)
        resumed = max(0.0, self._settings.deadline_seconds - RESUMED_SECONDS)
        longest = resumed if self.is_open else self._settings.pause_seconds
        elapsed = min(max(0.0, self._wall_clock() - stored.opened_at), longest)
        self._since = self._clock() - elapsed  # a wall clock that jumped back or far ahead does no more than this

    def _adopt(self, stored: Stored) -> None:
        self.offer, self.server, self.is_paused = stored.offer, stored.server, stored.is_paused
        self.version = stored.version
        self.registry.round_number = self.round_number
        self.registry.admin_digest = stored.admin_digest

    @property
    def _stored(self) -> Stored:
        """What is in memory, with a copy of the server that a transaction may change."""
        server, digest = copy.deepcopy(self.server), self.registry.admin_digest
        return Stored(self.offer, server, self.is_paused, self._wall_clock(), digest, self.version)

    # Where the run stands --------------------------------------------------------------------------------------

    @property
    def round_number(self) -> int:
        """The open round, or the last."""
        return self.server.round_number

    @property
    def is_open(self) -> bool:
        return self.server.stage is Stage.OPEN

    @property
    def is_over(self) -> bool:
        return not self.is_open and self.round_number >= self.offer.terms.max_rounds

    @property
    def n_reports(self) -> int:
        """Durable reports of the open phase."""
        return len(self.server.reported)

    @property
    def n_present(self) -> int:
        """Devices that the open phase waits for: it asks them, and they were heard of lately."""
        asked = len(self.server.asked) - self.registry.count_ended(self.server.asked)
        return min(asked, self.count_present(self.round_number))

    @property
    def fewest_devices(self) -> int:
        """How many devices must be there before a round opens."""
        return max(self._settings.min_devices, self.server.side.fewest_devices)

    def count_present(self, round_number: int) -> int:
        """Devices that this round should wait for."""
        return self.registry.count_present(round_number, self._settings.missed_rounds)

    @property
    def elapsed(self) -> float:
        """Seconds since the phase opened; between rounds, since the last one ended."""
        return float(self._clock() - self._since)

    @property
    def deadline_seconds(self) -> float:
        return float(self._settings.deadline_seconds)

    @property
    def largest_body(self) -> int:
        """Bytes that a report may have."""
        return int(self.server.side.largest_report)

    @property
    def n_items(self) -> int:
        """Length of the catalogue, items that join with the next round included."""
        return len(self.catalogue)

    @property
    def public(self) -> Arrays:
        """What the rounds so far have published, by name."""
        return self.server.side.public

    @property
    def item_vectors(self) -> FloatArray:
        """The public table of a protocol that has one, `(n_items + n_side_rows, item_width)`."""
        return self.public["item_vectors"]

    @property
    def expected_devices(self) -> int | None:
        """How many devices the terms of this run are made for; None where they do not say."""
        return expected_devices(self.offer)

    def expectation(self, n_devices: int | None = None) -> str | None:
        """Return what so many devices, or those that are expected, were measured to reach; None: nobody measured it."""
        return expectation(self.offer, n_devices)

    # Devices ---------------------------------------------------------------------------------------------------

    async def enrol(self, enrolment: Enrolment, credentials: Credentials, request: Request) -> Device:
        """Lets a device in from the next round on."""
        if self.registry.is_asked(credentials.device):
            device = await self.registry.agree(credentials, request)
        else:
            self.registry.check_enrolment(enrolment, credentials, request)
            if credentials.device in self.registry:
                return await self.authenticate(credentials, request)
            device = await self.registry.enrol(enrolment, credentials.nonce)
        self._wake.set()
        return device

    async def known(self, name: str) -> Device:
        """The device of this name, if it takes part; it may have joined at another worker."""
        if name not in self.registry:
            await self.refresh()
        return self.registry.known(name)

    async def authenticate(self, credentials: Credentials, request: Request) -> Device:
        """The device that signed exactly this request, never seen before by any worker, and not too often."""
        try:
            device = self.registry.authenticate(credentials, request)
        except Refusal as refusal:
            if refusal.code != "bad-signature" or not self._storage.is_shared:
                raise
            await self.refresh()  # it may have another key since
            device = self.registry.authenticate(credentials, request)
        if self._storage.is_shared:
            admitted = await self.registry.admit(device, credentials.nonce)
            if admitted.version != self.version:
                await self.refresh()
            elif admitted.reported is not None:
                self.server.keep(device.id, self.server.address, admitted.reported)
        return device

    async def refresh(self) -> None:
        """Bring memory up to date with what other workers have stored; once for all who ask meanwhile."""
        if not self._storage.is_shared:
            return
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._refresh())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        async with self._turn:
            self._refreshing = None  # whoever asks from now on may know of something later
            asked = Asked(self._heard_of, self.server.address if self.is_open else None, len(self.catalogue))
            news: News = await self._storage.first(read_news, asked)
            self._heard_of = news.since
            for name in self.registry.take(news.devices):
                self.server.drop(name)
            self.catalogue.append(news.items)
            if news.version == self.version:
                for name, digest in news.digests.items():
                    self.server.keep(name, self.server.address, digest)
                return
            known = self._stored
            stored = await self._storage.write(lambda connection: load_run(connection, known))
            if stored.offer.run_id != self.offer.run_id:
                self._monitor.log("run-replaced")
                self.end_worker()
                raise StorageError("the database holds a next run now: this worker ends.")
            self._move(stored)

    async def leave(self, device: Device) -> None:
        """Lets a device go."""
        await self.registry.leave(device)
        self._wake.set()

    # Changes -----------------------------------------------------------------------------------------------------

    def nudge(self) -> None:
        """Look soon for what other workers have done."""
        self._wake.set()

    def _move(self, stored: Stored) -> None:
        """Go on with what is stored now."""
        before = self.server.address if self.is_open else self.round_number
        self._adopt(stored)
        if before != (self.server.address if self.is_open else self.round_number):
            self._since, self._quorum_at = self._clock(), None
        self._announce_change()

    def _announce_change(self) -> None:
        """Wakes everyone who waits for a round."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self._wake.set()
