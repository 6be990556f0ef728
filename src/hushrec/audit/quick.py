"""The attacks of one picture: what a server that follows its protocol recovers of a few people, in seconds."""

from typing import Any

import numpy as np

from hushrec.audit.attacks.combined import EXISTENCE
from hushrec.audit.attacks.taste import MODEL
from hushrec.audit.attacks.value import VALUE
from hushrec.audit.findings import Finding
from hushrec.audit.judge import judge
from hushrec.audit.masked.people import read_people
from hushrec.audit.masked.sums import watch
from hushrec.audit.masked.watched import Watched
from hushrec.audit.observed_run import record
from hushrec.audit.run import item_popularity
from hushrec.data.ratings import Ratings
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

PEOPLE = 20
EXISTENCE_BY = ("popularity", "selection average", "consistent ratings + popularity")


def quick_audit(ratings: Ratings, settings: Settings, n_victims: int = PEOPLE) -> dict[str, Any]:
    """Train once and read items, ratings and taste; return findings as the record of an audit has them."""
    problem = task_problem(settings.make_task(ratings), settings)
    rng = np.random.default_rng([settings.seed, 6])
    chosen = rng.permutation(problem.active_users)
    victims = np.sort(chosen[:n_victims])
    if isinstance(problem.terms, MaskedTerms):
        findings = read_people(Watched(settings, problem, watch(problem)[0], victims))
    else:
        popularity = item_popularity(problem, chosen[n_victims:])
        observation, truth, _ = record(problem, victims, victims[:1], popularity)
        attacks = [one for one in EXISTENCE if one.name in EXISTENCE_BY]
        findings = [
            finding for attack in (*attacks, *VALUE, *MODEL) for finding in judge(attack, observation, truth, rng=rng)
        ]
    return {"protocol": _column(findings), "attacks": [one.record() for one in findings]}


def _column(findings: list[Finding]) -> str:
    return findings[0].protocol
