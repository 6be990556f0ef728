"""What a run cost its people, in words and numbers: the `budget` of a result."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.budget.accountants import gaussian_epsilon
from hushrec.budget.meaning import TAKING_PART, selection_not_covered
from hushrec.messages import Terms
from hushrec.protocols.gradient import Isgld, Sdcf
from hushrec.simulation.problem import Problem

VALUE_DELTA = 1e-6


def budget_statement(problem: Problem, rounds: int, value_rho: FloatArray) -> dict[str, Any]:
    """Unit, epsilon, delta and rounds of a run, and what is not covered.

    `value_rho` is the realized zero-concentrated loss of the gradient values per user; its size says why values
    are listed under `not_covered`. With budgets that differ between people, the largest that anybody spent is given,
    and what is not covered for somebody is not covered.
    """
    protocol = problem.protocols[0]
    statement: dict[str, Any] = {"unit": None, "epsilon": np.inf, "delta": 0.0, "rounds": rounds, "item_level": None}
    if isinstance(protocol, Isgld):
        statement |= {
            "unit": "the value of one rating, over the whole training",
            "epsilon": protocol.epsilon,
            "item_level": protocol.epsilon,
            "clamp": protocol.clamp,
            "not_covered": ["which items are rated, and how many", "the user vector", TAKING_PART],
        }
    elif isinstance(protocol, Sdcf):
        statement |= _sdcf_statement(problem, [own for own in problem.protocols if isinstance(own, Sdcf)], rounds)
    else:
        statement |= {
            "unit": "none: gradients of the rated items are sent as they are",
            "not_covered": ["anything a person rated"],
        }
    rho = value_rho[problem.active_users]
    return statement | {"value_rho": value_statement(float(np.median(rho)), float(rho.max()))}


def value_statement(median: float, largest: float) -> dict[str, Any]:
    """The realized loss of the values: of a person in the middle, and of the worst off. Without a bound: infinity."""
    return {
        "median": median,
        "max": largest,
        "unit": "zCDP, realized, per person",
        "median_epsilon": np.inf if median == np.inf else gaussian_epsilon(median, VALUE_DELTA),
        "delta": VALUE_DELTA,
    }


def _sdcf_statement(problem: Problem, protocols: Sequence[Sdcf], rounds: int) -> dict[str, Any]:
    terms = problem.terms
    spent = max(selection_spent(own, terms, rounds) for own in protocols)
    caps = [own.profile_cap for own in protocols]
    cap = None if None in caps else max(own for own in caps if own is not None)
    counts = problem.rated_counts[problem.active_users]
    typical = int(np.median(counts)) if cap is None else cap
    profiles = (
        "two profiles of the same number of ratings" if cap is None else f"any two profiles of up to {cap} ratings"
    )
    epsilons_g = [own.epsilon_g for own in protocols if own.epsilon_g is not None]
    return {
        "unit": f"profile-level: which items are reported, over all rounds, for {profiles}",
        "epsilon": spent,
        "item_level": spent / typical,
        "item_level_unit": f"one rating replaced by another, for a person with {typical} ratings",
        "epsilon_i": max(own.epsilon_i for own in protocols),
        "epsilon_p": max(own.epsilon_p for own in protocols),
        "epsilon_g": max(epsilons_g, default=None),
        "profile_cap": cap,
        "permanent_draws": terms.epoch(max(rounds, 1)) + 1,
        "reports_per_client": terms.reports_per_client,
        "not_covered": selection_not_covered(cap, one_class=problem.model.one_class),
    }


def selection_spent(protocol: Sdcf, terms: Terms, rounds: int) -> float:
    """What the selections of that many rounds cost one person: per permanent epoch, min(T ε_I, ε_P)."""
    length = terms.epoch_rounds or max(rounds, 1)
    full, last = divmod(rounds, length)
    whole = min(length * protocol.epsilon_i, protocol.epsilon_p)
    return full * whole + min(last * protocol.epsilon_i, protocol.epsilon_p)
