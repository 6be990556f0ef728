"""A worker's copy of the run in memory: devices, items and the open phase, and how the copy is kept up to date.

Memory is never ahead of the database. With SQLite there is only one worker. Where several workers share the database,
the database admits each request (`authenticate`) and reports the version of the run's row; if this worker has an older
version, `refresh` updates its memory before the request is handled.
"""

import asyncio
import copy
import math
import time
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace

import sqlalchemy as sa

from hushrec.errors import StorageError
from hushrec.messages import Credentials, Enrolment
from hushrec.models.predictor import Arrays
from hushrec.offers import expectation, protocol_of
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.protocols.parties import Name
from hushrec.server import Stage
from hushrec.service.catalogue import CatalogueCopy
from hushrec.service.monitor import Monitor
from hushrec.service.problems import Refusal
from hushrec.service.registry import Device, Registry
from hushrec.service.schema import run
from hushrec.service.settings import Settings
from hushrec.service.storage import Storage
from hushrec.service.stored import Stored, load_run, read_news
from hushrec.signing import Request

RESUMED_SECONDS = 60.0  # an open phase stays open at least this long after a restart, so that devices can reconnect


class RunCopy:
    """A worker process's copy of the run: its devices, its catalogue and its `Server`."""

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
        stored = storage.at_once(load_run)
        self.registry = Registry(
            storage,
            settings.limits,
            run_id=stored.offer.run_id,
            open_enrolment=settings.open_enrolment,
            clock=clock,
            wall_clock=wall_clock,
        )
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()  # held while a phase opens or closes, items join or memory is refreshed
        self._quorum_at: float | None = None  # when the open phase reached its quorum
        self.catalogue = storage.at_once(CatalogueCopy.read)
        self.number = storage.at_once(lambda c: int(c.execute(sa.select(run.c.id)).scalar_one()))  # of the run
        self._heard_of = 0  # the first transaction whose changes this worker may lack
        self._refreshing: asyncio.Future[None] | None = None
        self.end_worker: Callable[[], None] = lambda: None  # set by the web server that runs this worker
        self._adopt(stored)
        resumed = max(0.0, settings.rounds.deadline_seconds - RESUMED_SECONDS)
        longest = resumed if self.is_open else settings.rounds.pause_seconds
        elapsed = min(max(0.0, wall_clock() - stored.opened_at), longest)
        self._since = clock() - elapsed  # bounded, in case the wall clock jumped
        if self.is_open:
            monitor.log("round-resumed", **vars(self.server.address), reports=self.n_reports)

    def _adopt(self, stored: Stored) -> None:
        self.offer, self.server, self.is_paused = stored.offer, stored.server, stored.is_paused
        self.version = stored.version
        self.admin_digest = stored.admin_digest
        self.registry.round_number = self.round_number

    @property
    def _stored(self) -> Stored:
        return Stored(self.offer, self.server, self.is_paused, 0.0, self.admin_digest, self.version)

    # Where the run stands --------------------------------------------------------------------------------------

    @property
    def round_number(self) -> int:
        """The number of the open round, or else of the latest round that has ended; 0 before the first."""
        return self.server.round_number

    @property
    def is_open(self) -> bool:
        return self.server.stage is Stage.OPEN

    @property
    def is_over(self) -> bool:
        """Whether all rounds of the run have ended."""
        return not self.is_open and self.round_number >= self.offer.terms.max_rounds

    @property
    def n_reports(self) -> int:
        """The number of durable reports of the open phase."""
        return len(self.server.reported)

    @property
    def n_present(self) -> int:
        """The number of devices that the open phase waits for.

        This is the smaller of two counts: the devices that the phase asks and that still take part, and the devices
        that sent a request lately (`count_present`). It is quick to compute, but only an upper bound on the devices
        in both groups.
        """
        return self._count_present_of(self.server.asked)

    @property
    def n_invited(self) -> int:
        """Like `n_present`, but for the devices that the attempt's first phase asked; later phases may ask fewer."""
        return self._count_present_of(self.server.invited)

    def _count_present_of(self, names: AbstractSet[Name]) -> int:
        return min(len(names) - len(names & self.registry.ended), self.count_present(self.round_number))

    @property
    def fewest_devices(self) -> int:
        """The number of devices that must be present before a round opens."""
        return max(self._settings.min_devices, self.server.side.fewest_devices)

    def count_present(self, round_number: int) -> int:
        """Count the devices that may report in this round and sent a request in it or in the `missed_rounds` before."""
        return self.registry.count_present(round_number, self._settings.missed_rounds)

    @property
    def elapsed(self) -> float:
        """Seconds since the open phase opened; between rounds, since the latest round ended."""
        return float(self._clock() - self._since)

    @property
    def deadline_seconds(self) -> float:
        """Seconds after which a phase closes although reports are missing; an attempt's first phase may wait longer."""
        return float(self._settings.deadline_seconds)

    def attempt_seconds(self, device: Device) -> int:
        """Return for how many seconds a device must keep its secrets of the open attempt; 0 if it is not asked.

        By then the next phase has closed. The time is the sum of the rest of the open phase, the longest duration of
        the next phase, and `RESUMED_SECONDS`, by which a restart of the server may prolong a phase.
        """
        if not self.is_open or device.id not in self.server.asked:
            return 0
        left = max(0.0, self.deadline_seconds - self.elapsed)
        return math.ceil(left + self.deadline_seconds + RESUMED_SECONDS)

    @property
    def public(self) -> Arrays:
        return self.server.side.public

    @property
    def protocol(self) -> ConfiguredProtocol:
        return protocol_of(self.offer)

    def expectation(self, n_devices: int | None = None) -> str | None:
        """Return a sentence on the accuracy that experiments found for runs with `n_devices` devices.

        If `n_devices` is None, use the number that the run's terms assume. Return None if nothing was measured for this
        protocol and model.
        """
        return expectation(self.offer, n_devices)

    # Devices ---------------------------------------------------------------------------------------------------

    async def enrol(self, enrolment: Enrolment, credentials: Credentials, request: Request) -> Device:
        """Enrol a device from the next round on, or let a device of the previous run agree to this one."""
        if self.registry.is_asked(credentials.device):
            device = await self.registry.agree(credentials, request)
        else:
            self.registry.check_enrolment(enrolment, credentials, request)
            if credentials.device in self.registry:
                return await self.authenticate(credentials, request)
            device = await self.registry.enrol(enrolment, credentials.nonce)
        self.wake()
        return device

    async def known(self, name: str) -> Device:
        """Return the device with this id, also if it joined through another worker; refuse one that is not active."""
        if name not in self.registry:
            await self.refresh()
        return self.registry.known(name)

    async def authenticate(self, credentials: Credentials, request: Request) -> Device:
        """Return the device that signed this request; refuse bad signatures, replays and too many requests."""
        try:
            device = self.registry.authenticate(credentials, request)
        except Refusal as refusal:
            if refusal.code not in ("bad-signature", "not-enrolled") or not self._storage.is_shared:
                raise
            await self.refresh()  # the device may have joined or changed its key through another worker
            device = self.registry.authenticate(credentials, request)
        if self._storage.is_shared:
            admitted = await self.registry.admit(device, credentials.nonce)
            if admitted.version != self.version:
                await self.refresh()
            elif admitted.reported is not None:
                self.server.keep(device.id, self.server.address, admitted.reported)
        return device

    async def refresh(self) -> None:
        """Update memory with the changes of other workers; concurrent calls share one read."""
        if not self._storage.is_shared:
            return
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._refresh())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        async with self._turn:
            self._refreshing = None  # a later call needs a read of its own
            open_phase = self.server.address if self.is_open else None
            since, n_items = self._heard_of, len(self.catalogue)
            news = await self._storage.write(
                lambda connection: read_news(connection, since, open_phase, n_items), is_first=True
            )
            self._heard_of = news.since
            for name in self.registry.take(news.devices):
                self.server.drop(name)
            self.catalogue.append(news.items)
            if news.version == self.version:
                for name, digest in news.digests.items():
                    self.server.keep(name, self.server.address, digest)
                return
            known = replace(self._stored, server=copy.deepcopy(self.server))
            stored = await self._storage.write(lambda connection: load_run(connection, known))
            if stored.offer.run_id != self.offer.run_id:
                self._monitor.log("run-replaced")
                self.end_worker()
                raise StorageError("the database now holds the next run, so this worker ends.")
            self._move(stored)

    async def leave(self, device: Device) -> None:
        await self.registry.leave(device)
        self.wake()

    # Changes -----------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        """Make the schedule read the changes of other workers soon, and open or close a phase if that is due."""
        self._wake.set()

    def _move(self, stored: Stored) -> None:
        """Replace the copy in memory by a stored run; set `elapsed` to 0 if a phase has opened or closed since."""
        before = self.server.address if self.is_open else self.round_number
        self._adopt(stored)
        if before != (self.server.address if self.is_open else self.round_number):
            self._since, self._quorum_at = self._clock(), None
        self._announce_change()

    def _announce_change(self) -> None:
        """Wake all long polls and the schedule."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self.wake()
