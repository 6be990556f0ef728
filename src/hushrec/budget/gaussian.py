"""Gaussian differential privacy, in one number μ: conversion to (ε, δ), composition, and the noise for a budget.

A sum with Gaussian noise of deviation σ that one device moves by at most Δ is μ-Gaussian private with μ = Δ/σ
[Dong2022]. Mechanisms compose as Σ μ², also when later ones depend on the results of earlier ones. δ(ε) is Theorem 8 of
[Balle2018]::

    δ(ε) = Φ(μ/2 − ε/μ) − exp(ε) Φ(−μ/2 − ε/μ)

Devices add *discrete* Gaussian noise to integers. The sum of h honest shares of integer variance V ≥ 16 is priced as
continuous noise of variance hV − 8: up to a statistical distance below `summing_distance`, the noisy sum can be
computed from that Gaussian mechanism's output (docs/proofs.md, "Discrete noise"). Costs are rounded up, budgets down.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from scipy.special import log_ndtr

from hushrec.errors import ParameterError

SMALLEST_SHARE_VARIANCE = 16  # V, in squared grid units: a share has a deviation of at least 4 grid units
SMOOTHING_VARIANCE = 8  # subtracted from the variance of the discrete sum when it is priced, in squared grid units
DELTA_RESERVED = 1e-3  # part of δ that pays for statistical distances and for rounding in this module
LARGEST_EPSILON = 100.0


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the smallest ε for which μ-Gaussian privacy is (ε, δ)-differential privacy, rounded up.

    Found by bisection below μ²/2 + μ √(2 ln(1/δ)), which always suffices. ε is infinite if μ is infinite.
    """
    _require(mu >= 0, "mu", "not negative", mu)
    _require(0 < delta < 1, "delta", "above 0 and below 1", delta)
    if mu == 0 or mu == math.inf:
        return mu
    if _log_delta(mu, 0.0) <= math.log(delta):
        return 0.0
    upper = mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))
    return bisect_upper(lambda epsilon: _log_delta(mu, epsilon) <= math.log(delta), 0.0, upper)


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """Return the largest μ that (ε, δ) allows, rounded down: the inverse of `epsilon_of_mu`."""
    _require(epsilon >= 0, "epsilon", "not negative", epsilon)
    _require(0 < delta < 1, "delta", "above 0 and below 1", delta)
    if epsilon == math.inf:
        return math.inf
    exceeds: Callable[[float], bool] = lambda mu: _log_delta(mu, epsilon) > math.log(delta)  # noqa: E731
    upper = 1.0
    while not exceeds(upper):
        upper *= 2
    return math.nextafter(bisect_upper(exceeds, 0.0, upper), 0.0)


