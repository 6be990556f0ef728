"""The privacy levels (values of ε) that the device page offers for a masked run.

Reports do not reveal the chosen level.
"""

import math
from dataclasses import replace

from scipy.special import ndtr

from hushrec.budget.gaussian import run_mu
from hushrec.errors import ParameterError
from hushrec.protocols.configured import PrivacyLevel
from hushrec.protocols.masked.terms import MaskedTerms

NAMES = {1.0: "Strict", 4.0: "Middle"}  # by ε; the run's own ε is called "Usual"


def explain_levels(terms: MaskedTerms, present: float, own: str | None) -> list[PrivacyLevel]:
    """Return the privacy levels to offer, by ascending ε.

    They are the run's ε, the `present` ε of the person (at most the run's), the levels "Strict" and "Middle" if they
    are below the run's ε, and `own`, the ε that the person typed, if any. Raise `ParameterError` if `own` is not a
    number from 0 to the run's ε.
    """
    run = terms.priced.largest_own_epsilon
    chosen, typed = min(present, run), None if own is None else read_level(own, terms)
    named = () if terms.priced.is_exact else NAMES  # without noise there is nothing between 0 and infinity
    epsilons = {*(epsilon for epsilon in named if epsilon < run), run, chosen, chosen if typed is None else typed}
    return [
        replace(_explain(epsilon, terms), in_use=epsilon == chosen, is_asked=epsilon == typed)
        for epsilon in sorted(epsilons)
    ]


def read_level(given: str | float, terms: MaskedTerms) -> float:
    """Return the ε that a person chose, as a float; raise `ParameterError` unless it is from 0 to the run's ε."""
    most = terms.priced.largest_own_epsilon
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
    """Return sentences that say how many devices may collude with the server, and what `epsilon` becomes if more do."""
    priced, c_max = terms.priced, terms.rules.most_corrupt
    few = "no other device colludes"
    if c_max:
        few = f"at most {c_max:,} devices of a cohort collude" if c_max > 1 else "at most 1 device of a cohort colludes"
    protects = "Masks hide a table" if priced.is_exact else "The budget holds"
    words = f"{protects} if {few} with the server, which decides who may join."
    if not 0 < epsilon <= priced.largest_own_epsilon < math.inf:
        return words
    fraction, more = priced.own_fraction(epsilon), terms.most_colluding
    noisy, alone = (priced.epsilon_if(honest, fraction) for honest in (terms.honest_among(more), 1))
    if more > c_max:
        words += f" If {more:,} did, \u03b5 {epsilon:g} would be {noisy:.3g} at \u03b4 {priced.own_delta:g}."
    left = f"\u03b5 would be {alone:.3g}" if alone < math.inf else "nothing would be guaranteed"
    return f"{words} If more did, the server might read your table alone, and {left}."


def _explain(epsilon: float, terms: MaskedTerms) -> PrivacyLevel:
    """Return one privacy level, with sentences about what an attacker can tell.

    An attacker who knows all other people's profiles and all sums, and has to tell the person's profile from an empty
    one (each with probability 1/2), is right with probability at most Φ(μ/2): Φ is the standard normal distribution
    function, and μ the Gaussian privacy parameter that corresponds to ε.
    """
    priced = terms.priced
    name = "Usual" if epsilon == priced.largest_own_epsilon else NAMES.get(epsilon, "Your own")
    fraction = priced.own_fraction(epsilon)
    best = float(ndtr(fraction * run_mu(priced.epsilon, priced.delta) / 2)) if fraction else 0.5
    attack = (
        f"An attacker who knows everybody else\u2019s ratings and sees every sum of all rounds can tell your ratings"
        f" from no ratings in at most {100 * best:.0f} of 100 cases; guessing is right in 50."
    )
    return PrivacyLevel(
        name=name,
        level=epsilon,
        epsilon=float(f"{epsilon:g}"),
        welcome=attack,
        words=[
            attack,
            f"Every sum covers at least {priced.cohort.honest:,} honest devices. {describe_trust(terms, epsilon)}",
            "Reports look the same at every level: random numbers. Only this device knows which level is in use.",
        ],
        confirm=f"From the next round on, your budget for this run is \u03b5 {epsilon:g} (\u03b4"
        f" {priced.own_delta:g}). What is spent stays spent.",
    )
