"""A fleet of real devices in a few processes, each with its own store, key and connection, for load tests."""

import math
import multiprocessing
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path

import httpx
import numpy as np

from hushrec.arrays import FloatArray
from hushrec.device import joining
from hushrec.device.budgets import Budgets
from hushrec.device.session import RUN_OVER, STEPPED, Session
from hushrec.device.store import Store
from hushrec.device.transport import BlockingDriver, open_http, tls_context
from hushrec.errors import BudgetExceeded, LocalProtocolError
from hushrec.models.predictor import Arrays
from hushrec.open_files import allow_open_files

WAIT_SECONDS = 5.0  # of a long poll; short, because all devices wait for one that gets no message
REQUEST_SECONDS = 120.0  # timeout of a request; long, because a load test may overload the server
PATIENCE_SECONDS = 300.0  # for retries; long, because a test may kill and restart the server
POLL_SECONDS = 0.1  # between two looks at the public table
AT_ONCE = 16  # devices of one process that make requests at the same time


@dataclass(frozen=True)
class Member:
    """A person of the fleet: the folder of the store, ratings by item id, and held-out ratings to measure the RMSE."""

    folder: Path
    ratings: Mapping[str, float] = field(repr=False)
    held_out: Mapping[str, float] = field(default_factory=dict, repr=False)


@dataclass(frozen=True)
class Orders:
    """The instructions for all members of a fleet: the server to join, the budgets, and how long to take part."""

    server: str
    budgets: Budgets
    ca: Path | None = None
    rounds: int | None = None  # number of rounds in which each device reports; None: until the run is over
    invitations: tuple[str, ...] | None = None  # one code per device; None for an open server
    follow: bool = False  # whether to agree to further rounds or a next run, and raise the limits to its cost


@dataclass(frozen=True)
class Outcome:
    """The totals over a fleet, or its members in one process: reports, prediction errors, traffic and processor time.

    Errors are measured for two kinds of predictions: those that devices show, which are clipped to the person's scale,
    and those that engines measure, which are not clipped. Under the gradient protocols with model `mf`, the user
    vectors differ too: an engine uses the vector that the rounds trained, and a device fits a new vector to all
    ratings of its person.
    """

    reports: int
    held_out: int  # number of held-out ratings
    squared_error: float  # sum over held-out ratings, for the predictions that devices show
    squared_error_trained: float  # sum over held-out ratings, for the predictions that engines measure
    bytes_up: int  # total size of the bodies of requests
    bytes_down: int  # total size of the bodies of replies
    cpu_seconds: float  # of all devices, from joining to the end of the run

    @property
    def rmse(self) -> float | None:
        """The RMSE on held-out ratings of the predictions that devices show; None without held-out ratings."""
        return math.sqrt(self.squared_error / self.held_out) if self.held_out else None

    @property
    def rmse_trained(self) -> float | None:
        """The RMSE on held-out ratings of the predictions that engines measure; None without held-out ratings."""
        return math.sqrt(self.squared_error_trained / self.held_out) if self.held_out else None


def run_fleet(members: list[Member], orders: Orders, *, processes: int = 1) -> Outcome:
    """Run all members concurrently, spread over `processes` processes; return their joint outcome."""
    codes = orders.invitations
    shared = [replace(orders, invitations=codes and codes[n::processes]) for n in range(processes)]
    parts = [(members[n::processes], part) for n, part in enumerate(shared)]
    if processes == 1:
        return _run_part(*parts[0])
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        done = list(pool.map(_run_part, *zip(*parts, strict=True)))
    return Outcome(*(sum(values) for values in zip(*(astuple(part) for part in done), strict=True)))


def _run_part(members: list[Member], orders: Orders) -> Outcome:
    allow_open_files()
    context, traffic = tls_context(orders.ca), _Traffic()
    started = time.process_time()
    with ExitStack() as stack:
        drivers = []
        for member in members:
            session = _open(member, orders)
            stack.callback(session.store.close)
            http = open_http(orders.server, context, seconds=REQUEST_SECONDS)
            http.event_hooks = {"request": [traffic.sent], "response": [traffic.received]}
            drivers.append(BlockingDriver(session, stack.enter_context(http), patience=PATIENCE_SECONDS))
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        codes = orders.invitations or [None] * len(drivers)
        list(pool.map(_join, drivers, codes, [orders.follow] * len(drivers)))
        reports = _take_part(drivers, orders, pool)
        used = time.process_time() - started
        shown, trained = _errors(members, drivers) if any(member.held_out for member in members) else np.empty((2, 0))
    errors = float(shown @ shown), float(trained @ trained)
    return Outcome(reports, len(shown), *errors, traffic.up, traffic.down, used)


