"""Findings: how successful an attack is by one metric, and which privacy claim the attack tests."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from hushrec.audit.statistics import Interval

TARGETS = ("existence", "value", "model", "person", "metadata", "integrity", "epsilon")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """The success of one attack on one protocol by one metric; fields that do not apply are None.

    `interval` is the 95 % confidence interval of `value`, and `chance` is the value of a guess without the attack.
    `target` is what the attack tries to recover, one of `TARGETS`, and `claim` the privacy claim that it tests.
    """

    protocol: str
    name: str
    target: str
    metric: str
    value: float
    auc: float | None = None
    tpr_at_1pct_fpr: float | None = None
    interval: Interval | None = None
    chance: float | None = None
    claim: str

    def record(self) -> dict[str, Any]:
        """Return the finding as a dictionary for JSON, with NaN as None."""
        fields = asdict(self)
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value for name, value in fields.items()
        }


EXACT, ERROR_REMOVED = "share_of_ratings_exact", "share_of_error_removed"

# The metrics by which attacks on a target are compared; a larger value is a more successful attack.
WORST_BY = {
    "existence": ("auc",),
    "value": (EXACT, ERROR_REMOVED),  # ERROR_REMOVED for continuous ratings
    "model": ("mean_abs_cosine",),
    "person": ("auc",),
    "metadata": ("auc",),
    "integrity": ("exposure_at_10",),
    "epsilon": ("epsilon_ruled_out",),
}


def worst(findings: list[Finding], protocol: str, target: str) -> Finding | None:
    """Return the finding of the most successful attack on a protocol and target, or None without such a finding."""
    of_target = [
        one for one in findings if (one.protocol, one.target) == (protocol, target) and one.metric in WORST_BY[target]
    ]
    return max(of_target, key=lambda one: one.value, default=None)
