"""The bound of the fake errors solves its equation everywhere, and the fakes follow the truncated normal inside it."""

import math
import time
from typing import Any

import hypothesis.strategies as st
import mpmath
import numpy as np
import pytest
from hypothesis import given
from scipy import stats

from hushrec.budget.calibrate import fake_error_bound
from hushrec.errors import ParameterError
from hushrec.mechanisms.fake_errors import fake_errors

FALSE_ALARM = 1e-6  # of each statistical test below


def exact_epsilon(mean: float, deviation: float, bound: float) -> float:
    """−ln P(|X| < bound) for a normal X, in many digits: what `fake_error_bound` inverts."""
    with mpmath.workdps(400):
        scale = mpmath.mpf(deviation) * mpmath.sqrt(2)
        upper, lower = (mpmath.mpf(bound) - mean) / scale, (-mpmath.mpf(bound) - mean) / scale
        inside = (mpmath.erfc(-upper) - mpmath.erfc(-lower)) / 2
        return float(-mpmath.log(inside))


@pytest.mark.parametrize(
    ("mean", "deviation", "epsilon_g"),
    [
        (0.1, 0.9, 4.0),
        (-0.1, 0.9, 4.0),
        (0.1, 0.9, 0.0625),
        (0.1, 0.9, 50.0),
        (0.1, 0.9, 1e-9),
        (0.0, 1.0, 1e-300),
        (5.0, 1e-3, 4.0),
        (5.0, 1e-3, 50.0),
        (-5.0, 1e-3, 1e-9),
        (9.0, 1.0, 50.0),
        (2.0, 1e-9, 4.0),
        (1e-9, 2.0, 4.0),
        (3.0, 100.0, 12.0),
    ],
)
def test_the_bound_holds_exactly_the_share_that_epsilon_g_names(
    mean: float, deviation: float, epsilon_g: float
) -> None:
    """Inverse: −ln P(|X| < α) is epsilon_g, from above by at most what a relative 1e-10 in α makes of it."""
    bound = fake_error_bound(mean, deviation, epsilon_g)
    assert exact_epsilon(mean, deviation, bound) <= epsilon_g
    assert exact_epsilon(mean, deviation, bound * (1 - 1e-10)) >= epsilon_g


@given(st.floats(-5, 5), st.floats(-4, 2), st.floats(-8, 2))
def test_the_bound_is_the_inverse_of_its_formula(mean: float, log_deviation: float, log_epsilon: float) -> None:
    """For any mean, deviation and epsilon_g in reach, the root lies just below what is returned."""
    deviation, epsilon_g = 10**log_deviation, 10**log_epsilon
    bound = fake_error_bound(mean, deviation, epsilon_g)
    assert exact_epsilon(mean, deviation, bound) <= epsilon_g <= exact_epsilon(mean, deviation, bound * (1 - 1e-9))


def test_the_bound_has_its_limits() -> None:
    """At epsilon_g = 0 nothing is bounded, at ∞ only zero is left, without spread only the mean."""
    assert fake_error_bound(0.3, 0.9, 0.0) == math.inf
    assert fake_error_bound(0.3, 0.9, math.inf) == 0.0
    assert fake_error_bound(-0.3, 0.0, 4.0) == 0.3
    assert fake_error_bound(-0.3, 1e-17, 4.0) == 0.3
    assert fake_error_bound(0.0, 0.0, 0.0) == math.inf
    assert 0 < fake_error_bound(0.0, 1.0, 1e4) < 1e-299


def test_a_larger_epsilon_g_makes_a_smaller_bound() -> None:
    """The bound falls strictly, over the paper's values and beyond."""
    bounds = [fake_error_bound(0.2, 0.9, epsilon) for epsilon in (0.01, 0.0625, 0.25, 1.0, 4.0, 16.0, 64.0)]
    assert bounds == sorted(bounds, reverse=True)
    assert len(set(bounds)) == len(bounds)


def test_one_bound_takes_microseconds() -> None:
    """It is found for every client in every round: 20 µs on an idle machine."""
    best = math.inf
    for _ in range(5):
        start = time.thread_time()
        for _ in range(100):
            fake_error_bound(0.1, 0.9, 4.0)
        best = min(best, time.thread_time() - start)
    assert best / 100 < 2e-4


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((math.nan, 1.0, 4.0), "mean and deviation"),
        ((math.inf, 1.0, 4.0), "mean and deviation"),
        ((0.25, -1.0, 4.0), "mean and deviation"),
        ((0.25, math.nan, 4.0), "mean and deviation"),
        ((0.25, 1.0, -4.0), "epsilon_g .* got -4.0"),
        ((0.25, 1.0, math.nan), "epsilon_g .* got nan"),
    ],
)
def test_a_bound_of_nonsense_is_refused_without_echo(arguments: Any, sentence: str) -> None:
    """Mean and deviation come from ratings, so they are not shown."""
    with pytest.raises(ParameterError, match=sentence) as refusal:
        fake_error_bound(*arguments)
    assert "0.25" not in str(refusal.value)


def truncated(mean: float, deviation: float, bound: float) -> Any:
    """The oracle: scipy's truncated normal."""
    return stats.truncnorm((-bound - mean) / deviation, (bound - mean) / deviation, mean, deviation)


