"""Discrete Gaussian noise: the tables against high precision, the draws against an exact sampler and the stated law."""

import itertools
import math
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from scipy import stats

from hushrec.errors import ParameterError
from hushrec.protocols.masked.noise import RADIX, _build_table, _Table, discrete_gaussian, distance_of, summed_noise
from hushrec.randomness import Purpose, SeededRandomness, SystemStream

FALSE_ALARM = 1e-6


def exact_law(variance: int, digits: int = 80):
    """P(x) for x = −m … m of a table, to `digits` digits; the rest of the integers is far below."""
    lowest = _build_table(variance).lowest
    with mpmath.workdps(digits):
        weights = [mpmath.exp(-mpmath.mpf(x * x) / (2 * variance)) for x in range(-2 * lowest + 1)]
        total = weights[0] + 2 * mpmath.fsum(weights[1:])
        return [weights[abs(x)] / total for x in range(lowest, -lowest + 1)]


def table_law(variance: int) -> list[Fraction]:
    """The probabilities that a table really has: differences of its thresholds, as fractions."""
    table = _build_table(variance)
    edges = [0, *thresholds_of(table), 2**256]
    return [Fraction(upper - lower, 2**256) for lower, upper in itertools.pairwise(edges)]


def thresholds_of(table: _Table) -> list[int]:
    """256 bits each."""
    words = np.column_stack([table.high, table.low]).astype(">u8")
    return [int.from_bytes(row.tobytes()) for row in words]


@pytest.mark.parametrize("variance", [16, 17, 1000])
def test_a_table_is_as_near_to_the_exact_law_as_it_says(variance: int) -> None:
    """Half the sum of differences to 120 digits is at most `distance`, which is below 1e-69."""
    with mpmath.workdps(120):
        pairs = zip(table_law(variance), exact_law(variance, 120), strict=True)
        differences = [abs(mpmath.mpf(ours.numerator) / ours.denominator - exact) for ours, exact in pairs]
        found = mpmath.fsum(differences) / 2
    assert found <= distance_of(variance) < 1e-69