class _Traffic:
    """A counter of the bytes in the bodies of requests and replies, from their Content-Length headers."""

    def __init__(self) -> None:
        self.up = self.down = 0
        self._lock = threading.Lock()

    def sent(self, request: httpx.Request) -> None:
        with self._lock:
            self.up += int(request.headers.get("content-length", 0))

    def received(self, response: httpx.Response) -> None:
        with self._lock:
            self.down += int(response.headers.get("content-length", 0))


def _join(driver: BlockingDriver, invitation: str | None, follow: bool) -> None:
    session = driver.session
    if session.is_enrolled and not follow:
        return
    enrol = partial(joining.follow, session) if session.is_enrolled else partial(joining.join, session, invitation)
    try:
        driver.run(enrol())
    except BudgetExceeded as error:  # the person is made up, and agrees to every cost
        if error.needed is None:
            raise
        session.allow(error.needed)
        driver.run(enrol())


def _take_part(drivers: list[BlockingDriver], orders: Orders, pool: ThreadPoolExecutor) -> int:
    """Let each device report in `orders.rounds` rounds, or until the run is over; return the number of reports.

    All devices step together, one phase at a time. A device stops only after the last phase of its last round.
    """
    reports, active = 0, drivers if orders.rounds != 0 else []
    reported_in: dict[BlockingDriver, set[int]] = {driver: set() for driver in drivers}  # round numbers
    while active:
        outcomes = list(pool.map(lambda driver: driver.run(driver.session.step(WAIT_SECONDS)), active))
        reports += outcomes.count(STEPPED)
        stepped, active = active, []
        for driver, outcome in zip(stepped, outcomes, strict=True):
            if outcome == STEPPED:
                reported_in[driver].add(driver.session.last_round)
            has_rounds = orders.rounds is None or len(reported_in[driver]) < orders.rounds
            if outcome != RUN_OVER and (has_rounds or driver.session.client().in_round):
                active.append(driver)
    return reports


def _errors(members: list[Member], drivers: list[BlockingDriver]) -> FloatArray:
    """Return prediction − rating for all held-out ratings, `(2, n_held_out)`.

    Row 0 is for the predictions that devices show, clipped to the person's scale. Row 1 is for the predictions that
    engines measure, not clipped.
    """
    first, public = drivers[0].session, _latest_public(drivers[0])
    position = {name: n for n, (name, _) in enumerate(first.store.catalogue())}
    rows = []
    for member, driver in zip(members, drivers, strict=True):
        session, places = driver.session, [position[item] for item in member.held_out]
        client = session.client()
        shown = client.predict(public)
        found = client.side.trained_predictions(public, client.private_state())
        trained = shown if found is None else found
        shown, trained = (session.budgets.mapping.from_unit(found)[places] for found in (shown, trained))
        true = np.array(list(member.held_out.values()))
        rows.append(np.array([np.clip(shown, *session.budgets.scale) - true, trained - true]))
    return np.concatenate(rows, axis=1)


def _latest_public(driver: BlockingDriver) -> Arrays:
    """Fetch and return the public table; if this device has reported, wait until the first round has ended.

    Raise `LocalProtocolError` if no round has ended after `PATIENCE_SECONDS`.
    """
    last = time.monotonic() + PATIENCE_SECONDS * (driver.session.last_round > 0)
    while True:
        driver.run(driver.session.refresh_public())
        try:
            return driver.session.predictions.public()
        except LocalProtocolError:
            if time.monotonic() > last:
                raise
            time.sleep(POLL_SECONDS)


def _open(member: Member, orders: Orders) -> Session:
    """Return the session of a member; if the member has no store yet, create it with the member's ratings."""
    new = not (member.folder / "device.sqlite").exists()
    store = Store(member.folder, create=new)
    if new:
        Session.start(store, orders.budgets)
        with store.change():
            store.put_ratings(dict(member.ratings))
    return Session(store, keep_public=False)
