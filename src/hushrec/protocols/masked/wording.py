"""Short texts about the entry `budget` of a masked run's result, for tables and figures."""

from collections.abc import Mapping
from typing import Any

Budget = Mapping[str, Any]


def label(budget: Budget) -> str:
    """Return the label of a `masked` run for tables and figures, such as "masked ε=8"."""
    return f"masked ε={_epsilon(budget, 'epsilon')}"


def protects(budget: Budget) -> str:
    """Return the phrase that says what a `masked` run protects, and with which ε and δ."""
    return f"whole profile: ε {_epsilon(budget, 'epsilon')} (δ {float(budget['delta']):g}), all rounds"


def numbers(budget: Budget) -> list[str]:
    """Return two phrases: ε and δ, with the ε for a replaced profile; and the ε that zero-concentrated DP gives.

    The latter is larger, because it is computed without Gaussian differential privacy.
    """
    rounds = f"{budget['rounds']} round" if budget["rounds"] == 1 else f"{budget['rounds']} rounds"
    whole = f"ε = {_epsilon(budget, 'epsilon')} (δ = {float(budget['delta']):g}, {rounds})"
    return [
        f"{whole}; {budget['item_level_unit']}: ε = {_epsilon(budget, 'item_level')}",
        f"by zero-concentrated privacy alone: ε = {_epsilon(budget, 'epsilon_zcdp')}",
    ]


def _epsilon(budget: Budget, name: str) -> str:
    return f"{float(budget[name]):.3g}"
