"""A fleet of real devices in a few processes, each with its own store, key and connection, for load tests."""

import math
import multiprocessing
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from hushrec.arrays import FloatArray
from hushrec.client import place_in
from hushrec.device import joining
from hushrec.device.budgets import Budgets
from hushrec.device.session import NO_ROUND, RUN_OVER, STEPPED, Session
from hushrec.device.store import Store
from hushrec.device.transport import PATIENCE_SECONDS as FIRST_PATIENCE
from hushrec.device.transport import BlockingDriver, open_http, tls_context
from hushrec.errors import BudgetExceeded, LocalProtocolError, ParameterError
from hushrec.messages import LastReport, Offer
from hushrec.models.predictor import Arrays
from hushrec.open_files import allow_open_files

FIRST_WAIT, LONGEST_WAIT = 0.2, 1.0  # seconds of a long poll, for which all devices of a process wait
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
    rounds: int | None = None  # in which each device reports; 0: only enrol; None: until the run is over
    invitations: tuple[str, ...] | None = None  # one code per device; None for an open server
    follow: bool = False  # whether to agree to further rounds or a next run, and raise the limits to its cost


@dataclass(frozen=True, order=True)
class Place:
    """The round, attempt and phase in which some devices have just reported."""

    round_number: int
    attempt: int
    phase: int  # its index in `phases`
    phases: tuple[str, ...] = field(compare=False)
    rounds: int = field(compare=False)  # number of rounds of the run
    devices: int = field(compare=False)  # number of devices that have just reported


Progress = Callable[[Place], None]


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


def run_fleet(
    members: list[Member], orders: Orders, *, processes: int = 1, progress: Progress = lambda place: None
) -> Outcome:
    """Run all members concurrently, spread over `processes` processes; return their joint outcome.

    Raise `ParameterError` before a device enrols if the server's catalogue lacks an item that a member has rated.
    """
    offer = _check_catalogue(members, orders)
    codes = orders.invitations
    shared = [replace(orders, invitations=codes and codes[n::processes]) for n in range(processes)]
    parts = [(members[n::processes], part, offer) for n, part in enumerate(shared)]
    if processes == 1:
        return _run_part(*parts[0], progress)
    context = multiprocessing.get_context("spawn")
    with _queue(context, progress) as queue, ProcessPoolExecutor(processes, context, _use_queue, (queue,)) as pool:
        done = list(pool.map(_run_part, *zip(*parts, strict=True)))
    return Outcome(*(sum(values) for values in zip(*(astuple(part) for part in done), strict=True)))


_shared: Any = None  # the queue through which a process of several tells its progress


def _use_queue(queue: Any) -> None:
    global _shared
    _shared = queue


def _tell(place: Place) -> None:
    _shared.put(place)


@contextmanager
def _queue(context: Any, progress: Progress) -> Iterator[Any]:
    """Yield a queue; call `progress` in a thread with everything that other processes put into it."""
    queue = context.SimpleQueue()

    def pass_on() -> None:
        while (place := queue.get()) is not None:
            progress(place)

    thread = threading.Thread(target=pass_on, name="hushrec-progress", daemon=True)
    thread.start()
    try:
        yield queue
    finally:
        queue.put(None)
        thread.join()


def _check_catalogue(members: list[Member], orders: Orders) -> Offer:
    """Return the server's offer; raise `ParameterError` if its catalogue lacks items of the members' ratings.

    The requests are anonymous, and the store that they need is in a temporary folder.
    """
    with ExitStack() as stack:
        store = Store(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "store", create=True)
        stack.callback(store.close)
        Session.start(store, orders.budgets)
        http = stack.enter_context(open_http(orders.server, tls_context(orders.ca), seconds=REQUEST_SECONDS))
        driver = BlockingDriver(Session(store), http, patience=FIRST_PATIENCE)  # the address may be wrong
        offer: Offer = driver.run(joining.fetch_offer(driver.session))
        driver.run(driver.session.refresh_catalogue(offer.terms.n_items))
        known = {item for item, _ in store.catalogue()}
    rated = {item for member in members for item in (*member.ratings, *member.held_out)}
    if lacking := len(rated - known):
        raise ParameterError(
            f"the server's catalogue must have every rated item of the data, but {lacking} of {len(rated)} are not"
            " among its items. Start the server with the items file of this data."
        )
    return offer


