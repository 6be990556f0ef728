"""Attacks on existence (which items are rated) that change the scores of another attack on existence, their base.

Some add a prior for each item to the base's scores. Others keep only the scores of items that the victim never
reported.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from hushrec.arrays import FloatArray
from hushrec.audit.attacks import Attack, existence
from hushrec.audit.observation import Observation


@dataclass(frozen=True)
class WithPopularity:
    """An attack that adds the scores of another attack (log-likelihood ratios) to the log odds of item popularity."""

    base: Attack
    target: ClassVar[str] = "existence"
    added: ClassVar[str] = " + popularity"  # the name of this attack is the name of `base` followed by this

    @property
    def name(self) -> str:
        return self.base.name + self.added

    @property
    def claim(self) -> str:
        return self.base.claim

    def applies_to(self, observation: Observation) -> bool:
        return self.base.applies_to(observation)

    def guess(self, observation: Observation) -> FloatArray:
        return observation.guessed_by(self.base) + observation.popularity_odds


@dataclass(frozen=True)
class LikeMinded(WithPopularity):
    """An attack that adds another attack's scores to the log odds of item popularity among people like the victim."""

    added: ClassVar[str] = " + like-minded people"
    claim = "the paper's existence privacy"

    def applies_to(self, observation: Observation) -> bool:
        return self.base.applies_to(observation) and len(observation.sample) > 1

    def guess(self, observation: Observation) -> FloatArray:
        odds = super().guess(observation)
        profiles = np.where(observation.selection_counts > 0, expit(odds), 0.0)
        return np.asarray(odds + np.log(observation.sample_estimates.likely_for(profiles)))


@dataclass(frozen=True)
class NeverReported(WithPopularity):
    """An attack that keeps another attack's scores of items that the victim never reported; other items get NaN."""

    added: ClassVar[str] = ", items never reported"
    claim = "a rating that was never reported is known by guessing alone"

    def applies_to(self, observation: Observation) -> bool:
        return observation.protocol.selection is not None and self.base.applies_to(observation)

    def guess(self, observation: Observation) -> FloatArray:
        return np.where(observation.selection_counts > 0, np.nan, observation.guessed_by(self.base))


_STEPS, _SIGNS, _PARTNERS = existence.StepsOfTheVector(), existence.OppositeDirections(), existence.PartnersOfPairs()
_OTHERS: tuple[Attack, ...] = (
    existence.SelectionAverage(),
    existence.ErrorSize(),
    existence.ErrorLikelihood(),
    existence.AveragedErrors(),
    existence.ConsistentRatings(),
)
EXISTENCE: tuple[Attack, ...] = (
    existence.Popularity(),
    *(attack for base in _OTHERS for attack in (base, WithPopularity(base))),
    _STEPS,
    LikeMinded(_STEPS),
    existence.OppositeDirections("opposite directions, one report", last_only=True),
    _SIGNS,
    WithPopularity(_SIGNS),
    LikeMinded(_SIGNS),
    _PARTNERS,
    LikeMinded(_PARTNERS),
    NeverReported(existence.Popularity()),
    NeverReported(_STEPS),
    NeverReported(WithPopularity(_STEPS)),
    NeverReported(LikeMinded(_STEPS)),
    NeverReported(LikeMinded(_SIGNS)),
    NeverReported(_PARTNERS),
    NeverReported(LikeMinded(_PARTNERS)),
)
