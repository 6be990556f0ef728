"""One run of an experiment: check its budget before anything runs, run its plan, and return its record."""

import dataclasses
import time
from typing import Any

import numpy as np

from hushrec.data.splits import cold_counts
from hushrec.engines import Engine, make_engine
from hushrec.errors import Diverged, ImpossibleBudget, ParameterError
from hushrec.experiment_records import Record, group_metric
from hushrec.experiments.config import Plan
from hushrec.experiments.grid import is_measured
from hushrec.json_values import to_json
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.simulation.run import measure, task_problem, timed_round
from hushrec.simulation.tasks import RatingTask, Task
from hushrec.simulation.training_problem import AnyProblem, settle_terms


def make_plan_problem(task: Task, plan: Plan) -> AnyProblem:
    """Return the training problem of a plan.

    If the plan has `groups` (groups of people with different budgets), each user gets the protocol of their group. If
    the plan has a `data_weight`, it replaces the data weight in the terms.
    """
    problem = task_problem(task, plan.settings)
    if plan.data_weight is not None:
        problem = dataclasses.replace(problem, terms=dataclasses.replace(problem.terms, data_weight=plan.data_weight))
    if plan.groups:
        problem = dataclasses.replace(problem, protocols=_protocols(plan, problem.n_users))
    return problem


def _protocols(plan: Plan, n_users: int) -> list[ConfiguredProtocol]:
    """Return one protocol for all users or, if the plan has groups, one per user with the budget of their group."""
    if not plan.groups:
        return [plan.settings.make_protocol()]
    levels = [plan.settings.replace(**group.model_dump(exclude={"share"})).make_protocol() for group in plan.groups]
    return [levels[member] for member in group_of_users(plan, n_users)]


def group_of_users(plan: Plan, n_users: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Assign users to groups at random, by the plan's seed; return each user's position in `plan.groups`, `(n_users,)`.

    Every group gets its `share` of the users, up to rounding.
    """
    shares = np.array([group.share for group in plan.groups])
    if abs(shares.sum() - 1) > 1e-9:
        raise ParameterError(f"curves[{plan.curve}].groups must have shares that add up to 1, got {shares.sum():g}.")
    cuts = np.round(np.cumsum(shares)[:-1] * n_users).astype(np.int64)
    ranks = np.random.default_rng([plan.settings.seed, 2]).permutation(n_users)
    return np.searchsorted(cuts, ranks, side="right").astype(np.int64)


def check_plan(task: Task, plan: Plan) -> None:
    """Raise `ParameterError` if a budget of the plan is impossible for a user, or an option is out of range."""
    users, _, _ = task.training()
    counts = np.bincount(users, minlength=task.ratings.n_users)
    settings = plan.settings
    protocols = _protocols(plan, task.ratings.n_users)
    model = settings.make_model(task.ratings)
    try:
        settle_terms(counts, task.ratings.n_items, model, protocols, seed=settings.seed, **settings.options)
    except ImpossibleBudget as error:
        raise ParameterError(f"curves[{plan.curve}].epsilon_p: {error}") from None
    except ParameterError as error:
        raise ParameterError(f"curves[{plan.curve}]: {error}") from None


def run_plan(task: Task, plan: Plan) -> Record:
    """Run a plan and return its record.

    The record of a run that diverged has no metrics, and the error message as "diverged".
    """
    engine = make_engine(plan.settings.chosen_engine, make_plan_problem(task, plan))
    curve: list[dict[str, float]] = []
    started = time.perf_counter()
    try:
        seconds, metrics = _run_rounds(task, plan, engine, curve)
        metrics |= task.list_metrics(engine.predictor()) | _group_metrics(task, engine, plan)
        metrics |= _released_metrics(task, engine)
    except Diverged as error:
        own = {"curve": curve, "seconds": time.perf_counter() - started, "budget": _whole_budget(engine)}
        return own | {"bytes_per_client_round": engine.bytes_per_client_round()} | without_result(str(error))
    budget = engine.problem.budget(engine.round_number, engine.losses())
    return {
        "metrics": metrics,
        "curve": curve,
        "seconds": seconds,
        "bytes_per_client_round": engine.bytes_per_client_round(),
        "value_rho": {name: budget.get("value_rho", {}).get(name) for name in ("median", "max")},
        "budget": to_json(budget),
    }


def _run_rounds(
    task: Task, plan: Plan, engine: Engine, curve: list[dict[str, float]]
) -> tuple[float, dict[str, float]]:
    """Run all rounds and append the measurements to `curve`; return the seconds and the metrics of the last round.

    The seconds count the rounds, but not the measurements.
    """
    seconds = 0.0
    rounds = engine.problem.terms.max_rounds
    for round_number in range(1, rounds + 1):
        seconds += timed_round(engine)
        if is_measured(round_number, rounds, plan.measure_every):
            metrics = measure(task, engine)
            curve.append({"round": round_number, task.headline: metrics[task.headline]})
    return seconds, metrics


def without_result(sentence: str) -> Record:
    """Return record entries for a diverged run: no metrics, no measured loss ρ, and `sentence` as "diverged"."""
    return {"metrics": {}, "value_rho": {"median": None, "max": None}, "diverged": sentence}


def _whole_budget(engine: Engine) -> Record:
    """Return the budget of a diverged run as if it had run all rounds; costs measured in training are infinite."""
    problem = engine.problem
    unbounded = {name: np.full(problem.n_users, np.inf) for name in engine.losses()}
    return dict(to_json(problem.budget(problem.terms.max_rounds, unbounded)))


def _released_metrics(task: Task, engine: Engine) -> dict[str, float]:
    """Return the metrics of ranking items by the noisy counts in the public table, such as "private_popularity_auc".

    The result is empty if the public table has no counts, and for a model that predicts ratings, because tables of
    experiments compare these models by errors.
    """
    if isinstance(task, RatingTask):
        return {}
    released = task.released_baselines(engine.predictor().released_support())
    return {f"{name}_{measure}": value for name, own in released.items() for measure, value in own.metrics.items()}


def _group_metrics(task: Task, engine: Engine, plan: Plan) -> dict[str, float]:
    """Return the test RMSE of each group of `plan.groups`, by the name of its metric (`group_metric`).

    The result is empty for a plan without groups and for a ranking task.
    """
    if not plan.groups or not isinstance(task, RatingTask):
        return {}
    members = group_of_users(plan, task.ratings.n_users)[task.ratings.users[task.split.test]]
    found = {}
    for number, group in enumerate(plan.groups):
        split = dataclasses.replace(task.split, test=task.split.test[members == number])
        part = dataclasses.replace(task, split=split)
        found[group_metric(group.epsilon_i, group.epsilon_g)] = measure(part, engine)["rmse"]
    return found


def split_record(task: Task) -> Record:
    """Return the record that all runs on a split share: the sizes of its parts, and the non-personal baselines."""
    cold_users, cold_items = cold_counts(task.ratings, task.split)
    return {
        "train": len(task.split.train),
        "test": len(task.split.test),
        "cold_users": cold_users,
        "cold_items": cold_items,
        "baselines": task.baselines(),
    }
