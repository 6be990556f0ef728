"""The privacy levels (values of `epsilon_i`) that the device page offers for protocol `sdcf`.

There are only a few, because the number of items in a report hints at the privacy level of the device.
"""

from typing import TYPE_CHECKING, Any

from hushrec.errors import ParameterError
from hushrec.protocols.gradient.meaning import SelectionBudget, explain_budget
from hushrec.protocols.gradient.messages import Terms
from hushrec.protocols.gradient.selection import EPSILON_P_FACTOR

if TYPE_CHECKING:
    from hushrec.protocols.gradient.protocols import Sdcf


LEVELS = {"Strict": 0.25, "Middle": 1.0, "Usual": 4.0}  # epsilon_i by name


def check_level(epsilon_i: float) -> float:
    """Return `epsilon_i` if it is one of `LEVELS`; raise `ParameterError` if not."""
    if epsilon_i not in LEVELS.values():
        offered = ", ".join(f"{level:g}" for level in LEVELS.values())
        raise ParameterError(
            f"epsilon_i must be a level that the page offers ({offered}), got {epsilon_i:g}. Choose one."
        )
    return epsilon_i


def explain_levels(terms: Terms, own: "Sdcf", n_rated: int) -> list[dict[str, Any]]:
    """Return a dict for each of `LEVELS`, and for the person's present level if it is another, by ascending ε_I.

    The device page shows them. Each dict says how many items a report has on average, how many of these are rated, and
    how sure the server can be that a given item is rated. `own` is the protocol with the person's present budgets,
    `n_rated` the number of the person's ratings.
    """
    levels = LEVELS if own.epsilon_i in LEVELS.values() else {**LEVELS, "Your own": own.epsilon_i}
    by_budget = sorted(levels.items(), key=lambda level: level[1])
    return [_explain_level(name, epsilon_i, terms, own, n_rated) for name, epsilon_i in by_budget]


def _explain_level(name: str, epsilon_i: float, terms: Terms, own: "Sdcf", n_rated: int) -> dict[str, Any]:
    in_use = epsilon_i == own.epsilon_i
    meaning = explain_budget(
        SelectionBudget(
            n_rated=min(max(1, n_rated), terms.n_items - 1),
            n_items=terms.n_items,
            reports_per_client=float(terms.reports_per_client or 0),
            epsilon_i=epsilon_i,
            epsilon_p=own.selection.epsilon_p if in_use else EPSILON_P_FACTOR * epsilon_i,
            epsilon_g=own.epsilon_g,
            rounds=terms.max_rounds,
            profile_cap=own.profile_cap,
        )
    )
    return {
        "name": name,
        "level": epsilon_i,
        "epsilon": meaning.epsilon_all_rounds,
        "items_sent": meaning.items_sent,
        "real": meaning.real_among_them,
        "by_chance": meaning.real_by_chance,
        "before": meaning.belief_before,
        "after": meaning.belief_after_all_rounds,
        "never": meaning.belief_never_sent,
        "in_use": in_use,
    }
