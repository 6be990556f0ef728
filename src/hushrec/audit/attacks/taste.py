"""Attacks that recover the direction of a person's user vector (target "model")."""

from dataclasses import dataclass

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.attacks import Attack, OnRuns
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import stacked_direction


class PublicTaste(OnRuns):
    """The baseline of the other attacks: without any report, it guesses the direction of an average user vector."""

    name = "public item vectors"
    target = "model"
    claim = "none: known without any report"

    def guess(self, observation: Observation) -> FloatArray:
        return np.tile(observation.public_direction, (observation.n_victims, 1))


@dataclass(frozen=True)
class RankOne(OnRuns):
    """Recover the direction of a person's user vector from the last `n_reports` reports (`audit.rank_one`)."""

    name: str = "rank one, one report"
    n_reports: int = 1
    target: str = "model"
    claim: str = "the user vector stays on the device"

    def guess(self, observation: Observation) -> FloatArray:
        nothing = np.zeros(observation.terms.n_factors)
        seen = [trace.parts[-self.n_reports :] for trace in observation.traces]
        return np.array([stacked_direction(parts) if parts else nothing for parts in seen])


class PooledRankOne(OnRuns):
    """Recover the direction of a person's user vector from all their reports of the second half of the rounds.

    The user vector moves little in these rounds.
    """

    name = "rank one, later half pooled"
    target = "model"
    claim = "the user vector stays on the device"

    def guess(self, observation: Observation) -> FloatArray:
        return observation.pooled_directions


MODEL: tuple[Attack, ...] = (PublicTaste(), RankOne(), RankOne("rank one, ten reports", 10), PooledRankOne())
