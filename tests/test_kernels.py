"""What the compiled kernels draw: the published words of Philox, the normal law, fakes, and randomized response."""

import math

import numpy as np
import pytest
from scipy.special import log_ndtr as scipy_log_ndtr
from scipy.special import ndtri as scipy_ndtri
from scipy.stats import binom, kstest, norm, truncnorm

from hushrec.budget.calibrate import fake_error_bound
from hushrec.engines.cpu import normal, philox, randomized_response
from hushrec.errors import ParameterError

FALSE_ALARM = 1e-6  # of each statistical check, over seeds
STREAM = philox.make_stream(seed=2**40 + 5, purpose=6, round_number=7)


def words_of(count: int, user: int = 3) -> np.ndarray:
    """An even number of random words of one user."""
    words = np.empty(count, np.uint64)
    philox.fill_words(STREAM, user, 0, words)
    return words


# Philox ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
        ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
        (
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            [0xA4093822, 0x299F31D0],
            [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
        ),
    ],
)
def test_philox_gives_the_published_words(counter, key, expected):
    """The known answers of Philox4x32-10 that its authors publish with Random123."""
    low, high = philox.philox(*(np.uint64(word) for word in (*counter, *key)))
    assert [int(low) % 2**32, int(low) >> 32, int(high) % 2**32, int(high) >> 32] == expected


def test_a_stream_is_its_blocks_one_after_the_other():
    """Block b of a user depends on seed, purpose, round, user and b alone, however much is drawn at once."""
    words = words_of(40)
    later = np.empty(10, np.uint64)
    philox.fill_words(STREAM, 3, 12, later)
    np.testing.assert_array_equal(later[:5], words[12:17])
    np.testing.assert_array_equal(later[5:], words[32:37])
    compiled = [philox.philox(np.uint64(b), np.uint64(3), *(STREAM[i] for i in (3, 2, 0, 1))) for b in range(20)]
    np.testing.assert_array_equal(words, [pair[0] for pair in compiled] + [pair[1] for pair in compiled])


def test_streams_differ_in_every_part_of_their_key():
    """Another seed, purpose, round or user gives other words."""
    keys = [(5, 6, 7), (6, 6, 7), (5 + 2**32, 6, 7), (5, 8, 7), (5, 6, 8)]
    drawn = set()
    for key in keys:
        for user in (0, 1):
            words = np.empty(2, np.uint64)
            philox.fill_words(philox.make_stream(*key), user, 0, words)
            drawn.add(int(words[0]))
    assert len(drawn) == 2 * len(keys)


def test_a_seed_out_of_range_is_refused():
    """The key holds 64 bits."""
    with pytest.raises(ParameterError, match="seed"):
        philox.make_stream(-1, 1, 1)


# The normal law --------------------------------------------------------------------------------------------------


def test_the_inverse_of_the_normal_law_agrees_with_scipy():
    """From the far left tail to the right: 1e-14 relative."""
    p = np.concatenate([np.logspace(-250, -1, 500), np.linspace(0.001, 0.999, 999), 1 - np.logspace(-10, -3, 50)])
    np.testing.assert_allclose([normal.ndtri(x) for x in p], scipy_ndtri(p), rtol=1e-13, atol=1e-15)
    x = -np.logspace(-3, 6, 300)
    np.testing.assert_allclose([normal.log_ndtr(v) for v in x], scipy_log_ndtr(x), rtol=1e-11)
    deep = np.array([-700.0, -1e3, -1e6])
    np.testing.assert_allclose(scipy_log_ndtr([normal.ndtri_exp_deep(y) for y in deep]), deep, rtol=1e-12)


