"""The success of the attack on selections after up to a million rounds, with and without permanent bits.

The number of rounds in which an item is reported is drawn from its binomial distribution, which is quicker than running
the rounds. The attacker knows the victim's selection probabilities, and is therefore as strong as selections allow.
Without permanent bits, every round adds evidence, and the attack succeeds in the end. With permanent bits, the attack
learns at most these bits, and its AUC stays below the ceiling that ε_P / 2h per bit implies, where h is the profile cap
or, without a cap, the number of ratings.
"""

from dataclasses import dataclass

import numpy as np

from hushrec.arrays import BoolArray, IntArray
from hushrec.audit.selection import log_ratio, probabilities_for
from hushrec.audit.statistics import auc, ceiling_auc, mean_interval
from hushrec.budget.calibrate import SelectionProbabilities
from hushrec.mechanisms.randomized_response import permanent_bits
from hushrec.protocols.gradient.messages import Terms
from hushrec.protocols.gradient.selection import Selection

REDRAWS = 5  # draws of permanent bits for each person, for a more exact mean
ROUNDS = (1, 10, 100, 1_000, 10_000, 100_000, 1_000_000)


@dataclass(frozen=True)
class SelectionPoint:
    """The mean AUC over people of the attack on selections after a number of rounds."""

    rounds: int
    with_permanent_bits: float  # mean AUC if each round's selection is drawn from permanent bits
    interval: tuple[float, float]  # confidence interval of `with_permanent_bits`
    ceiling: float  # the largest AUC that ε_P allows, averaged over people
    without: float  # mean AUC without permanent bits, if each round randomizes the rated items anew


def selection_curve(
    profiles: list[IntArray], selection: Selection, terms: Terms, *, rng: np.random.Generator
) -> list[SelectionPoint]:
    """Return the success of the attack on selections after each number of rounds in `ROUNDS`, from 1 to a million.

    `profiles` holds the rated items of each person. If a profile has more ratings than the profile cap, a random subset
    of that size is used, as on a device.
    """
    people = []
    cap = selection.profile_cap or terms.n_items
    for rated in profiles * REDRAWS:
        counted = rated if len(rated) <= cap else rng.choice(rated, cap, replace=False)
        probabilities = probabilities_for(len(counted), selection, terms)
        if probabilities is not None and 0 < len(rated) < terms.n_items:
            bits = permanent_bits(counted, terms.n_items, probabilities.prob_randomize, rng=rng)
            people.append((rated, counted, probabilities, bits))
    ceilings = [
        float(ceiling_auc(selection.epsilon_p / (2 * selection.calibrated_for(len(rated))))) for rated, *_ in people
    ]
    points = []
    for rounds in ROUNDS:
        bits, without = np.array([_areas(*person, rounds, rng) for person in people]).T
        interval, ceiling = mean_interval(bits, rng=rng), float(np.mean(ceilings))
        points.append(SelectionPoint(rounds, float(bits.mean()), interval, ceiling, float(without.mean())))
    return points


def _areas(
    rated: IntArray,
    counted: IntArray,
    chances: SelectionProbabilities[float],
    bits: BoolArray,
    rounds: int,
    rng: np.random.Generator,
) -> tuple[float, float]:
    """Return two AUCs of the attack on one person's selections: with permanent bits and without.

    `rated` holds the person's rated items, and `counted` the rated items that the device uses, at most the profile cap.
    `chances` and `bits` are the device's selection probabilities and permanent bits. Without permanent bits, every
    round randomizes anew which items are rated.
    """
    labels, own = np.zeros((2, len(bits)), dtype=bool)
    labels[rated] = own[counted] = True
    two_stage = rng.binomial(rounds, np.where(bits, chances.prob_send_one, chances.prob_send_zero))
    afresh = rng.binomial(rounds, np.where(own, chances.prob_send_rated, chances.prob_send_unrated))
    return auc(log_ratio(two_stage, rounds, chances), labels), auc(afresh.astype(np.float64), labels)
