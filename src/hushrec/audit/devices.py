"""Single devices for attacks that need one to report: a server that lies, a rating added later, the time it takes."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.observation import Observation, Upload
from hushrec.audit.observed_run import narrow
from hushrec.client import Client
from hushrec.engines.gradient import GradientProblem
from hushrec.messages import Address
from hushrec.protocols.gradient.messages import REPORT, ItemVectors, Terms
from hushrec.randomness import SeededRandomness

Clock = Callable[[], float]


def make_device(problem: GradientProblem, user: int, *, seed: int, terms: Terms | None = None) -> Client:
    """One simulated person's device, before its first round."""
    protocol = problem.protocol(user)
    terms = problem.terms if terms is None else terms
    ledger = protocol.make_ledger(terms)
    device = Client(terms, problem.model, protocol, randomness=SeededRandomness(seed, user), ledger=ledger)
    device.add_ratings(*profile(problem, user))
    return device


def profile(problem: GradientProblem, user: int) -> tuple[IntArray, FloatArray]:
    """Rated items and their values."""
    rows = slice(problem.starts[user], problem.starts[user + 1])
    return problem.items[rows], problem.values[rows]


def upload_of(device: Client, announcement: ItemVectors) -> Upload:
    """What a device reports in one round, in numbers of 4 bytes; None where it selects nothing."""
    report = device.report(Address(announcement.round_number, 1, REPORT), announcement)
    return narrow(report) if report is not None and len(report.items) else None


def replay(
    problem: GradientProblem,
    observation: Observation,
    users: Sequence[int] | IntArray,
    *,
    seed: int,
    clock: Clock | None = None,
    added: Callable[[int, int], tuple[IntArray, FloatArray] | None] = lambda user, round_number: None,
) -> Observation:
    """Return the reports of fresh devices on recorded announcements.

    `added` gives ratings that they gain on the way.
    """
    uploads, seconds = [], np.zeros((len(users), observation.n_rounds))
    for row, user in enumerate(users):
        device = make_device(problem, int(user), seed=seed)
        reports = []
        for column, announcement in enumerate(observation.announcements):
            gained = added(int(user), announcement.round_number)
            if gained is not None:
                device.add_ratings(*gained)
            started = 0.0 if clock is None else clock()
            reports.append(upload_of(device, announcement))
            seconds[row, column] = 0.0 if clock is None else clock() - started
        uploads.append(tuple(reports))
    timing = None if clock is None else seconds
    return replace(observation, uploads=tuple(uploads), crowd=(), finish_seconds=timing)
