"""Short descriptions of the `budget` of a masked run; `price.py` has the unit and what is not covered."""

from collections.abc import Mapping
from typing import Any

Budget = Mapping[str, Any]


def label(budget: Budget) -> str:
    """Return the label of `masked` with its ε."""
    return f"masked ε={_epsilon(budget, 'epsilon')}"


def protects(budget: Budget) -> str:
    """Return what `masked` protects and with which ε and δ, in a few words."""
    return f"whole profile: ε {_epsilon(budget, 'epsilon')} (δ {float(budget['delta']):g}), all rounds"


def numbers(budget: Budget) -> list[str]:
    """Return the numbers of a budget statement, one sentence each, without the unit and what is not covered."""
    rounds = f"{budget['rounds']} round" if budget["rounds"] == 1 else f"{budget['rounds']} rounds"
    whole = f"ε = {_epsilon(budget, 'epsilon')} (δ = {float(budget['delta']):g}, {rounds})"
    return [
        f"{whole}; {budget['item_level_unit']}: ε = {_epsilon(budget, 'item_level')}",
        f"by zero-concentrated privacy alone: ε = {_epsilon(budget, 'epsilon_zcdp')}",
    ]


def _epsilon(budget: Budget, name: str) -> str:
    return f"{float(budget[name]):.3g}"
