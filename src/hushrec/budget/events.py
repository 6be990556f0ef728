"""Privacy events, which record what a device releases. The accountant of the event's unit computes the cost.

Events stay on the device. Their reprs leave out every field that depends on the ratings.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError, require


class Event(Protocol):
    """One release of data by a device; `unit` is the key of the event's accountant in `accountants.ACCOUNTANTS`."""

    unit: ClassVar[str]


@dataclass(frozen=True, slots=True)
class _WithEpsilon:
    epsilon: float

    def __post_init__(self) -> None:
        epsilon = as_number("epsilon", self.epsilon)
        require(0 < epsilon < math.inf, "epsilon", "positive and finite", epsilon)
        object.__setattr__(self, "epsilon", epsilon)


@dataclass(frozen=True, slots=True)
class PermanentDraw(_WithEpsilon):
    """A draw of the permanent bits from the rated items, with budget epsilon_p: Theorem 1 of [SDCF].

    `n_protected` is the number of ratings for which the draw was calibrated: the profile cap if `capped`, else the
    person's own number of ratings, which is private.
    """

    unit: ClassVar[str] = "selection"

    n_protected: int = field(repr=False)
    capped: bool

    def __post_init__(self) -> None:
        _WithEpsilon.__post_init__(self)  # super() fails in a dataclass with slots
        if not self.n_protected >= 1:
            raise ParameterError("n_protected must be at least 1: a device without ratings draws no permanent bits.")
        object.__setattr__(self, "n_protected", int(self.n_protected))
        object.__setattr__(self, "capped", bool(self.capped))


@dataclass(frozen=True, slots=True)
class SelectionSent(_WithEpsilon):
    """The item selection of one report, drawn from the permanent bits with budget epsilon_i: Theorem 2 of [SDCF]."""

    unit: ClassVar[str] = "selection"


@dataclass(frozen=True, slots=True)
class GradientsSent:
    """The gradient values of one report; `rho` is their privacy loss, which `gradient_rho` computes."""

    unit: ClassVar[str] = "value"

    n_gradients: int = field(repr=False)
    rho: float = field(repr=False)

    def __post_init__(self) -> None:
        if not (self.n_gradients >= 0 and 0 <= self.rho < math.inf):
            raise ParameterError("n_gradients and rho, which are private, must be finite and must not be negative.")
        object.__setattr__(self, "n_gradients", int(self.n_gradients))
        object.__setattr__(self, "rho", float(self.rho))


@dataclass(frozen=True, slots=True)
class RatingsPerturbed(_WithEpsilon):
    """One addition of Laplace noise to ratings; the device trains on the noisy ratings only (protocol `isgld`)."""

    unit: ClassVar[str] = "rating"


@dataclass(frozen=True, slots=True)
class BlockSent:
    """One block of a masked table: integers whose squared norm is at most `norm_squared`, in squared grid units.

    The revealed sum contains the noise of at least `honest` devices, each a discrete Gaussian of variance
    `share_variance`. `distance` is the statistical distance of that noise from the Gaussian noise that the accountant
    assumes. `norm_squared` depends on the person's own budget, and is therefore not in the repr.
    """

    norm_squared: int = field(repr=False)
    share_variance: int
    honest: int
    distance: float

    def __post_init__(self) -> None:
        if not (self.norm_squared >= 0 and self.share_variance >= 0 and self.honest >= 1 and self.distance >= 0):
            raise ParameterError(
                "norm_squared, share_variance and distance must not be negative, and honest must be at least 1, got"
                f" share_variance {self.share_variance}, distance {self.distance} and honest {self.honest}."
            )


@dataclass(frozen=True, slots=True)
class TableSent:
    """A masked table that was sent in one attempt of one round."""

    unit: ClassVar[str] = "table"

    blocks: tuple[BlockSent, ...]


@dataclass(frozen=True, slots=True)
class TablesElsewhere:
    """Masked tables that a copy of this device's store may have sent. This device does not know how many.

    `mu_squared` is the largest cost that they can have: the rest of the run's budget or, if it is smaller, the rest of
    the person's limit for all runs together. `distance` is the statistical distance of the noise of a whole run from
    the Gaussian noise that μ² assumes.
    """

    unit: ClassVar[str] = "table"

    mu_squared: float
    distance: float

    def __post_init__(self) -> None:
        if not (0 <= self.mu_squared < math.inf and 0 <= self.distance < math.inf):
            raise ParameterError("mu_squared and distance must be finite and not negative, but one is not.")


def gradient_rho(data_terms: FloatArray, step_size: float) -> float:
    """Return the privacy loss of sending these gradients instead of zeros, as rho of zero-concentrated DP.

    rho = Σ ‖d‖² / 2η over the rows d of `data_terms`, `(n_gradients, width)`. A row is step size × data weight × error
    × user vector: a gradient before prior and noise are added. The noise has variance η = `step_size`. The result is
    the loss of these gradients, not a guarantee. It depends on the ratings and must stay on the device. It is infinite
    if the squares overflow.
    """
    with np.errstate(over="ignore"):
        return float(np.sum(np.square(data_terms))) / (2 * step_size)


def as_number(name: str, value: Any) -> float:
    """Return a number of any type (int, Fraction, NumPy) as a float; raise `ParameterError` for other values.

    Texts and Booleans are refused too. The error names only the type of the value, because the value may be private.
    """
    try:
        if isinstance(value, str | bytes | bytearray | bool | np.bool_):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ParameterError(
            f"{name} must be a number that a float can hold, got a value of type {type(value).__name__}."
        ) from None