@pytest.mark.parametrize(
    ("mean", "deviation", "epsilon_g"),
    [(0.1, 0.9, 4.0), (-0.7, 0.9, 0.0625), (0.2, 0.9, 1e-9), (5.0, 1e-3, 4.0), (-5.0, 0.5, 50.0), (0.3, 1.0, 6.0)],
)
def test_fakes_have_the_quantiles_of_the_truncated_normal(
    mean: float, deviation: float, epsilon_g: float, rng: np.random.Generator
) -> None:
    """Kolmogorov–Smirnov against scipy's truncnorm; false-alarm rate 1e-6 each. Never outside the bound."""
    bound = fake_error_bound(mean, deviation, epsilon_g)
    fakes = fake_errors(20_000, mean, deviation, bound, rng=rng)
    assert np.all(np.abs(fakes) <= bound)
    assert stats.kstest(fakes, truncated(mean, deviation, bound).cdf).pvalue > FALSE_ALARM


class Ramp:
    """A stream whose uniforms are given, to read off the quantile function."""

    def __init__(self, uniforms: Any) -> None:
        self.uniforms = np.asarray(uniforms, dtype=np.float64)

    def random(self, size: Any, /) -> Any:
        return self.uniforms

    standard_normal = integers = random


@pytest.mark.parametrize(("mean", "bound"), [(0.4, 0.02), (-0.4, 0.02), (0.4, 3.0), (-8.0, 5.0)])
def test_the_quantile_function_is_scipys(mean: float, bound: float) -> None:
    """Uniform u gives the quantile of 1 − u for mean ≥ 0, mirrored for mean < 0; to 1e-9 of the bound."""
    uniforms = np.linspace(0, 1, 101)[:-1]
    found = fake_errors(100, mean, 0.9, bound, rng=Ramp(uniforms))
    oracle = truncated(abs(mean), 0.9, bound).ppf(1 - uniforms) * math.copysign(1, mean)
    np.testing.assert_allclose(found, oracle, rtol=0, atol=1e-9 * bound)


@pytest.mark.parametrize("mean", [0.0, 1e-14, 0.5, -3.0, 3e4])
def test_narrow_and_wide_intervals_meet(mean: float) -> None:
    """Just below and just above the width where the formula changes, quantiles relative to the bound agree."""
    uniforms = np.linspace(0, 1, 51)[:-1]
    below, above = (fake_errors(50, mean, 1.0, bound, rng=Ramp(uniforms)) / bound for bound in (0.99999e-4, 1.00001e-4))
    np.testing.assert_allclose(below, above, rtol=0, atol=2e-4)
    assert below[0] == math.copysign(1, mean)
    assert np.all(np.diff(below * math.copysign(1, mean)) < 0)


def test_fakes_in_an_interval_below_rounding_are_spread_over_it(rng: np.random.Generator) -> None:
    """At epsilon_g = 50 the bound is 1e-22 of the deviation, far below the spacing of doubles near the mean."""
    bound = fake_error_bound(1.0, 1.0, 50.0)
    fakes = fake_errors(10_000, 1.0, 1.0, bound, rng=rng)
    assert stats.kstest(fakes / bound, stats.uniform(-1, 2).cdf).pvalue > FALSE_ALARM


def test_fakes_without_a_bound_are_normal(rng: np.random.Generator) -> None:
    """epsilon_g = 0: the normal itself; Kolmogorov–Smirnov, false-alarm rate 1e-6."""
    fakes = fake_errors(20_000, 0.2, 0.9, math.inf, rng=rng)
    assert stats.kstest(fakes, stats.norm(0.2, 0.9).cdf).pvalue > FALSE_ALARM


def test_fakes_have_their_limits(rng: np.random.Generator) -> None:
    """Bound 0 gives zeros; no spread gives the mean, or the end of the interval nearest to it; none gives none."""
    assert fake_errors(3, 0.2, 0.9, 0.0, rng=rng).tolist() == [0, 0, 0]
    assert fake_errors(2, -0.2, 0.0, 0.2, rng=rng).tolist() == [-0.2, -0.2]
    assert fake_errors(2, -0.2, 0.0, math.inf, rng=rng).tolist() == [-0.2, -0.2]
    assert fake_errors(2, -0.2, 0.0, 0.1, rng=rng).tolist() == [-0.1, -0.1]
    assert fake_errors(0, 0.2, 0.9, 0.5, rng=rng).shape == (0,)


@given(st.floats(-5, 5), st.floats(0, 10), st.floats(0, 20), st.integers(0, 2**32))
def test_no_fake_is_ever_outside_its_bound(mean: float, deviation: float, bound: float, seed: int) -> None:
    """Whatever the numbers, the interval holds and no fake is NaN."""
    fakes = fake_errors(50, mean, deviation, bound, rng=np.random.default_rng(seed))
    assert np.all(np.abs(fakes) <= bound)


@pytest.mark.parametrize(
    "arguments", [(math.nan, 1.0, 1.0), (0.25, -1.0, 1.0), (0.25, math.inf, 1.0), (0.25, 1.0, -1.0)]
)
def test_fakes_of_nonsense_are_refused_without_echo(arguments: Any, rng: np.random.Generator) -> None:
    """Mean and deviation come from ratings, so they are not shown."""
    with pytest.raises(ParameterError, match="mean and deviation") as refusal:
        fake_errors(3, *arguments, rng=rng)
    assert "0.25" not in str(refusal.value)
