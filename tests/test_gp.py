"""The maths of one person's Gaussian process, against NumPy's formulas."""

from threading import Thread

import numpy as np
import pytest
from threadpoolctl import threadpool_info

from hushrec.models import gp
from hushrec.models.gaussian_process import in_threads
from hushrec.models.titles import TitleRows, title_rows

TITLES = ["Star Wars", "Star Trek", "Star Trek II", "Police Academy", "Police Academy 2", "Academy", "Heat"]
KERNEL = (0.12, 0.7)


@pytest.fixture
def person(rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Seven items with rows of five numbers, of which a person rated six."""
    rows = rng.standard_normal((len(TITLES), 5))
    items = np.array([0, 1, 2, 3, 5, 6])
    return {"rows": rows, "items": items, "residuals": rng.standard_normal(6), "variances": rng.random(7) + 0.5}


@pytest.fixture
def rng() -> np.random.Generator:
    """Draws of this file."""
    return np.random.default_rng(5)


def table_of(rows: np.ndarray, variances: np.ndarray, kernel: tuple[float, float], titles: TitleRows) -> gp.ItemTable:
    """A public table with these arrays, and nothing about offsets and counts."""
    none, words = np.zeros(len(rows)), (titles.starts, titles.columns, titles.weights)
    return gp.ItemTable(none, rows, variances, none, np.array(kernel), *words)


def covariance(rows: np.ndarray, titles: TitleRows) -> np.ndarray:
    """K of all items by its definition."""
    squared = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    words = titles.matrix.toarray()
    return rows @ rows.T + KERNEL[0] * np.exp(-0.5 * squared / KERNEL[1]) + words @ words.T


@pytest.mark.parametrize("n_ratings", [0, 1, 3, 4, 11])
def test_the_posterior_is_that_of_bayesian_regression(rng: np.random.Generator, n_ratings: int) -> None:
    """V = (I + XᵀWX)⁻¹ and d = V XᵀWy."""
    rows, residuals = rng.standard_normal((n_ratings, 6)), rng.standard_normal(n_ratings)
    precisions = rng.random(n_ratings) + 0.5
    mean, covariance = gp.taste_posterior(rows, residuals, precisions)
    expected = np.linalg.inv(np.eye(6) + rows.T @ np.diag(precisions) @ rows)
    np.testing.assert_allclose(covariance, expected, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(mean, expected @ rows.T @ (precisions * residuals), rtol=1e-11, atol=1e-13)


def test_without_ratings_the_posterior_is_exactly_the_prior() -> None:
    """Zero and I, bit for bit: an empty profile sends exact zeros."""
    mean, covariance = gp.taste_posterior(np.empty((0, 3)), np.empty(0), np.empty(0))
    assert np.array_equal(mean, np.zeros(3))
    assert np.array_equal(covariance, np.eye(3))


def test_held_out_residuals_are_those_of_leaving_one_out_where_all_leverages_are_alike() -> None:
    """With orthogonal rows of one length, the mean leverage is everybody's."""
    rows, residuals, precisions = 2 * np.eye(4), np.array([1.0, -2.0, 0.5, 3.0]), np.full(4, 0.7)
    found = gp.held_out_residuals(rows, residuals, *gp.taste_posterior(rows, residuals, precisions))
    for left_out in range(4):
        kept = np.arange(4) != left_out
        mean, _ = gp.taste_posterior(rows[kept], residuals[kept], precisions[kept])
        assert found[left_out] == pytest.approx(residuals[left_out] - rows[left_out] @ mean)


def test_the_process_predicts_mean_and_deviation(person: dict[str, np.ndarray]) -> None:
    """k_jᵀα and √(k_jj − k_jᵀ(K + diag v)⁻¹k_j), for rated and unrated items, with words and series in common."""
    titles = title_rows(TITLES)
    rows, items, residuals, variances = (person[name] for name in ("rows", "items", "residuals", "variances"))
    table, wanted = table_of(rows, variances, KERNEL, titles), np.arange(len(TITLES))
    factor, alpha = gp.fit_process(items, residuals, table)
    mean = gp.predict_mean(items, alpha, wanted, table)
    deviation = gp.predict_deviation(items, factor, wanted, table)

    k = covariance(rows, titles)
    inverse = np.linalg.inv(k[np.ix_(items, items)] + np.diag(variances[items]))
    np.testing.assert_allclose(mean, k[:, items] @ inverse @ residuals, rtol=1e-10)
    expected = np.sqrt(np.diag(k - k[:, items] @ inverse @ k[:, items].T))
    np.testing.assert_allclose(deviation, expected, rtol=1e-9)


def test_the_linear_part_predicts_what_the_posterior_predicts(person: dict[str, np.ndarray]) -> None:
    """Two routes to one number: regression on rows, and the process with the kernel of their products."""
    rows, items, residuals, variances = (person[name] for name in ("rows", "items", "residuals", "variances"))
    no_titles = TitleRows(np.zeros(8, np.int64), np.empty(0, np.int64), np.empty(0))
    wanted, table = np.arange(7), table_of(rows, variances, (0.0, 1.0), no_titles)
    factor, alpha = gp.fit_process(items, residuals, table)
    found = gp.predict_mean(items, alpha, wanted, table)
    deviation = gp.predict_deviation(items, factor, wanted, table)
    mean, covariance = gp.taste_posterior(rows[items], residuals, 1 / variances[items])
    np.testing.assert_allclose(found, rows @ mean, rtol=1e-9)
    np.testing.assert_allclose(gp.predict_taste(mean, wanted, rows), rows @ mean, rtol=1e-9)
    np.testing.assert_allclose(gp.taste_of(items, alpha, rows), mean, rtol=1e-9)
    np.testing.assert_allclose(deviation, np.sqrt(np.einsum("jk,kl,jl->j", rows, covariance, rows)), rtol=1e-7)


def test_the_scatter_of_a_person_is_the_mean_ratio_of_squared_errors_to_variances() -> None:
    """Worked by hand: C = 2 I and residuals 4, 0, 4 have yᵀC⁻¹y = 16, ratio 16/3, power 3/(5 + 3)."""
    residuals = np.array([4.0, 0.0, 4.0])
    assert gp.scatter_of(residuals, residuals / 2, 5.0) == pytest.approx((16 / 3) ** (3 / 8))
    assert gp.scatter_of(residuals, residuals / 2, np.inf) == 1
    assert gp.scatter_of(np.empty(0), np.empty(0), 5.0) == 1
    assert gp.scatter_of(np.zeros(3), np.zeros(3), 5.0) == pytest.approx(1e-4 ** (3 / 8))


@pytest.mark.parametrize("factor", [0.1, 3.0])
def test_deviations_follow_the_scatter_of_a_persons_own_ratings(rng: np.random.Generator, factor: float) -> None:
    """People whose ratings are `factor` times as far apart as the model expects: so are the deviations.

    The root mean square of the ratio for 400 people with 60 ratings is within a tenth of the factor to the power
    60/65 (its standard error is 0.005).
    """
    rows, titles = rng.standard_normal((80, 3)), title_rows([""] * 80)
    table = table_of(rows, np.full(80, 0.8), KERNEL, titles)
    items, root = np.arange(60), np.linalg.cholesky(covariance(rows, titles)[:60, :60] + 0.8 * np.eye(60))
    found = []
    for _ in range(400):
        residuals = factor * root @ rng.standard_normal(60)
        _, alpha = gp.fit_process(items, residuals, table)
        found.append(gp.scatter_of(residuals, alpha, gp.USUAL_SCATTER))
    assert np.sqrt(np.mean(found)) == pytest.approx(factor ** (60 / 65), rel=0.1)


def test_matrix_products_have_no_threads_of_their_own_in_our_threads() -> None:
    """Two calls at once wait for each other; afterwards the libraries have as many threads as before."""
    seen: list[tuple[int, int, int]] = []

    def threads() -> list[int]:
        return [library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"]

    def work(first: int, stop: int) -> None:
        seen.append((first, stop, max(threads())))

    before = threads()
    callers = [Thread(target=in_threads, args=(work, 5), kwargs={"per_task": 2}) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert sorted(seen) == [(0, 2, 1)] * 4 + [(2, 4, 1)] * 4 + [(4, 5, 1)] * 4
    assert threads() == before
    in_threads(work, 2)  # few enough for the caller's own thread
    assert seen[-1] == (0, 2, max(before))
