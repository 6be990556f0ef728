"""The person's own vector: its direction, and what the server could recommend with it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hushrec.audit.attacks import Attack
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import Trace, stacked_direction, without_prior
from hushrec.messages import GradientReport, ItemVectors
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


@dataclass(frozen=True)
class PooledRankOne:
    """One singular vector for the gradients of many uploads, each weighed by its noise: for noise that drowns one.

    The vector moves little in the later half of the rounds, so their gradients are all nearly parallel.
    """

    name: str = "rank one, fifty uploads pooled"
    n_uploads: int = 50
    target: str = "model"
    claim: str = "the user vector stays on the device"

    def applies_to(self, observation: Observation) -> bool:
        return True

    def guess(self, observation: Observation) -> FloatArray:
        start = observation.n_rounds - min(self.n_uploads, -(-observation.n_rounds // 2))
        last = observation.announcements[start:]
        return np.array([self._direction(last, uploads[start:]) for uploads in observation.uploads])

    def _direction(self, announcements: Sequence[ItemVectors], uploads: Sequence[GradientReport | None]) -> FloatArray:
        width = announcements[0].item_vectors.shape[1]
        gram = np.zeros((width, width))
        for announcement, upload in zip(announcements, uploads, strict=True):
            if upload is not None:
                rows, noise = without_prior(announcement, upload)
                gram += rows.T @ rows / noise**2
        return np.asarray(np.linalg.eigh(gram)[1][:, -1]) if gram.any() else np.zeros(width)


MODEL: tuple[Attack, ...] = (RankOne(), RankOne("rank one, ten uploads", 10), PooledRankOne())
