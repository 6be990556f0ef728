"""The vector that recommendations are computed with: a person's ratings against the public item vectors.

It is computed on the device whenever it is needed. Nothing is drawn, nothing is sent and nothing costs budget: the
item vectors are public, and the ratings are here. It does not depend on how many rounds a device answered, so a
newcomer to a finished run gets it too, and a rating given after the last round counts.
"""

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.scale import HIGHEST, LOWEST

# Chosen on validation people of ML-100K and of the synthetic data: benchmarks/newcomers.py.
TASTE_WEIGHT = 0.6  # λ, per factor
LEVEL_RATINGS = 2.0  # κ
NO_DIRECTION = 1e-6  # a mean item vector that is shorter points nowhere: λ then holds u as a whole


def fit_user_vector(values: FloatArray, rated_vectors: FloatArray, item_vectors: FloatArray) -> FloatArray:
    """Return the user vector u that explains these ratings, `(n_factors,)`.

    With the mean item vector v̄, P the projection onto it, K factors and m the middle of the scale,

        u = argmin Σ_i (r_i − u v_iᵀ)² + λ K ‖u − P u‖² + κ (m − u v̄ᵀ)².

    Along v̄ all items score as they are liked by everybody: λ keeps u there until ratings say otherwise, and κ counts
    as that many ratings of an average item with the middle of the scale. One linear system of size K has the answer.
    """
    n_factors = item_vectors.shape[1]
    mean = item_vectors.mean(axis=0)
    norm = float(np.linalg.norm(mean))
    direction = mean / norm if norm > NO_DIRECTION else np.zeros(n_factors)
    precision = rated_vectors.T @ rated_vectors + LEVEL_RATINGS * np.outer(mean, mean)
    precision += TASTE_WEIGHT * n_factors * (np.eye(n_factors) - np.outer(direction, direction))
    middle = (LOWEST + HIGHEST) / 2
    return np.asarray(np.linalg.solve(precision, values @ rated_vectors + LEVEL_RATINGS * middle * mean))
