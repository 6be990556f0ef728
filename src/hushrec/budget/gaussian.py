"""Gaussian differential privacy, measured by a number μ: conversion to (ε, δ), composition and the noise for a budget.

If one device changes a sum by at most Δ, and the sum has Gaussian noise of deviation σ, then μ = Δ/σ [Dong2022].
Mechanisms compose by adding their μ², even if later mechanisms depend on the results of earlier ones. Theorem 8 of
[Balle2018] gives δ(ε)::

    δ(ε) = Φ(μ/2 − ε/μ) − exp(ε) Φ(−μ/2 − ε/μ)

Devices add *discrete* Gaussian noise to integers. The summed noise of h honest devices, each of integer variance
V ≥ 16, is priced as continuous Gaussian noise of variance hV − 8. This is sound, because a sum with such continuous
noise, rounded at random, is distributed like the sum with discrete noise, up to a statistical distance of
`summing_distance` (docs/proofs.md, "Discrete noise"). Costs are rounded up and budgets down.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from scipy.special import log_ndtr

from hushrec.errors import ParameterError, require

SMALLEST_SHARE_VARIANCE = 16  # V, in squared grid units: a share has a deviation of at least 4 grid units
SMOOTHING_VARIANCE = 8  # subtracted from the variance of the discrete sum when it is priced, in squared grid units
DELTA_RESERVED = 1e-3  # fraction of δ that pays for statistical distances and for rounding in this module
LARGEST_EPSILON = 100.0
LEDGER_DELTA = 1e-6  # the largest δ at which a person's ledger states ε, and at which a person's own ε counts


def epsilon_of_mu(mu: float, delta: float) -> float:
    """Return the smallest ε for which μ-Gaussian privacy is (ε, δ)-differential privacy, rounded up.

    ε is found by bisection between 0 and μ²/2 + μ √(2 ln(1/δ)), an upper bound. It is infinite if μ is infinite.
    """
    require(mu >= 0, "mu", "at least 0", mu)
    require(0 < delta < 1, "delta", "above 0 and below 1", delta)
    if mu == 0 or mu == math.inf:
        return mu
    if _log_delta(mu, 0.0) <= math.log(delta):
        return 0.0
    upper = mu**2 / 2 + mu * math.sqrt(-2 * math.log(delta))
    return bisect_upper(lambda epsilon: _log_delta(mu, epsilon) <= math.log(delta), upper)


def mu_of_epsilon(epsilon: float, delta: float) -> float:
    """Return the largest μ that (ε, δ) allows, rounded down: the inverse of `epsilon_of_mu`."""
    require(epsilon >= 0, "epsilon", "at least 0", epsilon)
    require(0 < delta < 1, "delta", "above 0 and below 1", delta)
    if epsilon == math.inf:
        return math.inf
    exceeds: Callable[[float], bool] = lambda mu: _log_delta(mu, epsilon) > math.log(delta)  # noqa: E731
    upper = 1.0
    while not exceeds(upper):
        upper *= 2
    return math.nextafter(bisect_upper(exceeds, upper), 0.0)


def _log_delta(mu: float, epsilon: float) -> float:
    first = float(log_ndtr(mu / 2 - epsilon / mu))
    second = float(epsilon + log_ndtr(-mu / 2 - epsilon / mu))
    return first + math.log(-math.expm1(min(second - first, -1e-300)))


def bisect_upper(holds: Callable[[float], bool], upper: float) -> float:
    """Return the smallest float in (0, upper] for which `holds` is true, by bisection.

    `holds` must be false below that float and true from there on.
    """
    lower = 0.0
    while True:
        middle = (lower + upper) / 2
        if not lower < middle < upper:
            return upper
        if holds(middle):
            upper = middle
        else:
            lower = middle


def run_mu(epsilon: float, delta: float) -> float:
    """Return the μ of a whole run that guarantees (ε, δ), or ∞ for ε = ∞.

    A thousandth of δ is left unused, to pay for the statistical distance of discrete noise (`epsilon_at_distance`).
    """
    if not (0 < epsilon <= LARGEST_EPSILON or epsilon == math.inf):
        raise ParameterError(
            f"epsilon must be above 0 and at most {LARGEST_EPSILON:g}, or infinite for no noise, got {epsilon}. Choose"
            " a value such as 8; a smaller one protects more."
        )
    return mu_of_epsilon(epsilon, delta * (1 - DELTA_RESERVED))


def epsilon_at_distance(curve: Callable[[float], float], delta: float, distance: float) -> float:
    """Return ε at `delta` of a mechanism whose output has almost the distribution of a reference mechanism.

    `curve(δ)` is the ε of the reference mechanism at δ. `distance` is the statistical distance between the two outputs,
    which adds at most (1 + exp(ε)) · distance to δ. A thousandth of `delta` is reserved for this addition. The result
    is infinite if the addition can be larger.
    """
    epsilon = curve(delta * (1 - DELTA_RESERVED))
    if distance > 0 and epsilon + math.log(2 * distance) > math.log(delta * DELTA_RESERVED):
        return math.inf
    return epsilon


def zcdp_epsilon(rho: float, delta: float) -> float:
    """Return the smallest ε at `delta` that follows from ρ-zero-concentrated differential privacy.

    Proposition 12 of [Canonne2020] (arXiv v4) gives δ(ε) ≤ exp((α − 1)(αρ − ε)) (1 − 1/α)^α / (α − 1) for each α > 1;
    the function solves this for ε, and minimizes over α. The result is larger than that of `epsilon_of_mu`. Both are
    shown, because this bound follows from published theorems alone.
    """
    require(rho >= 0, "rho", "at least 0", rho)
    require(0 < delta < 1, "delta", "above 0 and below 1", delta)
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
    """The size of a cohort, and how many of its devices may drop out or be corrupt.

    The sum of a cohort is revealed only if the tables of at least the fraction `survivors` of its `devices` arrive. Of
    these devices, the fraction `corrupt` may be corrupt and add no noise. A malicious server may leave the tables of
    `omitted` others out of the sum. The noise of one device is chosen so that the noise of the `honest` survivors alone
    is enough.
    """

    devices: int
    survivors: float = 1.0
    corrupt: float = 0.0
    omitted: int = 0  # g: larger cohorts only, whose devices are not all neighbours of each other

    def __post_init__(self) -> None:
        require(self.devices >= 1, "devices", "at least 1", self.devices)
        require(0 < self.survivors <= 1, "survivors", "above 0 and at most 1", self.survivors)
        require(0 <= self.corrupt < 1, "corrupt", "at least 0 and below 1", self.corrupt)
        require(self.omitted >= 0, "omitted", "at least 0", self.omitted)
        if self.honest < 1:
            raise ParameterError(
                f"a cohort must have at least 1 honest device, got {self.smallest} survivors, of which"
                f" {self.most_corrupt} may be corrupt and {self.omitted} left out. Lower the option 'corrupt', or wait"
                " for more devices."
            )

    @property
    def smallest(self) -> int:
        """The smallest number of devices that must sign a list of survivors: n_min = ⌈survivors · devices⌉."""
        return math.ceil(_decimal(self.survivors) * self.devices)

    @property
    def most_corrupt(self) -> int:
        """The largest number of corrupt devices among the survivors: c_max = ⌈corrupt · n_min⌉."""
        return math.ceil(_decimal(self.corrupt) * self.smallest)

    @property
    def honest(self) -> int:
        """The smallest number of honest devices in a sum that a malicious server can learn: n_min − g − c_max."""
        return self.smallest - self.omitted - self.most_corrupt


def share_variance(norm_squared: int, mu: float, share: float, cohort: Cohort) -> int:
    """Return V, the smallest variance of one device's noise with which a block costs at most its share of μ².

    `mu` is the budget of the whole run, and `share` the fraction of μ² that the block may cost. V is in squared grid
    units: the smallest integer V ≥ 16 with hV − 8 ≥ Δ²/(share · μ²), for h = `cohort.honest` and Δ² = `norm_squared`. V
    is 0 for a run without noise (μ = ∞).
    """
    require(norm_squared >= 1, "norm_squared", "at least 1", norm_squared)
    require(mu > 0, "mu", "above 0", mu)
    require(0 < share <= 1, "share", "above 0 and at most 1", share)
    if mu == math.inf:
        return 0
    needed = norm_squared / (Fraction(mu) ** 2 * Fraction(share)) + SMOOTHING_VARIANCE
    return max(math.ceil(needed / cohort.honest), SMALLEST_SHARE_VARIANCE)


def block_mu_squared(norm_squared: int, variance: int, honest: int) -> float:
    """Return the cost of one block: μ² = norm_squared/(honest · variance − 8), rounded up.

    `norm_squared` is the largest squared norm of the block on one device, and `variance` the variance of one device's
    noise, both in squared grid units. `honest` is the number of devices whose noise is in the sum. The cost is 0 if
    `norm_squared` is 0, else infinite if the variance is below `SMALLEST_SHARE_VARIANCE`.
    """
    return _block_cost(norm_squared, variance, honest * variance - SMOOTHING_VARIANCE)


def block_rho(norm_squared: int, variance: int, honest: int) -> float:
    """Return the cost of one block in zCDP: ρ = norm_squared/(2 · honest · variance), rounded up [Canonne2020].

    The parameters are those of `block_mu_squared`, and the cost is 0 or infinite in the same cases.
    """
    return _block_cost(norm_squared, variance, 2 * honest * variance)


def _block_cost(norm_squared: int, variance: int, divisor: int) -> float:
    if norm_squared == 0:
        return 0.0
    if variance < SMALLEST_SHARE_VARIANCE:
        return math.inf
    return math.nextafter(norm_squared / divisor, math.inf)


def summing_distance(variance: int, honest: int) -> float:
    """Return the statistical distance of the summed discrete noise from the Gaussian noise of `block_mu_squared`.

    The result is a bound for one entry of a table: 4h θ(8), where h = `honest` and θ(v) = `smoothing_error(v)`. It adds
    up h steps, each of which costs at most 4 θ(8) (docs/proofs.md):

    - h − 1 additions. The sum of two discrete Gaussians of variances V₁ and V₂ is one discrete Gaussian of variance
      V₁ + V₂, up to a distance of 4 θ(v) with v = V₁V₂/(V₁ + V₂). When the noise of one more device, of variance
      V ≥ 16, is added to that of k devices, v is kV/(k + 1), which is at least V/2 ≥ 8.
    - One rounding. If x has a continuous Gaussian distribution of variance hV − 8, and is rounded to integer i with
      probability proportional to exp(−(i − x)²/16), the result is a discrete Gaussian of variance hV, up to a distance
      of 4 θ(8).
    """
    require(variance >= SMALLEST_SHARE_VARIANCE, "variance", f"at least {SMALLEST_SHARE_VARIANCE}", variance)
    return 4 * honest * smoothing_error(SMOOTHING_VARIANCE)


def smoothing_error(variance: float) -> float:
    """Return an upper bound of θ(v) = 2 Σⱼ exp(−2π²vj²), j = 1, 2, …, for v = `variance`.

    For every real c, the sum of exp(−(k − c)²/2v) over all integers k is between √(2πv) (1 − θ) and √(2πv) (1 + θ).
    """
    decay = math.exp(-2 * math.pi**2 * variance)
    return 2 * decay / (1 - decay)


def own_delta(delta: float) -> float:
    """Return the δ that belongs to the ε that a person allows one run: `delta`, but at most `LEDGER_DELTA`.

    The server chooses `delta`, the δ of the run. With a large δ, the same ε would allow far less noise.
    """
    return min(delta, LEDGER_DELTA)


def epsilon_at_own_delta(epsilon: float, delta: float) -> float:
    """Return what a run that costs `epsilon` at `delta` costs at `own_delta(delta)`."""
    own = own_delta(delta)
    return epsilon if own == delta else epsilon_of_mu(run_mu(epsilon, delta), own * (1 - DELTA_RESERVED))


def own_fraction(own_epsilon: float, epsilon: float, delta: float) -> float:
    """Return the factor μ(own_epsilon)/μ(epsilon) by which a device multiplies the largest norm of every block.

    `epsilon` is the budget of the run at `delta`, and `own_epsilon` the person's own budget at `own_delta(delta)`;
    `run_mu` gives μ. The factor is 1 if `own_epsilon` is at least `epsilon_at_own_delta`, and 0 if `own_epsilon` is 0:
    the device then sends zeros.
    """
    require(own_epsilon >= 0, "own_epsilon", "at least 0", own_epsilon)
    if own_epsilon >= epsilon_at_own_delta(epsilon, delta):
        return 1.0
    if own_epsilon == 0:
        return 0.0
    if epsilon == math.inf:
        raise ParameterError(
            f"own_epsilon must be inf or 0 in a run whose sums have no noise (epsilon = inf), got {own_epsilon:g}. To"
            " take part without any privacy budget, set inf with `hushrec device budget --epsilon inf`; with 0, your"
            " device sends zeros only. Otherwise do not join."
        )
    return min(run_mu(min(own_epsilon, LARGEST_EPSILON), own_delta(delta)) / run_mu(epsilon, delta), 1.0)


def own_norm_squared(norm_squared: int, fraction: float) -> int:
    """Return ⌊fraction² · norm_squared⌋: the largest squared norm of a block whose norm is multiplied by `fraction`."""
    require(0 <= fraction <= 1, "fraction", "from 0 to 1", fraction)
    return norm_squared if fraction == 1 else math.floor(Fraction(fraction) ** 2 * norm_squared)


def default_delta(devices: int) -> float:
    """Return the default δ of a run: 1e-6, or 1/(10 · devices) if that is smaller."""
    return min(LEDGER_DELTA, 1 / (10 * devices))


def require_delta(delta: float, devices: int) -> None:
    """Raise `ParameterError` unless δ is above 0 and at most 1/(10 · devices).

    A larger δ would promise little: publishing the profile of one random person of n already satisfies δ = 1/n.
    """
    limit = 1 / (10 * devices)
    if not 0 < delta <= limit:
        raise ParameterError(
            f"delta must be above 0 and at most 1/(10 · {devices} devices) = {limit:.3g}, got {delta}. Choose a"
            " value in this range."
        )


@functools.lru_cache(maxsize=64)
def _decimal(fraction: float) -> Fraction:
    """Return the nearest fraction with a denominator up to 10⁶: 7/100 for the float 0.07, so that ⌈0.07 · 100⌉ is 7."""
    return Fraction(fraction).limit_denominator(10**6) or Fraction(fraction)
