"""The budgets that the page offers for a masked run, and what they mean. Nothing that is sent shows which is used."""

from typing import Any

from scipy.special import ndtr

from hushrec.budget.gaussian import own_fraction, run_mu
from hushrec.device.budgets import Budgets
from hushrec.messages import Offer

NAMES = {1.0: "Strict", 4.0: "Middle"}  # by ε; the run's own is the usual one


def explain_levels(offer: Offer, budgets: Budgets) -> list[dict[str, Any]]:
    """Return the levels of this run, rising: two public ones below its own ε, its own, and the person's."""
    run = offer.terms.priced.epsilon
    chosen = min(budgets.epsilon, run)
    epsilons = sorted({*(epsilon for epsilon in NAMES if epsilon < run), run, chosen})
    return [_explain(epsilon, offer, in_use=epsilon == chosen) for epsilon in epsilons]


def _explain(epsilon: float, offer: Offer, *, in_use: bool) -> dict[str, Any]:
    """One level in words.

    The best test that tells a profile from an empty one, by somebody who knows everybody else's and all sums, is right
    in Φ(μ/2) of the cases where both are equally likely.
    """
    priced = offer.terms.priced
    name = "Usual" if epsilon == priced.epsilon else NAMES.get(epsilon, "Your own")
    best = float(ndtr(own_fraction(epsilon, priced.epsilon, priced.delta) * run_mu(priced.epsilon, priced.delta) / 2))
    attack = (
        f"Somebody who knows everybody else\u2019s ratings and sees every sum can tell your ratings from none at all in"
        f" {100 * best:.0f} of 100 cases at best, over all rounds; guessing is right in 50."
    )
    return {
        "name": name,
        "level": epsilon,
        "epsilon": float(f"{epsilon:.3g}"),
        "welcome": attack,
        "words": [
            attack,
            f"Sums have at least {offer.terms.rules.smallest:,} devices in them. Without yours, all stay as they are.",
            "What is sent looks the same at every level: random numbers. Only this device knows which one is used.",
        ],
        "confirm": f"From the next round on, this run may cost your whole profile \u03b5 {epsilon:.3g} at most.",
        "in_use": in_use,
    }
