"""The largest ε that an attack's success rules out, from ratings planted by fair coins: one run is enough.

In the profiles of a few people, some ratings are each moved to another item by a coin. An attacker who tells more
coins than chance allows shows that the messages are not as private as a given ε ([Steinke2023]). The unit is one
rating replaced by another: the claim for selections is ε_P / h.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from hushrec.arrays import IntArray
from hushrec.audit.attacks import Attack
from hushrec.audit.findings import Finding
from hushrec.audit.observation import Observation
from hushrec.audit.statistics import BoolArray, auc, epsilon_ruled_out, rate_at, share_interval
from hushrec.engines.gradient import GradientProblem
from hushrec.protocols.gradient.protocols import GradientProtocol

PEOPLE = 25
SHARE_PLANTED = 0.25
FEWEST_RATINGS = 12


@dataclass(frozen=True, eq=False)
class Canaries:
    """Which people carry planted ratings, and how each coin fell. The coins are private to the judge."""

    users: IntArray
    rows: IntArray = field(repr=False)  # position in `users` of each canary
    heads: IntArray = field(repr=False)  # the item rated if the coin shows heads
    tails: IntArray = field(repr=False)
    coins: BoolArray = field(repr=False)


def plant(
    problem: GradientProblem, candidates: IntArray, *, rng: np.random.Generator
) -> tuple[GradientProblem, Canaries]:
    """Move a quarter of the ratings of a few people, each by its own coin, to an item that the person did not rate.

    Of somebody who rated nearly everything, as many ratings as there are such items.
    """
    counts = problem.rated_counts[candidates]
    enough = candidates[(counts >= FEWEST_RATINGS) & (counts < problem.n_items)]
    users = np.sort(rng.choice(enough, min(PEOPLE, len(enough)), replace=False))
    items = problem.items.copy()
    rows, heads, tails, coins = [], [], [], []
    for row, user in enumerate(users):
        place = np.arange(problem.starts[user], problem.starts[user + 1])
        unrated = np.setdiff1d(np.arange(problem.n_items), problem.items[place])
        n_planted = min(max(1, int(SHARE_PLANTED * len(place))), len(unrated))
        chosen = rng.choice(place, n_planted, replace=False)
        others = rng.choice(unrated, len(chosen), replace=False)
        coin = rng.random(len(chosen)) < 0.5
        rows += [row] * len(chosen)
        heads += list(problem.items[chosen])
        tails += list(others)
        coins += list(coin)
        items[chosen] = np.where(coin, problem.items[chosen], others)
    owner = np.repeat(np.arange(problem.n_users), problem.rated_counts)
    order = np.lexsort((items, owner))
    planted = replace(problem, items=items[order], values=problem.values[order])
    return planted, Canaries(users, np.array(rows), np.array(heads), np.array(tails), np.array(coins, dtype=bool))


def judge_canaries(
    attack: Attack, observation: Observation, canaries: Canaries, problem: GradientProblem
) -> list[Finding]:
    """Guesses every coin by the sign of the difference in evidence; the observation is of the canaries' people."""
    if not attack.applies_to(observation) or len(canaries.coins) == 0:
        return []
    scores = attack.guess(observation)
    lead = scores[canaries.rows, canaries.heads] - scores[canaries.rows, canaries.tails]
    told = lead != 0  # a coin of which nothing is seen is left alone, which the theorem allows
    correct, guesses = int(((lead > 0) == canaries.coins)[told].sum()), int(told.sum())
    smallest = int(problem.rated_counts[canaries.users].min())
    common: dict[str, Any] = {
        "protocol": observation.protocol.name,
        "name": f"canaries, {attack.name}",
        "target": "epsilon",
        "claim": claimed(observation.protocol, smallest, observation.n_rounds),
    }
    return [
        Finding(
            metric="epsilon_ruled_out",
            value=epsilon_ruled_out(correct, guesses),
            auc=auc(lead, canaries.coins),
            tpr_at_1pct_fpr=rate_at(lead, canaries.coins),
            chance=0.0,
            **common,
        ),
        Finding(
            metric="share_of_coins_right",
            value=correct / max(guesses, 1),
            interval=share_interval(correct, guesses) if guesses else None,
            chance=0.5,
            **common,
        ),
    ]


def claimed(protocol: GradientProtocol, n_rated: int, n_rounds: int) -> str:
    """What the protocol claims for one rating replaced by another, for the person with fewest ratings here."""
    selection = protocol.selection
    if selection is not None:
        spent = min(n_rounds * selection.epsilon_i, selection.epsilon_p)
        protected = selection.n_protected(n_rated)
        return f"selections: epsilon {spent / protected:.3g} for one rating replaced ({spent:g} profile level)"
    if protocol.rating_noise is not None:
        return "existence is not covered"
    return "nothing is claimed"
