"""Blocks as integers: the norm bound against everything hostile, unbiased rounding, zeros, and sums that decode."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import stats

from hushrec.budget.gaussian import Cohort, own_norm_squared, run_mu
from hushrec.device.budgets import Budgets
from hushrec.errors import ParameterError
from hushrec.protocols.masked import rounding
from hushrec.protocols.masked.encoding import (
    BETA,
    BlockCode,
    Entries,
    add_share,
    clip_of_norm,
    code_block,
    decode_sum,
    encode_block,
    exact_norm_squared,
    is_plausible,
    norm_bound,
    split_table,
)
from hushrec.protocols.masked.evaluation import Held
from hushrec.protocols.masked.noise import discrete_gaussian
from hushrec.protocols.masked.plan import Block
from hushrec.protocols.masked.protocol import Masked
from hushrec.protocols.masked.rounding import round_block
from hushrec.randomness import SystemStream

FALSE_ALARM = 1e-6


class Fixed:
    """A hostile stream: every uniform is the same number."""

    def __init__(self, uniform: float) -> None:
        self.uniform = uniform

    def random(self, size: int) -> np.ndarray:
        return np.full(size, self.uniform)


def code(size: int = 40, clip: float = 5.0, units: int = 1000) -> BlockCode:
    """A code with a given grid."""
    return BlockCode(size, clip, units, norm_bound(units, size), 100)


hostile_blocks = hnp.arrays(np.float64, st.integers(1, 30), elements=st.floats(width=64) | st.floats(-10, 10))
streams = st.sampled_from([Fixed(0.0), Fixed(0.5), Fixed(1 - 2**-53)])


@settings(max_examples=300)
@given(
    hostile_blocks, st.floats(1e-300, 1e300), st.integers(1, 2**16), st.floats(0, 1), streams | st.builds(SystemStream)
)
def test_the_integer_norm_is_bounded_whatever_comes_in(values, clip, units, fraction, stream) -> None:
    """NaN, infinities, subnormals, any clip, grid and own budget, the worst uniforms: Σ z² ≤ ⌊k²Δ²⌋, by Python."""
    block = code(len(values), clip, units)
    own = own_norm_squared(block.norm_squared, fraction)
    found = encode_block(block, values, norm_squared=own, rounding=stream)
    assert sum(int(z) ** 2 for z in found) <= own <= block.norm_squared
    if not np.isfinite(values).all():
        assert not found.any()


@pytest.mark.parametrize("size", [1, 3, 50, 2000])
def test_a_search_for_the_longest_integers_never_passes_the_bound(size: int, rng: np.random.Generator) -> None:
    """Hill climbing on values and uniforms from the worst start, every fraction just above ½ rounded up."""
    block = code(size, clip=1.0, units=2 * math.isqrt(size) + 1)
    values = np.full(size, 0.51 * block.grid)
    longest = 0
    for _ in range(150):
        attempt = values + rng.normal(size=size) * rng.choice([0.01, 0.3, 3, 100]) * block.grid * (
            rng.random(size) < 0.5
        )
        found = exact_norm_squared(encode_block(block, attempt, rounding=Fixed(float(rng.choice([0, 0.1, 0.5])))))
        assert found <= block.norm_squared
        if found >= longest:
            longest, values = found, attempt
    assert longest > block.clip_units**2 / 2  # the search found long vectors


@given(st.integers(1, 500), st.integers(0, 2**32))
def test_truncation_toward_zero_is_the_answer_to_long_integers(size: int, seed: int) -> None:
    """If every fraction is rounded up the bound fails, so what is sent is trunc(x), never a new draw."""
    block = code(size, clip=1.0, units=3)
    values = np.random.default_rng(seed).normal(size=size)
    values /= np.linalg.norm(values)
    found = encode_block(block, values, rounding=Fixed(0.0))  # always up
    up = np.ceil(values / block.grid)
    truncated = np.trunc(values / block.grid)
    assert np.array_equal(found, truncated if np.sum(up**2) > block.norm_squared else up)


@pytest.mark.parametrize("size", [30, 400])
def test_honest_devices_truncate_with_probability_at_most_beta(size: int) -> None:
    """The worst block has every entry half way: the share of truncations is below β, up to one alarm in a million."""
    units = round(7.5 * math.sqrt(size))  # entries of 7.5 grid units, and Δ² near its smallest margin
    block, trials = code(size, clip=1.0, units=units), 4000
    values = np.full(size, 7.5 * block.grid)
    truncated = sum(np.all(encode_block(block, values, rounding=SystemStream()) == 7) for _ in range(trials))
    assert truncated <= stats.binom.isf(FALSE_ALARM, trials, BETA)


def test_rounding_is_unbiased() -> None:
    """The mean of 4,000 roundings of each of 50 numbers is the number: |z| below the bound of 1e-6 over all 50."""
    block = code(50, clip=10.0, units=300)
    values = np.linspace(-1, 1, 50)
    draws = np.array([encode_block(block, values, rounding=SystemStream()) for _ in range(4000)]) * block.grid
    error = np.sqrt((values / block.grid) % 1 * (1 - (values / block.grid) % 1) / 4000) * block.grid
    assert np.all(np.abs(draws.mean(axis=0) - values) <= stats.norm.isf(FALSE_ALARM / 100) * error + 1e-12)


def test_zeros_and_whole_numbers_stay_what_they_are() -> None:
    """With uniforms at both ends, and an empty profile is zeros."""
    block = code(6, clip=1000.0, units=1000)
    for stream in (Fixed(0.0), Fixed(1 - 2**-53)):
        assert encode_block(block, np.array([0.0, -0.0, 3, -4, 100, -990]), rounding=stream).tolist() == [
            0, 0, 3, -4, 100, -990,
        ]  # fmt: skip
        assert not encode_block(block, np.zeros(0), np.zeros(0, dtype=np.int64), rounding=stream).any()


def test_sparse_and_dense_blocks_are_the_same_integers() -> None:
    """Entries at their positions, zeros elsewhere: as if the block had been written out."""
    block, positions, values = code(40), np.array([3, 7, 39]), np.array([1.0, -2.0, 0.3])
    dense = np.zeros(40)
    dense[positions] = values
    sparse = encode_block(block, values, positions, rounding=Fixed(0.4))
    assert np.array_equal(sparse, encode_block(block, dense, rounding=Fixed(0.4)))
    assert np.count_nonzero(sparse) == 3


def test_an_item_that_comes_twice_counts_once() -> None:
    """64 copies of one entry do not add up beyond the bound: the last one is sent."""
    block = code(40, clip=1.0)
    found = encode_block(block, np.full(64, 1.0), np.full(64, 5), rounding=Fixed(0.5))
    assert exact_norm_squared(found) <= block.norm_squared
    assert np.count_nonzero(found) == 1


def test_a_long_block_is_scaled_to_its_clip_as_a_whole() -> None:
    """(3, 4) clipped to norm 1 is (0.6, 0.8): 600 and 800 of 1,000 grid units."""
    assert encode_block(code(2, clip=1.0), np.array([3.0, 4.0]), rounding=Fixed(0.5)).tolist() == [600, 800]


@pytest.mark.parametrize("fraction", [0.9, 0.3, 0.05])
def test_a_budget_of_ones_own_shortens_the_clip(fraction: float) -> None:
    """A block at the clip becomes nearly k of it, and is not truncated; one that leaves no room becomes zeros."""
    block = code(40, clip=1.0, units=2**16)
    own = own_norm_squared(block.norm_squared, fraction)
    found = encode_block(block, np.full(40, 1.0), norm_squared=own, rounding=SystemStream())
    assert 0.97 * fraction < math.sqrt(exact_norm_squared(found)) * block.grid <= fraction * (1 + 1e-3)
    assert clip_of_norm(block, block.norm_squared) == block.clip_units
    assert clip_of_norm(block, 5) == 0.0
    assert not encode_block(block, np.full(40, 1.0), norm_squared=5, rounding=SystemStream()).any()


@pytest.mark.parametrize("number", [2**31, 2**62, -(2**63)])
def test_squares_do_not_overflow(number: int) -> None:
    """Integers whose squares wrap around to small numbers are measured all the same."""
    assert exact_norm_squared(np.array([number, 1, number], dtype=np.int64)) == 2 * number**2 + 1


def test_a_block_whose_integers_would_overflow_is_zeros() -> None:
    """Numbers of 1e308, of which the squares are infinite, and a clip so small that its scale is."""
    for clip in (5.0, 1e-306):
        assert not encode_block(code(3, clip=clip), np.full(3, 1e308), rounding=Fixed(0.5)).any()


@settings(max_examples=60)
@given(st.integers(1, 200_000), st.floats(1e-3, 1e3), st.floats(1e-3, 1), st.floats(0.1, 16), st.integers(1, 10_000))
def test_a_cohort_sums_up_without_a_wrap(size: int, clip: float, share: float, epsilon: float, devices: int) -> None:
    """With n Δ + 10 √(nV) < 2³¹ no sum wraps; the code is fine enough for rounding to cost little."""
    cohort = Cohort(devices, survivors=0.9, corrupt=0.05 if devices > 2 else 0.0)
    block = code_block(Block("block", (size,), clip, share), mu=run_mu(epsilon, 1e-6), cohort=cohort)
    assert devices * math.sqrt(block.norm_squared) + 10 * math.sqrt(devices * block.share_variance) < 2**31
    assert block.clip_units <= math.sqrt(block.norm_squared) <= 1.25 * block.clip_units
    finer = code_block(Block("block", (size,), clip, share), mu=run_mu(epsilon, 1e-6), cohort=Cohort(1))
    assert finer.clip_units >= block.clip_units


def test_a_cohort_that_is_too_large_for_32_bits_is_refused() -> None:
    """One sentence that names what must change."""
    with pytest.raises(ParameterError, match="devices"):
        code_block(Block("block", (100_000,), 5.0, 0.4), mu=1.5, cohort=Cohort(10**8))


def test_without_a_budget_a_sum_is_exact() -> None:
    """ε = ∞: no noise, so three devices' whole numbers add up exactly, and the known variance is 0."""
    block = code_block(Block("block", (3,), 2.0**16, 0.5), mu=math.inf, cohort=Cohort(3))
    assert (block.share_variance, block.grid) == (0, 1.0)
    tables = [add_share(block, np.array([n, -n, 7]), noise=SystemStream()) for n in (1, 20, 300)]
    decoded = decode_sum(block, np.sum(tables, axis=0, dtype=np.uint32), survivors=3)
    assert decoded.values.tolist() == [321.0, -321.0, 21.0]
    assert (decoded.noise_variance, decoded.rounding_variance) == (0.0, 0.75)


