"""How attacks are scored."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import binom, spearmanr

from hushrec.audit.error_laws import ErrorLaw, fit_law, growing_spans
from hushrec.audit.rating_grid import weighted_median
from hushrec.audit.selection import log_ratio
from hushrec.audit.statistics import (
    KernelRidge,
    auc,
    auc_interval,
    ceiling_auc,
    correlation_interval,
    epsilon_ruled_out,
    folds,
    mean_interval,
    rank_correlation,
    rate_at,
    roc,
    share_interval,
)
from hushrec.budget.calibrate import calibrate_selection, fake_error_bound
from hushrec.mechanisms.fake_errors import fake_errors


def test_auc_is_the_share_of_pairs_in_order():
    """Of the pairs (3, 1), (3, 2), (2, 1), (2, 2) three are in order and one is a tie: 3.5 / 4."""
    assert auc(np.array([3.0, 2.0, 1.0, 2.0]), np.array([True, True, False, False])) == 3.5 / 4


def test_auc_of_one_class_is_not_a_number():
    """Without both kinds there is nothing to tell apart."""
    assert math.isnan(auc(np.array([1.0, 2.0]), np.array([True, True])))


def test_roc_joins_ties_by_a_line():
    """All scores alike: the curve is the diagonal, so one in a hundred is found at 1 %."""
    scores, labels = np.zeros(200), np.arange(200) < 100
    false_rates, true_rates = roc(scores, labels)
    assert false_rates.tolist() == true_rates.tolist() == [0.0, 1.0]
    assert rate_at(scores, labels) == pytest.approx(0.01)


@given(st.integers(1, 60), st.integers(0, 60))
def test_clopper_pearson_holds_its_level(trials, successes):
    """At either end of the interval, the observation has probability one half of the error: the definition."""
    successes = min(successes, trials)
    low, high = share_interval(successes, trials)
    assert low <= successes / trials <= high
    if successes:
        assert binom.sf(successes - 1, trials, low) == pytest.approx(0.025, rel=1e-6)
    if successes < trials:
        assert binom.cdf(successes, trials, high) == pytest.approx(0.025, rel=1e-6)


@given(st.floats(0.05, 5), st.integers(20, 500))
def test_epsilon_that_is_ruled_out_and_the_chance_of_it_are_inverse(epsilon, guesses):
    """The ε returned is the one under which this many correct guesses have probability 5 %."""
    correct = round(guesses * float(expit(epsilon)))
    found = epsilon_ruled_out(correct, guesses)
    if found > 0:
        assert binom.sf(correct - 1, guesses, expit(found)) == pytest.approx(0.05, rel=1e-5)
        assert found < epsilon + 2


def test_chance_rules_nothing_out():
    """Half of the coins, or none, says nothing."""
    assert epsilon_ruled_out(50, 100) == 0
    assert epsilon_ruled_out(0, 100) == 0
    assert epsilon_ruled_out(100, 100) == pytest.approx(math.log(0.05 ** (1 / 100) / (1 - 0.05 ** (1 / 100))))


def test_ceiling_is_reached_by_randomized_response():
    """A bit kept with probability e^ε / (1 + e^ε) has exactly that AUC."""
    kept = float(ceiling_auc(1.3))
    true, false = kept, 1 - kept  # share of reports "1" among true and false bits
    assert true * (1 - false) + 0.5 * (true * false + (1 - true) * (1 - false)) == pytest.approx(kept)


def test_selection_log_ratio_never_exceeds_the_permanent_budget():
    """However many rounds, one item's evidence stays within ε_P / 2h."""
    chances = calibrate_selection(30, 500, 40.0, 4.0, 8.0)
    for rounds in (1, 100, 100_000):
        counts = np.unique(np.linspace(0, rounds, 50).astype(int))
        ratios = log_ratio(counts, rounds, chances)
        assert np.abs(ratios).max() <= 8 / 60 * (1 + 1e-9)


@pytest.mark.parametrize("noise", [0.01, 0.3])
@pytest.mark.parametrize(("mean", "epsilon_g"), [(0.2, 1.0), (-1.5, 0.25), (0.0, 4.0), (3.5, 4.0)])
def test_the_law_of_fakes_is_a_density_and_that_of_the_mechanism(mean, epsilon_g, noise, rng):
    """It integrates to one, and its mean is that of fakes drawn by the mechanism plus noise (false alarm < 1e-6)."""
    law = ErrorLaw(mean, 0.9, float(fake_error_bound(mean, 0.9, epsilon_g)), epsilon_g, 0.05)
    grid = np.linspace(-12, 12, 400_001)
    density = law.fake(grid, noise)
    width = grid[1] - grid[0]
    assert density.sum() * width == pytest.approx(1, abs=1e-6)
    drawn = fake_errors(40_000, law.mean, law.deviation, law.bound, rng=rng) + noise * rng.standard_normal(40_000)
    assert (grid * density).sum() * width == pytest.approx(drawn.mean(), abs=5 * drawn.std() / 200)


