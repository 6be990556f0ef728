"""Values as standard JSON, which has no infinity: the project spells it "inf"."""

from collections.abc import Mapping
from typing import Any

import numpy as np


def to_json(value: Any) -> Any:
    """Return a value as standard JSON: ±infinity becomes "inf" or "-inf", and NaN becomes None."""
    if isinstance(value, dict):
        return {name: to_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, float | np.floating):
        if np.isinf(value):
            return "inf" if value > 0 else "-inf"
        return None if np.isnan(value) else float(value)
    return value


def from_json(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy in which the values "inf" and "-inf" are ±infinity; nested values and None stay as they are."""
    return {name: float(value) if value in ("inf", "-inf") else value for name, value in values.items()}
