"""A quick audit for the plot of accuracy against leakage: a few attacks by an honest-but-curious server."""

from typing import Any

import numpy as np

from hushrec.arrays import IntArray
from hushrec.audit.attacks.combined import EXISTENCE
from hushrec.audit.attacks.taste import MODEL
from hushrec.audit.attacks.value import VALUE
from hushrec.audit.findings import Finding
from hushrec.audit.judge import judge
from hushrec.audit.observed_run import item_popularity, record
from hushrec.data.ratings import Ratings
from hushrec.engines.gradient import GradientProblem
from hushrec.errors import ParameterError
from hushrec.options import imported
from hushrec.protocols import find_protocol
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

PEOPLE = 20  # number of people to attack
EXISTENCE_BY = ("popularity", "selection average", "consistent ratings + popularity")


def quick_audit(ratings: Ratings, settings: Settings) -> dict[str, Any]:
    """Train once, attack items, ratings and taste of 20 people, and return the findings as JSON data."""
    attacks = find_protocol(settings.protocol).quick_attacks
    if attacks is None:
        raise ParameterError(
            f"protocol must have quick attacks (`quick_attacks`), got {settings.protocol}. Run a full audit instead."
        )
    problem = task_problem(settings.make_task(ratings), settings)
    rng = np.random.default_rng([settings.seed, 6])
    chosen = rng.permutation(problem.active_users)
    findings = imported(attacks)(settings, problem, np.sort(chosen[:PEOPLE]), chosen[PEOPLE:], rng)
    return {"protocol": findings[0].protocol, "attacks": [one.record() for one in findings]}


def attack_reports(
    settings: Settings, problem: GradientProblem, victims: IntArray, others: IntArray, rng: np.random.Generator
) -> list[Finding]:
    """Return the findings of the quick attacks on a gradient protocol, whose server sees the report of each device.

    The attacker knows how popular the items are among `others`, the people who are not attacked.
    """
    observation, truth, _ = record(problem, victims, victims[:1], item_popularity(problem, others))
    attacks = (*(one for one in EXISTENCE if one.name in EXISTENCE_BY), *VALUE, *MODEL)
    return [finding for attack in attacks for finding in judge(attack, observation, truth, rng=rng)]
