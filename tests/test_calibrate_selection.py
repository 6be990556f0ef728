"""The probabilities of the two-stage randomized response: exact, fast, and refused where there are none."""

import gzip
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import mpmath
import numpy as np
import opendp.prelude as dp
import pytest
from hypothesis import assume, given

from hushrec.budget.calibrate import LARGEST_EPSILON_I, calibrate_selection, smallest_epsilon_p
from hushrec.errors import ImpossibleBudget, ParameterError

FIELDS = ("prob_randomize", "prob_send_unrated", "prob_send_rated", "prob_send_zero", "prob_send_one")

budgets = st.builds(
    lambda n_items, rated, sent, epsilon_i, factor: (
        1 + round(rated * (n_items - 2)),
        n_items,
        n_items * sent,
        epsilon_i,
        epsilon_i * factor,
    ),
    st.integers(2, 5000),
    st.floats(0, 1),
    st.floats(1e-4, 0.9999),
    st.floats(-7, 2.4).map(lambda exponent: 10**exponent),
    st.floats(1.0, 4.0),
)


def bisected(holds: Callable[[Any], Any], low: Any, high: Any, steps: int) -> Any:
    """Where `holds` turns true, elementwise or in many digits, by nothing but halving."""
    for _ in range(steps):
        middle = (low + high) / 2
        true = holds(middle)
        low, high = (
            (np.where(true, low, middle), np.where(true, middle, high))
            if np.ndim(true)
            else ((low, middle) if true else (middle, high))
        )
    return (low + high) / 2


def brute_force(
    n_rated: Any, n_items: int, z: float, epsilon_i: Any, epsilon_p: Any, log: Any, exp: Any, steps: int
) -> Any:
    """f, p*, q*, p, q from the theorems as they are printed: two searches and a linear system of two."""
    h, m = n_rated, n_items

    def rated(unrated: Any) -> Any:
        """q* from Theorem 2 for a given p*."""
        odds = exp(epsilon_i / h) * unrated / (1 - unrated)
        return odds / (1 + odds)

    unrated = bisected(lambda p: h * rated(p) + (m - h) * p >= z, h * 0, h * 0 + 1, steps)
    f = bisected(lambda f: 2 * h * log((1 - f / 2) / (f / 2)) <= epsilon_p, h * 0, h * 0 + 1, steps)
    keep, flip = 1 - f / 2, f / 2
    determinant = keep**2 - flip**2
    zero = (keep * unrated - flip * rated(unrated)) / determinant
    one = (keep * rated(unrated) - flip * unrated) / determinant
    return f, unrated, rated(unrated), zero, one


def test_one_rating_of_two_items_is_worked_by_hand() -> None:
    """With h = 1, m = 2, z = 1: p* + q* = 1, so epsilon_i = 2 ln(q*/p*); epsilon_i = 2 ln 3 gives p* = 1/4, q* = 3/4.

    epsilon_p = 2 ln 9 gives (1 − f/2)/(f/2) = 9, f = 1/5. Then 9/10 p + 1/10 q = 1/4 and p + q = 1: p = 3/16.
    """
    found = calibrate_selection(1, 2, 1.0, 2 * np.log(3), 2 * np.log(9))
    assert [getattr(found, name) for name in FIELDS] == pytest.approx([1 / 5, 1 / 4, 3 / 4, 3 / 16, 13 / 16], abs=1e-15)


def test_random_budgets_agree_with_a_search_in_fifty_digits() -> None:
    """The closed form equals brute force to 1e-10, from epsilon/h = 1e-7 to hundreds."""
    random = np.random.default_rng(1)
    with mpmath.workdps(50):
        for _ in range(60):
            m = int(random.integers(2, 5000))
            h, z = int(random.integers(1, m)), float(random.uniform(0.001, 0.999) * m)
            epsilon_i = float(10 ** random.uniform(-5, 2.2))
            epsilon_p = smallest_epsilon_p(h, m, z, epsilon_i) * float(random.uniform(1 + 1e-9, 1.5))
            expected = brute_force(
                mpmath.mpf(h), m, z, mpmath.mpf(epsilon_i), mpmath.mpf(epsilon_p), mpmath.log, mpmath.exp, 170
            )
            found = calibrate_selection(h, m, z, epsilon_i, epsilon_p)
            for name, value in zip(FIELDS, expected, strict=True):
                assert abs(getattr(found, name) - value) < 1e-10


