"""Other similarities of items for predictions: weights of several kernels, learned from everybody or from one person.

A person's ratings have the covariance Σ_m w_m K_m + diag(v). With C its inverse and α = C y, the log-likelihood has the
gradient s and the information matrix F,

    s_m = (αᵀK_mα − tr(C K_m)) / 2,      F_mn = tr(C K_m C K_n) / 2,

second moments of the person's residuals and of the items they rated. Their sums over people, clipped and noised as one
more block of the run, give one step of Fisher's scoring from the weights as they are: with noise of deviation σ and
w ~ N(w₀, τ²), the step is τ²F (F τ²F + F + σ²I)⁻¹ s.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import polars as pl
from changed import Case, nothing
from scipy.linalg import cho_factor, cho_solve

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.gaussian import run_mu
from hushrec.models.gaussian_process import GaussianProcessPredictor
from hushrec.scale import HIGHEST, LOWEST
from hushrec.simulation.tasks import RatingTask

SHARE = 0.02  # of μ², which the run keeps back for the block
CLIP = 30.0
SPREAD = 0.5  # τ: of a weight around what it is
MOST_USED = 150  # ratings of a person, in the block
MOST_RATINGS = 600  # in a prediction
AMPLITUDES = (0.25, 0.5, 1.0, 2.0, 4.0)  # of all kernels, from which a person chooses
USUAL = np.array([1.0, 1.0, 0.0, 0.0, 1.0, 0.0])  # weights of `kernels` that make the similarity as it is


def kernels(predictor: GaussianProcessPredictor, task: RatingTask) -> FloatArray:
    """All items by all items: tastes; near in taste, at three lengths; titles; attributes, `(M, n_items, n_items)`."""
    table, titles = predictor.table, predictor._titles
    rows = table.rows.astype(np.float32)
    amplitude, length_squared = table.kernel
    known = task.ratings.attributes.select(pl.all().cast(pl.Float64).fill_null(0).fill_nan(0)).to_numpy()
    flags = ((known - known.mean(axis=0)) / np.maximum(known.std(axis=0), 1e-6)).astype(np.float32)
    near = _squared_distances(rows) / np.float32(2 * length_squared)
    alike = np.exp(-_squared_distances(flags) / np.float32(2 * flags.shape[1]))
    each = [rows @ rows.T, *(amplitude * np.exp(-near * scale) for scale in (1.0, 4.0, 0.25))]
    return np.stack([*each, (titles @ titles.T).toarray(), amplitude * alike]).astype(np.float32)


def _squared_distances(rows: FloatArray) -> FloatArray:
    squares = (rows**2).sum(axis=1)
    return np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0)


def people(predictor: GaussianProcessPredictor) -> Iterator[tuple[IntArray, FloatArray]]:
    """Items and residuals of everybody, from ratings of the training part."""
    starts, items, values = predictor.ratings
    for user in range(len(starts) - 1):
        own = items[starts[user] : starts[user + 1]]
        yield own, values[starts[user] : starts[user + 1]] - predictor.table.offsets[own]


def learned_weights(case: Case, predictor: GaussianProcessPredictor, each: FloatArray) -> FloatArray:
    """Weights of the kernels from one noisy sum."""
    count = len(each)
    total = np.zeros(count + count * count)
    for items, residuals in people(predictor):
        if len(items) == 0:
            continue
        own = moments(each[:, items[:MOST_USED, None], items[:MOST_USED]], residuals, predictor, items[:MOST_USED])
        total += own * min(1.0, CLIP / max(float(np.linalg.norm(own)), 1e-9))
    noise = CLIP / (run_mu(case.epsilon, 1e-6) * np.sqrt(SHARE))
    total += noise * np.random.default_rng([case.split, 5]).standard_normal(len(total))
    gradient, information = total[:count], total[count:].reshape(count, count)
    values, vectors = np.linalg.eigh((information + information.T) / 2)
    information = (vectors * np.maximum(values, 0)) @ vectors.T
    spread = SPREAD**2 * information
    known = spread @ information + information + noise**2 * np.eye(count)
    return np.maximum(USUAL + spread @ np.linalg.solve(known, gradient), 0)


def moments(own: FloatArray, residuals: FloatArray, predictor: GaussianProcessPredictor, items: IntArray) -> FloatArray:
    """One person's gradient and information, in one vector."""
    inverse = np.linalg.inv(np.tensordot(USUAL, own, axes=1) + np.diag(predictor.table.variances[items]))
    alpha = inverse @ residuals[: len(items)]
    products = np.matmul(inverse.astype(np.float32), own)
    gradient = (np.einsum("i,mij,j->m", alpha, own, alpha) - np.trace(products, axis1=1, axis2=2)) / 2
    flat = products.reshape(len(own), -1)
    information = flat @ products.transpose(0, 2, 1).reshape(len(own), -1).T / 2
    return np.concatenate([gradient, information.ravel()])


