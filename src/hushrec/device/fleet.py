"""Many real devices in one process, each with its own store and keys: for load and for end-to-end runs."""

import asyncio
import math
import multiprocessing
import resource
import ssl
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

import httpx
import numpy as np

from hushrec.device.session import RUN_OVER, STEPPED, Budgets, Session
from hushrec.device.store import Store
from hushrec.device.transport import AsyncDriver, tls_context
from hushrec.randomness import FloatArray

WAIT_SECONDS = 30.0
REQUEST_SECONDS = 120.0
AT_ONCE = 32  # devices that join at the same time


@dataclass(frozen=True)
class Member:
    """One person of the fleet: a folder for the store, ratings by item id, and held-out ones to measure with."""

    folder: Path
    ratings: Mapping[str, float] = field(repr=False)
    held_out: Mapping[str, float] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Orders:
    """What every member of a fleet does."""

    server: str
    budgets: Budgets
    ca: Path | None = None
    rounds: int | None = None  # None: until the run is over
    invitations: tuple[str, ...] | None = None
    max_selection_epsilon: float = 0.0  # what simulated people agree to, where it is above their epsilon_p


@dataclass(frozen=True)
class Outcome:
    """What a fleet, or a part of it, has done."""

    answers: int
    held_out: int
    squared_error: float

    @property
    def rmse(self) -> float | None:
        return math.sqrt(self.squared_error / self.held_out) if self.held_out else None


def run_fleet(members: list[Member], orders: Orders, *, processes: int = 1) -> Outcome:
    """All members take part at once, spread over processes; the outcome is over all of them."""
    parts = [(members[n::processes], _part_of(orders, n, processes)) for n in range(processes)]
    if processes == 1:
        return _run_part(*parts[0])
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        done = list(pool.map(_run_part, *zip(*parts, strict=True)))
    return Outcome(*(sum(values) for values in zip(*(astuple(part) for part in done), strict=True)))


def _part_of(orders: Orders, number: int, processes: int) -> Orders:
    codes = orders.invitations
    return replace(orders, invitations=None if codes is None else codes[number::processes])


def _run_part(members: list[Member], orders: Orders) -> Outcome:
    _allow_open_files()
    sessions = [_open(member, orders) for member in members]
    try:
        return asyncio.run(_take_part(members, sessions, orders))
    finally:
        for session in sessions:
            session.store.close()


async def _take_part(members: list[Member], sessions: list[Session], orders: Orders) -> Outcome:
    context = tls_context(orders.ca)
    joining = asyncio.Semaphore(AT_ONCE)
    answers = await asyncio.gather(
        *(_live(session, orders, context, joining, number) for number, session in enumerate(sessions))
    )
    errors = np.empty(0)
    if any(member.held_out for member in members):
        errors = await _errors(members, sessions, orders, context)
    return Outcome(sum(answers), len(errors), float(errors @ errors))


async def _live(
    session: Session, orders: Orders, context: ssl.SSLContext, joining: asyncio.Semaphore, number: int
) -> int:
    """One device: joins, then answers round after round. Returns how many it answered."""
    answered = 0
    async with httpx.AsyncClient(base_url=orders.server, verify=context, timeout=REQUEST_SECONDS) as http:
        driver = AsyncDriver(session, http)
        if not session.is_enrolled:
            async with joining:
                await driver.run(session.join(None if orders.invitations is None else orders.invitations[number]))
        while orders.rounds is None or answered < orders.rounds:
            outcome = await driver.run(session.step(WAIT_SECONDS))
            if outcome == RUN_OVER:
                break
            answered += outcome == STEPPED
    return answered


async def _errors(
    members: list[Member], sessions: list[Session], orders: Orders, context: ssl.SSLContext
) -> FloatArray:
    """Errors of every device's own predictions of its held-out ratings, with the server's latest item vectors."""
    async with httpx.AsyncClient(base_url=orders.server, verify=context, timeout=REQUEST_SECONDS) as http:
        await AsyncDriver(sessions[0], http).run(sessions[0].refresh_vectors())
    vectors = sessions[0].item_vectors()
    position = {name: n for n, (name, _) in enumerate(sessions[0].store.catalogue())}
    rows = []
    for member, session in zip(members, sessions, strict=True):
        predicted = session.budgets.from_unit(session.client().predict(vectors))
        rows.append(np.array([predicted[position[item]] - value for item, value in member.held_out.items()]))
    return np.concatenate(rows)


def _open(member: Member, orders: Orders) -> Session:
    """A device with its ratings, made on the first run and found again on later ones."""
    new = not (member.folder / "device.sqlite").exists()
    store = Store(member.folder, create=new)
    if new:
        Session.start(store, orders.budgets)
        ledger = Session(store).ledger()
        ledger.raise_limit(max(orders.max_selection_epsilon, ledger.max_selection_epsilon))
        with store.change():
            store.put_ratings(dict(member.ratings))
            store.put_json("ledger", ledger.to_record())
    return Session(store, keep_vectors=False)


def _allow_open_files() -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