def assert_all_exact_and_fast(n_rated: Any, n_items: int) -> None:
    """All five probabilities against brute force, and the best time of five."""
    z = float(n_rated.mean())
    expected = brute_force(n_rated.astype(float), n_items, z, 4.0, 8.0, np.log, np.exp, 60)
    seconds = []
    for _ in range(5):
        start = time.thread_time()
        found = calibrate_selection(n_rated, n_items, z, 4.0, 8.0)
        seconds.append(time.thread_time() - start)
    for name, value in zip(FIELDS, expected, strict=True):
        np.testing.assert_allclose(getattr(found, name), value, rtol=0, atol=1e-10)
    assert min(seconds) < 0.02  # about 0.0002 on an idle machine


def test_a_population_is_calibrated_in_milliseconds() -> None:
    """943 clients at once, exact to 1e-10 against brute force."""
    assert_all_exact_and_fast(np.random.default_rng(2).integers(16, 600, 943), 1682)


@pytest.mark.data
def test_all_people_of_movielens_are_calibrated_in_milliseconds(data_dir: Path) -> None:
    """The same for the 943 people of ML-100K with their own numbers of ratings."""
    with gzip.open(data_dir / "ml-100k" / "u.data.gz", "rt") as lines:
        users = np.loadtxt(lines, usecols=0, dtype=np.int64)
    n_rated = np.bincount(users)[1:]
    assert len(n_rated) == 943
    assert_all_exact_and_fast(n_rated, 1682)


def test_arrays_and_scalars_give_the_same_bits() -> None:
    """A client finds for itself what a simulation finds for all, whichever arguments are arrays."""
    n_rated = np.array([1, 20, 85, 700])
    epsilon_i = np.array([0.5, 1.0, 4.0, 9.0])
    together = calibrate_selection(n_rated, 1682, 85.0, epsilon_i, 2 * epsilon_i)
    for index in range(4):
        alone = calibrate_selection(
            int(n_rated[index]), 1682, 85.0, float(epsilon_i[index]), float(2 * epsilon_i[index])
        )
        for name in FIELDS:
            assert isinstance(getattr(alone, name), float)
            assert getattr(alone, name) == pytest.approx(getattr(together, name)[index], rel=1e-14)


@given(budgets)
def test_the_probabilities_spend_exactly_the_budget(budget: tuple[int, int, float, float, float]) -> None:
    """Inverse of every formula: the theorems give back both epsilons, both stages p* and q*, and z are sent."""
    h, m, z, epsilon_i, epsilon_p = budget
    assume(epsilon_p >= smallest_epsilon_p(h, m, z, epsilon_i) and epsilon_p / h < 30)
    found = calibrate_selection(h, m, z, epsilon_i, epsilon_p)
    f, unrated, rated, zero, one = (getattr(found, name) for name in FIELDS)
    assert 0 < f < 1
    assert 0 <= zero <= unrated <= rated <= one <= 1
    assert h * rated + (m - h) * unrated == pytest.approx(z, rel=1e-12)
    assert (1 - f / 2) * zero + f / 2 * one == pytest.approx(unrated, rel=1e-12)
    assert f / 2 * zero + (1 - f / 2) * one == pytest.approx(rated, rel=1e-12)
    # The odds cancel when epsilon/h is tiny or a probability nears 1: the rounding of 1 − p is then seen.
    per_rating = np.log(rated) - np.log(unrated) + np.log1p(-unrated) - np.log1p(-rated)
    assert h * per_rating == pytest.approx(epsilon_i, rel=1e-9, abs=1e-14 * h / min(1 - rated, 1.0))
    assert 2 * h * (np.log1p(-f / 2) - np.log(f / 2)) == pytest.approx(epsilon_p, rel=1e-9, abs=1e-14 * h)