def predicted(
    task: RatingTask, predictor: GaussianProcessPredictor, kernel: FloatArray, amplitude: Callable[..., float]
) -> float:
    """Validation RMSE with this kernel of items, `(n_items, n_items)`, times a factor of each person's own."""
    users, items, actual = task._test()
    order = np.argsort(users, kind="stable")
    starts, errors = predictor.ratings.starts, []
    for user, rows in groups(users[order]):
        own = predictor.ratings.items[starts[user] : starts[user + 1]][:MOST_RATINGS]
        wanted, target = items[order][rows], task.scale.to_unit(actual[order][rows])
        residuals = predictor.ratings.values[starts[user] : starts[user] + len(own)] - predictor.table.offsets[own]
        inner, variances = kernel[np.ix_(own, own)].astype(np.float64), predictor.table.variances[own]
        factor = amplitude(inner, variances, residuals)
        alpha = cho_solve(cho_factor(factor * inner + np.diag(variances)), residuals) if len(own) else residuals
        mean = predictor.table.offsets[wanted] + factor * kernel[np.ix_(wanted, own)] @ alpha
        errors.append(np.clip(mean, LOWEST, HIGHEST) - target)
    return float(np.sqrt(np.mean(np.concatenate(errors) ** 2))) * unit_of(task)


def unit_of(task: RatingTask) -> float:
    """Of one point of the scale 1 to 5, on the file's own scale."""
    low, high = task.scale.from_unit(np.array([1.0, 2.0]))
    return float(high - low)


def groups(users: IntArray) -> Iterator[tuple[int, slice]]:
    """Each of the users, who are in order, and where their rows are."""
    found, begins = np.unique(users, return_index=True)
    ends = np.append(begins[1:], len(users))
    return zip(found.tolist(), map(slice, begins, ends), strict=True)


def same(*_: Any) -> float:
    """No factor of one's own."""
    return 1.0


def likeliest(inner: FloatArray, variances: FloatArray, residuals: FloatArray) -> float:
    """The factor under which the person's own ratings are likeliest, given log a ~ N(0, 1)."""
    scores = []
    for factor in AMPLITUDES:
        root, _ = cho_factor(factor * inner + np.diag(variances))
        determinant = 2 * np.log(np.diag(root)).sum()
        scores.append(residuals @ cho_solve((root, False), residuals) + determinant + np.log(factor) ** 2)
    return AMPLITUDES[int(np.argmin(scores))]


def learned_error(case: Case) -> float:
    """Validation RMSE with weights of kernels that were learned, all within the budget."""
    kept = Case(case.ratings, case.epsilon, case.split, case.people, {**case.options, "reserve": SHARE})
    task, predictor = kept.run(nothing)
    each = kernels(predictor, task)
    weights = learned_weights(case, predictor, each)
    return predicted(task, predictor, np.tensordot(weights, each, axes=1), same)


def own_amplitude_error(case: Case) -> float:
    """Validation RMSE where everybody chooses a factor of all kernels by their own ratings: free."""
    task, predictor = case.run(nothing)
    kernel = np.tensordot(USUAL, kernels(predictor, task), axes=1)
    return predicted(task, predictor, kernel, likeliest)
