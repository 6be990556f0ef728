"""What was released. An event is a fact; it names the unit that it counts in, whose accountant says what it costs.

Events stay on the device. Their reprs leave out everything that depends on the ratings.
"""

import math
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError


class Event(Protocol):
    """Something that was released."""

    unit: ClassVar[str]  # of what it costs: `accountants.ACCOUNTANTS` has who prices it


@dataclass(frozen=True, slots=True)
class PermanentDraw:
    """The permanent bits B' were drawn from the rated items, at epsilon_p: Theorem 1 of [SDCF].

    `n_protected` is the number of ratings from which f was calibrated: the person's own (private), or a public
    cap on it, which `capped` tells.
    """

    unit: ClassVar[str] = "selection"

    epsilon: float
    n_protected: int = field(repr=False)
    capped: bool

    def __post_init__(self) -> None:
        _set_positive(self, "epsilon")
        if not self.n_protected >= 1:
            raise ParameterError("n_protected must be at least 1. A client without ratings draws no bits.")
        object.__setattr__(self, "n_protected", int(self.n_protected))
        object.__setattr__(self, "capped", bool(self.capped))


@dataclass(frozen=True, slots=True)
class SelectionSent:
    """One round's selection S was drawn from B' and sent, at epsilon_i: Theorem 2 of [SDCF]."""

    unit: ClassVar[str] = "selection"

    epsilon: float

    def __post_init__(self) -> None:
        _set_positive(self, "epsilon")


@dataclass(frozen=True, slots=True)
class GradientsSent:
    """Noised gradients were sent; `rho` is their realized zero-concentrated loss, from `gradient_rho`."""

    unit: ClassVar[str] = "value"

    n_gradients: int = field(repr=False)
    rho: float = field(repr=False)

    def __post_init__(self) -> None:
        if not (self.n_gradients >= 0 and 0 <= self.rho < math.inf):
            raise ParameterError("n_gradients and rho must be finite and not negative.")
        object.__setattr__(self, "n_gradients", int(self.n_gradients))
        object.__setattr__(self, "rho", float(self.rho))


@dataclass(frozen=True, slots=True)
class RatingsPerturbed:
    """Every rating value got Laplace noise at epsilon, and what follows uses only the noisy values (ISGLD)."""

    unit: ClassVar[str] = "rating"

    epsilon: float

    def __post_init__(self) -> None:
        _set_positive(self, "epsilon")


@dataclass(frozen=True, slots=True)
class BlockSent:
    """One block of a masked table: integers of squared norm at most `norm_squared`, in squared grid units.

    The sum that is revealed carries the noise of at least `honest` devices, a discrete Gaussian of variance
    `share_variance` each; `distance` is the statistical distance of that noise from the law that is priced. A person's
    own budget shows in `norm_squared`.
    """

    norm_squared: int = field(repr=False)
    share_variance: int
    honest: int
    distance: float

    def __post_init__(self) -> None:
        if not (self.norm_squared >= 0 and self.share_variance >= 0 and self.honest >= 1 and self.distance >= 0):
            raise ParameterError("norm_squared, share_variance and distance must not be negative, honest at least 1.")


@dataclass(frozen=True, slots=True)
class TableSent:
    """A masked table of these blocks was sent: one attempt of one round."""

    unit: ClassVar[str] = "table"

    blocks: tuple[BlockSent, ...]


@dataclass(frozen=True, slots=True)
class TablesElsewhere:
    """Tables that another copy of this device may have sent: at most what their run still allowed, `mu_squared`."""

    unit: ClassVar[str] = "table"

    mu_squared: float
    distance: float

    def __post_init__(self) -> None:
        if not (0 <= self.mu_squared < math.inf and 0 <= self.distance < math.inf):
            raise ParameterError("mu_squared and distance must be finite and not negative.")


def gradient_rho(data_terms: FloatArray, step_size: float) -> float:
    """Zero-concentrated loss of sending these gradients rather than zeros: Σ ‖η N e u‖² / 2η.

    `data_terms` (n_gradients, width) holds η N e u, without prior and noise; the noise has variance η = `step_size`.
    This is the loss that happened, not a guarantee, and it tells about the ratings: it stays on the device. Where the
    squares overflow it is infinite.
    """
    with np.errstate(over="ignore"):
        return float(np.sum(np.square(data_terms))) / (2 * step_size)


def as_number(name: str, value: Any) -> float:
    """Return a number of any kind (int, fraction, of numpy) as a float; refuse text, flags and everything else.

    Totals are stored and read back by their type, so every number becomes a float where it enters. The sentence
    names the type alone: the value may be private.
    """
    try:
        if isinstance(value, str | bytes | bytearray | bool | np.bool_):
            raise TypeError
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise ParameterError(f"{name} must be a number, got a {type(value).__name__}.") from None


def _set_positive(event: object, name: str) -> None:
    value = as_number(name, getattr(event, name))
    if not 0 < value < math.inf:
        raise ParameterError(f"{name} must be positive and finite, got {value}.")
    object.__setattr__(event, name, value)