@pytest.mark.parametrize(("h", "epsilon_p"), [(1, 0.5), (1, 8.0), (4, 8.0), (20, 8.0), (85, 8.0), (600, 0.125)])
def test_opendp_prices_the_permanent_stage_alike(h: int, epsilon_p: float) -> None:
    """OpenDP's randomized response on bit vectors with at most h ones and our f costs epsilon_p."""
    dp.enable_features("contrib")
    f = calibrate_selection(h, 1682, 85.0, epsilon_p / 2, epsilon_p).prob_randomize
    measurement = dp.m.make_randomized_response_bitvec(dp.bitvector_domain(max_weight=h), dp.discrete_distance(), f=f)
    assert measurement.map(1) == pytest.approx(epsilon_p, rel=1e-10)


@given(budgets)
def test_twice_epsilon_i_always_works_and_less_than_epsilon_i_never(
    budget: tuple[int, int, float, float, float],
) -> None:
    """The smallest epsilon_p lies in [epsilon_i, 2 epsilon_i]."""
    h, m, z, epsilon_i, _ = budget
    assume(epsilon_i / h <= LARGEST_EPSILON_I)
    calibrate_selection(h, m, z, epsilon_i, 2 * epsilon_i)
    with pytest.raises(ImpossibleBudget):
        calibrate_selection(h, m, z, epsilon_i, epsilon_i * (1 - 1e-9))


def test_1500_impossible_budgets_are_refused_with_the_number_that_works() -> None:
    """Below the smallest epsilon_p nothing is returned; the number in the error and the one in its sentence work."""
    random = np.random.default_rng(3)
    for _ in range(1500):
        m = int(random.integers(2, 5000))
        h, z = int(random.integers(1, m)), float(random.uniform(0.001, 0.999) * m)
        epsilon_i = float(10 ** random.uniform(-4, 2))
        smallest = smallest_epsilon_p(h, m, z, epsilon_i)
        with pytest.raises(ImpossibleBudget) as refusal:
            calibrate_selection(h, m, z, epsilon_i, smallest * float(random.uniform(0.01, 1 - 1e-6)))
        assert refusal.value.smallest_epsilon_p == smallest
        in_words = float(str(refusal.value).split("at least ")[1].split()[0])
        assert smallest <= in_words < smallest * (1 + 1e-5)
        for enough in (smallest, smallest * (1 + 1e-9), in_words):
            found = calibrate_selection(h, m, z, epsilon_i, enough)
            assert 0 <= found.prob_send_zero <= found.prob_send_one <= 1
        f, keep = found.prob_randomize, 1 - found.prob_randomize / 2
        assert f / 2 * found.prob_send_zero + keep * found.prob_send_one == pytest.approx(
            found.prob_send_rated, rel=1e-9
        )


def test_the_refusal_is_right_that_no_probabilities_exist() -> None:
    """Solving for p and q a little below the smallest epsilon_p leaves [0, 1]: at p when z < m/2, at q above."""
    for z, below in ((85.0, True), (1600.0, False)):
        epsilon_p = smallest_epsilon_p(85, 1682, z, 4.0) * (1 - 1e-6)
        *_, zero, one = brute_force(np.float64(85), 1682, z, 4.0, epsilon_p, np.log, np.exp, 100)
        assert (zero < 0) == below
        assert (one > 1) != below


def test_the_smallest_epsilon_p_is_near_its_approximation() -> None:
    """About 2 max(s, 1 − s) epsilon_i with s = z/m, for small epsilon_i/h."""
    for z in (85.0, 841.0, 1500.0):
        share = max(z / 1682, 1 - z / 1682)
        assert smallest_epsilon_p(85, 1682, z, 0.01) == pytest.approx(2 * share * 0.01, rel=1e-3)


