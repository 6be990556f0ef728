"""Attacks that combine another attack on the rated items with a prior, or restrict it to items never reported."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import expit

from hushrec.arrays import FloatArray
from hushrec.audit.attacks import Attack
from hushrec.audit.attacks.existence import (
    AveragedErrors,
    ConsistentRatings,
    ErrorLikelihood,
    ErrorSize,
    OppositeDirections,
    PartnersOfPairs,
    Popularity,
    SelectionAverage,
    StepsOfTheVector,
)
from hushrec.audit.observation import Observation


@dataclass(frozen=True)
class WithPopularity:
    """An attack that adds the scores of another attack (log-likelihood ratios) to the log odds of item popularity.

    `base` is the other attack, and `added` is appended to its name.
    """

    base: Attack
    target: ClassVar[str] = "existence"
    added: ClassVar[str] = " + popularity"

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
    """An attack like `WithPopularity`, with the popularity of items among people who are similar to the victim.

    `base` is the attack whose scores are used, and `added` is appended to its name.
    """

    added: ClassVar[str] = " + like-minded people"

    @property
    def claim(self) -> str:
        return "the paper's existence privacy"

    def applies_to(self, observation: Observation) -> bool:
        return self.base.applies_to(observation) and len(observation.crowd) > 1

    def guess(self, observation: Observation) -> FloatArray:
        odds = super().guess(observation)
        profiles = np.where(observation.selection_counts > 0, expit(odds), 0.0)
        return np.asarray(odds + np.log(observation.glance.likely_for(profiles)))


@dataclass(frozen=True)
class NeverReported(WithPopularity):
    """Another attack (`base`), scored only on the items that the victim never reported.

    All other items have the score NaN. `added` is appended to the name of the other attack.
    """

    added: ClassVar[str] = ", items never reported"

    @property
    def claim(self) -> str:
        return "a rating that was never reported is known by guessing alone"

    def applies_to(self, observation: Observation) -> bool:
        return observation.protocol.selection is not None and self.base.applies_to(observation)

    def guess(self, observation: Observation) -> FloatArray:
        return np.where(observation.selection_counts > 0, np.nan, observation.guessed_by(self.base))


EXISTENCE: tuple[Attack, ...] = (
    Popularity(),
    SelectionAverage(),
    WithPopularity(SelectionAverage()),
    ErrorSize(),
    WithPopularity(ErrorSize()),
    ErrorLikelihood(),
    WithPopularity(ErrorLikelihood()),
    AveragedErrors(),
    WithPopularity(AveragedErrors()),
    ConsistentRatings(),
    WithPopularity(ConsistentRatings()),
    StepsOfTheVector(),
    LikeMinded(StepsOfTheVector()),
    OppositeDirections("opposite directions, one upload", last_only=True),
    OppositeDirections(),
    WithPopularity(OppositeDirections()),
    LikeMinded(OppositeDirections()),
    PartnersOfPairs(),
    LikeMinded(PartnersOfPairs()),
    NeverReported(Popularity()),
    NeverReported(StepsOfTheVector()),
    NeverReported(WithPopularity(StepsOfTheVector())),
    NeverReported(LikeMinded(StepsOfTheVector())),
    NeverReported(LikeMinded(OppositeDirections())),
    NeverReported(PartnersOfPairs()),
    NeverReported(LikeMinded(PartnersOfPairs())),
)
