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
    """Return a phrase that says what the budget of selections protects, and for which profiles.

    `cap` is the profile cap, as a number or in words; None if the number of ratings is not protected. `rounds` is a
    phrase for the rounds that the budget covers, or empty.
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


BUDGET_IS_FIXED = (
    "The budget of sdcf (epsilon_i, epsilon_p) is fixed since your first round, because permanent bits were drawn with"
    " it, and a new draw would cost the budget again. To start again, erase the store, with all ratings and the ledger,"
    " with `hushrec device forget`."
)


def selection_sentences(permanent_draws: int, spent: float, committed: float, rho: float) -> list[str]:
    """Return sentences for the person about the cost of their selections and gradient values so far.

    `spent` is the ε of the selections so far, and `committed` the most that they can cost with the permanent bits drawn
    so far. `rho` is the privacy loss of the gradient values.
    """
    bound = "An upper bound on what the lists of reported items can reveal about which items you rated."
    if not permanent_draws:
        first = "Rate before your first round: it draws the permanent bits from the ratings that you have then."
        return [bound, first]
    draws = "1 draw" if permanent_draws == 1 else f"{permanent_draws:,} draws"
    whole = spent >= committed * (1 - 1e-9)
    most = "further rounds add nothing" if whole else f"all rounds together cost at most ε {committed:.3g}"
    return [bound, f"With {draws} of permanent bits, {most}.", _values_sent(rho)]


NOISE_IS_DRAWN = (
    "The budget of isgld is fixed, because the noise of your ratings was drawn with it, and weaker noise for later"
    " ratings would reveal more than the ledger says."
)


def rating_sentences(perturbations: int, rho: float) -> list[str]:
    """Return sentences for the person about the cost of `isgld` so far: how often noise was drawn, and ρ."""
    often = "once" if perturbations == 1 else f"{perturbations:,} times"
    bound = "An upper bound on what your noisy ratings can reveal about the value of one rating."
    return [bound, f"Noise was drawn {often}; each time costs the budget.", _values_sent(rho)]


def _values_sent(rho: float) -> str:
    return f"The gradient values sent so far have a privacy loss of ρ {rho:.3g}, which is not a guarantee."


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
    """Return phrases with the numbers of a budget: ε, unless it is infinite, and ρ of the gradient values sent."""
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