def test_a_draw_is_decided_by_256_bits() -> None:
    """Uniforms at a threshold and one below it, in the last bit, give neighbouring integers."""
    table = _build_table(100)
    thresholds = thresholds_of(table)
    for place in (0, 1, len(thresholds) // 2, len(thresholds) - 1):
        at, below = (draw_from_words(100, uniform) for uniform in (thresholds[place], thresholds[place] - 1))
        assert (at, below) == (table.lowest + place + 1, table.lowest + place)
    assert draw_from_words(100, 0) == table.lowest
    assert draw_from_words(100, 2**256 - 1) == -table.lowest


def draw_from_words(variance: int, uniform: int) -> int:
    """The draw for one 256-bit uniform: its upper 64 bits come first, the lower ones only where they are needed."""

    words = [uniform >> 64 * place & 2**64 - 1 for place in (3, 2, 1, 0)]

    class Stream:
        def bytes(self, length: int) -> bytes:
            assert length in (8, 24)
            return b"".join(words.pop(0).to_bytes(8, "little") for _ in range(length // 8))

    return int(discrete_gaussian(variance).draw(1, rng=Stream())[0])


def exact_draws(variance: int, size: int, seed: int) -> list[int]:
    """Draws by rejection from a discrete Laplace law, with integers only: Algorithms 1 to 3 of [Canonne2020]."""
    rng = np.random.default_rng(seed)
    scale = math.isqrt(variance) + 1

    def happens(numerator: int, denominator: int) -> bool:
        """With probability exp(−numerator/denominator)."""
        while numerator > denominator:
            if not happens(1, 1):
                return False
            numerator -= denominator
        count = 1
        while int(rng.integers(denominator * count)) < numerator:
            count += 1
        return count % 2 == 1

    def laplace() -> int:
        while True:
            first = int(rng.integers(scale))
            if not happens(first, scale):
                continue
            size = 0
            while happens(1, 1):
                size += 1
            value, negative = first + scale * size, bool(rng.integers(2))
            if value or not negative:
                return -value if negative else value

    found: list[int] = []
    while len(found) < size:
        value = laplace()
        # Accept with exp(−(|y| − V/t)²/2V), t the Laplace scale.
        if happens((abs(value) * scale - variance) ** 2, 2 * variance * scale**2):
            found.append(value)
    return found


def test_draws_agree_with_an_exact_rejection_sampler() -> None:
    """Two samples of one law: χ² over the values between −3 and 3 deviations, the rest in the end cells."""
    ours = discrete_gaussian(16).draw(40_000, rng=SystemStream())
    theirs = exact_draws(16, 4_000, seed=5)
    counts = [Counter(np.clip(draws, -12, 12).tolist()) for draws in (ours, theirs)]
    table = [[count[x] for x in range(-12, 13)] for count in counts]
    assert stats.chi2_contingency(table).pvalue > FALSE_ALARM


@pytest.mark.parametrize("stream", ["system", "seeded"])
@pytest.mark.parametrize("variance", [16, 10_000, 2**18 + 5, 10**10 + 7, 10**15 + 1])
def test_draws_have_the_stated_law(variance: int, stream: str) -> None:
    """χ² over 64 cells of nearly equal probability; mean and variance within their own laws."""
    rng = SystemStream() if stream == "system" else SeededRandomness(3).stream(Purpose.NOISE_SHARES)
    draws = discrete_gaussian(variance).draw(100_000, rng=rng)
    assert_normal_on_integers(draws, variance)


def assert_normal_on_integers(draws: np.ndarray, variance: int) -> None:
    """Three tests of N_Z(0, variance), each with a false-alarm rate of 1e-6 / 3."""
    deviation = math.sqrt(variance)
    cells = np.unique(np.round(stats.norm.ppf(np.linspace(0, 1, 65)[1:-1]) * deviation)) + 0.5
    if deviation < 1000:
        points = np.arange(-20 * math.isqrt(variance), 20 * math.isqrt(variance) + 1)
        law = np.exp(-(points**2) / (2 * variance))
        expected = np.diff(np.concatenate([[0], np.interp(cells, points + 0.5, np.cumsum(law) / law.sum()), [1]]))
    else:  # the continuous law is within 1e-9 of the discrete one at half integers
        expected = np.diff(np.concatenate([[0], stats.norm.cdf(cells / deviation), [1]]))
    found = np.histogram(draws, bins=np.concatenate([[-np.inf], cells, [np.inf]]))[0]
    rate = FALSE_ALARM / 3
    assert stats.chisquare(found, expected * len(draws)).pvalue > rate
    assert abs(draws.mean()) < stats.norm.isf(rate / 2) * deviation / math.sqrt(len(draws))
    low, high = stats.chi2.ppf([rate / 2, 1 - rate / 2], len(draws))
    assert low < np.sum(np.square(draws / deviation)) < high


def test_a_split_variance_is_the_law_of_the_whole() -> None:
    """x₁ + 64 x₂ summed out exactly: every probability within 1e-12 of the unsplit law, and the variances add up."""
    variance = 2**18 + 777
    tables = discrete_gaussian(variance)._tables
    assert len(tables) == 2
    laws = [np.array([float(p) for p in table_law(part)]) for part in split(variance)]
    spread = np.zeros((len(laws[1]) - 1) * RADIX + 1)
    spread[::RADIX] = laws[1]
    summed = np.convolve(laws[0], spread)
    lowest = tables[0].lowest + RADIX * tables[1].lowest
    points = np.arange(lowest, -lowest + 1)
    whole = np.exp(-(points**2) / (2 * variance))
    assert np.abs(summed - whole / whole.sum()).max() < 1e-15
    middle = np.abs(points) < 5 * math.sqrt(variance)
    assert np.abs(summed / (whole / whole.sum()) - 1)[middle].max() < 1e-9


def split(variance: int) -> tuple[int, int]:
    """V₁ from 16 B² on and V₂ with V₁ + B² V₂ = V."""
    first = 16 * RADIX**2 + variance % RADIX**2
    second, rest = divmod(variance - first, RADIX**2)
    assert rest == 0
    return first, second


def test_the_shares_of_a_cohort_add_up_to_the_summed_law() -> None:
    """30 devices draw 16,000 numbers each: their sums have variance 30 V, as one draw of `summed_noise` has."""
    share = discrete_gaussian(20)
    total = sum(share.draw(16_000, rng=SystemStream()) for _ in range(30))
    assert_normal_on_integers(total, 600)
    law = summed_noise(20, 30)
    assert law.variance == 600
    assert share.distance * 30 < law.distance < 1e-63
    assert_normal_on_integers(law.draw(16_000, rng=SystemStream()), 600)


def test_no_noise_is_zeros() -> None:
    """Variance 0, or nobody to add noise."""
    assert not discrete_gaussian(0).draw(5, rng=SystemStream()).any()
    assert summed_noise(0, 10) is summed_noise(20, 0) is discrete_gaussian(0)


@pytest.mark.parametrize("variance", [-1, 1, 15, 2**62 + 1])
def test_a_variance_without_a_bound_is_refused(variance: int) -> None:
    """Below 16 sums of shares are not near enough to a discrete Gaussian."""
    with pytest.raises(ParameterError, match="variance"):
        discrete_gaussian(variance)
