"""Empirical Bayes on noisy sums: known truths come back, and noise is shrunk away."""

import numpy as np
import pytest

from hushrec.protocols.masked import posteriors
from hushrec.protocols.masked.posteriors import RowNoise


@pytest.fixture
def rng() -> np.random.Generator:
    """Draws of this file."""
    return np.random.default_rng(3)


@pytest.fixture
def columns(rng: np.random.Generator) -> np.ndarray:
    """Intercept and four public columns of 2,000 items."""
    return np.concatenate([np.ones((2000, 1)), rng.standard_normal((2000, 4))], axis=1)


def test_counts_without_noise_to_speak_of_are_what_was_counted(rng: np.random.Generator) -> None:
    """The grid is finer than a tenth."""
    counts = np.exp(rng.normal(3, 1, 300))
    mean, log_mean = posteriors.count_posterior(counts, np.full(300, 0.05), np.zeros((300, 0)))
    np.testing.assert_allclose(mean, counts, rtol=0.1)
    np.testing.assert_allclose(log_mean, np.maximum(np.log(counts), 0), atol=0.1)


def test_counts_under_noise_borrow_from_columns(rng: np.random.Generator) -> None:
    """The posterior is nearer to the truth than the noisy counts and than a posterior without columns."""
    column = rng.standard_normal((1000, 1))
    log_counts = 3 + column[:, 0] + rng.normal(0, 0.3, 1000)
    noisy = np.exp(log_counts) + rng.normal(0, 30, 1000)
    with_column = posteriors.count_posterior(noisy, np.full(len(noisy), 30.0), column)
    without = posteriors.count_posterior(noisy, np.full(len(noisy), 30.0), column[:, :0])
    error = np.mean((with_column[1] - log_counts) ** 2)
    assert error < 0.5 * np.mean((without[1] - log_counts) ** 2)
    assert np.mean((with_column[0] - np.exp(log_counts)) ** 2) < 0.5 * 30**2


def test_regression_finds_coefficients_and_drops_noise(rng: np.random.Generator, columns: np.ndarray) -> None:
    """Two estimates at once: one follows the columns, one is noise around a constant."""
    truth = columns @ np.array([1.0, 0.5, -0.5, 0.25, 0.0])
    estimates = np.stack([truth, np.full(2000, 2.0)], axis=1) + rng.normal(0, 0.1, (2000, 2))
    found = posteriors.regress(estimates, np.full(2000, 100.0), columns)
    np.testing.assert_allclose(found[:, 0], truth, atol=0.03)
    np.testing.assert_allclose(found[:, 1], 2.0, atol=0.03)


def test_effects_have_the_posterior_of_their_own_model(rng: np.random.Generator, columns: np.ndarray) -> None:
    """With θ ~ N(Fa, 0.04) and v known, the error has the variance that the posterior states, within a fifth."""
    truth = columns @ np.array([0.2, 0.3, 0.0, -0.2, 0.1]) + rng.normal(0, 0.2, 2000)
    variances = rng.uniform(0.01, 0.3, 2000)
    mean, variance = posteriors.effect_posterior(truth + rng.normal(0, np.sqrt(variances)), variances, columns)
    assert np.mean((mean - truth) ** 2) == pytest.approx(np.mean(variance), rel=0.2)
    assert np.all(variance < variances)


@pytest.mark.parametrize("n_columns", [2, 30])
def test_effects_that_noise_hides_are_not_made_up(n_columns: int) -> None:
    """Noise of variance 10 to 1,500: the error, apart from a shift of all, stays near 0.09, the variance of the truth.

    Without priors of ρ and τ² it is 0.16 on average: noise makes the evidence prefer effects that are not there.
    """
    errors = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        columns = np.concatenate([np.ones((400, 1)), rng.standard_normal((400, n_columns))], axis=1)
        columns[:, 1:] -= columns[:, 1:].mean(axis=0)
        variances = 10 * np.exp(rng.uniform(0, 5, 400))
        truth = 0.3 * rng.standard_normal(400)
        mean, _ = posteriors.effect_posterior(truth + rng.normal(0, np.sqrt(variances)), variances, columns)
        away = mean - truth - np.average(mean - truth, weights=1 / variances)
        errors.append(np.average(away**2, weights=1 / variances))
    assert np.mean(errors) < 0.12


