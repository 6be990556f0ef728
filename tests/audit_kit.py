"""Small runs to attack: with a leak planted as large as it gets."""

from dataclasses import replace
from functools import cache

import numpy as np

from hushrec.audit.devices import profile
from hushrec.audit.observation import Observation
from hushrec.audit.record import Truth, record
from hushrec.audit.run import item_popularity
from hushrec.data.synthetic import synthetic
from hushrec.engines import Engine
from hushrec.problem import Problem
from hushrec.settings import Settings
from hushrec.training import task_problem

VICTIMS = 12
# Budgets so large that the permanent bits are the rated items: every round reports them all, and fakes besides.
WIDE_OPEN = {"epsilon_i": 600.0, "epsilon_p": 1200.0, "reports_per_client": 80.0}


@cache
def problem_of(model: str, protocol: str, rounds: int = 25, open_wide: bool = True) -> Problem:
    """A small problem; `data_weight` is that of a large one, so that the Langevin noise is as small as there."""
    options = {} if protocol != "sdcf" else {**(WIDE_OPEN if open_wide else {})}
    if protocol == "sdcf" and model == "mf":
        options["epsilon_g"] = 4.0
    settings = Settings(model=model, protocol=protocol, rounds=rounds, factors=8, **options)
    data = synthetic(n_users=60, n_items=120, n_ratings=2_400, seed=1)
    problem = task_problem(settings.make_task(data), settings)
    return replace(problem, terms=replace(problem.terms, data_weight=80_000.0))


def victims_of(problem: Problem) -> np.ndarray:
    """The first active people."""
    return problem.active_users[:VICTIMS]


@cache
def watched(model: str, protocol: str, open_wide: bool = True) -> tuple[Problem, Observation, Truth, Engine]:
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


def rated_by(problem: Problem, user: int) -> np.ndarray:
    """Items of one profile."""
    return profile(problem, user)[0]
