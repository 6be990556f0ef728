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
        """As JSON has it: not-a-number becomes null."""
        fields = asdict(self)
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value for name, value in fields.items()
        }


# What the table of protocol × target shows of each target: the findings of this metric, the larger the worse.
WORST_BY = {
    "existence": "auc",
    "value": "share_of_ratings_exact",
    "model": "mean_abs_cosine",
    "person": "auc",
    "metadata": "auc",
    "integrity": "exposure_at_10",
    "epsilon": "epsilon_ruled_out",
}


def worst(findings: list[Finding], protocol: str, target: str) -> Finding | None:
    """The most successful attack of a protocol on a target."""
    of_target = [
        one for one in findings if (one.protocol, one.target, one.metric) == (protocol, target, WORST_BY[target])
    ]
    return max(of_target, key=lambda one: one.value, default=None)
