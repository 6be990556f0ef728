"""The wording of the masked protocol's guarantees: units, what is not covered, and phrases for tables and figures."""

from collections.abc import Mapping
from typing import Any

from hushrec.protocols.protocol import TAKING_PART

UNIT = "one person's whole profile against a device that sends zeros, over the whole run"
REPLACED_UNIT = "one rating added, removed or changed, or the whole profile replaced by another, over the whole run"
NOT_COVERED = (
    f"{TAKING_PART}: participation and the time of a report must not depend on the profile",
    "a person with two devices, or in two runs: each is paid for separately",
    "a server that runs more devices of a cohort itself than the number of corrupt devices that the noise allows for",
    "poisoning: a hostile device can move a sum as far as all honest ones together could, and spoil an attempt",
    "settings tuned on real data",
)
LEDGER_NOT_COVERED = (NOT_COVERED[0], "a person with two devices: each has a ledger of its own", *NOT_COVERED[2:])
LEDGER_UNIT = "this person's whole profile against a device that sends zeros, over all masked runs so far"
LEDGER_REPLACED_UNIT = (
    "one rating added, removed or changed, or the whole profile replaced, over all masked runs so far"
)
SEEDED = (
    "the sums of a simulation itself: its noise follows from the seed that the record keeps, so whoever has seed and "
    "sums can take it out. Devices of a service draw their noise from the operating system"
)
EXACT_SUMS = "exact sums: without noise (epsilon = inf) only masks hide one person's table"
UNLISTED = (
    "which items are rated at all: {} of the catalogue are in it because somebody rated them. "
    "Give an items file that lists every item"
)
GUESSED_SCALE = (
    "the smallest and the largest rating: the scale was guessed from them. Give the scale, on the command line as "
    "--scale MIN,MAX"
)
GUESSED_LEVELS = (
    "whether all ratings are whole steps of the scale: the number of different ratings was taken from them. Give this "
    "number, on the command line as --rating-levels"
)
COUNTED_RATINGS = (
    "roughly how many ratings there are: the plan was chosen by the mean number of ratings per person, rounded to a "
    "power of √2. Give this mean, on the command line as --ratings-per-person"
)

Budget = Mapping[str, Any]  # the entry `budget` of a run's result, from `PricedPlan.statement`


def label(budget: Budget) -> str:
    """Return the label of a `masked` run for tables and figures, such as "masked ε=8"."""
    return f"masked ε={_epsilon(budget, 'epsilon')}"


def protects(budget: Budget) -> str:
    """Return the phrase that says what a `masked` run protects, and with which ε and δ."""
    return f"whole profile: ε {_epsilon(budget, 'epsilon')} (δ {float(budget['delta']):g}), all rounds"


def numbers(budget: Budget) -> list[str]:
    """Return two phrases with the numbers of a budget.

    The first has ε, δ and the ε for a replaced profile. The second has ε as computed with zero-concentrated DP instead
    of Gaussian differential privacy, which makes it larger.
    """
    rounds = f"{budget['rounds']} round" if budget["rounds"] == 1 else f"{budget['rounds']} rounds"
    whole = f"ε = {_epsilon(budget, 'epsilon')} (δ = {float(budget['delta']):g}, {rounds})"
    return [
        f"{whole}; {budget['item_level_unit']}: ε = {_epsilon(budget, 'item_level')}",
        f"by zero-concentrated privacy alone: ε = {_epsilon(budget, 'epsilon_zcdp')}",
    ]


def ordinal(number: int) -> str:
    """Return the ordinal of a positive number, such as "4th"."""
    ending = "th" if number % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number:,}{ending}"


def _epsilon(budget: Budget, name: str) -> str:
    return f"{float(budget[name]):.3g}"
