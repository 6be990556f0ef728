"""Findings: how successful an attack is by one metric, and which privacy claim the attack tests."""

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from hushrec.arrays import BoolArray, FloatArray
from hushrec.audit.statistics import Interval, auc, auc_interval, mean_interval, rate_at, share_interval

EXACT, ERROR_REMOVED = "share_of_ratings_exact", "share_of_error_removed"

# The targets of attacks, each with the metrics by which attacks on it are compared; a larger value is more successful.
WORST_BY = {
    "existence": ("auc",),
    "value": (EXACT, ERROR_REMOVED),  # ERROR_REMOVED for continuous ratings
    "model": ("mean_abs_cosine",),
    "person": ("auc",),
    "metadata": ("auc",),
    "integrity": ("exposure_at_10",),
    "epsilon": ("epsilon_ruled_out",),
}
TARGETS = tuple(WORST_BY)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The success of one attack on one protocol by one metric; fields that do not apply are None."""

    protocol: str
    name: str  # name of the attack
    target: str  # what the attack tries to recover, one of `TARGETS`
    metric: str
    value: float
    auc: float | None = None
    tpr_at_1pct_fpr: float | None = None
    interval: Interval | None = None  # 95 % confidence interval of `value`
    chance: float | None = None  # the value for a guess that uses no message
    claim: str  # the privacy claim that the attack tests

    def record(self) -> dict[str, Any]:
        """Return the finding as a dictionary for JSON, with NaN as None."""
        fields = asdict(self)
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value for name, value in fields.items()
        }


@dataclass(frozen=True)
class Subject:
    """What all findings about one attack on one protocol have in common. The methods make findings."""

    protocol: str
    name: str  # name of the attack
    target: str
    claim: str

    @staticmethod
    def of(attack: Any, protocol: str) -> "Subject":
        """Return what all findings about `attack` share: the protocol, and the attack's name, target and claim."""
        return Subject(protocol, attack.name, attack.target, attack.claim)

    def finding(self, metric: str, value: float, **more: Any) -> Finding:
        """Return a finding with this value of a metric; `more` holds other fields of `Finding`."""
        return Finding(**vars(self), metric=metric, value=value, **more)

    def mean(self, metric: str, per_person: FloatArray, chance: Any, *, rng: np.random.Generator) -> Finding:
        """Return a finding about the mean of `per_person`, with its bootstrap confidence interval.

        `chance` is the mean for guesses that use no message.
        """
        interval = mean_interval(per_person, rng=rng)
        return self.finding(metric, float(per_person.mean()), interval=interval, chance=float(chance))

    def share(self, metric: str, successes: int, trials: int, **more: Any) -> Finding:
        """Return a finding with the fraction of successes and its interval; `more` holds other fields of `Finding`."""
        return self.finding(metric, successes / trials, interval=share_interval(successes, trials), **more)

    def area(self, scores: FloatArray, labels: BoolArray, metric: str = "auc", *, rng: np.random.Generator) -> Finding:
        """Return a finding about the AUC of `scores`, which should be higher where `labels` is True."""
        area, rate, interval = auc(scores, labels), rate_at(scores, labels), auc_interval(scores, labels, rng=rng)
        return self.finding(metric, area, auc=area, tpr_at_1pct_fpr=rate, interval=interval, chance=0.5)

    def mean_area(self, cases: list[tuple[FloatArray, BoolArray]], *, rng: np.random.Generator) -> list[Finding]:
        """Return a finding about the mean AUC over people; `cases` holds scores and labels of each person.

        People whose labels are all equal are left out. The list is empty if nobody remains.
        """
        areas = np.array([auc(scores, labels) for scores, labels in cases])
        rates = [rate_at(scores, labels) if labels.any() else np.nan for scores, labels in cases]
        if not np.isfinite(areas).any():
            return []
        area, rate, interval = float(np.nanmean(areas)), float(np.nanmean(rates)), mean_interval(areas, rng=rng)
        return [self.finding("auc", area, auc=area, tpr_at_1pct_fpr=rate, interval=interval, chance=0.5)]


def worst(findings: list[Finding], protocol: str, target: str) -> Finding | None:
    """Return the finding of the most successful attack on a protocol and target; None if there is no such finding.

    It is the finding with the largest value among those whose metric `WORST_BY` lists for the target.
    """
    of_target = [
        one for one in findings if (one.protocol, one.target) == (protocol, target) and one.metric in WORST_BY[target]
    ]
    return max(of_target, key=lambda one: one.value, default=None)
