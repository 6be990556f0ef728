"""Small runs to attack: with a leak planted as large as it gets, or with none."""

from dataclasses import replace
from functools import cache

import numpy as np

from hushrec.audit.observation import Observation
from hushrec.audit.observed_run import Truth, item_popularity, record
from hushrec.audit.run import Audit, audit, settings_for
from hushrec.data.ratings import Ratings
from hushrec.data.synthetic import synthetic
from hushrec.engines import Engine
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings
from hushrec.simulation.training_problem import TrainingProblem

VICTIMS = 12
RUNS = [("mf", "plain"), ("mf", "isgld"), ("mf", "sdcf"), ("bpr", "plain"), ("bpr", "sdcf")]
# Budgets so large that the permanent bits are the rated items: every round reports them all, and fakes besides.
WIDE_OPEN = {"epsilon_i": 1500.0, "epsilon_p": 3000.0, "reports_per_client": 80.0}
QUIET = 1e9  # weight of the data beside which no Langevin noise is left


@cache
def problem_of(
    model: str, protocol: str, rounds: int = 25, open_wide: bool = True, data: Ratings | None = None
) -> TrainingProblem:
    """A small problem without noise; open wide, permanent bits are the ratings, and noisy ratings are true ones."""
    options: dict[str, float] = {}
    if protocol == "sdcf":
        options = {**(WIDE_OPEN if open_wide else {}), **({"epsilon_g": 4.0} if model == "mf" else {})}
    elif protocol == "isgld" and open_wide:
        options = {"epsilon": 1e6}
    settings = Settings(model=model, protocol=protocol, rounds=rounds, factors=8, **options)
    data = synthetic(n_users=60, n_items=120, n_ratings=2_400, seed=1) if data is None else data
    problem = task_problem(settings.make_task(data), settings)
    return replace(problem, terms=replace(problem.terms, data_weight=QUIET))


def victims_of(problem: TrainingProblem) -> np.ndarray:
    """The first active people."""
    return problem.active_users[:VICTIMS]


@cache
def watched(model: str, protocol: str, open_wide: bool = True) -> tuple[TrainingProblem, Observation, Truth, Engine]:
    """A recorded run and its truth."""
    problem = problem_of(model, protocol, open_wide=open_wide)
    popularity = item_popularity(problem, problem.active_users[VICTIMS:])
    return problem, *record(problem, victims_of(problem), problem.active_users, popularity)


def unrelated(truth: Truth, seed: int = 0) -> Truth:
    """A truth that no message was made from: everybody's ratings and vector replaced by a stranger's."""
    rng = np.random.default_rng(seed)
    ratings = np.array([rng.permutation(row) for row in truth.ratings])
    vectors = rng.standard_normal(truth.user_vectors.shape)
    return replace(truth, rated=~np.isnan(ratings), ratings=ratings, user_vectors=vectors)


def rated_by(problem: TrainingProblem, user: int) -> np.ndarray:
    """Items of one profile."""
    return problem.profile(user)[0]


@cache
def small_audit(model: str) -> Audit:
    """All attacks on all protocols of a model, with attributes and a clock."""
    data = synthetic(n_users=40, n_items=50, n_ratings=800, seed=2)
    settings = settings_for(None, model=model, rounds=4, factors=4)
    return audit(data, settings, n_victims=5, people={"gender": np.arange(40) % 2}, clock=lambda: 0.0)


def chance_deviation(labels: list[np.ndarray]) -> float:
    """Deviation of the mean AUC over people whose labels were dealt at random: Mann and Whitney's, without ties."""
    sizes = [(row.sum(), (~row).sum()) for row in labels]
    variances = [(true + false + 1) / (12 * true * false) for true, false in sizes if true and false]
    return float(np.sqrt(sum(variances)) / len(variances))
