"""Runs a protocol and splits it in two: what the server saw, and the truth that only the judge may know."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.observation import Observation, Upload
from hushrec.audit.rating_levels import RatingLevels
from hushrec.audit.statistics import BoolArray
from hushrec.engines import run_round
from hushrec.engines.cpu.engine import CpuEngine
from hushrec.engines.gradient import GradientEngine, GradientProblem
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors


@dataclass(frozen=True, eq=False)
class Truth:
    """What attacks try to guess. Private: it never reaches one."""

    rated: BoolArray = field(repr=False)  # (n_victims, n_items)
    ratings: FloatArray = field(repr=False)  # (n_victims, n_items), NaN where unrated
    user_vectors: FloatArray = field(repr=False)  # (n_victims, width), after the last round
    item_vectors: FloatArray = field(repr=False)  # (n_items, width), after the last round

    @property
    def counts(self) -> IntArray:
        """Return the number of ratings of every victim."""
        return np.asarray(self.rated.sum(axis=1))


CROWD_ROUNDS = 20
Round = tuple[ItemVectors, dict[int, Upload]]  # what was announced, and who sent what


def record(
    problem: GradientProblem, victims: IntArray, crowd: IntArray, popularity: FloatArray
) -> tuple[Observation, Truth, GradientEngine]:
    """Trains to the last round of the terms; keeps all uploads of the victims and the last few of the crowd."""
    announcements: list[ItemVectors] = []
    reports: list[list[Upload]] = []
    late: list[list[Upload]] = []
    for played, (announcement, sent) in _play(problem, victims, crowd):
        engine = played
        announcements.append(announcement)
        reports.append([sent.get(int(user)) for user in victims])
        late = [*late, [sent.get(int(user)) for user in crowd]][-CROWD_ROUNDS:]
    observation = Observation(
        problem.protocol(int(victims[0])),
        tuple(announcements),
        tuple(tuple(row[index] for row in reports) for index in range(len(victims))),
        tuple(tuple(row[index] for row in late) for index in range(len(crowd))),
        popularity,
        levels=RatingLevels.of(problem.values),
    )
    return observation, truth_of(problem, victims, engine), engine


def _play(problem: GradientProblem, victims: IntArray, crowd: IntArray) -> Iterator[tuple[GradientEngine, Round]]:
    """Record a run on the CPU engine, which writes out the reports of the users asked for."""
    engine = CpuEngine(problem, record_users=[int(user) for user in victims])
    for round_number in range(1, problem.terms.max_rounds + 1):
        if round_number == max(1, problem.terms.max_rounds - CROWD_ROUNDS + 1):
            everybody = CpuEngine(problem, record_users=[int(user) for user in np.union1d(victims, crowd)])
            everybody.restore(engine.state())
            engine = everybody
        announcement = ItemVectors(problem.terms, round_number, engine.item_vectors)
        run_round(engine)
        sent: dict[int, Upload] = {user: narrow(report) for user, report in engine.recorded.pop().items()}
        yield engine, (narrow_vectors(announcement), sent)


def narrow(report: GradientReport) -> GradientReport:
    """Return the report in float32, as a device sends it."""
    return replace(report, gradients=report.gradients.astype(np.float32))


def narrow_vectors(announcement: ItemVectors) -> ItemVectors:
    """Return published item vectors in float32, as a server sends them."""
    return replace(announcement, item_vectors=announcement.item_vectors.astype(np.float32))


def truth_of(problem: GradientProblem, victims: Sequence[int] | IntArray, engine: GradientEngine) -> Truth:
    """Ratings and final vectors of the victims."""
    ratings = np.full((len(victims), problem.n_items), np.nan)
    for row, user in enumerate(victims):
        rows = slice(problem.starts[user], problem.starts[user + 1])
        ratings[row, problem.items[rows]] = problem.values[rows]
    return Truth(~np.isnan(ratings), ratings, engine.user_vectors[victims], engine.item_vectors)
