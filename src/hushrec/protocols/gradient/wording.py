"""Texts about what the gradient protocols guarantee and what they do not, for results, ledgers, tables and figures.

The argument `budget` is the entry `budget` of a run's result, as in `run.json`. This module imports nothing heavy.
"""

from collections.abc import Mapping
from typing import Any

from hushrec.protocols.protocol import TAKING_PART

Budget = Mapping[str, Any]

NOTHING_HIDDEN = "none: gradients of the rated items are sent as they are"
ONE_VALUE = "the value of one rating, over the whole training"
VALUE_LOSS = "zCDP, realized, per person"
EPSILON_G_CAVEAT = (
    "epsilon_g is the paper's parameter for fake errors, not a guarantee:"
    " a real error outside the fakes' range gives itself away"
)
OPPOSITE_PULLS = (
    "which reported items are rated: in one report, rated and unrated items pull in opposite directions along the"
    " user vector, so that it splits into two groups"
)
VALUES = "the gradient values: the user vector's direction and the errors can be read off one report"
COUNT = "how many items a person rated"
ALL_THAT_IS_RATED = "anything a person rated"
EXISTENCE = "which items are rated, and how many"
USER_VECTOR = "the user vector"
MALICIOUS_SERVER = "a malicious server"


def selection_unit(cap: int | str | None, rounds: str = ", over all rounds") -> str:
    """Return the phrase that says what the budget of selections covers, and for which profiles.

    `cap` is the profile cap, as a number or in words; None if the number of ratings is not protected. `rounds` is a
    phrase that says which rounds are covered, or empty.
    """
    most = f"{cap} ratings" if isinstance(cap, int) else cap
    profiles = "two profiles of the same number of ratings" if cap is None else f"any two profiles of up to {most}"
    return f"profile-level: which items are reported{rounds}, for {profiles}"


def selection_not_covered(profile_cap: int | None, *, from_pairs: bool = False) -> list[str]:
    """Return phrases for what the budget of selections does not cover; `from_pairs` is True for model `bpr`."""
    about_values = OPPOSITE_PULLS if from_pairs else EPSILON_G_CAVEAT
    return [VALUES, *([] if profile_cap else [COUNT]), about_values, MALICIOUS_SERVER, TAKING_PART]


def ledger_not_covered(*, capped: bool, perturbed: bool) -> list[str]:
    """Return phrases for what the ledger of a device does not cover.

    `capped` is true if the device drew permanent bits, each time with a profile cap; `perturbed`, if it added noise to
    its ratings.
    """
    values = f"{VALUES}; value_rho is their realized loss, not a guarantee"
    return [values, *([] if capped else [COUNT]), *([EXISTENCE] if perturbed else []), TAKING_PART]


# A budget in a table, and below it -------------------------------------------------------------------------------


def isgld_label(budget: Budget) -> str:
    """Return the label of an `isgld` run for tables and figures, such as "isgld ε=4"."""
    return f"isgld ε={float(budget['epsilon']):g}" + (", clamped" if budget.get("clamp") else "")


def sdcf_label(budget: Budget) -> str:
    """Return the label of an `sdcf` run for tables and figures, such as "sdcf ε_I=4, ε_g=4"."""
    fakes = budget.get("epsilon_g")
    shown = "" if fakes is None else ", α=∞" if float(fakes) == 0 else f", ε_g={float(fakes):g}"
    cap = f", cap {budget['profile_cap']}" if budget.get("profile_cap") else ""
    return f"sdcf ε_I={float(budget['epsilon_i']):g}{shown}{cap}"


def numbers(budget: Budget) -> list[str]:
    """Return phrases with the numbers of a budget: ε and what it covers, then ρ of the gradient values sent."""
    lines = []
    if float(budget["epsilon"]) < float("inf"):
        rounds = "1 round" if budget["rounds"] == 1 else f"{budget['rounds']} rounds"
        lines.append(f"ε = {float(budget['epsilon']):g} (δ = 0, {rounds})")
    if "item_level_unit" in budget:
        lines[-1] += f"; {budget['item_level_unit']}: ε = {budget['item_level']:.3g}"
    rho = budget["value_rho"]
    if "median_epsilon" in rho:
        lines.append(
            f"gradient values really sent: ρ = {float(rho['median']):.3g} ({rho['unit']}, median),"
            f" that is ε = {float(rho['median_epsilon']):.3g} at δ = {rho['delta']:g}"
        )
    return lines
