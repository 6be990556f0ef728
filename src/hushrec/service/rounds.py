"""The schedule of rounds: when phases open and close, and how reports are stored (the state machine is in server.py).

    report ──checked──▶ stored, durable ──▶ receipt sent                  (any number at once, shared commits)
    phase closes: reports in the order of device ids ──▶ Server ──▶ next phase, next attempt or the end of the round
    attempt fails: next attempt written, reports deleted                  (one transaction)
    round ends: new public table written, reports deleted                 (one transaction)

Everything that a restart or another worker needs is in the database. A transaction changes a copy of the server, and
the copy replaces the original after the commit: memory is never ahead of the database. Where several workers share the
database, each worker reads the changes of other workers before it decides anything. A worker that finds a phase
complete locks the run's row and closes the phase if the row's `version` is unchanged; all other workers then reload the
run.
"""

import asyncio
import copy
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import sqlalchemy as sa

from hushrec.errors import HushrecError, RemoteProtocolError
from hushrec.messages import NO_REPORT, Address, Envelope, LastReport, Offer, Public, Receipt
from hushrec.protocols.parties import Name
from hushrec.randomness import Purpose, SystemRandomness
from hushrec.server import Server, Stage
from hushrec.service.catalogue import Entry, insert_items, read_entries
from hushrec.service.history import ClosedRound, write_round
from hushrec.service.monitor import Monitor
from hushrec.service.partial_sums import read_given
from hushrec.service.problems import Refusal
from hushrec.service.registry import Device
from hushrec.service.reports import NewReport, count_reports, delete_reports
from hushrec.service.run_copy import RunCopy
from hushrec.service.schema import ACTIVE
from hushrec.service.settings import Settings
from hushrec.service.storage import Storage
from hushrec.service.stored import Stored, load_run, lock_run, takes_turn, update_run, write_run
from hushrec.signing import Request
from hushrec.wire import decode, encode

RETRY_SECONDS = 1.0  # after an error of the schedule
SHARED_SECONDS = 1.0  # the longest time between two reads of what other workers stored
LULL_SECONDS = 0.05  # the shortest time between two reads