def _run_part(members: list[Member], orders: Orders, offer: Offer, progress: Progress = _tell) -> Outcome:
    """Run the members of one process; their server has made the `offer`."""
    allow_open_files()
    context, traffic = tls_context(orders.ca), _Traffic()
    started = time.process_time()
    with ExitStack() as stack:
        drivers = []
        for member in members:
            session = _open(member, orders)
            stack.callback(session.store.close)
            _check_server(session, offer)
            http = open_http(orders.server, context, seconds=REQUEST_SECONDS)
            http.event_hooks = {"request": [traffic.sent], "response": [traffic.received]}
            drivers.append(BlockingDriver(session, stack.enter_context(http), patience=PATIENCE_SECONDS))
        pool = stack.enter_context(ThreadPoolExecutor(AT_ONCE))
        codes = orders.invitations or [None] * len(drivers)
        list(pool.map(_join, drivers, codes, [orders.follow] * len(drivers)))
        reports = _take_part(drivers, orders.rounds, pool, progress)
        used = time.process_time() - started
        is_measured = orders.rounds != 0 and any(member.held_out for member in members)
        shown, trained = _errors(members, drivers) if is_measured else np.empty((2, 0))
    errors = float(shown @ shown), float(trained @ trained)
    return Outcome(reports, len(shown), *errors, traffic.up, traffic.down, used)


def _check_server(session: Session, offer: Offer) -> None:
    """Raise `ParameterError` if the session has enrolled with another server than the one that has made the offer."""
    if session.is_enrolled and session.accepted.server_key != offer.server_key:
        raise ParameterError(
            f"--stores must be a new folder, or hold devices of this server, but the devices in"
            f" {session.store.folder.parent} belong to another server. Give another folder with --stores."
        )


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


def _take_part(drivers: list[BlockingDriver], rounds: int | None, pool: Executor, progress: Progress) -> int:
    """Let each device report in `rounds` rounds, or until the run is over; return the number of reports.

    All devices step together, one phase at a time. A few devices wait for the phase in a long poll; as soon as they
    have reported, the others are asked without a wait, because the server may have no message for some of them. The
    devices that wait are those that have reported last, or while nobody has a report to make, all devices in turn. A
    device stops only after the last phase of its last round.
    """
    reports, active, wait = 0, list(drivers) if rounds != 0 else [], FIRST_WAIT
    reported_in: dict[BlockingDriver, set[int]] = {driver: set() for driver in drivers}  # round numbers
    reporting: list[BlockingDriver] = []  # those of `active` that reported last

    def step(devices: list[BlockingDriver], seconds: float) -> dict[BlockingDriver, str]:
        return dict(zip(devices, pool.map(lambda one: one.run(one.session.step(seconds)), devices), strict=True))

    while active:
        outcomes = step((reporting or active)[:AT_ONCE], wait)
        if set(outcomes.values()) == {NO_ROUND}:
            active = [driver for driver in active if driver not in outcomes] + list(outcomes)
            reporting, wait = [], min(2 * wait, LONGEST_WAIT)
            continue
        outcomes |= step([driver for driver in active if driver not in outcomes], 0)
        reporting, wait = [driver for driver, outcome in outcomes.items() if outcome == STEPPED], FIRST_WAIT
        reports += len(reporting)
        places = [place_in(driver.session.store.private_state()) for driver in reporting]
        for driver, place in zip(reporting, places, strict=True):
            reported_in[driver].add(place[0])
        for place, count in sorted(Counter(places).items()):
            progress(_place(reporting[0].session, place, count))
        going = {
            driver
            for driver in active
            if outcomes[driver] != RUN_OVER
            and (rounds is None or len(reported_in[driver]) < rounds or driver.session.client().in_round)
        }
        active, reporting = ([driver for driver in some if driver in going] for some in (active, reporting))
    return reports


def _place(session: Session, place: LastReport, devices: int) -> Place:
    accepted = session.accepted
    phases = session.budgets.protocol_for(accepted).phases
    return Place(*place, phases, accepted.terms.max_rounds, devices)


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
