"""Whether messages without names come from the same person."""

import math
from dataclasses import dataclass

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.attacks.existence import ErrorSize, OppositeDirections
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import UploadParts

CERTAIN = 10.0  # nats that one item may count
MOVED = 0.003  # deviation of a direction's numbers from one round to the next
STRANGERS = 0.06  # and from one person to another


@dataclass(frozen=True)
class LinkRounds:
    """Uploads of two consecutive rounds without names: one person sends one direction, and draws on the same bits.

    Scores are in nats for "the same person"; each upload is joined to one of the round before, so that the sum of
    scores is largest.
    """

    name: str = "linkage of rounds"
    target: str = "metadata"
    claim: str = "none: messages carry names; this is what leaving them out would be worth"

    def applies_to(self, observation: Observation) -> bool:
        return observation.n_victims > 1 and all(len(trace.parts) > 1 for trace in observation.traces)

    def scores(self, observation: Observation) -> FloatArray:
        """Return a score for each pair of a last upload (row) and a last but one (column)."""
        later, earlier = ([trace.parts[-back] for trace in observation.traces] for back in (1, 2))
        return np.array([[_same_direction(a, b) + _same_bits(a, b, observation) for b in earlier] for a in later])


@dataclass(frozen=True)
class LinkEnrolments:
    """A person comes back with a new key, new permanent bits and a new start: the same ratings are the same person.

    With evidence a and b, in nats, that an item is rated in either enrolment, and its popularity π, the two are
    one person's with a likelihood ratio of

        (π e^(a + b) + 1 − π) / ((π e^a + 1 − π) (π e^b + 1 − π)),

    item by item. Neither vectors nor bits are compared, so two runs of different models can be joined as well.
    """

    name: str = "linkage after re-enrolment"
    target: str = "metadata"
    claim: str = "none: new bits are paid for once more; nothing says that they make a new person"

    def scores(self, before: Observation, after: Observation) -> FloatArray:
        """Return the evidence, in nats, that a new person (row) is one who left (column)."""
        odds = before.popularity_odds
        known = [_evidence(seen) for seen in (after, before)]
        singles = [np.logaddexp(one + odds, 0.0).sum(axis=1) for one in known]
        shared = [np.logaddexp(row + known[1] + odds, 0.0).sum(axis=1) for row in known[0]]
        nobody = float(np.logaddexp(odds, 0.0).sum())
        return np.asarray(np.array(shared) - singles[0][:, None] - singles[1] + nobody)


def _evidence(observation: Observation) -> FloatArray:
    """Return the evidence, in nats, that each item is rated, by the quickest attack that works for the protocol."""
    for attack in (ErrorSize(), OppositeDirections()):
        if attack.applies_to(observation):
            return np.clip(observation.guessed_by(attack), -CERTAIN, CERTAIN)
    return np.where(observation.selection_counts > 0, CERTAIN, -CERTAIN)


def _same_direction(one: UploadParts, other: UploadParts) -> float:
    """Return the evidence that two uploads have the same direction, which is known up to noise."""
    turn = 2 - 2 * abs(float(one.direction @ other.direction))
    variance = (one.noise / one.strength) ** 2 + (other.noise / other.strength) ** 2 + MOVED**2
    apart = variance + STRANGERS**2
    return turn / 2 * (1 / apart - 1 / variance) + len(one.direction) / 2 * math.log(apart / variance)


def _same_bits(one: UploadParts, other: UploadParts, observation: Observation) -> float:
    """Return the evidence that two uploads use the same permanent bits: they then share twice as many items."""
    shared = len(np.intersect1d(one.items, other.items, assume_unique=True))
    return shared * math.log(2) - len(one.items) * len(other.items) / observation.terms.n_items