def test_the_refusal_of_one_client_is_a_sentence() -> None:
    """What must hold, what was given, what to do; and nothing about how much was rated."""
    with pytest.raises(ImpossibleBudget) as refusal:
        calibrate_selection(85, 1682, 85.0, 4.0, 5.0)
    assert all(part in str(refusal.value) for part in ("epsilon_p", "7.58751", "got 5", "epsilon_i"))
    assert "85" not in str(refusal.value).replace("7.58751", "")
    assert refusal.value.smallest_epsilon_p == pytest.approx(7.5875093544)


def test_the_refusal_of_many_clients_counts_them_and_names_the_largest_need() -> None:
    """For arrays: how many are affected, and an epsilon_p that works for all."""
    n_rated = np.array([20, 85, 300])
    needs = np.array([smallest_epsilon_p(int(count), 1682, 85.0, 4.0) for count in n_rated])
    with pytest.raises(ImpossibleBudget, match=r"epsilon_p .* 2 of 3") as refusal:
        calibrate_selection(n_rated, 1682, 85.0, 4.0, float(np.sort(needs)[0]))
    assert refusal.value.smallest_epsilon_p == needs.max()
    calibrate_selection(n_rated, 1682, 85.0, 4.0, refusal.value.smallest_epsilon_p)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((0, 10, 2.0, 1.0, 2.0), "n_rated .* 9.* 1 of 1"),
        ((10, 10, 2.0, 1.0, 2.0), "n_rated"),
        ((1.5, 10, 2.0, 1.0, 2.0), "n_rated"),
        ((np.array([0, 3, 10]), 10, 2.0, 1.0, 2.0), "n_rated .* 2 of 3"),
        ((3, 10, 0.0, 1.0, 2.0), "reports_per_client .* got 0.0"),
        ((3, 10, 10.0, 1.0, 2.0), "reports_per_client .* got 10.0"),
        ((3, 10, float("nan"), 1.0, 2.0), "reports_per_client .* got nan"),
        ((3, 10, 2.0, 0.0, 2.0), "epsilon_i .* got 0.0"),
        ((3, 10, 2.0, float("inf"), 2.0), "epsilon_i .* got inf"),
        ((3, 10, 2.0, 1.0, float("nan")), "epsilon_p .* got nan"),
        ((3, 10, 2.0, 1.0, -2.0), "epsilon_p .* got -2.0"),
        ((np.array([3, 4]), 10, 2.0, np.array([1.0, -1.0]), 2.0), "epsilon_i .* got -1.0"),
        ((1, 10, 2.0, 301.0, 602.0), "epsilon_i .* 300, got 301.0"),
        ((1, 10, 2.0, 300.0, 601.0), "epsilon_p .* 600, got 601.0"),
    ],
)
def test_parameters_outside_the_formula_are_refused_by_name(arguments: Any, sentence: str) -> None:
    """Every bound of the formulas has its own refusal."""
    with pytest.raises(ParameterError, match=sentence) as refusal:
        calibrate_selection(*arguments)
    assert not isinstance(refusal.value, ImpossibleBudget)


def test_tiny_and_huge_epsilon_keep_every_digit() -> None:
    """No overflow, and no probability lost to rounding, at both ends of what is accepted."""
    tiny = calibrate_selection(1000, 1682, 85.0, 1e-12, 2e-12)
    assert tiny.prob_send_rated - tiny.prob_send_unrated == pytest.approx(0, abs=1e-15)
    assert tiny.prob_randomize == pytest.approx(1, abs=1e-15)
    for z in (0.5, 85.0):  # b ≥ 0 and b < 0: fewer, or more, reports than ratings
        huge = calibrate_selection(1, 1682, z, 300.0, 600.0)
        assert huge.prob_randomize == pytest.approx(2 * np.exp(-300.0), rel=1e-12)
        assert huge.prob_send_unrated > 0
        assert huge.prob_send_rated + 1681 * huge.prob_send_unrated == pytest.approx(z, rel=1e-12)


def test_the_probabilities_are_not_printed() -> None:
    """They tell how many items are rated, so no repr shows them."""
    assert "0." not in repr(calibrate_selection(85, 1682, 85.0, 4.0, 8.0)).replace("0x", "")
