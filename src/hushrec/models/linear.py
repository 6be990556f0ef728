"""Compiled linear algebra for small dense matrices, in a fixed order of operations and in one thread.

LAPACK and BLAS may split sums by the number of threads, and their threads wait for each other on a busy machine. The
functions here give bit-identical results everywhere and are as fast for small matrices. Inner loops read contiguous
memory, so that the compiler can vectorize them without reordering sums.

A matrix that is singular in floating point gives non-finite numbers, never an exception: on a device, an exception
would reveal something about the person's ratings.
"""

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def add_gram(rows, total):  # type: ignore[no-untyped-def]
    """Add the upper triangle of rowsᵀrows to `total`, four rows at a time for speed."""
    h, length = rows.shape
    whole = h // 4 * 4
    for t in range(0, whole, 4):
        for k in range(length):
            w, x, y, z = rows[t, k], rows[t + 1, k], rows[t + 2, k], rows[t + 3, k]
            for c in range(k, length):
                total[k, c] += (w * rows[t, c] + x * rows[t + 1, c]) + (y * rows[t + 2, c] + z * rows[t + 3, c])
    for t in range(whole, h):
        for k in range(length):
            a = rows[t, k]
            for c in range(k, length):
                total[k, c] += a * rows[t, c]


@njit(cache=True, nogil=True, error_model="numpy")
def factorize(matrix):  # type: ignore[no-untyped-def]
    """Replace the upper triangle of a positive definite matrix A by its Cholesky factor U, with A = UᵀU."""
    n = matrix.shape[0]
    for first in range(0, n, 4):
        last = min(first + 4, n)
        for k in range(first, last):
            root = math.sqrt(matrix[k, k])
            matrix[k, k] = root
            inverse = 1.0 / root
            for i in range(k + 1, n):
                matrix[k, i] *= inverse
            for j in range(k + 1, last):
                a = matrix[k, j]
                for i in range(j, n):
                    matrix[j, i] -= a * matrix[k, i]
        if last - first == 4:
            k = first
            for j in range(last, n):
                a, b, c, d = matrix[k, j], matrix[k + 1, j], matrix[k + 2, j], matrix[k + 3, j]
                for i in range(j, n):
                    matrix[j, i] -= (a * matrix[k, i] + b * matrix[k + 1, i]) + (
                        c * matrix[k + 2, i] + d * matrix[k + 3, i]
                    )


@njit(cache=True, nogil=True, error_model="numpy")
def inverse_of_factor(factor):  # type: ignore[no-untyped-def]
    """Return the full matrix A⁻¹ = U⁻¹U⁻ᵀ from the Cholesky factor U of A."""
    n = factor.shape[0]
    lower = np.zeros((n, n))  # W = U⁻ᵀ: Uᵀ W = I
    for i in range(n):
        inverse = 1.0 / factor[i, i]
        lower[i, i] = inverse
        for k in range(i):
            a = factor[k, i] * inverse
            for j in range(k + 1):
                lower[i, j] -= a * lower[k, j]
    full = np.zeros((n, n))
    for t in range(n):
        for k in range(t + 1):
            a = lower[t, k]
            for c in range(t + 1):
                full[k, c] += a * lower[t, c]
    return full


@njit(cache=True, nogil=True, error_model="numpy")
def solve_factor(factor, right):  # type: ignore[no-untyped-def]
    """Return the solution x of A x = `right`, `(n,)`, from the Cholesky factor U of A = UᵀU."""
    n = factor.shape[0]
    solution = right.copy()
    for k in range(n):
        solution[k] /= factor[k, k]
        for i in range(k + 1, n):
            solution[i] -= factor[k, i] * solution[k]
    for k in range(n - 1, -1, -1):
        total = solution[k]
        for i in range(k + 1, n):
            total -= factor[k, i] * solution[i]
        solution[k] = total / factor[k, k]
    return solution


@njit(cache=True, nogil=True)
def multiply(left, right):  # type: ignore[no-untyped-def]
    """Return the matrix product of `left` `(m, k)` and `right` `(k, n)`."""
    found = np.zeros((left.shape[0], right.shape[1]))
    for i in range(left.shape[0]):
        for k in range(left.shape[1]):
            a = left[i, k]
            for j in range(right.shape[1]):
                found[i, j] += a * right[k, j]
    return found


@njit(cache=True, nogil=True)
def weighted_gram(rows, weights):  # type: ignore[no-untyped-def]
    """Return the full matrix rowsᵀ diag(weights) rows. Weights must not be negative."""
    scaled = np.empty_like(rows)
    for i in range(len(rows)):
        root = math.sqrt(weights[i])
        for k in range(rows.shape[1]):
            scaled[i, k] = root * rows[i, k]
    found = np.zeros((rows.shape[1], rows.shape[1]))
    add_gram(scaled, found)
    for k in range(len(found)):
        for c in range(k):
            found[k, c] = found[c, k]
    return found
