"""What the mechanisms draw has the distribution they name; each statistical test has a false-alarm rate of 1e-6."""

import math
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from hushrec.budget.calibrate import calibrate_selection
from hushrec.errors import ParameterError
from hushrec.mechanisms.fake_errors import fake_errors
from hushrec.mechanisms.langevin import langevin_noise
from hushrec.mechanisms.laplace import perturb_ratings
from hushrec.mechanisms.randomized_response import instantaneous_items, permanent_bits
from hushrec.randomness import SystemStream

FALSE_ALARM = 1e-6


def assert_share(count: int, trials: int, probability: float) -> None:
    """A binomial count within the interval that it leaves once in a million seeds."""
    low, high = stats.binom.interval(1 - FALSE_ALARM, trials, probability)
    assert low <= count <= high


@pytest.mark.parametrize("prob_randomize", [0.0, 0.1, 0.5, 0.97, 1.0])
def test_a_permanent_bit_is_flipped_with_half_the_probability_of_a_coin(
    prob_randomize: float, rng: np.random.Generator
) -> None:
    """Rated and unrated bits alike: 1 − f/2 of them survive."""
    rated = np.arange(0, 200_000, 4)
    bits = permanent_bits(rated, 200_000, prob_randomize, rng=rng)
    assert bits.dtype == np.bool_
    assert_share(int(bits[rated].sum()), 50_000, 1 - prob_randomize / 2)
    assert_share(int(bits.sum() - bits[rated].sum()), 150_000, prob_randomize / 2)


def test_items_are_selected_by_their_permanent_bit(rng: np.random.Generator) -> None:
    """Bit 1 with probability q, bit 0 with probability p; sorted, no item twice, whole numbers."""
    bits = np.arange(200_000) % 4 == 0
    items = instantaneous_items(bits, 0.02, 0.6, rng=rng)
    assert items.dtype == np.int64
    assert np.all(np.diff(items) > 0)
    assert_share(int(bits[items].sum()), 50_000, 0.6)
    assert_share(int((~bits[items]).sum()), 150_000, 0.02)


def test_both_stages_together_send_as_calibrated(rng: np.random.Generator) -> None:
    """Fresh bits each time: a rated item is sent with q*, an unrated one with p*."""
    found = calibrate_selection(3, 40, 8.0, 6.0, 10.0)
    rated, trials, sent = np.array([0, 7, 39]), 20_000, np.zeros(40)
    for _ in range(trials):
        bits = permanent_bits(rated, 40, found.prob_randomize, rng=rng)
        sent[instantaneous_items(bits, found.prob_send_zero, found.prob_send_one, rng=rng)] += 1
    assert_share(int(sent[rated].sum()), 3 * trials, found.prob_send_rated)
    assert_share(int(sent.sum() - sent[rated].sum()), 37 * trials, found.prob_send_unrated)


def test_certain_and_impossible_selections(rng: np.random.Generator) -> None:
    """With p = 0, q = 1 the permanent bits are sent as they are; with f = 0 these are the rated items."""
    bits = permanent_bits(np.array([1, 3]), 5, 0.0, rng=rng)
    assert instantaneous_items(bits, 0.0, 1.0, rng=rng).tolist() == [1, 3]
    assert permanent_bits(np.array([], dtype=np.int64), 5, 0.0, rng=rng).tolist() == [False] * 5


def test_a_tiny_flip_probability_is_rounded_up_to_one_that_can_be_drawn() -> None:
    """Of the multiples of 2^-53, zero is below any f > 0: a flip is never impossible."""

    class Zeros:
        def random(self, size: Any, /) -> Any:
            return np.zeros(size)

        standard_normal = integers = random

    assert permanent_bits(np.array([0]), 3, 1e-300, rng=Zeros()).tolist() == [False, True, True]


@pytest.mark.parametrize("prob_randomize", [-0.1, 1.2, math.nan])
def test_a_randomization_that_is_no_probability_is_refused(prob_randomize: float, rng: np.random.Generator) -> None:
    """Named, with what was given."""
    with pytest.raises(ParameterError, match=f"prob_randomize .* got {prob_randomize}"):
        permanent_bits(np.array([1]), 5, prob_randomize, rng=rng)


@pytest.mark.parametrize("item", [-1, 5, 77])
def test_items_outside_the_catalogue_are_refused_without_echo(item: int, rng: np.random.Generator) -> None:
    """A negative index would silently mean another item; the choice is not shown."""
    with pytest.raises(ParameterError, match="rated_items") as refusal:
        permanent_bits(np.array([1, item]), 5, 0.5, rng=rng)
    assert "77" not in str(refusal.value)
    assert "-1" not in str(refusal.value)


@pytest.mark.parametrize(("zero", "one"), [(-0.1, 0.5), (0.5, 1.1), (math.nan, 0.5), (0.5, math.nan)])
def test_selection_probabilities_out_of_range_are_refused(zero: float, one: float, rng: np.random.Generator) -> None:
    """Fail closed, and without the values: they tell how much is rated."""
    with pytest.raises(ParameterError, match="prob_send_zero"):
        instantaneous_items(np.array([True]), zero, one, rng=rng)


