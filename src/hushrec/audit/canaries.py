"""Lower bounds on ε from a single run with canaries: ratings that a fair coin moves to another item or leaves in place.

If an attacker guesses more coins than an ε-private protocol allows, the protocol is not ε-private ([Steinke2023]). This
ε is for one rating moved to another item. Under `sdcf`, the selections of all rounds cost at most ε_P for a whole
profile. For one rating moved, the protocol therefore claims ε_P / h, where h is the profile cap or, without a cap, the
number of ratings.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from hushrec.arrays import BoolArray, IntArray
from hushrec.audit.attacks import Attack
from hushrec.audit.findings import Finding, Subject
from hushrec.audit.observation import Observation
from hushrec.audit.statistics import auc, epsilon_ruled_out, rate_at, share_interval
from hushrec.engines.gradient import GradientProblem
from hushrec.protocols.gradient.protocols import GradientProtocol

PEOPLE = 25  # largest number of people with canary ratings
SHARE_PLANTED = 0.25  # fraction of their ratings that become canaries
FEWEST_RATINGS = 12  # smallest number of ratings of these people


@dataclass(frozen=True, eq=False)
class Canaries:
    """People with canary ratings, and two possible items and a coin for each canary; attacks do not see the coins."""

    users: IntArray
    rows: IntArray = field(repr=False)  # position in `users` of each canary's owner
    heads: IntArray = field(repr=False)  # the item that is rated if the coin shows heads
    tails: IntArray = field(repr=False)  # the item that is rated if the coin shows tails
    coins: BoolArray = field(repr=False)  # True for heads


def plant(
    problem: GradientProblem, candidates: IntArray, *, rng: np.random.Generator
) -> tuple[GradientProblem, Canaries]:
    """Return the training problem with canaries in the profiles of a few people, and the `Canaries`.

    The people are drawn from `candidates`. A canary is a rating that a fair coin leaves in place (heads) or moves to an
    item that the person did not rate (tails). A quarter of a person's ratings become canaries, or fewer if the person
    has too few unrated items.
    """
    counts = problem.rated_counts[candidates]
    enough = candidates[(counts >= FEWEST_RATINGS) & (counts < problem.n_items)]
    users = np.sort(rng.choice(enough, min(PEOPLE, len(enough)), replace=False))
    items = problem.items.copy()
    rows, heads, tails, coins = [], [], [], []
    for row, user in enumerate(users):
        own = np.arange(problem.starts[user], problem.starts[user + 1])
        unrated = np.setdiff1d(np.arange(problem.n_items), problem.items[own])
        n_planted = min(max(1, int(SHARE_PLANTED * len(own))), len(unrated))
        chosen = rng.choice(own, n_planted, replace=False)
        others = rng.choice(unrated, len(chosen), replace=False)
        coin = rng.random(len(chosen)) < 0.5
        rows += [row] * len(chosen)
        heads += list(problem.items[chosen])
        tails += list(others)
        coins += list(coin)
        items[chosen] = np.where(coin, problem.items[chosen], others)
    order = np.lexsort((items, problem.rating_users))
    planted = replace(problem, items=items[order], values=problem.values[order])
    return planted, Canaries(users, np.array(rows), np.array(heads), np.array(tails), np.array(coins, dtype=bool))


def judge_canaries(
    attack: Attack, observation: Observation, canaries: Canaries, problem: GradientProblem
) -> list[Finding]:
    """Return two findings: the lower bound on ε, and the fraction of coins that the attack guesses correctly.

    The attack guesses that the item with the higher score is the rated one, and abstains if the scores are equal.
    `observation` must hold the reports of `canaries.users`. Return no finding if the attack does not apply.
    """
    if not attack.applies_to(observation) or len(canaries.coins) == 0:
        return []
    scores = attack.guess(observation)
    lead = scores[canaries.rows, canaries.heads] - scores[canaries.rows, canaries.tails]
    decided = lead != 0  # the attack abstains if both items have the same score, which the theorem allows
    correct, guesses = int(((lead > 0) == canaries.coins)[decided].sum()), int(decided.sum())
    smallest = int(problem.rated_counts[canaries.users].min())
    claim = claimed(observation.protocol, smallest, observation.n_rounds)
    subject = Subject(observation.protocol.name, f"canaries, {attack.name}", "epsilon", claim)
    area, rate = auc(lead, canaries.coins), rate_at(lead, canaries.coins)
    ruled_out, right = epsilon_ruled_out(correct, guesses), correct / max(guesses, 1)
    interval = share_interval(correct, guesses) if guesses else None
    return [
        subject.finding("epsilon_ruled_out", ruled_out, auc=area, tpr_at_1pct_fpr=rate, chance=0.0),
        subject.finding("share_of_coins_right", right, interval=interval, chance=0.5),
    ]


def claimed(protocol: GradientProtocol, n_rated: int, n_rounds: int) -> str:
    """Return the protocol's claim for one rating moved to another item, in words: an ε, or that nothing is claimed.

    `n_rated` is the person's number of ratings, and `n_rounds` the number of rounds of the run.
    """
    selection = protocol.selection
    if selection is not None:
        spent = min(n_rounds * selection.epsilon_i, selection.epsilon_p)
        protected = selection.calibrated_for(n_rated)
        return f"selections: epsilon {spent / protected:.3g} for one rating replaced ({spent:g} profile level)"
    if protocol.rating_epsilon is not None:
        return "existence is not covered"
    return "nothing is claimed"