def test_the_layers_of_the_ziggurat_have_one_area():
    """Each of 256 layers, the tail with the box below it included, covers the same area of exp(−x²/2)."""
    edges, heights = normal.ziggurat()
    areas = edges[1:256] * np.diff(heights)[1:]
    np.testing.assert_allclose(areas, areas[0], rtol=1e-9)
    tail = norm.sf(edges[1]) * math.sqrt(2 * math.pi)
    assert edges[1] * heights[1] + tail == pytest.approx(areas[0], rel=1e-9)
    assert edges[0] * heights[1] == pytest.approx(areas[0], rel=1e-9)


def test_normal_draws_are_normal():
    """Half a million draws pass Kolmogorov and Smirnov's test, and as many as should lie beyond the last layer."""
    draws = np.empty((500, 1000))
    scratch = np.empty(1000, np.uint64)
    for user, row in enumerate(draws):
        normal.fill_normal(STREAM, user, scratch, row)
    assert kstest(draws.ravel(), "norm").pvalue > FALSE_ALARM
    beyond = np.count_nonzero(np.abs(draws) > 3.6541528853610088)
    low, high = binom.interval(1 - FALSE_ALARM, draws.size, 2 * norm.sf(3.6541528853610088))
    assert low <= beyond <= high


@pytest.mark.parametrize("center", [0.0, 0.1, 1.0, 3.0, 40.0, 1e4])
@pytest.mark.parametrize("epsilon_g", [1e-6, 0.0625, 1.0, 4.0, 40.0, 500.0, 1000.0])
def test_the_range_of_fakes_is_the_calibrated_one(center, epsilon_g):
    """The kernel's half-width is that of `fake_error_bound`, from almost everything to almost nothing."""
    if epsilon_g == 1000.0:
        center = max(center, 40.0)  # nearer the middle, the range is narrower than floating point
    assert normal.half_width(center, epsilon_g) == pytest.approx(fake_error_bound(center, 1.0, epsilon_g), rel=1e-8)


@pytest.mark.parametrize(
    ("mean", "deviation", "epsilon_g"),
    [(0.4, 0.9, 4.0), (-0.4, 0.9, 4.0), (0.4, 0.9, 0.0625), (-3.0, 0.5, 1.0), (0.2, 1.0, 12.0), (2.0, 0.1, 0.0)],
)
def test_fakes_have_the_truncated_normal_law(mean, deviation, epsilon_g):
    """All of them within ±α, and by Kolmogorov and Smirnov's test drawn from N(μ, σ²) cut there."""
    bound = fake_error_bound(mean, deviation, epsilon_g)
    fakes = np.empty(100_000)
    normal.fill_fakes(mean, deviation, epsilon_g, words_of(100_000), fakes)
    assert np.all(np.abs(fakes) <= bound)
    law = truncnorm((-bound - mean) / deviation, (bound - mean) / deviation, loc=mean, scale=deviation)
    assert kstest(fakes, law.cdf).pvalue > FALSE_ALARM


def test_fakes_far_out_in_the_tail_hug_the_nearer_end():
    """With ε_g = 1000 and σ ≪ μ, what is left of the law is close to an exponential at α, of scale σ²/(μ − α).

    With a = (μ − α)/σ, a gap g of these scales is exceeded with probability Φ(−a − g/a) / Φ(−a), but for what the far
    end at −α cuts off, which is less than any number here. Kolmogorov and Smirnov's test, false alarms 1e-6.
    """
    mean, deviation, epsilon_g = 10.0, 0.2, 1000.0
    bound = fake_error_bound(mean, deviation, epsilon_g)
    fakes = np.empty(100_000)
    normal.fill_fakes(mean, deviation, epsilon_g, words_of(100_000), fakes)
    gaps = (bound - fakes) * (mean - bound) / deviation**2
    assert np.all(gaps >= 0)
    a = (mean - bound) / deviation
    assert kstest(gaps, lambda g: -np.expm1(scipy_log_ndtr(-a - g / a) - scipy_log_ndtr(-a))).pvalue > FALSE_ALARM