def test_pooling_weights_by_precision() -> None:
    """1 with variance 1 and 4 with variance 0.5 make 3 with variance 1/3."""
    mean, variance = posteriors.pool([np.array([1.0]), np.array([4.0])], [np.array([1.0]), np.array([0.5])])
    assert (mean[0], variance[0]) == pytest.approx((3.0, 1 / 3))


def test_columns_are_shrunk_as_much_as_their_noise_asks_for(rng: np.random.Generator, columns: np.ndarray) -> None:
    """Correlated columns: the posterior's error is below that of shrinking each column by itself."""
    spread = np.array([[1.0, 0.9], [0.9, 1.0]])
    truth = rng.multivariate_normal(np.zeros(2), spread, 2000)
    noise = RowNoise(rng.uniform(0.5, 2, 2000), np.eye(2), np.full(2000, 0.1), np.array([[1.0, 0.3], [0.3, 1.0]]))
    covariances = noise.private[:, None, None] * np.eye(2) + noise.sampling[:, None, None] * noise.sampling_shape
    estimates = truth + np.stack([rng.multivariate_normal(np.zeros(2), one) for one in covariances])
    found = posteriors.column_posterior(estimates, noise, columns)
    alone = estimates * (1 / (1 + noise.private + noise.sampling))[:, None]
    assert np.mean((found - truth) ** 2) < 0.9 * np.mean((alone - truth) ** 2)


def test_rows_of_which_nothing_is_known_change_nothing(rng: np.random.Generator) -> None:
    """Ten times as many items that nobody rated: the posterior of the others stays where it was."""
    truth, blind = rng.normal(0, 1, (300, 2)), rng.normal(0, 300, (3000, 2))
    estimates = np.concatenate([truth + rng.normal(0, 0.5, truth.shape), blind])
    private = np.concatenate([np.full(300, 0.25), np.full(3000, 300.0**2)])

    def posterior(rows: int) -> np.ndarray:
        noise = RowNoise(private[:rows], np.eye(2), np.full(rows, 1e-6), np.eye(2))
        return posteriors.column_posterior(estimates[:rows], noise, np.ones((rows, 1)))[:300]

    np.testing.assert_allclose(posterior(3300), posterior(300), atol=0.01)


def test_a_prior_step_without_noise_is_expectation_maximization() -> None:
    """A = I + average − mean meanᵀ, to the power of the over-relaxation."""
    mean, moments = np.array([0.1, -0.2]), np.array([[0.3, 0.1], [0.1, -0.2]])
    shift, growth = posteriors.prior_step(mean, moments, 0.0, 2.0)
    change = np.eye(2) + moments - np.outer(mean, mean)
    np.testing.assert_allclose(shift, mean)
    np.testing.assert_allclose(growth, change @ change)


def test_a_prior_step_of_loud_noise_alone_moves_nothing(rng: np.random.Generator) -> None:
    """Noise of 0.5 per entry: what remains after shrinking is a fraction of it."""
    length = 20
    upper = np.triu(rng.normal(0, 0.5 / np.sqrt(2), (length, length)), 1)
    moments = upper + upper.T + np.diag(rng.normal(0, 0.5, length))
    shift, growth = posteriors.prior_step(rng.normal(0, 0.25, length), moments, 0.5, 1.0)
    assert np.abs(growth - np.eye(length)).max() < 0.6
    assert np.linalg.norm(shift) < 0.6


def test_the_best_known_directions_are_those_of_largest_variance() -> None:
    """With independent rows the directions are the axes, by size, and p has the variance of what is known."""
    covariance = np.diag([0.2, 1.0, 0.05])
    found = posteriors.best_known_directions(covariance, 0.8, 2)
    known = np.eye(3) - np.mean([np.linalg.inv(np.eye(3) + h * covariance / 0.8) for h in (20, 40, 80, 160, 350)], 0)
    np.testing.assert_allclose(found.T @ known @ found, np.eye(2), atol=1e-6)
    assert [int(np.argmax(np.abs(direction))) for direction in found.T] == [1, 0]


def test_covariance_counts_rows_by_weight() -> None:
    """A row of weight 2 is two rows."""
    rows = np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
    found = posteriors.weighted_covariance(rows, np.array([2.0, 1.0, 1.0]))
    np.testing.assert_allclose(found, np.cov(np.repeat(rows, [2, 1, 1], axis=0).T, bias=True))
