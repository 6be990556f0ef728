"""Gaussian budgets: the exact trade-off and back, against dp-accounting, for discrete noise, cohorts and persons."""

import math
from fractions import Fraction

import numpy as np
import pytest
from dp_accounting import gaussian_mechanism
from dp_accounting.pld import privacy_loss_distribution
from dp_accounting.rdp import rdp_privacy_accountant
from hypothesis import given
from hypothesis import strategies as st

from hushrec.budget.accountants import TableAccountant
from hushrec.budget.events import BlockSent, TableSent
from hushrec.budget.gaussian import (
    DELTA_RESERVED,
    Cohort,
    block_mu_squared,
    block_rho,
    default_delta,
    epsilon_at_distance,
    epsilon_of_mu,
    mu_of_epsilon,
    own_fraction,
    own_norm_squared,
    require_delta,
    run_mu,
    share_variance,
    smoothing_error,
    summing_distance,
    zcdp_epsilon,
)
from hushrec.errors import ParameterError


@pytest.mark.parametrize("delta", [1e-3, 1e-6, 1e-12])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.5, 1.0, 4.0, 8.0, 16.0, 100.0])
def test_mu_and_epsilon_are_inverse(epsilon: float, delta: float) -> None:
    """From a budget to μ and back is the same budget; μ is on the safe side, the next one is not."""
    mu = mu_of_epsilon(epsilon, delta)
    assert epsilon_of_mu(mu, delta) == pytest.approx(epsilon, rel=1e-9, abs=1e-12)
    assert epsilon_of_mu(mu * (1 + 1e-6), delta) > epsilon


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0, 8.0, 16.0])
def test_mu_agrees_with_the_deviation_of_another_library(epsilon: float) -> None:
    """dp-accounting's σ for sensitivity 1 is 1/μ."""
    sigma = gaussian_mechanism.get_sigma_gaussian(epsilon, 1e-6, tol=1e-13)
    assert mu_of_epsilon(epsilon, 1e-6) == pytest.approx(1 / sigma, rel=1e-9)


def test_the_published_numbers_are_these() -> None:
    """DESIGN and RECIPE: μ at ε = 8 and 1; replaced profiles and the zCDP bound at ε = 8, 4 and 1, all at δ = 1e-6."""
    mus = [mu_of_epsilon(epsilon, 1e-6) for epsilon in (8, 4, 1)]
    assert (round(mus[0], 3), round(mus[2], 4)) == (1.532, 0.2367)
    assert [round(epsilon_of_mu(2 * mu, 1e-6), 2) for mu in mus] == [18.65, 8.90, 2.12]
    assert [round(zcdp_epsilon(mu**2 / 2, 1e-6), 2) for mu in mus] == [8.52, 4.28, 1.08]


def test_rounds_compose_to_the_convolution_of_their_loss_distributions() -> None:
    """Three rounds of Δ/σ = 0.3, 0.7 and 1.1 cost what dp-accounting's convolution says, for μ² = Σ (Δ/σ)²."""
    ratios = [0.3, 0.7, 1.1]
    laws = [privacy_loss_distribution.from_gaussian_mechanism(1 / ratio) for ratio in ratios]
    oracle = laws[0].compose(laws[1]).compose(laws[2]).get_epsilon_for_delta(1e-6)
    assert epsilon_of_mu(math.hypot(*ratios), 1e-6) == pytest.approx(oracle, abs=1e-3)


@pytest.mark.parametrize("rho", [1e-3, 0.028, 1.17, 20.0])
def test_the_zcdp_bound_is_that_of_another_library(rho: float) -> None:
    """The same conversion over dp-accounting's grid of orders, which is coarser: never below ours, and near it."""
    orders = np.concatenate([1 + np.geomspace(1e-3, 1, 400), np.geomspace(2.01, 1e5, 4000)])
    oracle, _ = rdp_privacy_accountant.compute_epsilon(orders, orders * rho, 1e-6)
    ours = zcdp_epsilon(rho, 1e-6)
    assert epsilon_of_mu(math.sqrt(2 * rho), 1e-6) < ours <= oracle + 1e-9
    assert ours == pytest.approx(oracle, abs=1e-3)


