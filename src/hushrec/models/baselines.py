"""Non-personal and simple baselines for rating prediction, which every accuracy table shows beside the models."""

from collections.abc import Callable

import numpy as np
from scipy import sparse
from scipy.sparse.linalg import cg

from hushrec.arrays import FloatArray, IntArray

Predict = Callable[[IntArray, IntArray], FloatArray]  # (users, items) → predicted ratings

BIAS_PENALTY = 4.0  # λ of the bias model


def rating_baselines(
    users: IntArray, items: IntArray, values: FloatArray, n_users: int, n_items: int
) -> dict[str, Predict]:
    """Fit the baselines to ratings; return, by name, a function (users, items) → predicted ratings.

    The names are "global_mean", "user_mean", "item_mean" and "bias". The last one predicts the global mean plus the
    bias of the user plus the bias of the item.
    """
    mean = float(values.mean())
    user_means = group_means(users, values, n_users, mean)
    item_means = group_means(items, values, n_items, mean)
    user_bias, item_bias = fit_biases(users, items, values - mean, n_users, n_items)
    return {
        "global_mean": lambda users, items: np.full(len(users), mean),
        "user_mean": lambda users, items: user_means[users],
        "item_mean": lambda users, items: item_means[items],
        "bias": lambda users, items: mean + user_bias[users] + item_bias[items],
    }


def fit_biases(
    users: IntArray, items: IntArray, residuals: FloatArray, n_users: int, n_items: int
) -> tuple[FloatArray, FloatArray]:
    """Return the user biases b_u and item biases b_i that minimize Σ (r − b_u − b_i)² + λ (Σ b_u² + Σ b_i²).

    Here r are the `residuals`, ratings minus their mean, and λ is `BIAS_PENALTY`. The minimum solves one sparse,
    positive definite linear system. A user or item without ratings gets bias 0.
    """
    counts = sparse.csr_array((np.ones(len(users)), (users, items)), shape=(n_users, n_items))
    system: sparse.csr_array[np.float64] = sparse.block_array(
        [
            [sparse.diags_array(counts.sum(axis=1) + BIAS_PENALTY), counts],
            [counts.T, sparse.diags_array(counts.sum(axis=0) + BIAS_PENALTY)],
        ],
        format="csr",
    )
    right = np.concatenate(
        [np.bincount(users, residuals, minlength=n_users), np.bincount(items, residuals, minlength=n_items)]
    )
    inverse_diagonal = 1 / np.asarray(system.diagonal(), dtype=np.float64)
    preconditioner = sparse.linalg.aslinearoperator(sparse.diags_array(inverse_diagonal))
    solution, not_converged = cg(sparse.linalg.aslinearoperator(system), right, rtol=1e-10, M=preconditioner)
    if not_converged:
        raise ArithmeticError(
            f"user and item biases must converge, but did not in {not_converged} steps of conjugate gradients. Use"
            " --final to train without the bias model and the other baselines."
        )
    return solution[:n_users], solution[n_users:]


def group_means(groups: IntArray, values: FloatArray, n_groups: int, default: float) -> FloatArray:
    """Return the mean of the `values` in each group, `(n_groups,)`; `default` for a group without values.

    `groups[i]`, from 0 to `n_groups` − 1, is the group of `values[i]`.
    """
    counts = np.bincount(groups, minlength=n_groups)
    sums = np.bincount(groups, values, minlength=n_groups)
    return np.where(counts > 0, sums / np.maximum(counts, 1), default)
