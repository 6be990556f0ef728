"""What an attack achieved, beside the claim it tests."""

import math
from dataclasses import asdict, dataclass
from typing import Any

from hushrec.audit.statistics import Interval

TARGETS = ("existence", "value", "model", "person", "metadata", "integrity", "epsilon")


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One attack on one protocol. A field that does not apply is None."""

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
        """Return the finding for JSON; NaN becomes null."""
        fields = asdict(self)
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value for name, value in fields.items()
        }


EXACT, ERROR_REMOVED = "share_of_ratings_exact", "share_of_error_removed"

# What the table of protocol × target shows of each target: the findings of these metrics, the larger the worse.
WORST_BY = {
    "existence": ("auc",),
    "value": (EXACT, ERROR_REMOVED),  # the latter where ratings are continuous
    "model": ("mean_abs_cosine",),
    "person": ("auc",),
    "metadata": ("auc",),
    "integrity": ("exposure_at_10",),
    "epsilon": ("epsilon_ruled_out",),
}


def worst(findings: list[Finding], protocol: str, target: str) -> Finding | None:
    """The most successful attack of a protocol on a target."""
    of_target = [
        one for one in findings if (one.protocol, one.target) == (protocol, target) and one.metric in WORST_BY[target]
    ]
    return max(of_target, key=lambda one: one.value, default=None)