@pytest.mark.parametrize(("variance", "norm"), [(16, 2), (100, 4), (225, 15), (900, 46), (10_000, 24)])
def test_the_price_of_discrete_noise_is_an_upper_bound(variance: int, norm: int) -> None:
    """In one dimension the discrete Gaussian's exact curve is known: our μ is above it, by less than 8 / variance."""
    exact = discrete_curve(variance, norm)
    mu = math.sqrt(block_mu_squared(norm**2, variance, 1))
    for epsilon in np.linspace(0.05, 3, 9) * norm / math.sqrt(variance):
        assert exact(epsilon) <= gaussian_delta(mu, epsilon)
    assert mu**2 == pytest.approx(norm**2 / variance, rel=1.001 * 8 / (variance - 8))


def test_the_discrete_curve_is_not_under_the_continuous_one() -> None:
    """So noise that is priced by its own variance alone would be under-priced: the correction is needed."""
    norm, variance = 4, 16
    exact = discrete_curve(variance, norm)
    excess = [
        exact(epsilon) - gaussian_delta(norm / math.sqrt(variance), epsilon) for epsilon in np.linspace(0, 4, 400)
    ]
    assert max(excess) > 0


def discrete_curve(variance: int, norm: int):  # type: ignore[no-untyped-def]
    """δ(ε) of the discrete Gaussian against itself moved by `norm`, by summing its probabilities."""
    points = np.arange(-40 * math.isqrt(variance), 40 * math.isqrt(variance) + 1)
    weights = np.exp(-(points**2) / (2 * variance))
    loss = norm * (2 * points - norm) / (2 * variance)  # ln P(x − norm)/P(x) at x, drawn from P(x − norm) below
    moved = np.exp(-((points - norm) ** 2) / (2 * variance)) / weights.sum()
    return lambda epsilon: float(np.sum(moved * np.clip(-np.expm1(epsilon - loss), 0, None)))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """δ(ε) of a μ-Gaussian mechanism, as dp-accounting has it."""
    return privacy_loss_distribution.privacy_loss_mechanism.GaussianPrivacyLoss(1 / mu).get_delta_for_epsilon(epsilon)


@given(st.floats(0.25, 9.0), st.floats(-1.0, 1.0))
def test_a_shifted_lattice_sum_stays_within_the_smoothing_error(variance: float, shift: float) -> None:
    """Σₖ exp(−(k − c)²/2v) is √(2πv) (1 ± θ(v)), whatever c."""
    points = np.arange(-60, 61)
    total = float(np.sum(np.exp(-((points - shift) ** 2) / (2 * variance))))
    assert abs(total / math.sqrt(2 * math.pi * variance) - 1) <= smoothing_error(variance) + 1e-14


def test_two_shares_add_up_to_a_discrete_gaussian_within_the_stated_factor() -> None:
    """V = 1/2 and 1/3 are small enough for the difference to show: it is there, and within (1 + θ)/(1 − θ)."""
    points = np.arange(-30, 31)
    law = lambda variance: (lambda w: w / w.sum())(np.exp(-(points**2) / (2 * variance)))  # noqa: E731
    first, second = 1 / 2, 1 / 3
    summed = np.convolve(law(first), law(second), mode="same")
    middle = slice(22, 39)
    factor = np.abs(np.log(summed[middle] / law(first + second)[middle])).max()
    theta = smoothing_error(first * second / (first + second))
    assert 0.01 < factor <= math.log((1 + theta) / (1 - theta))


def test_the_summing_distance_is_negligible_for_any_fleet() -> None:
    """A million devices and a million numbers: below 1e-50. Too small a variance has no bound and is refused."""
    assert 0 < 1e6 * summing_distance(16, 10**6) < 1e-50
    with pytest.raises(ParameterError, match="variance"):
        summing_distance(15, 10)


