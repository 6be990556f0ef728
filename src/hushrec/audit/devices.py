"""Simulated devices for attacks that need new reports, such as attacks by a malicious server or on timing."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.observation import MaybeReport, Observation
from hushrec.audit.observed_run import narrow
from hushrec.client import Client
from hushrec.engines.gradient import GradientProblem
from hushrec.engines.reference import make_client
from hushrec.messages import Address
from hushrec.protocols.gradient.messages import REPORT, ItemVectors

Clock = Callable[[], float]
People = Mapping[str, IntArray]  # known attributes of all people, by name


def report_of(device: Client, announcement: ItemVectors) -> MaybeReport:
    """Return a device's report on an announcement, with float32 values, as servers receive it; None if it is empty."""
    report = device.report(Address(announcement.round_number, 1, REPORT), announcement)
    return narrow(report) if report is not None and len(report.items) else None


def replay(
    problem: GradientProblem,
    observation: Observation,
    users: Sequence[int] | IntArray,
    *,
    clock: Clock | None = None,
    added: Callable[[int, int], tuple[IntArray, FloatArray] | None] = lambda user, round_number: None,
) -> Observation:
    """Return the observation that results if new devices of `users` report on the announcements of a recorded run.

    The random draws of the devices depend on `problem.seed`. `added(user, round_number)` returns ratings that a device
    gains before that round, or None. With a `clock`, the observation also holds the time that each report took.
    """
    of_devices, seconds = [], np.zeros((len(users), observation.n_rounds))
    for row, user in enumerate(users):
        device = make_client(problem, int(user))
        reports = []
        for column, announcement in enumerate(observation.announcements):
            gained = added(int(user), announcement.round_number)
            if gained is not None:
                device.add_ratings(*gained)
            started = 0.0 if clock is None else clock()
            reports.append(report_of(device, announcement))
            seconds[row, column] = 0.0 if clock is None else clock() - started
        of_devices.append(tuple(reports))
    timing = None if clock is None else seconds
    return replace(observation, reports=tuple(of_devices), sample=(), finish_seconds=timing)
