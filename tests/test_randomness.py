"""Streams are keyed right, and the system's stream has the distributions it names."""

import inspect

import numpy as np
import pytest
from scipy import stats

from hushrec.errors import ParameterError
from hushrec.randomness import Purpose, SeededRandomness, SystemRandomness, SystemStream

FALSE_ALARM = 1e-6  # of each statistical test below: SystemStream cannot be seeded, so this is per run
KEYS = [(seed, user, purpose, number) for seed in (0, 7) for user in (0, 3) for purpose in Purpose for number in (0, 5)]


def first_draws(seed: int, user: int, purpose: Purpose, number: int) -> tuple[float, ...]:
    """Eight draws of one stream."""
    return tuple(SeededRandomness(seed, user).stream(purpose, number).random(8))


def test_the_order_of_arrival_changes_no_stream() -> None:
    """A stream depends on its key alone, whichever streams were made and used before it."""
    forward = {key: first_draws(*key) for key in KEYS}
    backward = {key: first_draws(*key) for key in reversed(KEYS)}
    assert forward == backward


def test_one_object_gives_the_same_stream_again() -> None:
    """Drawing from one stream does not move another of the same client."""
    randomness = SeededRandomness(1, user=2)
    before = randomness.stream(Purpose.SELECTION, 4).random(5)
    randomness.stream(Purpose.SELECTION, 5).random(100)
    assert np.array_equal(before, randomness.stream(Purpose.SELECTION, 4).random(5))


def test_streams_differ_in_each_part_of_the_key() -> None:
    """Seed, user, purpose and round each make another stream; 8 × 53 bits meet by chance below 1e-100."""
    assert len({first_draws(*key) for key in KEYS}) == len(KEYS)
    assert len({value for key in KEYS for value in first_draws(*key)}) == 8 * len(KEYS)


def test_round_and_user_are_not_interchangeable() -> None:
    """Round 3 of user 5 is not round 5 of user 3."""
    assert first_draws(0, 5, Purpose.SELECTION, 3) != first_draws(0, 3, Purpose.SELECTION, 5)


def test_user_and_round_default_to_zero() -> None:
    """Draws that belong to no client and no round are those of user 0 and round 0."""
    short = SeededRandomness(9).stream(Purpose.SPLIT).random(8)
    assert tuple(short) == first_draws(9, 0, Purpose.SPLIT, 0)


def test_a_stream_is_philox_with_the_key_in_its_documented_places() -> None:
    """Key (seed, purpose), counter (0, 0, round, user): whoever knows the rule can rebuild the stream."""
    bits = np.random.Philox(key=np.array([11, 6], dtype=np.uint64), counter=np.array([0, 0, 2, 4], dtype=np.uint64))
    expected = np.random.Generator(bits).standard_normal(6)
    assert np.array_equal(SeededRandomness(11, 4).stream(Purpose.SELECTION, 2).standard_normal(6), expected)


def test_purposes_keep_their_numbers() -> None:
    """Guards change: a renumbered purpose would change every published figure."""
    assert [purpose.value for purpose in Purpose][:13] == list(range(1, 14))
    assert Purpose.SPLIT == 1
    assert Purpose.SYNTHETIC == 13


@pytest.mark.parametrize("seed", [0, 2**64 - 1])
def test_the_ends_of_the_seed_range_work(seed: int) -> None:
    """The key has room for 64 bits, all of them usable."""
    assert SeededRandomness(seed).stream(Purpose.SPLIT).random(1).shape == (1,)


@pytest.mark.parametrize("seed", [-1, 2**64])
def test_a_seed_out_of_range_is_refused(seed: int) -> None:
    """A seed that does not fit the key is refused, not wrapped."""
    with pytest.raises(ParameterError, match=f"^seed .* {seed}"):
        SeededRandomness(seed)


def test_real_devices_take_no_seed() -> None:
    """Nothing can make a device's randomness predictable: neither class has a parameter for it."""
    assert not inspect.signature(SystemRandomness).parameters
    assert not inspect.signature(SystemStream).parameters