def test_distance_is_paid_from_the_reserved_part_of_delta() -> None:
    """A tiny distance costs the reserve alone; a large one has no finite ε."""
    curve = lambda delta: epsilon_of_mu(1.5, delta)  # noqa: E731
    assert epsilon_at_distance(curve, 1e-6, 1e-20) == curve(1e-6 * (1 - DELTA_RESERVED))
    assert epsilon_at_distance(curve, 1e-6, 1e-12) == math.inf


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 8.0, 16.0])
def test_a_run_never_costs_more_than_it_promises(epsilon: float) -> None:
    """Blocks of a plan sized with `share_variance` compose to at most μ², and to ε rounded up by nothing visible."""
    cohort = Cohort(943, survivors=2 / 3, corrupt=0.1)
    mu, shares, norms = run_mu(epsilon, 1e-6), [0.08, 0.01, 0.15, 0.36, 0.4], [10**5, 37, 4 * 10**6, 10**8, 10**9 + 7]
    accountant = TableAccountant()
    for share, norm_squared in zip(shares, norms, strict=True):
        variance = share_variance(norm_squared, mu, share, cohort)
        block = BlockSent(norm_squared, variance, cohort.honest, summing_distance(variance, cohort.honest) * 10**5)
        accountant.compose(TableSent((block,)))
    assert mu**2 * (1 - 1e-2) < accountant.spent() <= mu**2 * (1 + 1e-12)
    assert epsilon * 0.99 < accountant.epsilon(1e-6) <= epsilon * (1 + 1e-9)
    assert accountant.epsilon(1e-6) < accountant.zcdp_epsilon(1e-6) < 1.1 * epsilon
    assert accountant.replaced_epsilon(1e-6) > 2 * accountant.epsilon(1e-6)


def test_the_noise_of_a_cohort_is_sized_by_hand() -> None:
    """Δ² = 1000, μ = 2, share 1/4: Δ²/μ²f = 1000, plus 8, over 9 − 3 = 6 honest devices is 168."""
    cohort = Cohort(9, survivors=1.0, corrupt=1 / 3)
    assert (cohort.smallest, cohort.most_corrupt, cohort.honest) == (9, 3, 6)
    assert share_variance(1000, 2.0, 0.25, cohort) == 168
    assert block_mu_squared(1000, 168, 6) == pytest.approx(1.0, rel=1e-15)
    assert block_rho(1000, 168, 6) == pytest.approx(1000 / (2 * 168 * 6), rel=1e-15)


@given(st.integers(1, 2**60), st.floats(1e-3, 10), st.floats(1e-4, 1), st.integers(1, 10**6), st.floats(0.01, 1))
def test_sized_noise_always_pays_its_share(
    norm_squared: int, mu: float, share: float, devices: int, part: float
) -> None:
    """The bound hV − 8 ≥ Δ²/(μ² f) holds exactly, in rational numbers, and V is at least 16."""
    cohort = Cohort(devices, survivors=part)
    variance = share_variance(norm_squared, mu, share, cohort)
    assert variance >= 16
    assert (cohort.honest * variance - 8) * Fraction(mu) ** 2 * Fraction(share) >= norm_squared


def test_fractions_of_a_cohort_are_decimal_numbers() -> None:
    """0.07 of 100 devices are 7 and not ⌈7.000000000000001⌉; both parts round up."""
    assert Cohort(100, corrupt=0.07).most_corrupt == 7
    assert Cohort(100, corrupt=1e-7).most_corrupt == 1
    assert (Cohort(10, survivors=2 / 3).smallest, Cohort(9, survivors=2 / 3).smallest) == (7, 6)


def test_no_budget_is_no_noise_at_an_infinite_cost() -> None:
    """ε = ∞: variance 0 and an infinite price, except for zeros, which tell nothing."""
    assert run_mu(math.inf, 1e-6) == math.inf
    assert share_variance(1000, math.inf, 0.5, Cohort(10)) == 0
    accountant = TableAccountant()
    accountant.compose(TableSent((BlockSent(0, 0, 10, 0.0),)))
    assert (accountant.epsilon(1e-6), accountant.zcdp_epsilon(1e-6)) == (0.0, 0.0)
    accountant.compose(TableSent((BlockSent(1000, 0, 10, 0.0),)))
    assert {accountant.spent(), accountant.epsilon(1e-6), accountant.zcdp_epsilon(1e-6)} == {math.inf}


