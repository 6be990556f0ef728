"""Lower bounds on ε from canaries: ratings that fair coins have planted in a single run.

In the profiles of a few people, a coin decides for each of some ratings whether it moves to another item. An attacker
who guesses more coins than an ε allows shows that the protocol is not ε-private ([Steinke2023]). The unit is one rating
replaced by another; for selections, the protocol's own claim in this unit is ε_P / h.
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
    """The people with planted ratings, and the coins, which the attacks must not see."""

    users: IntArray
    rows: IntArray = field(repr=False)  # position in `users` of each canary
    heads: IntArray = field(repr=False)  # the item that is rated if the coin shows heads
    tails: IntArray = field(repr=False)  # the item that is rated if the coin shows tails
    coins: BoolArray = field(repr=False)  # True for heads


def plant(
    problem: GradientProblem, candidates: IntArray, *, rng: np.random.Generator
) -> tuple[GradientProblem, Canaries]:
    """Return the problem with canaries in the profiles of a few of the candidates, and the canaries.

    A canary is a rating that a fair coin leaves (heads) or moves to an item that the person did not rate (tails). A
    quarter of a person's ratings become canaries, or as many as there are unrated items if those are fewer.
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
    """Return the lower bound on ε, and the share of coins that the attack guesses.

    The guess of a coin is the item of the two with the higher score. `observation` must hold the canaries' people.
    """
    if not attack.applies_to(observation) or len(canaries.coins) == 0:
        return []
    scores = attack.guess(observation)
    lead = scores[canaries.rows, canaries.heads] - scores[canaries.rows, canaries.tails]
    told = lead != 0  # the attack abstains if both items have the same score, which the theorem allows
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
    """Return what the protocol claims for one rating replaced by another, for a person with `n_rated` ratings."""
    selection = protocol.selection
    if selection is not None:
        spent = min(n_rounds * selection.epsilon_i, selection.epsilon_p)
        protected = selection.n_protected(n_rated)
        return f"selections: epsilon {spent / protected:.3g} for one rating replaced ({spent:g} profile level)"
    if protocol.rating_noise is not None:
        return "existence is not covered"
    return "nothing is claimed"
