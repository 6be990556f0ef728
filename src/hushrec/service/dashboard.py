"""The operator's dashboard at `/`: one page, its server-sent events, and the history of all rounds.

Everyone who can reach the server can see the page. It shows the numbers of `/metrics`, the public terms and how much
the public table changed, and nothing about a single device. Actions and the list of devices need the admin token.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from importlib.metadata import version
from typing import Annotated, Any

import msgspec
import sqlalchemy as sa
from fastapi import FastAPI, Query
from fastapi.responses import StreamingResponse

from hushrec.messages import PROTOCOL_VERSION
from hushrec.offers import expectation
from hushrec.pages import HEADERS, add_page
from hushrec.protocols import find_protocol
from hushrec.service.history import read_most_moved, read_rounds
from hushrec.service.problems import Refusal
from hushrec.service.rounds import Rounds
from hushrec.service.schema import MIGRATIONS, devices, history

MOST_WATCHERS = 50  # open event streams
MOST_READERS = 4  # concurrent reads of the history, which delay the reports of devices
TICK_SECONDS = 0.25
BEAT_SECONDS = 5.0  # the longest time between two events, so that a page notices a lost connection


class Dashboard:
    """The data that the dashboard's page shows: facts that never change, the current state, and the past rounds."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._started = time.time()
        self.watchers = 0
        self._reading = asyncio.Semaphore(MOST_READERS)
        self._latest: tuple[float, dict[str, Any]] = (-TICK_SECONDS, {})

    def fixed(self) -> dict[str, Any]:
        """Return the facts that do not change while the server runs, such as protocol, model, versions and database."""
        rounds = self._rounds
        offer = rounds.offer
        knowledge = find_protocol(offer.protocol).knowledge
        return {
            "knowledge": {"can": knowledge.can, "cannot": knowledge.cannot},
            "protocol": offer.protocol,
            "rounds": offer.terms.max_rounds,
            "asks": rounds.protocol.asks(offer.terms),
            "largest_sum": rounds.protocol.expected_devices(offer.terms),
            "model": {"name": offer.model, "options": offer.options},
            "versions": {"hushrec": version("hushrec"), "protocol": PROTOCOL_VERSION, "schema": len(MIGRATIONS)},
            "run_id": offer.run_id,
            "number": rounds.number,
            "started": self._started,
            "database": "PostgreSQL" if rounds.storage.is_shared else "SQLite",
        }

    def now(self) -> dict[str, Any]:
        """Return the current state of the run, at most `TICK_SECONDS` old. All pages share one result."""
        time_now = time.monotonic()
        if time_now - self._latest[0] >= TICK_SECONDS:
            self._latest = time_now, self._make_now()
        return self._latest[1]

    def _make_now(self) -> dict[str, Any]:
        rounds = self._rounds
        return {
            "state": _state(rounds),
            "paused": rounds.is_paused,
            "round": rounds.round_number,
            "closed": rounds.n_ended,
            "phase": rounds.server.address.phase if rounds.is_open else None,
            "attempt": rounds.server.address.attempt if rounds.is_open else None,
            "phases": rounds.server.side.phases,
            "reports": rounds.n_reports,
            "needed": rounds.n_needed,
            "asked": max(rounds.n_present, rounds.n_reports) if rounds.is_open else 0,
            "devices": rounds.registry.count_active(),
            "fewest": rounds.fewest_devices,
            "items": rounds.offer.terms.n_items,
            "waiting": rounds.storage.waiting,
            "refusals": rounds.monitor.refusals,
            "progress": rounds.server.side.progress if rounds.is_open else None,
            "concern": rounds.concern,
            "accuracy": rounds.server.side.accuracy,
            "expectation": expectation(rounds.offer, rounds.registry.count_active() or None),
        }

    async def events(self) -> AsyncIterator[str]:
        """Yield server-sent events for one page: event `fixed` once, then event `now` whenever the state has changed.

        If the state does not change, event `now` is repeated after `BEAT_SECONDS`.
        """
        self.watchers += 1
        try:
            yield _event("fixed", self.fixed())
            sent: dict[str, Any] = {}
            last = 0.0
            while not self._rounds.is_stopping:
                found = self.now()
                if found != sent or time.monotonic() - last >= BEAT_SECONDS:
                    timed = {"elapsed": self._rounds.elapsed, "deadline": self._rounds.deadline}
                    yield _event("now", found | timed)
                    sent, last = found, time.monotonic()
                await asyncio.sleep(TICK_SECONDS)
        finally:
            self.watchers -= 1

    async def past(self, after: int) -> dict[str, Any]:
        """Return the closed rounds with a number above `after`, and facts about the run so far.

        The facts are the number of devices by state, the total bytes of the reports in the last attempts of all closed
        rounds, and the items whose rows changed most in the last round that changed the public table.
        """

        def read(connection: sa.Connection) -> dict[str, Any]:
            states = sa.select(devices.c.state, sa.func.count()).group_by(devices.c.state)
            total = sa.select(sa.func.coalesce(sa.func.sum(history.c.bytes), 0))
            return {
                "rounds": read_rounds(connection, after),
                "most_moved": read_most_moved(connection),
                "devices": {row[0]: row[1] for row in connection.execute(states)},
                "bytes": int(connection.execute(total).scalar_one()),
            }

        if self._reading.locked():
            raise Refusal("too many pages are reading the history. Try again in a moment.", code="busy", retry_after=1)
        async with self._reading:
            return await self._rounds.storage.write(read)


def add_dashboard(app: FastAPI, rounds: Rounds) -> None:
    """Add the dashboard's page and the routes from which the page loads its data."""
    dashboard = Dashboard(rounds)
    add_page(app, "dashboard")

    @app.get("/dashboard/events", include_in_schema=False)
    async def events() -> StreamingResponse:
        if dashboard.watchers >= MOST_WATCHERS:
            raise Refusal("too many pages are watching this server. Try again later.", code="busy", retry_after=10)
        return StreamingResponse(dashboard.events(), media_type="text/event-stream", headers=HEADERS)

    @app.get("/dashboard/rounds", include_in_schema=False)
    async def past(after: Annotated[int, Query(ge=0, le=10**9)] = 0) -> dict[str, Any]:
        return await dashboard.past(after)


def _state(rounds: Rounds) -> str:
    if rounds.is_open and rounds.held_seconds < math.inf:
        return "open"
    if rounds.is_over:
        return "over"
    return "paused" if rounds.is_paused else "waiting"


def _event(name: str, content: dict[str, Any]) -> str:
    return f"event: {name}\ndata: {msgspec.json.encode(content).decode()}\n\n"  # null for infinity
