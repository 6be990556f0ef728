"""Record a training run: what the server saw, and the private data that attacks try to recover."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.audit.observation import Observation
from hushrec.audit.rating_levels import RatingLevels
from hushrec.engines import run_round
from hushrec.engines.cpu.engine import CpuEngine
from hushrec.engines.gradient import GradientEngine, GradientProblem
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors
from hushrec.simulation.training_problem import AnyProblem


@dataclass(frozen=True, eq=False)
class Truth:
    """The private data of the victims and the final item vectors, which only the code that scores attacks sees.

    Under model `fm`, a row of `user_vectors` is (1, u), where u is the person's taste, and a row of `item_vectors` is
    the item's row of `FactorizationMachine.item_rows`. The product of both is the item's score.
    """

    rated: BoolArray = field(repr=False)  # (n_victims, n_items)
    ratings: FloatArray = field(repr=False)  # (n_victims, n_items), NaN where unrated
    user_vectors: FloatArray = field(repr=False)  # (n_victims, width), after the last round
    item_vectors: FloatArray = field(repr=False)  # (n_items, width), after the last round

    @property
    def counts(self) -> IntArray:
        return np.asarray(self.rated.sum(axis=1))


SAMPLE_ROUNDS = 20  # number of last rounds in which the sample's reports are recorded


def record(
    problem: GradientProblem,
    victims: IntArray,
    sample: IntArray | None = None,
    popularity: FloatArray | None = None,
) -> tuple[Observation, Truth, GradientEngine]:
    """Train for all rounds; return what the server saw, the victims' private data, and the trained engine.

    `victims` and `sample` are user indices. The `Observation` holds the victims' reports of all rounds, and the
    sample's reports of the last `SAMPLE_ROUNDS` rounds; by default there is no sample. It also holds `popularity`,
    `(n_items,)`: the fraction of people who rated each item, by default of all people who are not victims.
    """
    if popularity is None:
        popularity = item_popularity(problem, np.setdiff1d(problem.active_users, victims))
    sample = victims[:0] if sample is None else sample
    engine = CpuEngine(problem, record_users=victims.tolist())
    first_late = max(1, problem.terms.max_rounds - SAMPLE_ROUNDS + 1)
    announcements, reports = list[ItemVectors](), list[dict[int, GradientReport]]()
    for round_number in range(1, problem.terms.max_rounds + 1):
        if round_number == first_late:
            everybody = CpuEngine(problem, record_users=np.union1d(victims, sample).tolist())
            everybody.restore(engine.state())
            engine = everybody
        announcements.append(ItemVectors(problem.terms, round_number, engine.item_vectors.astype(np.float32)))
        run_round(engine)
        reports.append({user: narrow(report) for user, report in engine.recorded.pop().items()})
    observation = Observation(
        problem.protocol(int(victims[0])),
        problem.model,
        tuple(announcements),
        tuple(tuple(sent.get(user) for sent in reports) for user in victims.tolist()),
        tuple(tuple(sent.get(user) for sent in reports[first_late - 1 :]) for user in sample.tolist()),
        popularity,
        levels=RatingLevels.of(problem.values),
    )
    ratings = rating_matrix(problem, victims)
    directions = np.array([problem.model.direction(vector) for vector in engine.user_vectors[victims]])
    truth = Truth(~np.isnan(ratings), ratings, directions, problem.model.item_rows(engine.item_vectors))
    return observation, truth, engine


def narrow(report: GradientReport) -> GradientReport:
    """Return the report with gradients in float32, as a device sends them."""
    return replace(report, gradients=report.gradients.astype(np.float32))


def rating_matrix(problem: AnyProblem, users: Sequence[int] | IntArray) -> FloatArray:
    """Return the ratings of these users, `(len(users), n_items)`, with NaN for unrated items."""
    ratings = np.full((len(users), problem.n_items), np.nan)
    for row, user in enumerate(users):
        items, values = problem.profile(user)
        ratings[row, items] = values
    return ratings


def item_popularity(problem: AnyProblem, users: IntArray) -> FloatArray:
    """Return the fraction of these users who rated each item, `(n_items,)`; attackers know it without any message."""
    counts = np.bincount(problem.items[np.isin(problem.rating_users, users)], minlength=problem.n_items)
    return np.asarray(counts / max(len(users), 1))
