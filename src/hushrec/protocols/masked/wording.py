"""The budget of a masked run in few words. Imports nothing heavy; `price.py` has the unit and what is not covered."""

from collections.abc import Mapping
from typing import Any

Budget = Mapping[str, Any]


def label(budget: Budget) -> str:
    """Return the protocol with the number that tells one setting from another."""
    return f"masked ε={_epsilon(budget, 'epsilon')}"


def protects(budget: Budget) -> str:
    """Return what is protected, and how much."""
    return f"whole profile: ε {_epsilon(budget, 'epsilon')} (δ {float(budget['delta']):g}), all rounds"


def numbers(budget: Budget) -> list[str]:
    """Return the numbers of a statement, one sentence each."""
    rounds = f"{budget['rounds']} round" if budget["rounds"] == 1 else f"{budget['rounds']} rounds"
    whole = f"ε = {_epsilon(budget, 'epsilon')} (δ = {float(budget['delta']):g}, {rounds})"
    return [
        f"{whole}; {budget['item_level_unit']}: ε = {_epsilon(budget, 'item_level')}",
        f"by zero-concentrated privacy alone: ε = {_epsilon(budget, 'epsilon_zcdp')}",
    ]


def _epsilon(budget: Budget, name: str) -> str:
    return f"{float(budget[name]):.3g}"
