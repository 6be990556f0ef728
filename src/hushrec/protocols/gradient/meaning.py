"""The meaning of the budgets of `sdcf` for one person, as probabilities that can be explained in plain words.

The budgets cover the *selections*: which items a device reports. They do not cover the gradient values that the device
reports for these items.
"""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import expit

from hushrec.budget.calibrate import SelectionProbabilities, smallest_epsilon_p
from hushrec.errors import require
from hushrec.protocols.gradient.selection import Selection
from hushrec.protocols.gradient.wording import selection_not_covered, selection_unit


@dataclass(frozen=True, kw_only=True)
class SelectionBudget(Selection):
    """The budgets of one person in `sdcf` for `rounds` rounds with the same permanent bits."""

    n_rated: int
    n_items: int
    reports_per_client: float
    epsilon_g: float | None  # None for models without fake errors
    rounds: int
    prior: float = 0.05  # the server's probability, before the first report, that a given item is rated

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.rounds >= 1, "rounds", "at least 1", self.rounds)
        require(0 < self.prior < 1, "prior", "above 0 and below 1", self.prior)
        require(self.epsilon_g is None or self.epsilon_g >= 0, "epsilon_g", "at least 0", self.epsilon_g)
        few = f"at least 1 and below items = {self.n_items}"
        require(1 <= self.n_rated < self.n_items, "rated", few, self.n_rated)
        require(1 <= self.n_protected < self.n_items, "profile_cap", few, self.profile_cap)

    @property
    def n_protected(self) -> int:
        return self.calibrated_for(self.n_rated)

    def probabilities(self) -> SelectionProbabilities[float]:
        """Return the probabilities of both stages of the selection; raise `ImpossibleBudget` if none exist."""
        return self.calibrate(self.n_rated, self.n_items, self.reports_per_client)


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """The numbers that explain a `SelectionBudget`. A belief is the server's probability that a given item is rated."""

    probabilities: SelectionProbabilities[float]
    bit_survives: float  # probability 1 − f/2 that a permanent bit is the true one
    items_sent: float  # per round, on average
    real_among_them: float  # how many of these are rated, on average
    real_by_chance: float  # how many would be rated, on average, if the same number of items were drawn at random
    belief_before: float  # before the first report
    belief_after_one_round: float  # if the item was sent in that round
    belief_after_all_rounds: float  # if the item was sent in every round, which gives the largest belief
    belief_never_sent: float  # if the item was sent in no round, which gives the smallest belief
    epsilon_round: float  # ε of the selection of one round
    epsilon_all_rounds: float  # ε of the selections of all rounds together
    epsilon_one_rating: float  # ε of all rounds if only one rated item is replaced by another
    smallest_epsilon_p: float  # the smallest epsilon_p for which selection probabilities exist
    real_errors_outside_fakes: float | None  # fraction of real errors outside the range of fake errors; None: no fakes
    unit: str  # what `epsilon_round` and `epsilon_all_rounds` protect
    not_covered: list[str]  # what they do not protect


def explain_budget(budget: SelectionBudget) -> Meaning:
    """Return the probabilities and costs that `budget` means for one person.

    Let f, p and q be `prob_randomize`, `prob_send_zero` and `prob_send_one`. The likelihood that an item is sent in k
    of T rounds is::

        (1 − f/2) a + (f/2) b if it is rated,    (f/2) a + (1 − f/2) b if not,    a = qᵏ (1 − q)ᵀ⁻ᵏ,  b = pᵏ (1 − p)ᵀ⁻ᵏ

    The ratio of the two likelihoods grows with k, so the server's belief changes most if the item is sent always
    (k = T) or never (k = 0). The odds change at most by the factor exp(±epsilon_p / 2h), where h is the number of
    ratings that the selection is calibrated for: the profile cap or, without a cap, the person's number of ratings.
    """
    found = budget.probabilities()
    counted = min(budget.n_rated, budget.n_protected)  # number of ones in B
    real = counted * found.prob_send_rated + (budget.n_rated - counted) * found.prob_send_unrated
    sent = counted * found.prob_send_rated + (budget.n_items - counted) * found.prob_send_unrated
    spent = min(budget.rounds * budget.epsilon_i, budget.epsilon_p)
    return Meaning(
        probabilities=found,
        bit_survives=1 - found.prob_randomize / 2,
        items_sent=sent,
        real_among_them=real,
        real_by_chance=sent * budget.n_rated / budget.n_items,
        belief_before=budget.prior,
        belief_after_one_round=belief(budget, rounds=1),
        belief_after_all_rounds=belief(budget, rounds=budget.rounds),
        belief_never_sent=belief(budget, rounds=budget.rounds, sent=False),
        epsilon_round=budget.epsilon_i,
        epsilon_all_rounds=spent,
        epsilon_one_rating=spent / budget.n_protected,
        smallest_epsilon_p=smallest_epsilon_p(
            budget.n_protected, budget.n_items, budget.reports_per_client, budget.epsilon_i
        ),
        real_errors_outside_fakes=None if budget.epsilon_g is None else -math.expm1(-budget.epsilon_g),
        unit=selection_unit(budget.profile_cap, rounds=""),
        not_covered=selection_not_covered(budget.profile_cap, from_pairs=budget.epsilon_g is None),
    )


def belief(budget: SelectionBudget, *, rounds: int, sent: bool = True) -> float:
    """Return the server's probability that an item is rated, after `rounds` rounds.

    The device sent the item in all of these rounds if `sent` is true, and otherwise in none of them. The result follows
    by Bayes' rule from the likelihoods of `explain_budget`, computed in logarithms.
    """
    found = budget.probabilities()
    one, zero = found.prob_send_one, found.prob_send_zero
    with np.errstate(divide="ignore"):  # p = 0 or q = 1 at the smallest epsilon_p
        a, b = rounds * np.log([one, zero] if sent else [1 - one, 1 - zero])
    keep, flip = math.log1p(-found.prob_randomize / 2), math.log(found.prob_randomize / 2)
    log_ratio = np.logaddexp(keep + a, flip + b) - np.logaddexp(flip + a, keep + b)
    log_odds = math.log(budget.prior) - math.log1p(-budget.prior) + float(log_ratio)
    return float(expit(log_odds))