def test_fakes_without_spread_or_range_are_what_they_must_be():
    """One rating: the mean. ε_g = ∞: zero. No density at all left: within the range."""
    fakes = np.full(4, np.nan)
    normal.fill_fakes(1.5, 0.0, 4.0, words_of(4), fakes)
    np.testing.assert_array_equal(fakes, 1.5)
    normal.fill_fakes(1.5, 1.0, np.inf, words_of(4), fakes)
    np.testing.assert_array_equal(fakes, 0.0)
    normal.fill_fakes(0.0, 1.0, 40.0, words_of(4), fakes)
    assert np.all(np.abs(fakes) <= fake_error_bound(0.0, 1.0, 40.0))


# Randomized response ---------------------------------------------------------------------------------------------

N_WORDS = 20
PATTERN = np.full(N_WORDS, 0xF0F0F0F0F0F0F0F0, np.uint64)
IS_ONE = np.unpackbits(PATTERN.view(np.uint8), bitorder="little").astype(bool)


def assert_frequencies(drawn: np.ndarray, trials: int, zero: float, one: float) -> None:
    """Counts per item, summed over the items with the same bit, are binomial: 1e-6 for both together."""
    for chosen, probability in ((~IS_ONE, zero), (IS_ONE, one)):
        low, high = binom.interval(1 - FALSE_ALARM / 2, trials * int(chosen.sum()), probability)
        assert low <= drawn[chosen].sum() <= high


@pytest.mark.parametrize(("zero", "one"), [(0.25, 0.7), (0.001, 0.07), (0.5, 0.5), (0.3, 0.01)])
def test_joint_comparisons_draw_each_item_with_the_probability_of_its_bit(zero, one):
    """And no place in a word is luckier than another: every item's count is binomial, false alarms 1e-6 together."""
    trials = 2000
    scratch, out = np.empty(randomized_response.scratch_words(N_WORDS), np.uint64), np.empty(N_WORDS, np.uint64)
    drawn = np.zeros(64 * N_WORDS, np.int64)
    for user in range(trials):
        randomized_response.respond(STREAM, user, PATTERN, zero, one, scratch, out)
        drawn += np.unpackbits(out.view(np.uint8), bitorder="little")
    assert_frequencies(drawn, trials, zero, one)
    expected = np.where(IS_ONE, one, zero)
    low, high = binom.interval(1 - FALSE_ALARM / len(drawn), trials, expected)
    assert np.all((low <= drawn) & (drawn <= high))


def test_certain_and_impossible_items_are_certain_and_impossible():
    """Probabilities of 1 and 0 hold exactly, for both kinds of draws."""
    scratch, out = np.empty(randomized_response.scratch_words(N_WORDS), np.uint64), np.empty(N_WORDS, np.uint64)
    randomized_response.respond(STREAM, 1, PATTERN, 0.0, 1.0, scratch, out)
    np.testing.assert_array_equal(out, PATTERN)
    randomized_response.respond(STREAM, 1, PATTERN, 1.0, 0.0, scratch, out)
    np.testing.assert_array_equal(out, ~PATTERN)
    items = np.empty(64 * N_WORDS, np.uint32)
    assert randomized_response.select_sparse(STREAM, 1, PATTERN, 64 * N_WORDS, 0.0, 0.0, scratch, items) == 0
    count = randomized_response.select_sparse(STREAM, 1, PATTERN, 64 * N_WORDS, 0.0, 0.01, scratch, items)
    assert IS_ONE[items[:count]].all()


def test_a_probability_is_rounded_up_to_a_multiple_of_two_to_the_minus_53():
    """A flip of a permanent bit is never rarer than the budget says."""
    for probability in (0.1, 1e-12, 0.49999999999999994, 1.0, 0.0):
        step = int(randomized_response.threshold(probability))
        assert step * 2.0**-53 >= probability > (step - 1) * 2.0**-53


