"""What each protocol lets a device send."""

import math

import numpy as np
import pytest
from parties import make_terms
from scipy.stats import binom

from hushrec.budget.events import PermanentDraw
from hushrec.errors import ParameterError
from hushrec.protocols.gradient.protocols import Isgld, Plain, Sdcf

RATED = np.array([1, 3, 4, 8, 12, 19])


def test_plain_sends_the_rated_items_and_hides_nothing(rng):
    """No permanent bits, no fakes, no events."""
    plain = Plain()
    values = np.array([1.0, 5.0])
    assert plain.training_values(values, rng=rng) is values
    assert plain.selection is None
    assert plain.rating_epsilon is None
    assert len(plain.fake_errors(0, values, rng=rng)) == 0
    assert plain.joining_costs(make_terms()) == {}


def test_isgld_is_plain_on_noisy_ratings(rng):
    """The scale of the noise is (5 − 1)/ε, so its mean size is too; clamping brings ratings back to 1 to 5."""
    values = np.full(200_000, 3.0)
    noisy = Isgld(epsilon=2.0).training_values(values, rng=rng)
    assert np.abs(noisy - 3).mean() == pytest.approx(2.0, abs=5 * 2 / math.sqrt(200_000))  # five standard errors
    clamped = Isgld(epsilon=2.0, clamp=True).training_values(values, rng=rng)
    assert clamped.min() == 1
    assert clamped.max() == 5
    assert Isgld(epsilon=2.0).rating_epsilon == 2.0


def test_sdcf_reports_the_promised_number_of_items(rng):
    """On average 5 of 20 over both stages; at most one false alarm in a million seeds (binomial bound)."""
    sdcf, terms, total = Sdcf(epsilon_i=4.0, epsilon_g=1.0), make_terms(), 0
    for _ in range(4000):
        permanent, _ = sdcf.selection.draw_permanent(RATED, terms, rng=rng)
        total += len(permanent.select_items(rng=rng))
    low, high = binom.interval(1 - 1e-6, 4000 * 20, 5 / 20)
    assert low <= total <= high


def test_sdcf_says_what_it_releases(rng):
    """One permanent draw at ε_P = 2 ε_I; its selections are charged by the device, one by one."""
    sdcf = Sdcf(epsilon_i=3.0, epsilon_g=1.0)
    _, event = sdcf.selection.draw_permanent(RATED, make_terms(), rng=rng)
    assert event == PermanentDraw(6.0, 6, capped=False)
    assert sdcf.joining_costs(make_terms()) == {"selection": 6}
    capped = Sdcf(epsilon_i=3.0, epsilon_g=1.0, profile_cap=10).selection
    _, event = capped.draw_permanent(RATED, make_terms(), rng=rng)
    assert event == PermanentDraw(6.0, 10, capped=True)


def test_fakes_stay_in_the_range_that_epsilon_g_gives(rng):
    """P(|X| < α) = exp(−ε_g) for the law of the real errors; ε_g = 0 is α = ∞."""
    real = rng.normal(0.3, 1.0, 500)
    fakes = Sdcf(epsilon_i=1.0, epsilon_g=1.0).fake_errors(5000, real, rng=rng)
    normal = rng.normal(real.mean(), real.std(), 200_000)
    assert np.mean(np.abs(normal) < np.abs(fakes).max()) == pytest.approx(math.exp(-1), abs=0.01)
    free = Sdcf(epsilon_i=1.0, epsilon_g=0.0).fake_errors(5000, real, rng=rng)
    assert np.abs(free).max() > 2.5
    assert np.all(Sdcf(epsilon_i=1.0, epsilon_g=math.inf).fake_errors(10, real, rng=rng) == 0)


@pytest.mark.parametrize(
    ("build", "sentence"),
    [
        (lambda: Isgld(epsilon=0.0), "epsilon must be positive and finite, got 0.0"),
        (lambda: Sdcf(epsilon_i=-1.0, epsilon_g=1.0), "epsilon_i must be positive and finite, got -1.0"),
        (lambda: Sdcf(epsilon_i=1.0, epsilon_g=1.0, epsilon_p=math.inf), "epsilon_p must be positive and finite"),
        (lambda: Sdcf(epsilon_i=1.0, epsilon_g=-0.5), "epsilon_g"),
        (lambda: Sdcf(epsilon_i=1.0, epsilon_g=math.nan), "epsilon_g"),
        (lambda: Sdcf(epsilon_i=1.0, epsilon_g=1.0, profile_cap=0), "profile_cap must be at least 1, got 0"),
    ],
)
def test_impossible_settings_are_refused(build, sentence):
    """Where the object is built, with the name and what was given."""
    with pytest.raises(ParameterError, match=sentence):
        build()
