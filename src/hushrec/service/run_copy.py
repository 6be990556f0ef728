"""A worker process's copy of the run in memory: devices, items and the open phase; and how the copy is updated.

Memory is never ahead of the database. With SQLite there is only one worker. Where several workers share the database,
the database admits each request (`authenticate`) and reports the version of the run's row. If this worker has an older
version, `refresh` updates its memory before the worker handles the request.
"""

import asyncio
import copy
import math
import time
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any

from hushrec.errors import StorageError
from hushrec.messages import Credentials, Enrolment
from hushrec.models.predictor import Arrays
from hushrec.offers import protocol_of
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.protocols.parties import Name
from hushrec.server import Stage
from hushrec.service.catalogue import CatalogueCopy
from hushrec.service.monitor import Monitor, log_event
from hushrec.service.problems import Refusal
from hushrec.service.registry import Device, Registry
from hushrec.service.settings import Settings
from hushrec.service.storage import Storage
from hushrec.service.stored import Stored, load_run, read_news
from hushrec.signing import Request

WAIT_SECONDS = 0.1  # before a round's third attempt; about twice as long before each further one
RESUMED_SECONDS = 60.0  # an open phase stays open at least this long after a restart, so that devices can reconnect


class RunCopy:
    """A worker process's copy of the run: its devices, its catalogue and its `Server`."""

    def __init__(
        self,
        storage: Storage,
        settings: Settings,
        *,
        clock: Callable[[], float] = time.monotonic,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.storage = storage
        self.settings = settings
        self.monitor = Monitor()
        self._clock = clock
        self._wall_clock = wall_clock
        stored = storage.at_once(load_run)
        run_id = stored.offer.run_id
        self.registry = Registry(storage, settings, run_id, lambda: self.round_number, clock, wall_clock)
        self._changed = asyncio.Event()
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()  # held while a phase opens or closes, items join or memory is refreshed
        self._early_at: float | None = None  # since when the open phase may close early (`early_fraction`)
        self.catalogue = storage.at_once(CatalogueCopy)
        self._heard_of = 0  # the first transaction whose changes this worker may lack
        self._refreshing: asyncio.Future[None] | None = None
        self.end_worker: Callable[[], None] = lambda: None  # ends this process; set by `make_server`
        self.daily: Callable[[], None] = lambda: None  # called once a day; set by `make_server`
        self._adopt(stored)
        resumed = max(0.0, settings.rounds.deadline_seconds - RESUMED_SECONDS)
        longest = resumed if self.is_open else settings.rounds.pause_seconds
        elapsed = min(max(0.0, wall_clock() - stored.opened_at), longest)
        self._since = clock() - elapsed  # bounded, in case the wall clock jumped
        if self.is_open:
            log_event("round-resumed", **vars(self.server.address), reports=self.n_reports)

    def _adopt(self, stored: Stored) -> None:
        self.offer, self.server, self.is_paused = stored.offer, stored.server, stored.is_paused
        self.admin_digest, self.version, self.number = stored.admin_digest, stored.version, stored.number
        self.failures = stored.failures

    @property
    def _stored(self) -> Stored:
        fixed = 0.0, self.admin_digest, self.version, self.number
        return Stored(self.offer, self.server, self.is_paused, *fixed, self.failures)

    # Where the run stands --------------------------------------------------------------------------------------

    @property
    def round_number(self) -> int:
        """The number of the open round, or else of the latest round that has ended; 0 before the first."""
        return self.server.round_number

    @property
    def is_open(self) -> bool:
        return self.server.stage is Stage.OPEN

    @property
    def n_ended(self) -> int:
        """The number of rounds that have ended."""
        return self.round_number - self.is_open

    @property
    def is_over(self) -> bool:
        """Whether all rounds of the run have ended."""
        return bool(self.n_ended >= self.offer.terms.max_rounds)

    @property
    def n_reports(self) -> int:
        """The number of durable reports of the open phase."""
        return len(self.server.reported)

    @property
    def n_present(self) -> int:
        """An upper bound on how many of the devices that the open phase asks are present; it waits for so many."""
        return self.count_present_of(self.server.asked)

    def count_present_of(self, names: AbstractSet[Name]) -> int:
        """Return an upper bound, which is quick to compute, on the number of present devices among `names`.

        This is the smaller of two numbers: how many devices in `names` still take part, and how many devices are
        present in all (`count_present`). If an attempt of the open round had too few reports in its first phase, the
        second number includes devices that joined during the round.
        """
        began_again = len(self.failures) > self.count_failed(self.failures)
        present = self.count_present(self.round_number + began_again)
        return min(len(names) - len(names & self.registry.ended), present)

    @property
    def fewest_devices(self) -> int:
        """The number of devices that must be present before a round opens."""
        return max(self.settings.rounds.min_devices, self.server.side.fewest_devices)

    def count_present(self, round_number: int) -> int:
        """Return the number of present devices: those that may report in this round and sent a request lately.

        Lately means in this round or in one of the `missed_rounds` rounds before it (a setting of the operator).
        """
        return self.registry.count_present(round_number, self.settings.rounds.missed_rounds)

    @property
    def elapsed(self) -> float:
        """Seconds since the open phase opened; between rounds, since the latest round ended."""
        return self._clock() - self._since

    @property
    def _is_next_attempt(self) -> bool:
        """Whether the open phase is the first phase of an attempt that is not the first of its round."""
        return self.is_open and bool(self.failures) and self.server.address.phase == self.server.side.phases[0]

    @property
    def deadline(self) -> float:
        """Seconds from the opening of the open phase to its deadline.

        This is the setting `deadline_seconds` plus, in the first phase of a repeated attempt, a wait before devices get
        its messages. The wait is 0 in the second attempt, then about twice as long in each further attempt, and at most
        `deadline_seconds`. Attempts that ended because too few devices reported in the first phase do not count.
        """
        longest, n_failed = self.settings.rounds.deadline_seconds, self.count_failed(self.failures)
        wait = WAIT_SECONDS * (2.0 ** min(n_failed - 1, 60) - 1) if n_failed and self._is_next_attempt else 0.0
        return longest + min(wait, longest)

    def count_failed(self, failures: Sequence[dict[str, Any]]) -> int:
        """Return how many of these failed attempts failed after their first phase.

        The other attempts ended because too few devices reported in the first phase.
        """
        return sum(failure["phase"] != self.server.side.phases[0] for failure in failures)

    @property
    def held_seconds(self) -> float:
        """Seconds for which the first messages of a repeated attempt are still withheld from devices.

        0 if nothing is withheld; infinity if a pause of the run withholds the messages.
        """
        if not self._is_next_attempt or self.n_reports:
            return 0.0
        left = self.deadline - self.settings.rounds.deadline_seconds - self.elapsed
        return math.inf if self.is_paused else max(0.0, left)

    def attempt_seconds(self, device: Device) -> int:
        """Return for how many seconds a device must keep its secrets of the open attempt.

        Return 0 if the open phase does not ask the device. The time is the sum of the rest of the open phase, the
        longest duration of the next phase, and `RESUMED_SECONDS`, by which a restart of the server may prolong a phase.
        So the next phase has closed by then, unless an attempt's first phase waits for more devices after its deadline.
        """
        if not self.is_open or device.id not in self.server.asked:
            return 0
        rest = max(0.0, self.deadline - self.elapsed)
        return math.ceil(rest + self.settings.rounds.deadline_seconds + RESUMED_SECONDS)

    @property
    def public(self) -> Arrays:
        return self.server.side.public

    @property
    def protocol(self) -> ConfiguredProtocol:
        return protocol_of(self.offer)

    # Devices ---------------------------------------------------------------------------------------------------

    async def enrol(self, enrolment: Enrolment, credentials: Credentials, request: Request) -> Device:
        """Enrol a device from the next round on, or let a device of the previous run agree to this run."""
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
        """Return the active device with this id, which may have joined through another worker.

        Raise `Refusal` if no active device has this id.
        """
        if name not in self.registry:
            await self.refresh()
        return self.registry.known(name)

    async def authenticate(self, credentials: Credentials, request: Request) -> Device:
        """Return the device that signed this request; refuse a bad signature, a replay, and too many requests."""
        try:
            device = self.registry.authenticate(credentials, request)
        except Refusal as refusal:
            if refusal.code not in ("bad-signature", "not-enrolled") or not self.storage.is_shared:
                raise
            await self.refresh()  # the device may have joined or changed its key through another worker
            device = self.registry.authenticate(credentials, request)
        if self.storage.is_shared:
            admitted = await self.registry.admit(device, credentials.nonce)
            if admitted.version != self.version:
                await self.refresh()
            elif admitted.reported is not None:
                self.server.keep(device.id, self.server.address, admitted.reported)
        return device

    async def refresh(self) -> None:
        """Update memory with the changes of other workers; concurrent calls share one read."""
        if not self.storage.is_shared:
            return
        if self._refreshing is None:
            self._refreshing = asyncio.ensure_future(self._refresh())
        await asyncio.shield(self._refreshing)

    async def _refresh(self) -> None:
        async with self._turn:
            self._refreshing = None  # a later call needs a read of its own
            open_phase = self.server.address if self.is_open else None
            since, n_items = self._heard_of, len(self.catalogue)
            news = await self.storage.write(
                lambda connection: read_news(connection, since, open_phase, n_items), is_first=True
            )
            self._heard_of = news.since
            for name in self.registry.update(news.devices):
                self.server.drop(name)
            self.catalogue.append(news.items)
            if news.version == self.version:
                for name, digest in news.digests.items():
                    self.server.keep(name, self.server.address, digest)
                return
            known = replace(self._stored, server=copy.deepcopy(self.server))
            stored = await self.storage.write(lambda connection: load_run(connection, known))
            if stored.offer.run_id != self.offer.run_id:
                log_event("run-replaced")
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
            self._since, self._early_at = self._clock(), None
        self._announce_change()

    def _announce_change(self) -> None:
        """Wake all long polls and the schedule."""
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
        self.wake()
