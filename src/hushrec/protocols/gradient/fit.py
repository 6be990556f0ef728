"""The user vector for recommendations on a device, fitted to the person's ratings and the public item vectors.

A device computes the vector when it recommends. The fit is deterministic, sends nothing and costs no budget. It does
not need any report of the device, so it works for people who join a finished run (cold start), and it uses ratings that
were added after the last round.
"""

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.scale import HIGHEST, LOWEST

# Chosen on validation people of ML-100K and of the synthetic data: benchmarks/newcomers.py.
TASTE_WEIGHT = 0.6  # λ, per factor
LEVEL_RATINGS = 2.0  # κ
NO_DIRECTION = 1e-6  # a shorter mean item vector counts as zero: λ then penalizes all of u


def fit_user_vector(values: FloatArray, rated_vectors: FloatArray, item_vectors: FloatArray) -> FloatArray:
    """Return the user vector u, `(n_factors,)`, fitted to a person's ratings by regularized least squares::

        u = argmin Σ_i (r_i − u v_iᵀ)² + λ K ‖u − P u‖² + κ (3 − u v̄ᵀ)²

    r_i are the ratings `values`, v_i the rows of `rated_vectors`, v̄ is the mean of `item_vectors`, P the projection
    onto v̄, and K the number of factors. A user vector along v̄ scores items by their popularity; λ = `TASTE_WEIGHT`
    penalizes deviations from that direction. The last term acts like κ = `LEVEL_RATINGS` further ratings, which give
    an average item the value 3, the middle of the scale. The solution takes one linear system of size K.
    """
    n_factors = item_vectors.shape[1]
    mean = item_vectors.mean(axis=0)
    norm = float(np.linalg.norm(mean))
    direction = mean / norm if norm > NO_DIRECTION else np.zeros(n_factors)
    precision = rated_vectors.T @ rated_vectors + LEVEL_RATINGS * np.outer(mean, mean)
    precision += TASTE_WEIGHT * n_factors * (np.eye(n_factors) - np.outer(direction, direction))
    middle = (LOWEST + HIGHEST) / 2
    return np.asarray(np.linalg.solve(precision, values @ rated_vectors + LEVEL_RATINGS * middle * mean))
