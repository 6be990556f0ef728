"""The schedule of rounds: when phases open and close, and how reports are stored (the state machine is in server.py).

    report ──checked──▶ stored, durable ──▶ receipt sent                  (reports that arrive together share a commit)
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
import json
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
from hushrec.server import MOST_ATTEMPTS, Server, Stage
from hushrec.service.catalogue import Entry, insert_items, read_entries
from hushrec.service.history import write_round
from hushrec.service.monitor import log_event
from hushrec.service.partial_sums import read_given
from hushrec.service.problems import Refusal
from hushrec.service.registry import Device
from hushrec.service.reports import NewReport, delete_reports
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

    def __init__(self, storage: Storage, settings: Settings, **clocks: Callable[[], float]) -> None:
        super().__init__(storage, settings, **clocks)
        self._is_closing = False
        self.is_stopping = False  # the server is shutting down
        self._claimed: dict[Name, LastReport] = {}  # the phase of each device's last report, as the device claims
        self._pending: dict[str, tuple[bytes, asyncio.Future[None]]] = {}  # reports being stored: digest and future
        self._sealed: tuple[Any, Address | None, bytes] = (None, None, b"")  # the last message, its address and bytes
        self._published: tuple[Any, bytes] = (None, b"")  # (round, number of items), and the encoded public table

    @property
    def concern(self) -> str | None:
        """A warning for the operator about this run, or None."""
        warnings = self._pause_warning(), self._restore_warning(), self.server.side.concern
        return " ".join(filter(None, warnings)) or None

    def _pause_warning(self) -> str | None:
        if self.held_seconds < math.inf:
            return None
        return (
            f"The run is paused in round {self.round_number}. Its last attempt failed: {self.failures[-1]['reason']}"
            " Open a round (`POST /v1/admin/start`) to begin another attempt with all devices that take part then."
        )

    def _restore_warning(self) -> str | None:
        """Return a warning if this server was probably restored from an older backup, else None.

        The sign is that devices claim to have reported in a later round than this server's. Because a device may lie,
        the number of these devices must be above the number that the protocol tolerates as corrupt, and above half of
        the devices that have asked this worker for a message. A protocol that can skip rounds needs no warning.
        """
        ahead = {name for name, last in self._claimed.items() if last[0] > self.round_number}
        count, total = (len(names - self.registry.ended) for names in (ahead, self._claimed.keys()))
        most_corrupt = self.protocol.most_corrupt(self.offer.terms)
        if self.server.side.can_skip_rounds or count <= total / 2 or count <= most_corrupt:
            return None
        return (
            f"This server was probably restored from an older backup: it is in round {self.round_number}, and {count}"
            f" of {self.registry.count_active()} devices say that they have reported in a later round. Devices never"
            " repeat a round. Begin a next run, which devices can join: restart the server with --run"
            f" {self.number + 1}."
        )

    async def inbox(self, device: Device, after: int, wait: float, last: LastReport) -> bytes | None:
        """Return the open phase's encoded message to this device, if the round's number is above `after`.

        Wait up to `wait` seconds for such a message; return None if there is none by then or the server shuts down.
        `last` is the phase of the device's last report, as the device claims. Raise `Refusal` when the run is over, or
        if `last` is in a later round than this server's and the protocol cannot skip rounds.
        """
        until = self._clock() + wait
        # A claim above the number of rounds is impossible, so it is ignored.
        self._claimed[device.id] = last if last[0] <= self.offer.terms.max_rounds else NO_REPORT
        if last[0] > self.round_number and not self.server.side.can_skip_rounds:
            raise Refusal(
                f"this server is in round {self.round_number}, but this device has reported in round {last[0]}: the"
                " server was restored from an older backup. Wait for its next run.",
                code="server-behind",
            )
        if not self.is_open:
            self.wake()  # with the device that returns, a round may have enough devices to open
        while (held := self.held_seconds) or (message := self._message_for(device, after)) is None:
            if self.is_over:
                raise Refusal(
                    f"the run is over: all {self.offer.terms.max_rounds} rounds have ended.",
                    code="run-over",
                    last_report=device.last_report_text,
                )
            if self.is_stopping:
                return None
            changed, left = self._changed, until - self._clock()
            try:
                await asyncio.wait_for(changed.wait(), timeout=min(left, held or left))
            except TimeoutError:
                if not 0 < held < left:
                    return None
            if device.state != ACTIVE:
                self.registry.known(device.id)
        return self._encoded(message)

    def _message_for(self, device: Device, after: int) -> Any | None:
        if self._is_closing or self.round_number <= after or device.id in self._pending:
            return None
        return None if self.is_open and self._claims_report(device.id) else self.server.inbox(device.id)

    def _claims_report(self, name: Name) -> bool:
        """Return whether a device claims to have reported in the open phase or later.

        A server that was restored from a backup may lack this report.
        """
        address, phases = self.server.address, self.server.side.phases
        place = address.round_number, address.attempt, phases.index(address.phase)
        return self._claimed.get(name, NO_REPORT) >= place

    def _encoded(self, message: Any) -> bytes:
        """Return a message encoded in its envelope; the result for the latest message is cached."""
        address = self.server.address
        if self._sealed[0] is not message or self._sealed[1] != address:
            self._sealed = message, address, encode(Envelope.to(self.offer.run_id, address, message))
        return self._sealed[2]

    def stop_waiting(self) -> None:
        """End all long polls without a message, and all event streams, because the server is shutting down."""
        self.is_stopping = True
        self._announce_change()

    def published(self) -> bytes:
        """Return the encoded public table after the latest round that has ended, or else the initial table."""
        state = self.n_ended, self.offer.terms.n_items
        if self._published[0] != state:
            self._published = state, encode(Public.of(self.offer.run_id, self.n_ended, self.offer.terms, self.public))
        return self._published[1]

    # Reports ---------------------------------------------------------------------------------------------------

    async def report(self, device: Device, nonce: int, request: Request) -> Receipt:
        """Check and store a report; return its receipt once it is durable. The same bytes may be sent again."""
        envelope, digest = decode(request.body, Envelope), request.digest
        address = envelope.address
        self._check_asked(device, envelope.run_id, address)
        pending = self._pending.get(device.id)
        if (earlier := pending[0] if pending else self.server.reported.get(device.id)) is not None:
            if earlier != digest:
                raise Refusal.of("reported")
            if pending:
                await asyncio.shield(pending[1])
            return Receipt.of(address, repeated=True)
        self.server.check(device.id, address, envelope.message)
        if self.server.side.signer_of(envelope.message) not in (None, device.key_bytes):
            raise Refusal(
                "a report with keys must name the public key with which this device is enrolled. Use that key.",
                code="bad-signature",
            )
        addend = self.server.side.addend(address, device.id, envelope.message)
        phase = self.server.side.phases.index(address.phase)
        report = NewReport(address, phase, device.id, nonce, request.body, digest, device.last_seen, addend)
        stored = self.storage.store(report)
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
            raise Refusal(  # the phase stays open if the change cannot be stored
                f"the phase may be closing ({address}). Send the same report again.", code="busy", retry_after=1
            )
        try:
            self.server.check_asked(device.id, address)
        except RemoteProtocolError as error:
            raise Refusal(str(error), code=error.code, last_report=device.last_report_text) from None

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
                log_event("round-error", reason=reason)
                delay = RETRY_SECONDS
            if self.storage.is_shared:
                delay = SHARED_SECONDS if delay is None else min(delay, SHARED_SECONDS)
                await asyncio.sleep(LULL_SECONDS)
            try:
                await asyncio.wait_for(self._wake.wait(), timeout=delay)
            except TimeoutError:
                continue

    async def _advance(self) -> float | None:
        """Open or close a phase if that is due; return the seconds until the next check.

        None means that the next check must wait for a call of `wake`.
        """
        elapsed = self.elapsed
        if held := self.held_seconds:
            return held if held < math.inf else None
        if self.is_open:
            left = self._seconds_left() if self._is_enough else self.deadline - elapsed
            if left <= 0 and not self._is_enough and not self._newcomers():
                return None
            if left <= 0:
                await self.close_phase()
            return max(0.0, left)
        if self.is_over or self.is_paused or not self.settings.rounds.automatic:
            return None
        if elapsed < self.settings.rounds.pause_seconds and self.round_number:
            return float(self.settings.rounds.pause_seconds - elapsed)
        if self.count_present(self.round_number + 1) >= self.fewest_devices:
            await self.open_round()
            return 0.0
        return None

    @property
    def n_needed(self) -> int:
        """The number of reports without which the open phase does not close at its deadline; 0 if there is none.

        The first phase of an attempt needs `ServerSide.fewest_devices` reports, but none if that number is 1. Without
        enough reports it stays open after its deadline, or another attempt begins if there are `_newcomers`.
        """
        is_first = self.is_open and self.server.address.phase == self.server.side.phases[0]
        fewest = self.server.side.fewest_devices
        return fewest if is_first and fewest > 1 else 0

    @property
    def _is_enough(self) -> bool:
        return self.n_reports >= self.n_needed

    def _newcomers(self) -> set[Name]:
        """Return the devices that could report only if another attempt began.

        Some of them joined after the open attempt began, or were not drawn for it. Others have reported in it, but the
        server lacks their reports because it was restored from a backup.
        """
        others = set[Name](self.registry.entitled(self.round_number + 1)).difference(self.server.asked)
        return others.union(
            name for name in self.server.asked - self.server.reported.keys() if self._claims_report(name)
        )

    def _seconds_left(self) -> float:
        """Return the seconds until the open phase closes; at most 0 if it should close now.

        A phase closes at its deadline, or earlier: as soon as all present devices have reported; or `grace_seconds`
        after both the fraction `early_fraction` of them has reported and `ServerSide.may_close` is true. The report of
        a device that has left is used, but is not counted as a report of a present device.
        """
        until = self.deadline - self.elapsed
        reported, gone, fraction = self.server.reported.keys(), self.registry.ended, self.settings.rounds.early_fraction
        given = len(reported) - len(reported & gone)  # quicker than the difference, which is as long as `reported`
        is_complete = given >= self.n_present
        is_early = is_complete or (
            given >= math.ceil(fraction * self.n_present) and self.server.side.may_close(reported, gone, fraction)
        )
        if self.n_reports == 0 or not is_early:
            self._early_at = None
            return until
        if self._early_at is None:
            self._early_at = self._clock()
        grace = 0.0 if is_complete else self.settings.rounds.grace_seconds
        return min(until, self._early_at + grace - self._clock())

    # Opening and closing ---------------------------------------------------------------------------------------

    async def open_round(self) -> None:
        """Open the next round.

        If the protocol and model accept new items (`ServerSide.can_grow`), the round includes those that were added to
        the catalogue since the previous round opened.
        """
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
        server.side.n_expected = self.count_present(server.round_number + 1)
        server.start_round()
        offer = replace(self.offer, terms=server.side.terms)  # the terms have the new items
        if await self._write(offer, server):
            log_event("round-opened", round=self.round_number, items=offer.terms.n_items)

    async def close_phase(self) -> None:
        """Close the open phase: process its reports, or open another attempt if too few arrived.

        Reports are processed in the order of device ids, and deleted when their attempt ends. The run is paused after
        every `MOST_ATTEMPTS` failed attempts of a round, and if the protocol asks for the operator.
        """
        async with self._turn:
            if not self.is_open:
                raise Refusal("no round is open. Start one first.", code="no-round")
            self._is_closing = True
            server, address, facts = copy.deepcopy(self.server), self.server.address, dict[str, Any]()
            asked = self.count_present_of(self.server.invited)
            record = partial(write_round, before=self.public, asked=asked, latencies=self.monitor.latencies)
            is_enough, entitled = self._is_enough, self.registry.entitled(self.round_number + 1)
            before = self.failures

            def close(connection: sa.Connection, now: float) -> dict[str, Any]:
                if is_enough:
                    server.close_phase(*read_given(connection, server.address))
                else:  # nothing was revealed and no budget was spent: ask the devices that are entitled now
                    server.begin_again(entitled)
                if server.stage is not Stage.OPEN:
                    facts.update(record(connection, server.side, address, now, failures=before))
                    delete_reports(connection)
                    return {"failures": []}
                if server.address.attempt == address.attempt:
                    return {}
                delete_reports(connection)
                assert server.failure is not None
                failure = {"attempt": address.attempt, "phase": address.phase, "reason": server.failure.reason}
                failures = [*before, failure]
                n_failed = self.count_failed(failures)
                is_due = n_failed > self.count_failed(before) and n_failed % MOST_ATTEMPTS == 0
                pauses = server.failure.needs_operator or is_due
                return {"failures": failures, **({"is_paused": True} if pauses else {})}

            try:
                is_mine = await self._write(self.offer, server, close)
            finally:
                self._is_closing = False
            if is_mine and not self.is_open:
                self.monitor.round_closed(self.round_number, facts)
            elif is_mine and self.server.address.attempt > address.attempt:
                log_event("attempt-failed", **vars(address), reason=self.failures[-1]["reason"])
                if self.held_seconds == math.inf:
                    log_event("run-paused", round=self.round_number, attempts=len(self.failures))

    async def _write(
        self, offer: Offer, server: Server, close: Callable[[sa.Connection, float], dict[str, Any]] | None = None
    ) -> bool:
        """Store `offer` and `server`, then replace this worker's copies by them; return True.

        `close` closes the open phase of `server` in the same transaction, before `server` is stored. Its second
        argument is the present time in Unix seconds, and its result has further fields of `Stored`. Reports that it
        deletes are also removed from SQLite's write-ahead log. Without `close`, `server` has just opened a round.

        Return False and store nothing in two cases. If another worker has changed the run, this worker loads the
        change. If another worker is opening or closing a phase at this moment, this worker's copies stay as they are.
        In both cases the schedule decides again soon.
        """
        known = self._stored

        def write(connection: sa.Connection) -> Stored:
            if not takes_turn(connection):
                return known
            if lock_run(connection) != known.version:
                return load_run(connection)
            now = self._wall_clock()
            changed: dict[str, Any] = {"failures": []} if close is None else close(connection, now)
            columns = {name: json.dumps(value) if name == "failures" else value for name, value in changed.items()}
            version = write_run(connection, offer, server, now, opens_round=close is None, **columns)
            return replace(known, offer=offer, server=server, version=version, **changed)

        self._move(await self.storage.write(write, scrub=close is not None))
        return self.server is server

    # Admin -----------------------------------------------------------------------------------------------------

    async def set_paused(self, paused: bool) -> None:
        """Pause or resume the run.

        While the run is paused, no further round or attempt begins, but an open attempt continues.
        """
        await self.refresh()
        async with self._turn:
            version = await self.storage.write(lambda connection: update_run(connection, is_paused=paused))
            self.is_paused = paused
            self._note(version)

    def _note(self, version: int) -> None:
        """Record the version of the run's row that this worker has just written.

        If another worker changed the row shortly before, keep the old version, so that `refresh` loads that change.
        """
        self.version += version == self.version + 1
        self.wake()

    async def start(self) -> None:
        """End a pause, and open a round now if none is open, or another attempt if the pause withheld one."""
        is_held = self.held_seconds == math.inf
        await self.set_paused(False)
        if is_held:
            await self.close_now()
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
        while place is None or (self.is_open and self.server.address == place):  # another worker may hold the lock
            await self.close_phase()
            await self.refresh()

    async def extend(self, more: int) -> None:
        """Extend a finished run by `more` rounds, in which a device takes part only if its person agrees."""
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
            self._move(await self.storage.write(write))

    def listed(self) -> list[dict[str, Any]]:
        """Return the dict of `Registry.listed` for each device, with two more entries, `suspected` and `left_out`.

        They say whether the device is suspected of false reports, and whether the open attempt does not ask it.
        """
        suspects, asked = self.server.side.suspects, self.server.invited
        entitled = set(self.registry.entitled(self.round_number) if self.is_open else ())
        marks = {"suspected": suspects, "left_out": entitled - asked}
        return [
            row | {name: row["id"] in names for name, names in marks.items()}
            for row in self.registry.listed(self.n_ended)
        ]

    async def revoke(self, name: str) -> None:
        await self.registry.revoke(name)
        self.server.drop(name)
        self._announce_change()

    async def add_items(self, ids: list[str], titles: list[str]) -> int:
        """Append the items whose ids are new to the catalogue, for the next round; return their number."""
        if not self.server.side.can_grow:
            raise Refusal("this run's protocol and model do not accept new items. Begin a next run.", code="bad-items")

        def write(connection: sa.Connection) -> tuple[int, list[Entry], int]:
            lock_run(connection)
            count = insert_items(connection, ids, titles)
            return count, read_entries(connection, len(self.catalogue)), update_run(connection)

        async with self._turn:  # one at a time: each call must see the items that the previous call added
            count, added, version = await self.storage.write(write)
            self.catalogue.append(added)
            self._note(version)
        return count
