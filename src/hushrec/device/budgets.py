"""What a person allows their device, and the scale that they rate on."""

import math
from dataclasses import dataclass

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError
from hushrec.protocols.gradient import HIGHEST, LOWEST, Sdcf


@dataclass(frozen=True)
class Budgets:
    """What a person allows. `scale` is that of their ratings."""

    epsilon_i: float = 4.0
    epsilon_p: float = math.nan
    epsilon_g: float = 4.0
    max_value_rho: float | None = None
    scale: tuple[float, float] = (1.0, 5.0)

    def __post_init__(self) -> None:
        if math.isnan(self.epsilon_p):
            object.__setattr__(self, "epsilon_p", 2 * self.epsilon_i)
        Sdcf(self.epsilon_i, self.epsilon_g, self.epsilon_p)  # checks the three
        low, high = self.scale
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise ParameterError(f"scale must be two finite numbers, low < high, got {low:g},{high:g}.")

    def to_unit(self, value: float) -> float:
        low, high = self.scale
        return LOWEST + (value - low) / (high - low) * (HIGHEST - LOWEST)

    def from_unit(self, values: FloatArray) -> FloatArray:
        low, high = self.scale
        return low + (values - LOWEST) / (HIGHEST - LOWEST) * (high - low)