def test_a_budget_of_ones_own_scales_the_norm() -> None:
    """With k = μ(2)/μ(8) the squared norm is ⌊k²Δ²⌋ and costs μ²(2) of the run's μ²(8)."""
    fraction = own_fraction(2.0, 8.0, 1e-6)
    assert fraction == pytest.approx(mu_of_epsilon(2, 1e-6) / mu_of_epsilon(8, 1e-6), rel=1e-4)
    norm_squared = own_norm_squared(10**9, fraction)
    assert norm_squared <= fraction**2 * 10**9 < norm_squared + 1
    variance = share_variance(10**9, run_mu(8.0, 1e-6), 1.0, Cohort(100))
    own = TableAccountant()
    own.compose(TableSent((BlockSent(norm_squared, variance, 100, 0.0),)))
    assert own.epsilon(1e-6) == pytest.approx(2.0, rel=1e-6)


def test_budgets_of_ones_own_at_the_ends() -> None:
    """More than the run's is the run's; nothing sends zeros; without noise there is nothing in between."""
    assert own_fraction(9.0, 8.0, 1e-6) == own_fraction(8.0, 8.0, 1e-6) == own_fraction(math.inf, math.inf, 1e-6) == 1.0
    assert own_fraction(0.0, 8.0, 1e-6) == own_fraction(0.0, math.inf, 1e-6) == 0.0
    assert (own_norm_squared(10**18 + 1, 1.0), own_norm_squared(10**18, 0.0)) == (10**18 + 1, 0)
    with pytest.raises(ParameterError, match="own_epsilon"):
        own_fraction(1.0, math.inf, 1e-6)


def test_delta_depends_on_the_number_of_devices() -> None:
    """At most 1/(10 · devices), and 1e-6 by default."""
    assert (default_delta(943), default_delta(480_000)) == (1e-6, 1 / 4_800_000)
    require_delta(default_delta(480_000), 480_000)
    for delta in (1e-6, 0.0, -1.0, math.nan):
        with pytest.raises(ParameterError, match="delta"):
            require_delta(delta, 480_000)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: epsilon_of_mu(-1.0, 1e-6), "mu"),
        (lambda: epsilon_of_mu(1.0, 0.0), "delta"),
        (lambda: mu_of_epsilon(-1.0, 1e-6), "epsilon"),
        (lambda: mu_of_epsilon(1.0, 1.0), "delta"),
        (lambda: mu_of_epsilon(math.nan, 1e-6), "epsilon"),
        (lambda: run_mu(0.0, 1e-6), "epsilon"),
        (lambda: run_mu(101.0, 1e-6), "epsilon"),
        (lambda: zcdp_epsilon(-1.0, 1e-6), "rho"),
        (lambda: zcdp_epsilon(1.0, 2.0), "delta"),
        (lambda: Cohort(0), "devices"),
        (lambda: Cohort(10, survivors=0.0), "survivors"),
        (lambda: Cohort(10, corrupt=1.0), "corrupt"),
        (lambda: Cohort(1, corrupt=0.1), "honest"),
        (lambda: share_variance(0, 1.0, 0.5, Cohort(10)), "norm_squared"),
        (lambda: share_variance(10, 0.0, 0.5, Cohort(10)), "mu"),
        (lambda: share_variance(10, 1.0, 0.0, Cohort(10)), "share"),
        (lambda: own_fraction(-1.0, 8.0, 1e-6), "own_epsilon"),
        (lambda: own_norm_squared(10, 1.1), "fraction"),
        (lambda: BlockSent(-1, 16, 10, 0.0), "norm_squared"),
    ],
)
def test_impossible_budgets_are_refused(call, name) -> None:  # type: ignore[no-untyped-def]
    """One sentence that names the parameter."""
    with pytest.raises(ParameterError, match=name):
        call()


def test_an_event_does_not_show_a_persons_own_budget() -> None:
    """The norm of one's own stays out of the repr."""
    assert "12345" not in repr(TableSent((BlockSent(12345, 16, 10, 0.0),)))
