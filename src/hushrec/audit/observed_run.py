"""Record a training run: what the server saw, and the private data that attacks try to recover."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.observation import MaybeReport, Observation
from hushrec.audit.rating_levels import RatingLevels
from hushrec.audit.statistics import BoolArray
from hushrec.engines import run_round
from hushrec.engines.cpu.engine import CpuEngine
from hushrec.engines.gradient import GradientEngine, GradientProblem
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors
from hushrec.simulation.training_problem import AnyProblem


@dataclass(frozen=True, eq=False)
class Truth:
    """The private data of the victims, which attacks try to recover, and the final item vectors.

    Only the code that scores attacks sees it.
    """

    rated: BoolArray = field(repr=False)  # (n_victims, n_items)
    ratings: FloatArray = field(repr=False)  # (n_victims, n_items), NaN where unrated
    user_vectors: FloatArray = field(repr=False)  # (n_victims, width), after the last round
    item_vectors: FloatArray = field(repr=False)  # (n_items, width), after the last round

    @property
    def counts(self) -> IntArray:
        """The number of ratings of every victim."""
        return np.asarray(self.rated.sum(axis=1))


CROWD_ROUNDS = 20  # number of last rounds in which the crowd's reports are kept
Round = tuple[ItemVectors, dict[int, MaybeReport]]  # the announcement, and the report of each person


def record(
    problem: GradientProblem, victims: IntArray, crowd: IntArray, popularity: FloatArray
) -> tuple[Observation, Truth, GradientEngine]:
    """Train for all rounds of the terms; return what the server saw, the truth, and the trained engine.

    The observation holds all reports of the victims, and the crowd's reports of the last rounds (`CROWD_ROUNDS` of
    them). `popularity` is the fraction of other people who rated each item.
    """
    announcements: list[ItemVectors] = []
    reports: list[list[MaybeReport]] = []
    late: list[list[MaybeReport]] = []
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
    """Train on the CPU engine; after each round, yield the engine, its announcement and the reports of the victims.

    In the last rounds (`CROWD_ROUNDS` of them), the reports of the crowd are yielded, too.
    """
    engine = CpuEngine(problem, record_users=[int(user) for user in victims])
    for round_number in range(1, problem.terms.max_rounds + 1):
        if round_number == max(1, problem.terms.max_rounds - CROWD_ROUNDS + 1):
            everybody = CpuEngine(problem, record_users=[int(user) for user in np.union1d(victims, crowd)])
            everybody.restore(engine.state())
            engine = everybody
        announcement = ItemVectors(problem.terms, round_number, engine.item_vectors)
        run_round(engine)
        sent: dict[int, MaybeReport] = {user: narrow(report) for user, report in engine.recorded.pop().items()}
        as_sent = replace(announcement, item_vectors=announcement.item_vectors.astype(np.float32))
        yield engine, (as_sent, sent)


def narrow(report: GradientReport) -> GradientReport:
    """Return the report with gradients in float32, as a device sends them."""
    return replace(report, gradients=report.gradients.astype(np.float32))


def truth_of(problem: GradientProblem, victims: Sequence[int] | IntArray, engine: GradientEngine) -> Truth:
    """Return the victims' ratings and user vectors, and the item vectors, after the last round."""
    ratings = rating_matrix(problem, victims)
    return Truth(~np.isnan(ratings), ratings, engine.user_vectors[victims], engine.item_vectors)


def rating_matrix(problem: AnyProblem, users: Sequence[int] | IntArray) -> FloatArray:
    """Return the ratings of these users, `(len(users), n_items)`, with NaN for unrated items."""
    ratings = np.full((len(users), problem.n_items), np.nan)
    for row, user in enumerate(users):
        items, values = problem.profile(user)
        ratings[row, items] = values
    return ratings


def item_popularity(problem: AnyProblem, users: IntArray) -> FloatArray:
    """Return the fraction of these users who rated each item, which an attacker knows without any message."""
    counts = np.zeros(problem.n_items)
    for user in users:
        counts[problem.profile(user)[0]] += 1
    return np.asarray(counts / max(len(users), 1))
