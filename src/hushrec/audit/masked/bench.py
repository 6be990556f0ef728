"""The audit of `masked`: for each budget it records one training run and runs every attack on it."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hushrec.audit.devices import Clock
from hushrec.audit.findings import Finding
from hushrec.audit.masked.attributes import attack_attributes, attack_timing
from hushrec.audit.masked.collusion import attack_tables
from hushrec.audit.masked.pairs import (
    attack_cohorts,
    attack_one_run,
    attack_profiles,
    attack_ratings,
    contradictions,
    measure_noise,
)
from hushrec.audit.masked.people import attack_people
from hushrec.audit.masked.poisoning import attack_integrity
from hushrec.audit.masked.sums import watch
from hushrec.audit.masked.watched import People, Watched, label_of, owners
from hushrec.audit.run import USUAL, Audit, check_people, describe
from hushrec.data.ratings import Ratings
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

EPSILONS = (8.0, 1.0, math.inf)  # budgets to audit by default
FEWEST_RATINGS = 2  # smallest number of ratings of a victim, because one of them is removed
Say = Callable[[str, int], None]
Task = tuple[Ratings, Settings, int, People | None, Clock | None]
Outcome = tuple[list[Finding], dict[str, Any]]

STEPS: tuple[tuple[str, Callable[[Watched], list[Finding]]], ...] = (
    ("items, ratings, taste", attack_people),
    ("people", attack_attributes),
    ("timing", attack_timing),
    ("noise", measure_noise),
    ("one person in or out", attack_profiles),
    ("one rating", attack_ratings),
    ("cohorts", attack_cohorts),
    ("masked tables", attack_tables),
    ("poisoning", attack_integrity),
    ("one run", attack_one_run),
)


def attack_masked(
    ratings: Ratings, settings: Settings, n_victims: int, people: People | None, clock: Clock | None, say: Say
) -> Outcome:
    """Train once and attack the run; return the findings, and the other entries of the audit's record of this run.

    `people` holds known attributes of all people, `clock` returns the time in seconds, and `say` is called before every
    step.
    """
    say("training", 0)
    task = settings.make_task(ratings)
    problem = task_problem(task, settings)
    seen, engine = watch(problem)
    rated = np.flatnonzero(problem.rated_counts >= FEWEST_RATINGS)
    chosen = np.random.default_rng([settings.seed, 9]).permutation(rated)[:n_victims]
    run = Watched(settings, problem, seen, np.sort(chosen), people, clock)
    findings: list[Finding] = []
    for number, (what, attack) in enumerate(STEPS, start=1):
        say(what, number)
        findings += attack(run)
    about = {**_about(run), "contradictions": contradictions(findings, run.budget)}
    return findings, {**about, "metrics": task.metrics(engine.predictor()), "baselines": task.baselines()}


def _about(run: Watched) -> dict[str, Any]:
    """Return the budget, the number of items with a single rater, and the fraction of people who rated such an item."""
    problem = run.problem
    raters = np.bincount(problem.items, minlength=problem.n_items)
    exposed = np.unique(owners(problem)[raters[problem.items] == 1])
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


def run_masked(task: Task) -> Outcome:
    """Audit one budget in a worker process, without progress messages."""
    return attack_masked(*task, lambda *_: None)


def audit_masked(
    ratings: Ratings,
    settings: list[Settings],
    *,
    n_victims: int | None = None,
    people: People | None = None,
    clock: Clock | None = None,
    progress: Callable[[str, str, int, int], None] | None = None,
    run_all: Callable[[list[Task]], list[Outcome]] | None = None,
) -> Audit:
    """Attack `masked` with every budget of `settings`, and return all findings.

    The same `n_victims` people are attacked under each budget: by default 100, or half of the people with at least two
    ratings if that is fewer. The other arguments are those of `audit.run.audit`.
    """
    first = settings[0]
    counts = task_problem(first.make_task(ratings), first).rated_counts
    n_people = int((counts >= FEWEST_RATINGS).sum())
    n_victims = check_people(n_people, min(USUAL, n_people // 2) if n_victims is None else n_victims)
    tasks: list[Task] = [(ratings, chosen, n_victims, people, clock) for chosen in settings]
    labels = [label_of(chosen) for chosen in settings]
    if run_all is not None:
        outcomes = run_all(tasks)
    else:
        hear = progress or (lambda *_: None)
        outcomes = [
            attack_masked(*task, lambda what, step, name=label: hear(name, what, step, len(STEPS) + 1))  # type: ignore[misc]
            for task, label in zip(tasks, labels, strict=True)
        ]
    about = {
        **describe(ratings, dict(zip(labels, settings, strict=True)), n_victims),
        "rounds": max(run["budget"]["rounds"] for _, run in outcomes),
        "runs": {label: run for label, (_, run) in zip(labels, outcomes, strict=True)},
    }
    return Audit([one for found, _ in outcomes for one in found], {}, about)