def test_the_sum_of_a_cohort_has_the_stated_variance() -> None:
    """50 devices, 4,000 numbers: (decoded − true sum) has the noise's variance, plus at most that of rounding."""
    cohort = Cohort(50)
    block = code_block(Block("block", (4000,), 5.0, 0.5), mu=1.5, cohort=cohort)
    rng = np.random.default_rng(1)
    blocks = rng.normal(size=(50, 4000)) * 0.07
    tables = [
        add_share(block, encode_block(block, values, rounding=SystemStream()), noise=SystemStream())
        for values in blocks
    ]
    decoded = decode_sum(block, np.sum(tables, axis=0, dtype=np.uint32), survivors=50)
    clipped = blocks * np.minimum(1, 5.0 / np.linalg.norm(blocks, axis=1))[:, None]
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], 4000)
    squares = float(np.sum((decoded.values - clipped.sum(axis=0)) ** 2))
    assert low * decoded.noise_variance < squares < high * (decoded.noise_variance + decoded.rounding_variance)
    assert math.sqrt(decoded.noise_variance) == pytest.approx(5.0 / (1.5 * math.sqrt(0.5)), rel=1e-3)


def test_the_same_draws_give_the_same_integers_in_a_loop_and_on_a_device() -> None:
    """An engine that calls `round_block` on all people gets what each device gets from the same uniforms."""
    block, rng = code(200), np.random.default_rng(4)
    values, uniforms = rng.normal(size=200), rng.random(200)
    out = np.empty(200, dtype=np.int64)
    round_block(values, uniforms, 1 / block.grid, float(block.clip_units), block.norm_squared, out)

    class Replay:
        def random(self, size: int) -> np.ndarray:
            return uniforms[:size]

    assert np.array_equal(out, encode_block(block, values, rounding=Replay()))


