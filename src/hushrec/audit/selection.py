"""Likelihood ratios for an attack that uses only which items are reported, under two-stage randomized response.

The permanent bit of an item is 1 if the item is rated, and 0 otherwise; the bit is flipped with probability f/2. An
item with bit 1 is reported in each round with probability q, and an item with bit 0 with probability p. The number of
rounds in which an item is reported is a sufficient statistic.
"""

from functools import lru_cache

import numpy as np
from scipy.stats import binom

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.calibrate import SelectionProbabilities
from hushrec.errors import ParameterError
from hushrec.protocols.gradient.messages import Terms
from hushrec.protocols.gradient.selection import Selection


def log_ratio(counts: IntArray, n_rounds: int, chances: SelectionProbabilities[float]) -> FloatArray:
    """Return ln(P(count | rated) / P(count | unrated)) of each item, where a count is how often the item was reported.

    With f = `chances.prob_randomize`, no result is further from 0 than ln((1 − f/2)/(f/2)). This limit equals ε_P/(2h),
    where h is the number of ratings that f was calibrated for: the profile cap, if there is one.
    """
    one, zero = (binom.pmf(counts, n_rounds, chance) for chance in (chances.prob_send_one, chances.prob_send_zero))
    keep, flip = 1 - chances.prob_randomize / 2, chances.prob_randomize / 2
    return np.asarray(np.log(keep * one + flip * zero + 1e-300) - np.log(flip * one + keep * zero + 1e-300))


def likeliest_count(counts: IntArray, n_rounds: int, selection: Selection, terms: Terms) -> int:
    """Return the number of ratings h of one person under which these counts of all items are most likely.

    A count is the number of rounds in which an item was reported. With a profile cap, the selection probabilities do
    not depend on h, and only the number of ones among the permanent bits reveals h.
    """
    possible, table = _count_table(n_rounds, selection, terms)
    return int(possible[np.argmax(table @ np.bincount(counts, minlength=n_rounds + 1))])


@lru_cache(maxsize=16)
def _count_table(n_rounds: int, selection: Selection, terms: Terms) -> tuple[IntArray, FloatArray]:
    """Return candidates for a person's number of ratings h, and ln P(an item is reported k times | h), `(n_h, n_k)`."""
    numbers = np.arange(n_rounds + 1)
    possible, rows = [], []
    for h in np.unique(np.rint([1, 2, 3, *np.geomspace(4, max(terms.n_items / 2, 5), 96)]).astype(np.int64)):
        probabilities = probabilities_for(int(h), selection, terms)
        if probabilities is not None:
            f, p, q = probabilities.prob_randomize, probabilities.prob_send_zero, probabilities.prob_send_one
            share = h / terms.n_items
            ones = share * (1 - f / 2) + (1 - share) * f / 2
            chance = ones * binom.pmf(numbers, n_rounds, q) + (1 - ones) * binom.pmf(numbers, n_rounds, p)
            possible.append(h)
            rows.append(np.log(chance + 1e-300))
    return np.array(possible), np.array(rows)


def probabilities_for(n_rated: int, selection: Selection, terms: Terms) -> SelectionProbabilities[float] | None:
    """Return the selection probabilities of a device with `n_rated` ratings.

    Return None if `n_rated` is above the profile cap, or if no probabilities satisfy the budgets.
    """
    assert terms.reports_per_client is not None
    if n_rated > selection.calibrated_for(n_rated):
        return None
    try:
        return selection.calibrate(n_rated, terms.n_items, terms.reports_per_client)
    except ParameterError:
        return None
