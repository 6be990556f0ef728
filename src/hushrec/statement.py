"""What a run cost its people, in words and numbers: the `budget` of a result."""

from typing import Any

import numpy as np

from hushrec.budget.meaning import TAKING_PART, selection_not_covered
from hushrec.problem import Problem
from hushrec.protocols import DeviceProtocol, Isgld, Sdcf
from hushrec.randomness import FloatArray


def budget_statement(problem: Problem, rounds: int, value_rho: FloatArray) -> dict[str, Any]:
    """Unit, epsilon, delta and rounds of a run, and what is not covered.

    `value_rho` is the realized zero-concentrated loss of the gradient values per user; its size says why values
    are listed under `not_covered`. With budgets that differ between people, the largest is given.
    """
    protocol = max((problem.protocol(user) for user in range(len(problem.protocols))), key=_strength)
    active = problem.active_users
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
        statement |= _sdcf_statement(problem, protocol, rounds)
    else:
        statement |= {
            "unit": "none: gradients of the rated items are sent as they are",
            "not_covered": ["anything a person rated"],
        }
    median, largest = float(np.median(value_rho[active])), float(value_rho[active].max())
    return statement | {"value_rho": {"median": median, "max": largest, "unit": "zCDP, realized, per person"}}


def _sdcf_statement(problem: Problem, protocol: Sdcf, rounds: int) -> dict[str, Any]:
    epochs = problem.terms.epoch(max(rounds, 1)) + 1
    full, last = divmod(rounds, problem.terms.epoch_rounds or max(rounds, 1))
    spent = full * min((problem.terms.epoch_rounds or rounds) * protocol.epsilon_i, protocol.epsilon_p)
    spent += min(last * protocol.epsilon_i, protocol.epsilon_p)
    cap = protocol.profile_cap
    counts = problem.rated_counts[problem.active_users]
    typical = int(np.median(counts)) if cap is None else cap
    profiles = (
        "two profiles of the same number of ratings" if cap is None else f"any two profiles of up to {cap} ratings"
    )
    return {
        "unit": f"profile-level: which items are reported, over all rounds, for {profiles}",
        "epsilon": spent,
        "item_level": spent / typical,
        "item_level_unit": f"one rating replaced by another, for a person with {typical} ratings",
        "epsilon_i": protocol.epsilon_i,
        "epsilon_p": protocol.epsilon_p,
        "epsilon_g": protocol.epsilon_g,
        "profile_cap": cap,
        "permanent_draws": epochs,
        "reports_per_client": problem.terms.reports_per_client,
        "not_covered": selection_not_covered(cap, one_class=problem.model.one_class),
    }


def _strength(protocol: DeviceProtocol) -> float:
    """The larger, the less private: to name the weakest budget of a mixed run."""
    if isinstance(protocol, Sdcf):
        return protocol.epsilon_p
    return protocol.epsilon if isinstance(protocol, Isgld) else np.inf
