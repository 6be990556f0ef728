"""Compiled linear algebra against NumPy's."""

import numpy as np
import pytest

from hushrec.models import linear


@pytest.fixture
def rng() -> np.random.Generator:
    """Draws of this file."""
    return np.random.default_rng(8)


@pytest.mark.parametrize("size", [1, 3, 4, 5, 8, 30])
def test_a_factor_solves_its_system(rng: np.random.Generator, size: int) -> None:
    """U of A = UᵀU, A⁻¹b and A⁻¹ agree with LAPACK's."""
    half = rng.standard_normal((size, size + 2))
    matrix, right = half @ half.T + np.eye(size), rng.standard_normal(size)
    factor = matrix.copy()
    linear.factorize(factor)
    np.testing.assert_allclose(np.triu(factor), np.linalg.cholesky(matrix).T, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(linear.solve_factor(factor, right), np.linalg.solve(matrix, right), rtol=1e-9)
    np.testing.assert_allclose(linear.inverse_of_factor(factor), np.linalg.inv(matrix), rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(("rows", "inner", "width"), [(0, 2, 3), (1, 1, 1), (7, 3, 5), (9, 8, 2)])
def test_products_are_products(rng: np.random.Generator, rows: int, inner: int, width: int) -> None:
    """Of matrices, and of a matrix with itself under weights."""
    left, right = rng.standard_normal((rows, inner)), rng.standard_normal((inner, width))
    weights = rng.random(rows)
    np.testing.assert_allclose(linear.multiply(left, right), left @ right, rtol=1e-12, atol=1e-14)
    expected = left.T @ (weights[:, None] * left)
    np.testing.assert_allclose(linear.weighted_gram(left, weights), expected, rtol=1e-12, atol=1e-14)
