"""The audit of `masked`: for each budget it records one training run and runs every attack on it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hushrec.audit.findings import Finding
from hushrec.audit.masked import pairs
from hushrec.audit.masked.attributes import attack_attributes, attack_timing
from hushrec.audit.masked.collusion import attack_tables
from hushrec.audit.masked.people import attack_people
from hushrec.audit.masked.poisoning import attack_integrity
from hushrec.audit.masked.sums import watch
from hushrec.audit.masked.watched import Watched, label_of
from hushrec.audit.run import Audit, Column, Outcome, Progress, attack_columns, silent
from hushrec.data.ratings import Ratings
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

EPSILONS = (8.0, 1.0, math.inf)  # budgets to audit by default
FEWEST_RATINGS = 2  # smallest number of ratings of a victim, because one of them is removed

STEPS: tuple[tuple[str, Callable[[Watched], list[Finding]]], ...] = (
    ("items, ratings, taste", attack_people),
    ("people", attack_attributes),
    ("timing", attack_timing),
    ("noise", pairs.measure_noise),
    ("one person in or out", pairs.attack_profiles),
    ("one rating", pairs.attack_ratings),
    ("cohorts", pairs.attack_cohorts),
    ("masked tables", attack_tables),
    ("poisoning", attack_integrity),
    ("one run", pairs.attack_one_run),
)


def attack_masked(column: Column, progress: Progress = silent) -> Outcome:
    """Train with one budget and attack the run; return the findings, and the run's entries in the audit's record.

    The entries are the budget, contradicted claims, test metrics and baselines, the number of items with a single
    rater, and the fraction of people who are the single rater of an item.
    """
    ratings, settings, n_victims, people, clock = column
    label, steps = label_of(settings), len(STEPS) + 1
    progress(label, "training", 0, steps)
    task = settings.make_task(ratings)
    problem = task_problem(task, settings)
    seen, engine = watch(problem)
    rated = np.flatnonzero(problem.rated_counts >= FEWEST_RATINGS)
    chosen = np.random.default_rng([settings.seed, 9]).permutation(rated)[:n_victims]
    run = Watched(settings, problem, seen, np.sort(chosen), people, clock)
    findings: list[Finding] = []
    for number, (what, attack) in enumerate(STEPS, start=1):
        progress(label, what, number, steps)
        findings += attack(run)
    about = {**_about(run), "contradictions": pairs.contradictions(findings, run.budget)}
    return findings, {**about, "metrics": task.metrics(engine.predictor()), "baselines": task.baselines()}


def _about(run: Watched) -> dict[str, Any]:
    problem = run.problem
    raters = np.bincount(problem.items, minlength=problem.n_items)
    exposed = np.unique(problem.rating_users[raters[problem.items] == 1])
    people = int((problem.rated_counts > 0).sum())
    return {
        "budget": {name: run.budget[name] for name in ("epsilon", "delta", "item_level", "mu", "rounds")},
        "rare_items": int((raters == 1).sum()),
        "people_with_a_rare_item": len(exposed) / people,
    }


def masked_settings(model: str | None, epsilon: float | None, seed: int) -> list[Settings]:
    """Return the settings for each budget: the given ε, or by default 8, 1 and infinity (no noise)."""
    chosen = EPSILONS if epsilon is None else (epsilon,)
    return [Settings(protocol="masked", model=model, epsilon=one, seed=seed) for one in chosen]


def audit_masked(ratings: Ratings, settings: list[Settings], **arguments: Any) -> Audit:
    """Attack one run for each of `settings`, which differ in their budget, and return all findings.

    `arguments` are the keyword arguments of `attack_columns`.
    """
    first = settings[0]
    counts = task_problem(first.make_task(ratings), first).rated_counts
    n_people = int((counts >= FEWEST_RATINGS).sum())
    labels = [label_of(chosen) for chosen in settings]
    findings, runs, about = attack_columns(attack_masked, ratings, settings, labels, n_people, **arguments)
    rounds = max(run["budget"]["rounds"] for run in runs.values())
    return Audit(findings, {}, {**about, "rounds": rounds, "runs": runs})