class Rounds(RunCopy):
    """A worker's copy of the run, with the operations that open and close its rounds and store reports."""

    def __init__(self, storage: Storage, settings: Settings, monitor: Monitor, **clocks: Callable[[], float]) -> None:
        super().__init__(storage, settings, monitor, **clocks)
        self._is_closing = False
        self.is_stopping = False  # the server is shutting down
        self._ahead: dict[Name, LastReport] = {}  # the phase of each device's last report, as the device claims
        self._pending: dict[str, tuple[bytes, asyncio.Future[None]]] = {}  # reports being stored: digest and future
        self._sealed: tuple[Any, Address | None, bytes] = (None, None, b"")  # the last message, and its encoding
        self._published: tuple[Any, bytes] = (None, b"")  # the encoded public table, for all who download it

    @property
    def concern(self) -> str | None:
        """Sentences that warn the operator of trouble in this run, or None."""
        return " ".join(filter(None, (self._restore_warning(), self.server.side.concern))) or None

    def _restore_warning(self) -> str | None:
        """Return a warning that this server was restored from an older backup, if devices are in later rounds; or None.

        A device may lie about its last report. So the devices that claim a later round must be more than the protocol
        tolerates as corrupt, and more than half of the devices that have asked this worker for a message.
        """
        claims = self._ahead.keys()
        ahead = {name for name, last in self._ahead.items() if last[0] > self.round_number}
        count, total = (len(names - self.registry.ended) for names in (ahead, claims))
        most_corrupt = self.protocol.most_corrupt(self.offer.terms)
        if self.server.side.can_skip_rounds or count <= total / 2 or count <= most_corrupt:
            return None
        return (
            f"This server was probably restored from an older backup: it is in round {self.round_number}, and {count}"
            f" of {self.registry.count_active()} devices say that they have reported in a later round. Devices never"
            " repeat a round. Begin a next run, which devices can join: restart the server with --run"
            f" {self.number + 1}."
        )

    async def inbox(self, device: Device, after: int, wait: float, last: LastReport = NO_REPORT) -> bytes | None:
        """Return the open phase's encoded message to this device, if the round's number is above `after`.

        Wait up to `wait` seconds for such a message; return None if there is none by then or the server shuts down.
        Refuse when the run is over. `last` is the phase of the device's last report, as the device claims.
        """
        until = self._clock() + wait
        self._ahead[device.id] = last if last[0] <= self.offer.terms.max_rounds else NO_REPORT  # ignore the impossible
        if last[0] > self.round_number and not self.server.side.can_skip_rounds:
            raise Refusal(
                f"this server is in round {self.round_number}, but this device has reported in round {last[0]}: the"
                " server was restored from an older backup. Wait for its next run.",
                code="server-behind",
            )
        if not self.is_open:
            self.wake()  # with the device that returns, a round may have enough devices to open
        while (message := self._message_for(device, after)) is None:
            if self.is_over:
                sentence = f"the run is over: all {self.offer.terms.max_rounds} rounds have ended."
                raise Refusal(sentence, code="run-over", last_report=device.told)
            if self.is_stopping:
                return None
            changed = self._changed
            try:
                await asyncio.wait_for(changed.wait(), timeout=until - self._clock())
            except TimeoutError:
                return None
            if device.state != ACTIVE:
                self.registry.known(device.id)
        return self._encoded(message)

    def _message_for(self, device: Device, after: int) -> Any | None:
        if self._is_closing or self.round_number <= after or device.id in self._pending:
            return None
        return None if self.is_open and self._claims_report(device.id) else self.server.inbox(device.id)

    def _claims_report(self, name: Name) -> bool:
        """Return whether a device claims a report in the open phase or later; a restored server may lack the report."""
        address, phases = self.server.address, self.server.side.phases
        place = address.round_number, address.attempt, phases.index(address.phase)
        return self._ahead.get(name, NO_REPORT) >= place

    def _encoded(self, message: Any) -> bytes:
        """Return a message encoded in its envelope, from a cache if the previous call had the same message."""
        address = self.server.address
        if self._sealed[0] is not message or self._sealed[1] != address:
            self._sealed = message, address, encode(Envelope.to(self.offer.run_id, address, message))
        return self._sealed[2]

    def stop_waiting(self) -> None:
        """End all long polls without a message, and all event streams, because the server is shutting down."""
        self.is_stopping = True
        self._announce_change()

    def published(self) -> bytes:
        """Return the encoded public table after the latest round that has ended, or the initial one (round 0)."""
        ended = self.round_number - self.is_open
        if self._published[0] != (ended, self.offer.terms.n_items):
            packed = encode(Public.of(self.offer.run_id, ended, self.offer.terms, self.public))
            self._published = (ended, self.offer.terms.n_items), packed
        return self._published[1]

    # Reports ---------------------------------------------------------------------------------------------------

    async def report(self, device: Device, nonce: int, request: Request) -> Receipt:
        """Check and store a report; return its receipt once it is durable. A retry with the same bytes succeeds."""
        envelope, digest = decode(request.body, Envelope), request.digest
        address = envelope.address
        self._check_asked(device, envelope.run_id, address)
        pending = self._pending.get(device.id)
        if (earlier := pending[0] if pending else self.server.reported.get(device.id)) is not None:
            if earlier != digest:
                raise Refusal(
                    "this device has already sent a different report in this phase. The first report counts.",
                    code="reported",
                )
            if pending:
                await asyncio.shield(pending[1])
            return Receipt.of(address, repeated=True)
        self.server.check(device.id, address, envelope.message)
        if self.server.side.signer_of(envelope.message) not in (None, device.key_bytes):
            sentence = "a report with keys must name the public key with which this device is enrolled. Use that key."
            raise Refusal(sentence, code="bad-signature")
        addend = self.server.side.addend(address, device.id, envelope.message)
        phase = self.server.side.phases.index(address.phase)
        report = NewReport(address, phase, device.id, nonce, request.body, digest, device.last_seen, addend)
        stored = self._storage.store(report)
        self._pending[device.id] = digest, stored
        stored.add_done_callback(partial(self._keep, device, report))
        await asyncio.shield(stored)  # the report is stored even if the client closes the connection
        return Receipt.of(address, repeated=False)

    def _check_asked(self, device: Device, run_id: str, address: Address) -> None:
        if run_id != self.offer.run_id:
            raise Refusal(
                "the report must name this server's run, but names another. Join this run first.", code="wrong-run"
            )
        if self._is_closing:
            sentence = f"the phase may be closing ({address}). Send the same report again."
            raise Refusal(sentence, code="busy", retry_after=1)  # the phase stays open if the change cannot be stored
        try:
            self.server.check_asked(device.id, address)
        except RemoteProtocolError as error:
            raise Refusal(str(error), code=error.code, last_report=device.told) from None

    def _keep(self, device: Device, report: NewReport, stored: "asyncio.Future[None]") -> None:
        del self._pending[device.id]
        if stored.cancelled() or stored.exception() is not None:
            return
        self.server.keep(device.id, report.address, report.digest)
        device.last_report = report.place
        self.wake()

    # The schedule ----------------------------------------------------------------------------------------------

    async def run_schedule(self) -> None:
        """Open and close phases according to the settings until the task is cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.refresh()
                delay = await self._advance()
            except Refusal:  # the operator or another worker opened or closed the phase first
                delay = 0.0
            except Exception as error:  # the server keeps running, so the schedule must as well
                reason = str(error) if isinstance(error, HushrecError) else type(error).__name__
                self._monitor.log("round-error", reason=reason)
                delay = RETRY_SECONDS
            if self._storage.is_shared:
                delay = SHARED_SECONDS if delay is None else min(delay, SHARED_SECONDS)
                await asyncio.sleep(LULL_SECONDS)
            try:
                await asyncio.wait_for(self._wake.wait(), timeout=delay)
            except TimeoutError:
                continue

    async def _advance(self) -> float | None:
        """Open or close a phase if that is due; return the seconds until the next check, None to wait for an event."""
        elapsed = self.elapsed
        if self.is_open:
            left = self._seconds_left() if self._is_enough else self._settings.deadline_seconds - elapsed
            if left <= 0 and not self._is_enough and not self._newcomers():
                return None
            if left <= 0:
                await self.close_phase()
            return max(0.0, left)
        if self.is_over or self.is_paused or not self._settings.automatic:
            return None
        if elapsed < self._settings.pause_seconds and self.round_number:
            return float(self._settings.pause_seconds - elapsed)
        if self.count_present(self.round_number + 1) >= self.fewest_devices:
            await self.open_round()
            return 0.0
        return None

    @property
    def _is_enough(self) -> bool:
        """Whether enough devices have reported in the open phase; always true after the first phase of an attempt.

        The first phase needs `ServerSide.fewest_devices` reports, but none if that number is 1. A first phase without
        enough reports stays open after its deadline, or another attempt begins if there are `_newcomers`.
        """
        is_first = self.server.address.phase == self.server.side.phases[0]
        return not is_first or self.server.side.fewest_devices <= max(self.n_reports, 1)

    def _newcomers(self) -> set[Name]:
        """Return the devices that could report only if another attempt began.

        Some joined after the open attempt began or were not drawn for it. Others have reported in it, but their
        reports are missing because the server was restored from a backup.
        """
        others = set[Name](self.registry.entitled(self.round_number + 1)).difference(self.server.asked)
        return others.union(
            name for name in self.server.asked - self.server.reported.keys() if self._claims_report(name)
        )

    def _seconds_left(self) -> float:
        """Return the seconds until the open phase closes; at most 0 if it should close now.

        A phase closes at its deadline, or earlier: as soon as all present devices have reported; or `grace_seconds`
        after the fraction `quorum` of them has reported and `ServerSide.may_close` finds that the attempt can go on.
        The report of a device that has left is used, but is not counted as a report of a present device.
        """
        until = self._settings.deadline_seconds - self.elapsed
        reported, gone, quorum = self.server.reported.keys(), self.registry.ended, self._settings.quorum
        given = len(reported) - len(reported & gone)  # quicker than the difference, which is as long as `reported`
        is_complete = given >= self.n_present
        is_few = given < math.ceil(quorum * self.n_present) or not (
            is_complete or self.server.side.may_close(reported, gone, quorum)
        )
        if self.n_reports == 0 or is_few:
            self._quorum_at = None
            return until
        if self._quorum_at is None:
            self._quorum_at = self._clock()
        grace = 0.0 if is_complete else self._settings.grace_seconds
        return min(until, self._quorum_at + grace - self._clock())

    # Opening and closing ---------------------------------------------------------------------------------------

    async def open_round(self) -> None:
        """Open the next round, with the items that were added to the catalogue since the previous round opened."""
        async with self._turn:
            await self._open_round()

    async def _open_round(self) -> None:
        if self.is_open:
            raise Refusal(f"round {self.round_number} is already open. Wait until it ends.", code="round-open")
        if self.is_over:
            raise Refusal(f"the run is over: all {self.offer.terms.max_rounds} rounds have ended.", code="run-over")
        server = copy.deepcopy(self.server)
        missing = len(self.catalogue) - server.side.terms.n_items
        if missing and server.side.can_grow:
            server.side.add_items(missing, rng=SystemRandomness().stream(Purpose.ITEM_VECTORS))
        server.replace_members(self.registry.entitled(server.round_number + 1))
        expected = self.count_present(server.round_number + 1)
        server.side.n_expected = expected
        server.start_round()
        offer = replace(self.offer, terms=server.side.terms)  # the terms have the new items

        def change(connection: sa.Connection) -> int:
            return write_run(connection, offer, server, self._wall_clock(), expected=expected)

        if await self._write(offer, server, change):
            self._monitor.log("round-opened", round=self.round_number, items=offer.terms.n_items)

    async def close_phase(self) -> None:
        """Close the open phase: process its reports, or open another attempt if too few arrived.

        Reports are processed in the order of device ids, and deleted when their attempt ends.
        """
        async with self._turn:
            await self._close_phase()

    async def _close_phase(self) -> None:
        if not self.is_open:
            raise Refusal("no round is open. Start one first.", code="no-round")
        self._is_closing = True
        address, n_reports = self.server.address, 0
        asked, n_items = max(self.n_invited, self.n_reports), self.offer.terms.n_items
        closed = ClosedRound(self.round_number, self.elapsed, asked, n_items, self._monitor.latencies)
        server, before = copy.deepcopy(self.server), self.public
        is_enough, entitled = self._is_enough, self.registry.entitled(self.round_number + 1)

        def change(connection: sa.Connection) -> int:
            nonlocal n_reports
            n_reports = count_reports(connection, address)
            if is_enough:
                server.close_phase(*read_given(connection, server.address))
            else:  # nothing was revealed and no budget was spent: ask the devices that are entitled now
                server.begin_again(entitled)
            is_over = server.stage is not Stage.OPEN
            if is_over:
                write_round(connection, closed, n_reports, before, server.side.public)
            if is_over or server.address.attempt > address.attempt:
                delete_reports(connection)
            return write_run(connection, self.offer, server, self._wall_clock())

        try:
            is_mine = await self._write(self.offer, server, change, scrub=True)
        finally:
            self._is_closing = False
        if is_mine and not self.is_open:
            self._monitor.round_closed(self.round_number, n_reports, closed.seconds)
        elif is_mine and self.server.address.attempt > address.attempt:
            self._monitor.log("attempt-failed", **vars(address))

    async def _write(
        self, offer: Offer, server: Server, change: Callable[[sa.Connection], int], *, scrub: bool = False
    ) -> bool:
        """Store `offer` and `server` by calling `change`, then replace this worker's copies by them; return True.

        `change` writes both in one transaction, and returns the new version of the run's row. With `scrub`, reports
        that it deletes are also removed from SQLite's write-ahead log.

        Return False and store nothing in two cases. If another worker has changed the run, this worker loads the
        change. If another worker is opening or closing a phase just now, this worker waits for its notification.
        """
        known = self._stored

        def write(connection: sa.Connection) -> Stored:
            if not takes_turn(connection):
                return known
            if lock_run(connection) != known.version:
                return load_run(connection)
            return replace(known, offer=offer, server=server, version=change(connection))

        self._move(await self._storage.write(write, scrub=scrub))
        return self.server is server

    # Admin -----------------------------------------------------------------------------------------------------

    async def set_paused(self, paused: bool) -> None:
        """Pause or resume the run. While it is paused no further round opens; an open round continues."""
        await self.refresh()
        async with self._turn:
            version = await self._storage.write(lambda connection: update_run(connection, is_paused=paused))
            self.is_paused = paused
            self._note(version)

    def _note(self, version: int) -> None:
        """Record the version of the run's row that this worker has just written.

        If another worker changed the row shortly before, keep the old version, so that `refresh` loads that change.
        """
        self.version += version == self.version + 1
        self.wake()

    async def start(self) -> None:
        """End a pause, and open a round now if none is open."""
        await self.set_paused(False)
        number = self.round_number
        while not self.is_open and self.round_number == number:  # another worker may change the run at the same moment
            await self.refresh()
            async with self._turn:
                if not self.is_open:
                    await self._open_round()

    async def close_now(self) -> None:
        """Close the open phase now, even if reports are missing."""
        await self.refresh()
        place = self.server.address if self.is_open else None
        while place is None or (self.is_open and self.server.address == place):
            await self.close_phase()
            await self.refresh()

    async def extend(self, more: int) -> None:
        """Extend a finished run by `more` rounds; a device takes part in them only if its person agrees."""
        await self.refresh()
        async with self._turn:
            if not self.is_over:
                raise Refusal("only a finished run can be extended. Wait until this run is over.", code="run-on")
            if not self.offer.can_be_extended:
                raise Refusal("this run's budget covers no further rounds. Begin a next run.", code="run-on")
            offer = self.offer.with_rounds(self.offer.terms.max_rounds + more)

            def write(connection: sa.Connection) -> Stored:
                if lock_run(connection) == version:
                    update_run(connection, offer=encode(offer))
                return load_run(connection)

            version = self.version
            self._move(await self._storage.write(write))

    async def revoke(self, name: str) -> None:
        await self.registry.revoke(name)
        self.server.drop(name)
        self._announce_change()

    async def add_items(self, ids: list[str], titles: list[str]) -> int:
        """Append the items with new ids; the next round includes them. Return the number of new items."""
        if not self.server.side.can_grow:
            raise Refusal("this run's protocol and model do not accept new items. Begin a next run.", code="bad-items")

        def write(connection: sa.Connection) -> tuple[int, list[Entry], int]:
            lock_run(connection)
            count = insert_items(connection, ids, titles)
            return count, read_entries(connection, len(self.catalogue)), update_run(connection)

        async with self._turn:  # one at a time: each call must see the items that the previous call added
            count, added, version = await self._storage.write(write)
            self.catalogue.append(added)
            self._note(version)
        return count
