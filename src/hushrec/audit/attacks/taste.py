"""The person's own vector: its direction, and what the server could recommend with it."""

from dataclasses import dataclass

import numpy as np

from hushrec.audit.attacks import Attack
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import Trace, stacked_direction
from hushrec.randomness import FloatArray


@dataclass(frozen=True)
class RankOne:
    """First singular vector of the last upload, or of the last few stacked."""

    name: str = "rank one, one upload"
    n_uploads: int = 1
    target: str = "model"
    claim: str = "the user vector stays on the device"

    def applies_to(self, observation: Observation) -> bool:
        return True

    def guess(self, observation: Observation) -> FloatArray:
        return np.array([self._direction(trace, observation) for trace in observation.traces])

    def _direction(self, trace: Trace, observation: Observation) -> FloatArray:
        parts = trace.parts[-self.n_uploads :]
        if not parts:
            return np.zeros(observation.terms.n_factors)
        return stacked_direction(parts)


MODEL: tuple[Attack, ...] = (RankOne(), RankOne("rank one, ten uploads", 10))