@pytest.mark.parametrize("limit", [10**9, 150, 90, 1])
def test_the_compiled_loop_is_the_written_one(limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled or interpreted, rounded, truncated or too long for both: the same integers."""
    rng = np.random.default_rng(6)
    values, uniforms = rng.normal(size=30), rng.random(30)
    found, plain = np.empty(30, dtype=np.int64), np.empty(30, dtype=np.int64)
    for bad in (1.0, math.nan):
        round_block(values * bad, uniforms, 3.0, 10.0, limit, found)
        with monkeypatch.context() as patch:
            for name in ("_rounded", "_truncated"):
                patch.setattr(rounding, name, getattr(rounding, name).py_func)
            round_block.py_func(values * bad, uniforms, 3.0, 10.0, limit, plain)
        assert np.array_equal(found, plain)
        assert exact_norm_squared(found) <= limit


def test_integers_that_are_too_long_after_all_are_sent_as_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever rounding has made: the norm is checked last, exactly."""

    def too_long(*arguments: Any) -> None:
        arguments[-1][:] = 2**40

    monkeypatch.setattr(rounding, "round_block", too_long)
    assert not encode_block(code(40), np.ones(40), rounding=Fixed(0.5)).any()


def test_wrong_lengths_are_refused() -> None:
    """A dense block and a sum must have the size of the code."""
    with pytest.raises(ParameterError, match="values"):
        encode_block(code(40), np.zeros(39), rounding=Fixed(0.5))
    with pytest.raises(ParameterError, match="total"):
        decode_sum(code(40), np.zeros(39, dtype=np.uint32), 3)


def test_the_price_is_reached_and_not_exceeded() -> None:
    """The best test between a worst block and zeros, on 3,000 real sums of 6 shares each: μ within 5 standard errors.

    For Gaussian noise the best statistic is the projection on the block; its two means differ by μ deviations.
    """
    cohort, runs = Cohort(6), 3000
    block = code_block(Block("block", (25,), 1.0, 1.0), mu=1.5, cohort=cohort)
    values = np.full(25, 0.2)  # of norm 1, the clip
    projections = []
    for present in (1.0, 0.0):
        own = [encode_block(block, present * values, rounding=SystemStream()) for _ in range(runs)]
        noise = discrete_gaussian(block.share_variance).draw(runs * 6 * 25, rng=SystemStream())
        sums = np.array(own) + noise.reshape(runs, 6, 25).sum(axis=1)
        projections.append(sums @ values)
    found = (projections[0].mean() - projections[1].mean()) / projections[1].std()
    error = math.sqrt(2 / runs + 1.5**2 / (2 * runs))
    assert abs(found - 1.5) < stats.norm.isf(FALSE_ALARM / 2) * error


def test_a_sum_that_honest_devices_cannot_have_is_seen() -> None:
    """Ten devices at their clip are plausible, with noise; one table of random integers among them is not."""
    cohort = Cohort(10)
    block = code_block(Block("block", (300,), 5.0, 0.5), mu=1.5, cohort=cohort)
    tables = [
        add_share(block, encode_block(block, np.full(300, 9.0), rounding=SystemStream()), noise=SystemStream())
        for _ in range(10)
    ]
    assert is_plausible(block, np.sum(tables, axis=0, dtype=np.uint32), 10)
    tables[3] = np.frombuffer(SystemStream().bytes(1200), dtype=np.uint32)
    assert not is_plausible(block, np.sum(tables, axis=0, dtype=np.uint32), 10)


def test_a_round_is_split_into_its_blocks() -> None:
    """Sizes 2 and 3, one after the other; another length is refused."""
    codes = [code(2), code(3)]
    assert [part.tolist() for part in split_table(codes, np.arange(5, dtype=np.uint32))] == [[0, 1], [2, 3, 4]]
    with pytest.raises(ParameterError, match="table"):
        split_table(codes, np.arange(6, dtype=np.uint32))


def test_nothing_of_a_person_is_in_a_repr() -> None:
    """Neither ratings and entries nor a budget of one's own, which would reach a log that way."""
    rated = Held(np.array([314159]), np.array([271828.0]))
    own = [rated, Entries(rated.values, rated.items), Masked(8.0, own_epsilon=2.71828)]
    own += [Budgets(options={"masked": {"own_epsilon": 2.71828}}, limits={"table": 3.14159})]
    for one in own:
        assert "314159" not in repr(one).replace(".", "")
        assert "271828" not in repr(one).replace(".", "")