def _log_delta(mu: float, epsilon: float) -> float:
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = float(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
    return first + math.log(-math.expm1(min(second - first, -1e-300)))


def bisect_upper(holds: Callable[[float], bool], lower: float, upper: float) -> float:
    """Return the smallest float in (lower, upper] for which `holds` is true.

    `holds` must be false below some point and true above it, and true at `upper`.
    """
    while True:
        middle = (lower + upper) / 2
        if not lower < middle < upper:
            return upper
        if holds(middle):
            upper = middle
        else:
            lower = middle


def run_mu(epsilon: float, delta: float) -> float:
    """Return the μ of a whole run that guarantees (ε, δ), with a thousandth of δ reserved for `epsilon_at_distance`."""
    _require(0 < epsilon <= LARGEST_EPSILON or epsilon == math.inf, "epsilon", "above 0 and at most 100", epsilon)
    return mu_of_epsilon(epsilon, delta * (1 - DELTA_RESERVED))


def epsilon_at_distance(curve: Callable[[float], float], delta: float, distance: float) -> float:
    """Return ε at δ for a mechanism within statistical distance η of one with ε = curve(δ).

    The distance adds at most (1 + exp(ε)) η to δ(ε). If that exceeds the reserved part of δ, ε is infinite.
    """
    epsilon = curve(delta * (1 - DELTA_RESERVED))
    if distance > 0 and epsilon + math.log(2 * distance) > math.log(delta * DELTA_RESERVED):
        return math.inf
    return epsilon


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return ε at δ of a zero-concentrated privacy loss ρ: Proposition 12 of [Canonne2020] (arXiv v4).

    δ(ε) ≤ min over α > 1 of exp((α − 1)(αρ − ε)) (1 − 1/α)^α / (α − 1), solved for ε at each α. By published theorems
    alone, discrete Gaussian noise of variance V has ρ = Δ²/2V. The result is larger than that of `epsilon_of_mu`, and
    is printed beside it as an independent bound.
    """
    _require(rho >= 0, "rho", "not negative", rho)
    _require(0 < delta < 1, "delta", "above 0 and below 1", delta)
    if rho == 0 or rho == math.inf:
        return rho

    def epsilon(log_order: float) -> float:
        excess = math.exp(log_order)  # α − 1; the ε of every α is valid
        order = 1 + excess
        return order * rho + math.log(excess / order) - (math.log(delta) + math.log(order)) / excess

    low, high = -8.0, 25.0
    for _ in range(100):  # ternary search: as a function of the order, ε first falls and then rises
        third = (high - low) / 3
        if epsilon(low + third) < epsilon(high - third):
            high -= third
        else:
            low += third
    return max(epsilon((low + high) / 2), 0.0)


@dataclass(frozen=True)
class Cohort:
    """The devices whose tables are summed: their number, the share that must survive, the share that may be corrupt.

    A sum is revealed only if at least `smallest` devices survive, of which at most `most_corrupt` may add no noise. The
    noise of each device is sized for the remaining `honest` devices.
    """

    devices: int
    survivors: float = 1.0
    corrupt: float = 0.0

    def __post_init__(self) -> None:
        _require(self.devices >= 1, "devices", "at least 1", self.devices)
        _require(0 < self.survivors <= 1, "survivors", "above 0 and at most 1", self.survivors)
        _require(0 <= self.corrupt < 1, "corrupt", "at least 0 and below 1", self.corrupt)
        if self.honest < 1:
            raise ParameterError(
                f"a cohort must have at least 1 honest device, got {self.smallest} survivors of which "
                f"{self.most_corrupt} may be corrupt. Lower corrupt, or wait for more devices."
            )

    @property
    def smallest(self) -> int:
        """The smallest number of surviving devices of a revealed sum: n_min = ⌈survivors · devices⌉."""
        return math.ceil(_decimal(self.survivors) * self.devices)

    @property
    def most_corrupt(self) -> int:
        """The largest number of corrupt devices among the survivors: c_max = ⌈corrupt · n_min⌉."""
        return math.ceil(_decimal(self.corrupt) * self.smallest)

    @property
    def honest(self) -> int:
        """The number of devices whose noise every revealed sum contains: n_min − c_max."""
        return self.smallest - self.most_corrupt


def share_variance(norm_squared: int, mu: float, share: float, cohort: Cohort) -> int:
    """Return V, the integer variance of one device's noise with which one block costs at most share · μ².

    V is the smallest integer, at least 16, with hV − 8 ≥ Δ²/(μ² share), where Δ² = `norm_squared` is in squared grid
    units. V is 0 for a run without noise (μ = ∞).
    """
    _require(norm_squared >= 1, "norm_squared", "at least 1", norm_squared)
    _require(mu > 0, "mu", "above 0", mu)
    _require(0 < share <= 1, "share", "above 0 and at most 1", share)
    if mu == math.inf:
        return 0
    needed = norm_squared / (Fraction(mu) ** 2 * Fraction(share)) + SMOOTHING_VARIANCE
    return max(math.ceil(needed / cohort.honest), SMALLEST_SHARE_VARIANCE)


def block_mu_squared(norm_squared: int, variance: int, honest: int) -> float:
    """Return the cost of one block: μ² = Δ²/(hV − 8), rounded up.

    The cost is 0 if Δ = 0, and infinite if the variance V is below `SMALLEST_SHARE_VARIANCE`.
    """
    if norm_squared == 0:
        return 0.0
    if variance < SMALLEST_SHARE_VARIANCE:
        return math.inf
    return math.nextafter(norm_squared / (honest * variance - SMOOTHING_VARIANCE), math.inf)


def block_rho(norm_squared: int, variance: int, honest: int) -> float:
    """Return the zero-concentrated privacy loss of one block: ρ = Δ²/(2hV), rounded up [Canonne2020]."""
    if norm_squared == 0:
        return 0.0
    if variance < SMALLEST_SHARE_VARIANCE:
        return math.inf
    return math.nextafter(norm_squared / (2 * honest * variance), math.inf)


def summing_distance(variance: int, honest: int) -> float:
    """Return the statistical distance, per number, of h summed shares of noise from the priced Gaussian: 4h θ(8).

    The sum of two discrete Gaussians of variances V₁ and V₂ has probabilities within a factor (1 + θ)/(1 − θ) of one
    discrete Gaussian of variance V₁ + V₂, with θ at V₁V₂/(V₁ + V₂). Adding up h shares takes h − 1 such steps at
    kV/(k + 1) ≥ V/2 ≥ 8. Rounding a continuous Gaussian of variance hV − 8 by a discrete one of variance 8 takes one
    more at 8. A factor (1 + θ)/(1 − θ) is a distance of at most 4θ (docs/proofs.md).
    """
    _require(variance >= SMALLEST_SHARE_VARIANCE, "variance", f"at least {SMALLEST_SHARE_VARIANCE}", variance)
    return 4 * honest * smoothing_error(SMOOTHING_VARIANCE)


def smoothing_error(variance: float) -> float:
    """Return an upper bound of θ(v) = 2 Σⱼ exp(−2π²vj²); Σₖ exp(−(k − c)²/2v) is √(2πv) (1 ± θ) for every c."""
    decay = math.exp(-2 * math.pi**2 * variance)
    return 2 * decay / (1 - decay)


def own_fraction(own_epsilon: float, epsilon: float, delta: float) -> float:
    """Return k = μ(own ε)/μ(ε): the share of the run's norm bound that a person with a smaller budget may use.

    k is 1 if the person's own ε is at least that of the run, and 0 (the device sends zeros) if the own ε is 0.
    """
    _require(own_epsilon >= 0, "own_epsilon", "not negative", own_epsilon)
    if own_epsilon >= epsilon:
        return 1.0
    if own_epsilon == 0:
        return 0.0
    if epsilon == math.inf:
        raise ParameterError(
            f"own_epsilon must be infinite, or 0 to send zeros, in a run without noise, got {own_epsilon}."
        )
    return min(run_mu(own_epsilon, delta) / run_mu(epsilon, delta), 1.0)


def own_norm_squared(norm_squared: int, fraction: float) -> int:
    """Return ⌊k²Δ²⌋, the squared norm bound of a person with fraction k; the block then costs at most k² as much."""
    _require(0 <= fraction <= 1, "fraction", "from 0 to 1", fraction)
    return math.floor(Fraction(fraction) ** 2 * norm_squared)


def default_delta(devices: int) -> float:
    """Return the default δ of a run: 1e-6, or 1/(10 · devices) if that is smaller."""
    return min(1e-6, 1 / (10 * devices))


def require_delta(delta: float, devices: int) -> None:
    """Raise `ParameterError` if δ is above 1/(10 · devices): publishing one random profile of n satisfies δ = 1/n."""
    limit = 1 / (10 * devices)
    if not 0 < delta <= limit:
        raise ParameterError(
            f"delta must be above 0 and at most 1/(10 · {devices} devices) = {limit:.3g}, got {delta}. Lower it."
        )


def _decimal(fraction: float) -> Fraction:
    """Return the nearest simple fraction, 7/100 for the float 0.07, so that ⌈0.07 · 100⌉ is 7."""
    return Fraction(fraction).limit_denominator(10**6)


def _require(holds: bool, name: str, must: str, given: float) -> None:
    if not holds:
        raise ParameterError(f"{name} must be {must}, got {given}.")
