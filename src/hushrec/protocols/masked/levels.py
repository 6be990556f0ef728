"""The privacy levels (values of ε) that the device page offers for a masked run.

Reports do not reveal the chosen level.
"""

import math
from typing import Any

from scipy.special import ndtr

from hushrec.budget.gaussian import own_fraction, run_mu
from hushrec.errors import ParameterError
from hushrec.protocols.masked.terms import MaskedTerms

NAMES = {1.0: "Strict", 4.0: "Middle"}  # by ε; the run's own ε is called "Usual"


def explain_levels(terms: MaskedTerms, present: float, own: str | None) -> list[dict[str, Any]]:
    """Return the privacy levels to offer, by ascending ε: one dict for each, with a name, its ε and sentences about it.

    They are the run's ε, the `present` ε of the person (at most the run's), the levels "Strict" and "Middle" if they
    are below the run's ε, and `own`, the ε that the person typed, if any. Two entries of a dict are flags: `in_use`
    marks the present level, and `is_asked` the typed one. Raise `ParameterError` if `own` is not a number from 0 to the
    run's ε.
    """
    run = terms.priced.epsilon
    chosen, typed = min(present, run), None if own is None else read_level(own, terms)
    epsilons = {*(epsilon for epsilon in NAMES if epsilon < run), run, chosen, chosen if typed is None else typed}
    return [
        _explain(epsilon, terms) | {"in_use": epsilon == chosen, "is_asked": epsilon == typed}
        for epsilon in sorted(epsilons)
    ]


def read_level(given: str | float, terms: MaskedTerms) -> float:
    """Return the ε that a person chose, as a float; raise `ParameterError` unless it is from 0 to the run's ε."""
    most = terms.priced.epsilon
    try:
        level = float(given)
    except ValueError:
        level = math.nan
    if not 0 <= level <= most:
        raise ParameterError(
            f"level must be a number from 0 (your ratings do not count) to {most:g} (the ε of this run), got"
            f" {str(given)[:20] or 'nothing'}."
        )
    return level


def describe_trust(terms: MaskedTerms, epsilon: float) -> str:
    """Return sentences about how many devices may collude with the server at this ε, and what ε is if more do."""
    priced, n_min, c_max = terms.priced, terms.rules.smallest, terms.rules.most_corrupt
    few = f"at most {c_max:,} devices of a cohort collude" if c_max else "no other device colludes"
    words = f"The budget holds if {few} with the server, which decides who may join."
    if not 0 < epsilon <= priced.epsilon < math.inf or n_min // 2 <= c_max:
        return words
    fraction = own_fraction(epsilon, priced.epsilon, priced.delta)
    half, all_others = (priced.epsilon_if(honest, fraction) for honest in (n_min - n_min // 2, 1))
    left = f"\u03b5 would be {all_others:.3g}" if all_others < math.inf else "nothing would be guaranteed"
    return (
        f"{words} If half of the devices in a sum did, \u03b5 {epsilon:g} would be {half:.3g} at the same"
        f" \u03b4; if all others did, {left}."
    )


def _explain(epsilon: float, terms: MaskedTerms) -> dict[str, Any]:
    """Return one privacy level as entries for the page: its name, its ε, and sentences about what an attacker can tell.

    An attacker who knows all other people's profiles and all sums, and has to tell the person's profile from an empty
    one (each with probability 1/2), is right with probability at most Φ(μ/2): Φ is the standard normal distribution
    function, and μ the Gaussian privacy parameter that corresponds to ε.
    """
    priced = terms.priced
    name = "Usual" if epsilon == priced.epsilon else NAMES.get(epsilon, "Your own")
    best = float(ndtr(own_fraction(epsilon, priced.epsilon, priced.delta) * run_mu(priced.epsilon, priced.delta) / 2))
    attack = (
        f"An attacker who knows everybody else\u2019s ratings and sees every sum of all rounds can tell your ratings"
        f" from no ratings in at most {100 * best:.0f} of 100 cases; guessing is right in 50."
    )
    return {
        "name": name,
        "level": epsilon,
        "epsilon": float(f"{epsilon:g}"),
        "welcome": attack,
        "words": [
            attack,
            f"Every sum covers at least {terms.rules.smallest:,} devices. {describe_trust(terms, epsilon)}",
            "Reports look the same at every level: random numbers. Only this device knows which level is in use.",
        ],
        "confirm": f"From the next round on, this run costs your whole profile at most \u03b5 {epsilon:g}.",
    }