def test_a_system_stream_is_never_the_same_twice() -> None:
    """Each call has a fresh key: two equal streams of 8 draws would be a 2^-424 event."""
    randomness = SystemRandomness()
    first, second = (randomness.stream(Purpose.SELECTION, 1) for _ in range(2))
    assert not np.array_equal(first.random(8), second.random(8))
    assert not np.array_equal(first.random(8), first.random(8))


def test_a_system_stream_shows_nothing_of_its_key() -> None:
    """Neither repr nor str tells more than the name of the class."""
    stream = SystemRandomness().stream(Purpose.PERMANENT_BITS)
    assert repr(stream) == str(stream) == "SystemStream()"


@pytest.mark.parametrize("size", [0, 5, (2, 3), (4, 0), ()])
def test_system_draws_have_the_shape_asked_for(size: int | tuple[int, ...]) -> None:
    """As with NumPy's generator: a number is a length, a tuple is a shape."""
    stream = SystemStream()
    expected = (size,) if isinstance(size, int) else size
    assert stream.random(size).shape == expected
    assert stream.standard_normal(size).shape == expected
    assert stream.integers(0, 9, size).shape == expected


def test_system_uniforms_are_uniform() -> None:
    """Kolmogorov–Smirnov against uniform on [0, 1)."""
    draws = SystemStream().random(100_000)
    assert draws.max() < 1
    assert stats.kstest(draws, "uniform").pvalue > FALSE_ALARM


def test_system_normals_are_normal() -> None:
    """Kolmogorov–Smirnov against N(0, 1); the sum of squares, which sees the tails, against its χ².

    Each of the two checks has half of the false-alarm rate.
    """
    draws = SystemStream().standard_normal(100_000)
    low, high = stats.chi2.interval(1 - FALSE_ALARM / 2, draws.size)
    assert stats.kstest(draws, "norm").pvalue > FALSE_ALARM / 2
    assert low <= np.sum(draws**2) <= high


def test_system_integers_are_uniform_over_their_span() -> None:
    """χ² test over −3, …, 13, both ends included."""
    draws = SystemStream().integers(-3, 14, 170_000)
    counts = np.bincount(draws + 3)
    assert counts.size == 17
    assert stats.chisquare(counts).pvalue > FALSE_ALARM


def test_system_draws_are_not_correlated_from_one_to_the_next() -> None:
    """The lag-one sum of products of n normals is about N(0, n)."""
    draws = SystemStream().standard_normal(100_001)
    score = np.sum(draws[1:] * draws[:-1]) / np.sqrt(100_000)
    assert abs(score) < stats.norm.isf(FALSE_ALARM / 2)


class FixedWords(SystemStream):
    """A stream whose 64-bit words are given: the extreme ones cannot be waited for."""

    def __init__(self, word: int) -> None:
        super().__init__()
        self._word = word

    def _words(self, count: int) -> np.typing.NDArray[np.uint64]:
        return np.full(count, self._word, dtype=np.uint64)


@pytest.mark.parametrize("word", [0, 2**64 - 1])
def test_the_extreme_words_stay_inside_every_range(word: int) -> None:
    """The smallest and largest word give finite normals and stay inside [0, 1) and [low, high)."""
    stream = FixedWords(word)
    assert 0 <= stream.random(1)[0] < 1
    assert np.isfinite(stream.standard_normal(1)[0])
    assert stream.integers(5, 5 + 2**32, 1)[0] == (5 if word == 0 else 4 + 2**32)


def test_the_extreme_normals_are_symmetric() -> None:
    """Word 0 and the largest word are the two ends of the same grid."""
    low, high = (FixedWords(word).standard_normal(1)[0] for word in (0, 2**64 - 1))
    assert low == pytest.approx(-high, rel=1e-2)
    assert low < -8


@pytest.mark.parametrize(("low", "high"), [(3, 3), (4, 3), (0, 2**32 + 1)])
def test_an_impossible_span_of_integers_is_refused(low: int, high: int) -> None:
    """An empty span has no integer; beyond 2^32 the bias would no longer be negligible."""
    with pytest.raises(ParameterError, match=rf"^high must be above low.* {high - low}\.$"):
        SystemStream().integers(low, high, 1)
