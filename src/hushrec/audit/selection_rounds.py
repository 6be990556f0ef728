"""The average attack on selections against the number of rounds: with permanent bits and without.

Counts over T rounds are drawn as binomials, which is what T draws of the mechanism add up to. The attacker is given
the victim's f, p and q: the best that selections alone allow. Without permanent bits every round tells more, and the
attack succeeds; with them it stops at B', under the ceiling that ε_P / 2h gives for one bit.
"""

from dataclasses import dataclass

import numpy as np

from hushrec.arrays import IntArray
from hushrec.audit.selection import log_ratio, probabilities_for
from hushrec.audit.statistics import BoolArray, auc, ceiling_auc, mean_interval
from hushrec.budget.calibrate import SelectionProbabilities
from hushrec.mechanisms.randomized_response import permanent_bits
from hushrec.protocols.gradient.messages import Terms
from hushrec.protocols.gradient.selection import Selection

REDRAWS = 5  # fresh permanent bits for the same people, so that the mean is sharp
ROUNDS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class SelectionPoint:
    """Mean AUC over people after this many rounds."""

    rounds: int
    with_permanent_bits: float
    interval: tuple[float, float]
    ceiling: float
    without: float


def selection_curve(
    profiles: list[IntArray], selection: Selection, terms: Terms, *, rng: np.random.Generator
) -> list[SelectionPoint]:
    """One point per number of rounds. Of more ratings than the cap, as many as it says count, drawn at random."""
    people = []
    cap = selection.profile_cap or terms.n_items
    for rated in profiles * REDRAWS:
        counted = rated if len(rated) <= cap else rng.choice(rated, cap, replace=False)
        probabilities = probabilities_for(len(counted), selection, terms)
        if probabilities is not None and 0 < len(rated) < terms.n_items:
            bits = permanent_bits(counted, terms.n_items, probabilities.prob_randomize, rng=rng)
            people.append((rated, counted, probabilities, bits))
    ceilings = [
        float(ceiling_auc(selection.epsilon_p / (2 * selection.n_protected(len(rated))))) for rated, *_ in people
    ]
    points = []
    for rounds in ROUNDS:
        areas = np.array([_areas(*person, rounds, rng) for person in people])
        points.append(
            SelectionPoint(
                rounds,
                float(areas[:, 0].mean()),
                mean_interval(areas[:, 0], rng=rng),
                float(np.mean(ceilings)),
                float(areas[:, 1].mean()),
            )
        )
    return points


def _areas(
    rated: IntArray,
    counted: IntArray,
    chances: SelectionProbabilities[float],
    bits: BoolArray,
    rounds: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """AUC with the two stages, and with p* and q* applied afresh in every round to the ratings that count."""
    labels, own = np.zeros((2, len(bits)), dtype=bool)
    labels[rated] = own[counted] = True
    two_stage = rng.binomial(rounds, np.where(bits, chances.prob_send_one, chances.prob_send_zero))
    afresh = rng.binomial(rounds, np.where(own, chances.prob_send_rated, chances.prob_send_unrated))
    f, p, q = chances.prob_randomize, chances.prob_send_zero, chances.prob_send_one
    return (
        auc(log_ratio(two_stage, rounds, f, p, q), labels),
        auc(afresh.astype(np.float64), labels),
    )
