"""Probabilities of the random draw of neighbours: what corrupt devices and a malicious server gain from it by chance.

A cohort has n devices, of which at most c_max are corrupt; which ones must not depend on the draws. Each device draws k
neighbours, all draws equally likely.
"""

import math
from functools import lru_cache
from typing import Any

import numpy as np
from scipy.special import gammaln, logsumexp

LARGEST_RISK = 1e-12  # largest probability, in one attempt, that a bound on what a server learns does not hold


def share_risk(devices: int, corrupt: int, neighbours: int, threshold: int) -> float:
    """Return the probability that at least `threshold` of the neighbours that one honest device draws are corrupt.

    `devices` is the size of the roster, including the honest device. `corrupt` of them are corrupt.
    """
    return drawn_marked(range(threshold, neighbours + 1), devices - 1, corrupt, min(neighbours, devices - 1))


def drawn_marked(counts: range, others: int, marked: int, drawn: int) -> float:
    """Return the probability that the number of marked devices in a random draw is in `counts`.

    The draw takes `drawn` of `others` devices, of which `marked` are marked (hypergeometric distribution).
    """
    return math.exp(_log_drawn_marked(counts, others, marked, drawn))


@lru_cache(maxsize=64)
def most_omitted(devices: int, smallest: int, most_corrupt: int, neighbours: int, threshold: int) -> int:
    """Return g: how many honest survivors' tables a malicious server can leave out of a sum, unless it is very lucky.

    Let A be the a honest devices whose tables are in the sum, and X the x other honest devices on the list of
    survivors. No device reveals the mask key of a survivor, so the sum is readable only if

    1. no device in A drew a device in X: it would have masked its table for that device. The server can hide from
       devices in A who in X drew *them*;
    2. each device in A drew at least t = `threshold` devices that are in A or corrupt: only they reveal shares of its
       seed. A device outside the list reveals nothing, and one in X that has a share has masked its table with it.

    The list has at least n_min = `smallest` devices, so a + x ≥ h = n_min − c_max. The probability that sets A and X of
    sizes a and h − a with property 1 exist is at most n!/(a! x! (n − a − x)!) times the a-th power of the probability
    that k draws miss x devices. That a set A with property 2 exists has at most probability C(n, a) times the a-th
    power of the probability that k draws have t of the a − 1 + c_max others. Both grow with n, but for the last
    probability, which is largest in the smallest roster. So the bounds hold for rosters of n_min to n = `devices`.

    The result is h less the smallest a for which neither bound is at most `LARGEST_RISK`/h.
    """
    honest = smallest - most_corrupt
    limit = math.log(LARGEST_RISK / honest)
    in_sum = np.arange(1, honest + 1)
    omitted = honest - in_sum
    left = devices - 1 - omitted  # devices that one device may draw without drawing an omitted one
    with np.errstate(invalid="ignore"):
        misses = _log_choose(left, neighbours) - _log_choose(devices - 1, neighbours)
    ways = gammaln(devices + 1) - sum(gammaln(size + 1) for size in (in_sum, omitted, devices - honest))
    is_excluded = np.where(left < neighbours, True, ways + in_sum * misses <= limit)
    size = 1
    while size < honest and (
        is_excluded[size - 1] or _log_closed(size, devices, smallest, most_corrupt, neighbours, threshold) <= limit
    ):
        size += 1
    return honest - size


def _log_closed(size: int, devices: int, smallest: int, most_corrupt: int, neighbours: int, threshold: int) -> float:
    """Return the log of the second bound of `most_omitted`, for sets A with `size` devices."""
    others = smallest - 1
    marked, drawn = min(size - 1 + most_corrupt, others), min(neighbours, others)
    one = _log_drawn_marked(range(threshold, neighbours + 1), others, marked, drawn)
    return float(_log_choose(devices, size)) + size * one


def _log_drawn_marked(counts: range, others: int, marked: int, drawn: int) -> float:
    x = np.arange(max(counts.start, drawn + marked - others, 0), min(counts.stop, marked + 1, drawn + 1))
    logs = _log_choose(marked, x) + _log_choose(others - marked, drawn - x) - _log_choose(others, drawn)
    return float(logsumexp(logs)) if len(x) else -math.inf


def _log_choose(total: Any, chosen: Any) -> Any:
    return gammaln(np.add(total, 1)) - gammaln(np.add(chosen, 1)) - gammaln(np.subtract(total, chosen) + 1)
