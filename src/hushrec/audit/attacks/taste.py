"""The person's own vector: its direction, and what the server could recommend with it."""

from dataclasses import dataclass

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.attacks import Attack
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import stacked_direction


@dataclass(frozen=True)
class PublicTaste:
    """Guess without any upload: the direction of what people in general like, from the public item vectors.

    What every other attack on the model must beat.
    """

    name: str = "public item vectors"
    target: str = "model"
    claim: str = "none: known without any upload"

    def applies_to(self, observation: Observation) -> bool:
        return True

    def guess(self, observation: Observation) -> FloatArray:
        return np.tile(observation.public_direction, (observation.n_victims, 1))


@dataclass(frozen=True)
class RankOne:
    """Take the first singular vector of the last upload, or of the last few stacked."""

    name: str = "rank one, one upload"
    n_uploads: int = 1
    target: str = "model"
    claim: str = "the user vector stays on the device"

    def applies_to(self, observation: Observation) -> bool:
        return True

    def guess(self, observation: Observation) -> FloatArray:
        nothing = np.zeros(observation.terms.n_factors)
        seen = [trace.parts[-self.n_uploads :] for trace in observation.traces]
        return np.array([stacked_direction(parts) if parts else nothing for parts in seen])


@dataclass(frozen=True)
class PooledRankOne:
    """Fit one direction to all uploads of the later half of the rounds, in which the vector moves little."""

    name: str = "rank one, later half pooled"
    target: str = "model"
    claim: str = "the user vector stays on the device"

    def applies_to(self, observation: Observation) -> bool:
        return True

    def guess(self, observation: Observation) -> FloatArray:
        return observation.pooled_directions


MODEL: tuple[Attack, ...] = (PublicTaste(), RankOne(), RankOne("rank one, ten uploads", 10), PooledRankOne())