@pytest.mark.parametrize(("zero", "one"), [(0.002, 0.015), (0.012, 0.003), (0.0, 0.019)])
def test_gaps_and_thinning_draw_each_item_with_the_probability_of_its_bit(zero, one):
    """Rising items without repetition, and binomial counts."""
    trials = 20_000
    scratch, items = np.empty(randomized_response.scratch_words(N_WORDS), np.uint64), np.empty(64 * N_WORDS, np.uint32)
    drawn = np.zeros(64 * N_WORDS, np.int64)
    for user in range(trials):
        count = randomized_response.select_sparse(STREAM, user, PATTERN, 64 * N_WORDS, zero, one, scratch, items)
        assert np.all(np.diff(items[:count].astype(np.int64)) > 0)
        drawn[items[:count]] += 1
    assert_frequencies(drawn, trials, zero, one)


def test_items_are_listed_in_order_up_to_the_last_of_the_catalogue():
    """Bits behind the last item are not items."""
    bits = np.array([0b1011, 1 << 63, 0xFF], np.uint64)
    items = np.empty(130 + randomized_response.TOGETHER, np.uint32)
    count = randomized_response.list_items(bits, 130, items)
    assert items[:count].tolist() == [0, 1, 3, 127, 128, 129]


@pytest.mark.parametrize("share", [0.0, 0.03, 0.5, 1.0])
@pytest.mark.parametrize("n_items", [1, 63, 64, 65, 200])
def test_every_item_that_is_set_is_listed_once_and_nothing_is_written_behind_the_room(share, n_items):
    """Against NumPy's list of the same bits; a word may hold none, a few, or 64."""
    chosen = np.random.default_rng(0).random(n_items) < share
    padded = np.ones(-(-n_items // 64) * 64, bool)  # bits behind the last item are set
    padded[:n_items] = chosen
    bits = np.packbits(padded, bitorder="little").view(np.uint64)
    items = np.full(n_items + randomized_response.TOGETHER + 1, 2**32 - 1, np.uint32)
    count = randomized_response.list_items(bits, n_items, items)
    assert items[:count].tolist() == np.flatnonzero(chosen).tolist()
    assert items[-1] == 2**32 - 1


@pytest.mark.parametrize("cap", [100, 10])
def test_permanent_bits_are_flipped_as_often_as_they_should_be(cap):
    """With a cap, of 40 rated items ten count as rated, each of them equally often."""
    n_users, n_items, flip = 4000, 128, 0.3
    rated = np.arange(0, 120, 3, dtype=np.uint32)
    starts, items = np.arange(n_users + 1) * len(rated), np.tile(rated, n_users)
    bits = np.zeros((n_users, 2), np.uint64)
    flips = np.full(n_users, flip)
    randomized_response.fill_permanent(0, n_users, starts, items, np.full(n_users, cap), flips, STREAM, bits)
    drawn = np.unpackbits(bits.view(np.uint8).reshape(n_users, -1), axis=1, bitorder="little").sum(axis=0)
    counted = min(cap, len(rated)) / len(rated)
    is_rated = np.isin(np.arange(n_items), rated)
    for chosen, probability in ((~is_rated, flip), (is_rated, flip + counted * (1 - 2 * flip))):
        low, high = binom.interval(1 - FALSE_ALARM / n_items, n_users, probability)
        assert np.all((low <= drawn[chosen]) & (drawn[chosen] <= high))


def test_ones_of_a_word_are_counted_and_the_lowest_is_found(rng):
    """As Python counts them, for the ends of the range and for words of every density; 64 where there is no one."""
    dense = rng.integers(0, 2**64, 100, dtype=np.uint64)
    sparse = dense & rng.permutation(dense) & rng.permutation(dense)
    for word in (np.uint64(0), np.uint64(1), np.uint64(2**63), np.uint64(2**64 - 1), *dense, *sparse):
        number = int(word)
        assert randomized_response.count_ones(word) == number.bit_count()
        assert randomized_response.lowest_bit(word) == ((number & -number).bit_length() - 1 if number else 64)