def test_langevin_noise_has_the_step_as_its_variance(rng: np.random.Generator) -> None:
    """N(0, η): Kolmogorov–Smirnov with deviation √η; the shape is as asked."""
    noise = langevin_noise((400, 50), 0.04, rng=rng)
    assert noise.shape == (400, 50)
    assert stats.kstest(noise.ravel(), stats.norm(0, 0.2).cdf).pvalue > FALSE_ALARM
    assert langevin_noise(3, 0.0, rng=rng).tolist() == [0, 0, 0]


@pytest.mark.parametrize("step_size", [-1.0, math.inf, math.nan])
def test_a_step_that_is_no_variance_is_refused(step_size: float, rng: np.random.Generator) -> None:
    """Named, with what was given."""
    with pytest.raises(ParameterError, match=f"step_size .* got {step_size}"):
        langevin_noise(3, step_size, rng=rng)


def test_rating_noise_is_laplace_of_the_scale_over_epsilon(rng: np.random.Generator) -> None:
    """Scale (5 − 1)/2 = 2: Kolmogorov–Smirnov, and variance 2 · 2² = 8 within six standard errors."""
    ratings = np.tile([1.0, 2.5, 5.0], 10_000)
    noise = perturb_ratings(ratings, 2.0, clamp=False, rng=rng) - ratings
    assert stats.kstest(noise, stats.laplace(0, 2.0).cdf).pvalue > FALSE_ALARM
    standard_error = math.sqrt((24 * 2.0**4 - 8.0**2) / len(noise))  # fourth moment 24 b⁴
    assert abs(np.mean(noise**2) - 8.0) < 6 * standard_error


def test_clamped_ratings_stay_on_the_scale(rng: np.random.Generator) -> None:
    """Clamping cuts the same noisy values, and changes nothing inside."""
    ratings = np.linspace(1.0, 5.0, 500)
    loose, clamped = (
        perturb_ratings(ratings, 1.0, clamp=clamp, rng=np.random.default_rng(1)) for clamp in (False, True)
    )
    assert clamped.tolist() == np.clip(loose, 1.0, 5.0).tolist()
    assert (loose < 1.0).any()
    assert (loose > 5.0).any()


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_no_uniform_draw_makes_infinite_noise(uniform: float) -> None:
    """Both ends of the unit interval, and its middle, give finite noise."""

    class Constant:
        def random(self, size: Any, /) -> Any:
            return np.full(size, uniform)

        standard_normal = integers = random

    assert np.isfinite(perturb_ratings(np.array([3.0]), 1.0, clamp=False, rng=Constant())).all()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (([3.25], 0.0), "epsilon .* got 0.0"),
        (([3.25], math.inf), "epsilon .* got inf"),
        (([3.25, 6.5], 1.0), "ratings .* from 1 to 5"),
        (([3.25, math.nan], 1.0), "ratings"),
    ],
)
def test_ratings_that_the_noise_would_not_cover_are_refused(
    arguments: Any, sentence: str, rng: np.random.Generator
) -> None:
    """Noise is made for a scale: what lies outside has no guarantee. No rating is shown."""
    ratings, epsilon = arguments
    with pytest.raises(ParameterError, match=sentence) as refusal:
        perturb_ratings(np.array(ratings), epsilon, clamp=True, rng=rng)
    assert "3.25" not in str(refusal.value)
    assert "6.5" not in str(refusal.value)


def test_mechanisms_draw_from_the_system_stream_too() -> None:
    """A real device's stream serves every mechanism; each mean within six standard errors (false alarm 2e-9)."""
    rng = SystemStream()
    n = 10_000
    bits = permanent_bits(np.arange(n), n, 0.5, rng=rng)
    selected = instantaneous_items(np.ones(n, dtype=np.bool_), 0.0, 0.25, rng=rng)
    fakes = fake_errors(n, 0.0, 1.0, 1.0, rng=rng)
    noise = langevin_noise((n, 1), 4.0, rng=rng)
    ratings = perturb_ratings(np.full(n, 3.0), 4.0, clamp=False, rng=rng)
    for values, mean, variance in (
        (bits, 0.75, 0.1875),
        (np.isin(np.arange(n), selected), 0.25, 0.1875),
        (fakes, 0.0, stats.truncnorm(-1, 1).var()),
        (noise, 0.0, 4.0),
        (ratings, 3.0, 2.0),
    ):
        assert abs(np.mean(values) - mean) < 6 * math.sqrt(variance / n)


def test_one_round_of_one_client_takes_microseconds(rng: np.random.Generator) -> None:
    """Selection among 1682 items and 80 fakes: about 12 and 10 µs on an idle machine."""
    bits = permanent_bits(np.arange(85), 1682, 0.97, rng=rng)

    def best_of(draw: Callable[[], object]) -> float:
        best = math.inf
        for _ in range(5):
            start = time.thread_time()
            for _ in range(100):
                draw()
            best = min(best, time.thread_time() - start)
        return best / 100

    assert best_of(lambda: instantaneous_items(bits, 0.003, 0.1, rng=rng)) < 3e-4
    assert best_of(lambda: fake_errors(80, 0.1, 0.9, 0.02, rng=rng)) < 6e-4
