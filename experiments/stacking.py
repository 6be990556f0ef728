"""How far a correction that everybody shares could mend predictions: private stacking, without its noise.

Every device predicts each of its own ratings from its others, and e_j is what is left. One vector β for all people with
e_j ≈ f_jᵀβ, f_j features of the prediction, would come from the sums of f fᵀ and f e over devices. Here the sums are
exact: with noise the gain can only be smaller.
"""

import numpy as np
from changed import Case, nothing
from learned_similarity import MOST_RATINGS, USUAL, groups, kernels, unit_of
from scipy.linalg import cho_factor, cho_solve

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.gaussian_process import GaussianProcessPredictor, ItemTable
from hushrec.scale import HIGHEST, LOWEST

RIDGE = 10.0
N_FEATURES = 13


def features(table: ItemTable, items: IntArray, own: FloatArray, doubt: FloatArray, h: int) -> FloatArray:
    """Offset, own part and doubt of predictions, log-popularity, the profile's length, and products of these."""
    offset, popular = table.offsets[items] - 3.5, table.log_counts[items] - table.log_counts.mean()
    length, one = np.full(len(items), np.log(max(h, 1)) - 4.3), np.ones(len(items))
    each = [one, offset, own, doubt, popular, length, table.variances[items] - 1]
    each += [offset**2, own**2, own * doubt, own * popular, own * offset, own * length]
    return np.stack(each, axis=1)


def stacked_error(case: Case) -> float:
    """Validation RMSE of predictions with the shared correction."""
    task, predictor = case.run(nothing)
    kernel, table = np.tensordot(USUAL, kernels(predictor, task), axes=1).astype(np.float64), predictor.table
    users, items, actual = task._test()
    order = np.argsort(users, kind="stable")
    gram, moment = RIDGE * np.eye(N_FEATURES), np.zeros(N_FEATURES)
    wanted = []
    for user, rows in groups(users[order]):
        own, residuals = profile(predictor, user)
        inverse = cho_solve(cho_factor(kernel[np.ix_(own, own)] + np.diag(table.variances[own])), np.eye(len(own)))
        alpha, spread = inverse @ residuals, np.diag(inverse)
        left = alpha / spread  # what is left of each rating when the others predict it
        doubt = np.sqrt(np.maximum(1 / spread - table.variances[own], 0))
        known = features(table, own, residuals - left, doubt, len(own))
        gram += known.T @ known
        moment += known.T @ left
        later = items[order][rows]
        near = kernel[np.ix_(later, own)]
        unsure = np.sqrt(np.maximum(np.diag(kernel)[later] - np.einsum("ij,jk,ik->i", near, inverse, near), 0))
        wanted.append((features(table, later, near @ alpha, unsure, len(own)), table.offsets[later] + near @ alpha))
    correction = np.linalg.solve(gram, moment)
    means = np.concatenate([mean + known @ correction for known, mean in wanted])
    errors = np.clip(means, LOWEST, HIGHEST) - task.scale.to_unit(actual[order])
    return float(np.sqrt(np.mean(errors**2))) * unit_of(task)


def profile(predictor: GaussianProcessPredictor, user: int) -> tuple[IntArray, FloatArray]:
    """Items and residuals of a person, as many as predictions use."""
    starts, items, values = predictor.ratings
    own = slice(starts[user], min(starts[user + 1], starts[user] + MOST_RATINGS))
    return items[own], values[own] - predictor.table.offsets[items[own]]