def test_with_alpha_infinite_values_say_nothing():
    """ε_g = 0: both laws are one, and the ratio is 0 everywhere."""
    law = ErrorLaw(0.3, 1.0, math.inf, 0.0, 0.05)
    assert not law.log_ratio(np.linspace(-5, 5, 11), 0.02).any()


def test_fakes_of_zero_error_are_noise():
    """ε_g = ∞: an amplitude of ten noise deviations is real beyond doubt."""
    law = ErrorLaw(0.3, 1.0, 0.0, math.inf, 0.05)
    ratio = law.log_ratio(np.array([0.0, 0.2]), 0.02)
    assert ratio[0] < -2 < 10 < ratio[1]


def test_a_law_is_found_again(rng):
    """Fitted to a mixture drawn from it, mean and deviation come back to a tenth (5 deviations of the estimate)."""
    bound = fake_error_bound(0.4, 1.0, 1.0)
    real, fake = rng.normal(0.4, 1.0, 600), fake_errors(2_400, 0.4, 1.0, bound, rng=rng)
    law = fit_law(np.concatenate([real, fake])[rng.permutation(3_000)], np.full(3_000, 1e-3), 1.0)
    assert law.deviation == pytest.approx(1.0, abs=0.2)
    assert law.mean == pytest.approx(0.4, abs=0.2)


def test_blocks_grow_and_cover():
    """Threefold, without gap or overlap."""
    assert [list(block) for block in growing_spans(5)] == [[0], [1, 2], [3, 4]]
    assert [len(block) for block in growing_spans(100)] == [1, 2, 6, 18, 54, 19]


def test_weighted_median_by_hand():
    """The heavier rows decide, column by column."""
    rows = np.array([[1.0, 9.0], [2.0, 5.0], [3.0, 1.0]])
    assert weighted_median(rows, np.array([1.0, 1.0, 5.0])).tolist() == [3.0, 1.0]
    assert weighted_median(rows, np.ones(3)).tolist() == [2.0, 5.0]


def test_kernel_ridge_finds_a_plane_and_gives_up_on_noise(rng):
    """A linear label is recovered for rows it never saw; an unrelated one is predicted by its mean, nearly."""
    features = rng.standard_normal((400, 5))
    kernel, known, asked = features @ features.T, np.arange(300), np.arange(300, 400)
    plane = (features @ np.arange(5.0))[:, None]
    assert KernelRidge(kernel, known).scores(plane[known], asked) == pytest.approx(plane[asked], rel=0.05, abs=0.3)
    coin = rng.integers(0, 2, (300, 1)).astype(float)
    assert KernelRidge(kernel, known).scores(coin, asked).std() < 0.1


def test_folds_deal_every_row_once(rng):
    """Nobody is asked twice."""
    dealt = folds(103, 10, rng=rng)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(103))


def test_intervals_hold_their_estimate(rng):
    """A bootstrap interval contains what it was made from; with nothing to resample it is not a number."""
    values = rng.random(50)
    low, high = mean_interval(values, rng=rng)
    assert low < values.mean() < high
    scores, labels = rng.random(80), np.arange(80) < 40
    low, high = auc_interval(scores, labels, rng=rng)
    assert low < auc(scores, labels) < high
    assert all(math.isnan(end) for end in mean_interval(np.array([np.nan]), rng=rng))
    assert all(math.isnan(end) for end in auc_interval(scores, np.zeros(80, dtype=bool), rng=rng))


def test_rank_correlation_by_hand_and_as_spearman_has_it(rng):
    """Ranks 1 2 3 beside 1 3 2: 1 − 6 · 2 / (3 · 8) = 0.5; ties share a rank; all alike, there is none."""
    assert rank_correlation(np.array([1.0, 5.0, 9.0]), np.array([2.0, 8.0, 3.0])) == pytest.approx(0.5)
    assert rank_correlation(np.ones(4), np.arange(4.0)) == 0
    left, right = rng.integers(0, 6, (2, 3, 40)).astype(float)
    expected = [spearmanr(one, other).statistic for one, other in zip(left, right, strict=True)]
    assert rank_correlation(left, right) == pytest.approx(np.array(expected))


def test_the_interval_of_a_rank_correlation_is_that_of_other_samples(rng):
    """As wide as the correlations of fresh samples spread, within a factor of two; of perfect order it is one point."""
    left, noise = rng.standard_normal((2, 400, 60))
    spread = np.std(rank_correlation(left, left + noise))
    low, high = correlation_interval(left[0], left[0] + noise[0], rng=rng)
    assert low < rank_correlation(left[0], left[0] + noise[0]) < high
    assert 0.5 < (high - low) / (2 * 1.96 * spread) < 2
    assert correlation_interval(left[0], left[0] ** 3, rng=rng) == (1.0, 1.0)
