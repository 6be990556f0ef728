"""Sweeps: the success of attacks and the test error for several values of ε_g or of the Langevin noise."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hushrec.audit.attacks import Attack
from hushrec.audit.attacks.existence import AveragedErrors, ConsistentRatings, ErrorLikelihood, SelectionAverage
from hushrec.audit.attacks.taste import MODEL
from hushrec.audit.judge import abs_cosines
from hushrec.audit.observation import Observation
from hushrec.audit.observed_run import Truth, record
from hushrec.audit.run import Audit
from hushrec.audit.statistics import mean_auc
from hushrec.data.ratings import Ratings
from hushrec.engines.gradient import GradientProblem
from hushrec.errors import Diverged, ParameterError
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

NOISE_FACTORS = (1.0, 1e2, 1e3, 1e4, 1e5, 1e6)  # multiples of the variance of the noise
BUDGETS_G = (4.0, 1.0, 0.25, 0.0625, 0.0)  # values of ε_g
BASELINES = {"bias": "the bias model", "item_mean": "item means"}
PEOPLE = 30  # number of people to attack


def check_sweeps(settings: Sequence[Settings], kinds: Sequence[str]) -> None:
    """Raise `ParameterError` if a sweep cannot run, before the audit begins.

    `kinds` are the names of the sweeps, "noise" and "budget". A sweep repeats the last of `settings` with other values.
    """
    last = settings[-1]
    for kind in kinds:
        if kind not in SWEEPS:
            raise ParameterError(f"--sweep must be {' or '.join(SWEEPS)}, got {kind}.")
        if last.model != "mf":
            raise ParameterError(f"--sweep {kind} needs model mf, got {last.model}. Leave --sweep out, or use mf.")
        if kind == "budget" and "epsilon_g" not in last.options:
            raise ParameterError(
                f"--sweep budget needs a last --protocol with the option epsilon_g, got {last.protocol}. Put sdcf last."
            )


def swept(found: Audit, ratings: Ratings, settings: Sequence[Settings], kinds: Sequence[str]) -> Audit:
    """Return the audit `found` with the curves of the sweeps in `kinds`, run under the last protocol of `settings`."""
    check_sweeps(settings, kinds)
    curves, about, last = dict(found.curves), dict(found.about), settings[-1]
    for kind in kinds:
        curves[last.protocol] = curves[last.protocol] | {kind: SWEEPS[kind](ratings, last)}
        errors = last.make_task(ratings).baselines()
        about["baselines"] = {words: errors[name]["rmse"] for name, words in BASELINES.items()}
    return replace(found, curves=curves, about=about)


def noise_curve(ratings: Ratings, settings: Settings, factors: Sequence[float] = NOISE_FACTORS) -> list[dict[str, Any]]:
    """Return the success of attacks and the test RMSE for multiples (`factors`) of the variance of the Langevin noise.

    In round t the noise has variance η_t = step / (N t^γ), with `step`, γ (`decay`) and N (`data_weight`) from the
    terms. The signal of a gradient is η_t N e u, with the error e and the user vector u. Dividing N by a factor
    therefore multiplies the variance of all noise by the factor, and leaves the signal unchanged. A run that diverges
    has the RMSE None and no entries for attacks.
    """
    task = settings.make_task(ratings)
    problem = task_problem(task, settings)
    points = []
    for factor in factors:
        louder = replace(problem, terms=replace(problem.terms, data_weight=problem.terms.data_weight / factor))
        point: dict[str, Any] = {"noise": factor, "rmse": None}
        points.append(point)
        try:
            observation, truth, engine = _watch(louder, settings.seed)
        except Diverged:
            continue
        for attack in MODEL:
            point[f"cosine, {attack.name}"] = float(abs_cosines(attack.guess(observation), truth.user_vectors).mean())
        for existence in (ErrorLikelihood(), AveragedErrors(), ConsistentRatings()):
            if existence.applies_to(observation):
                point[f"AUC, {existence.name}"] = mean_auc(existence.guess(observation), truth.rated)
        strangers = np.roll(truth.user_vectors, 1, axis=0)
        point["cosine, a stranger's vector"] = float(abs_cosines(strangers, truth.user_vectors).mean())
        point["rmse"] = task.metrics(engine.predictor())["rmse"]
    return points


def budget_curve(ratings: Ratings, settings: Settings, budgets: Sequence[float] = BUDGETS_G) -> list[dict[str, Any]]:
    """Return the success of four attacks and the test RMSE for each value of ε_g in `budgets`, in this order.

    The attacks guess which items a person has rated; success is the mean AUC over people. Each dictionary has the keys
    "epsilon_g", "rmse", and the names of the attacks.
    """
    attacks: tuple[Attack, ...] = (SelectionAverage(), ErrorLikelihood(), AveragedErrors(), ConsistentRatings())
    points = []
    for epsilon_g in budgets:
        chosen = settings.replace(epsilon_g=epsilon_g)
        task = chosen.make_task(ratings)
        observation, truth, engine = _watch(task_problem(task, chosen), settings.seed)
        found = {attack.name: mean_auc(attack.guess(observation), truth.rated) for attack in attacks}
        points.append({"epsilon_g": epsilon_g, **found, "rmse": task.metrics(engine.predictor())["rmse"]})
    return points


def _watch(problem: GradientProblem, seed: int) -> tuple[Observation, Truth, Any]:
    return record(problem, np.sort(np.random.default_rng([seed, 7]).permutation(problem.active_users)[:PEOPLE]))


SWEEPS: dict[str, Callable[[Ratings, Settings], list[dict[str, Any]]]] = {"noise": noise_curve, "budget": budget_curve}
