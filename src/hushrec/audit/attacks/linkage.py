"""Linkage attacks: do two anonymous messages come from the same person?"""

import math

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.attacks.existence import ErrorSize, OppositeDirections
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import ReportParts

CERTAIN = 10.0  # largest evidence, in nats, of one item
MOVED = 0.003  # standard deviation of a direction's components between two rounds of one person
STRANGERS = 0.06  # standard deviation of a direction's components between two people


class LinkRounds:
    """An attack that links the last two reports of each person, by their items and the directions of user vectors."""

    name = "linkage of rounds"
    target = "metadata"
    claim = "none: messages carry names; the finding says how well anonymous messages could be linked"

    def applies_to(self, observation: Observation) -> bool:
        return observation.n_victims > 1 and all(len(trace.parts) > 1 for trace in observation.traces)

    def scores(self, observation: Observation) -> FloatArray:
        """Return the evidence that two reports come from the same person, `(n_victims, n_victims)`.

        A row is a person's last report, and a column is a person's second-to-last report. An entry is a log-likelihood
        ratio.
        """
        later, earlier = ([trace.parts[-back] for trace in observation.traces] for back in (1, 2))
        return np.array([[_same_direction(a, b) + _same_bits(a, b, observation) for b in earlier] for a in later])


class LinkEnrolments:
    """An attack that recognizes a person who enrols again with new keys and new permanent bits, by the rated items.

    Let a and b be the log-likelihood ratios, from the first and the second enrolment, that an item of popularity π is
    rated. The likelihood ratio of "same person" to "different people" is the product over items of

        (π e^(a + b) + 1 − π) / ((π e^a + 1 − π) (π e^b + 1 − π)).

    The attack compares neither user vectors nor permanent bits, so it can also link runs of different models.
    """

    name = "linkage after re-enrolment"
    target = "metadata"
    claim = "none: new bits cost the budget again; that nobody can link the two enrolments is not claimed"

    def scores(self, before: Observation, after: Observation) -> FloatArray:
        """Return the log-likelihood ratio that two devices have the same owner, `(n_victims, n_victims)`.

        A row is a device of `after`, the observation of the second enrolment. A column is a device of `before`, the
        observation of the first enrolment.
        """
        odds = before.popularity_odds
        known = [_evidence(seen) for seen in (after, before)]
        singles = [np.logaddexp(one + odds, 0.0).sum(axis=1) for one in known]
        shared = [np.logaddexp(row + known[1] + odds, 0.0).sum(axis=1) for row in known[0]]
        nobody = float(np.logaddexp(odds, 0.0).sum())
        return np.asarray(np.array(shared) - singles[0][:, None] - singles[1] + nobody)


def _evidence(observation: Observation) -> FloatArray:
    """Return the evidence (log-likelihood ratio) that each item is rated by each victim, `(n_victims, n_items)`.

    It comes from the attack `ErrorSize` or `OppositeDirections`, whichever applies to the protocol and model. If
    neither does, the protocol does not select items at random, and exactly the reported items count as rated.
    """
    for attack in (ErrorSize(), OppositeDirections()):
        if attack.applies_to(observation):
            return np.clip(observation.guessed_by(attack), -CERTAIN, CERTAIN)
    return np.where(observation.selection_counts > 0, CERTAIN, -CERTAIN)


def _same_direction(one: ReportParts, other: ReportParts) -> float:
    """Return the log-likelihood ratio that two reports come from one person, by the direction of the user vector."""
    turn = 2 - 2 * abs(float(one.direction @ other.direction))
    variance = (one.noise / one.strength) ** 2 + (other.noise / other.strength) ** 2 + MOVED**2
    apart = variance + STRANGERS**2
    return turn / 2 * (1 / apart - 1 / variance) + len(one.direction) / 2 * math.log(apart / variance)


def _same_bits(one: ReportParts, other: ReportParts, observation: Observation) -> float:
    """Return the log-likelihood ratio that two reports use the same permanent bits, from how many items both report."""
    shared = len(np.intersect1d(one.items, other.items, assume_unique=True))
    return shared * math.log(2) - len(one.items) * len(other.items) / observation.terms.n_items
