"""Empirical Bayes estimates about items from noisy sums with known noise: post-processing, which costs no budget.

No function here sees a sum without its noise. Most functions take noisy estimates with known variances, and `columns`:
public numbers about the items, of which item j has row F_j. They fit a prior to all items together, and return the
posterior of each item under that prior. The variance of a prior and the shrinkage of regression coefficients maximize
the evidence (marginal likelihood); they are not tuned. For item effects, which have the most noise, this variance and
this shrinkage have wide log-normal priors, whose logarithm has standard deviation 1. These priors matter only if noise
hides the evidence.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray
from hushrec.models.linear import factorize, multiply, solve_factor, weighted_gram

GRID_POINTS = 120  # number of grid points for log counts
SMALLEST_COUNT = 0.3  # smallest count on the grid
COUNT_ROUNDS, EFFECT_ROUNDS, COLUMN_ROUNDS, SPREAD_ROUNDS = 20, 3, 2, 15  # iterations, enough to converge
COUNT_RIDGE = 10.0
INTERCEPT_RIDGE = 0.1
RIDGES = np.geomspace(0.1, 3000, 10)
SPREADS = np.geomspace(1e-4, 2, 60)  # candidates for τ², in squared rating points
USUAL_RIDGE, USUAL_SPREAD = 100.0, 0.1  # medians of the priors of ρ and τ² for item effects
SMALLEST_LOG_SPREAD = 0.05
CHANGE_LIMITS = (0.1, 4.0)  # bounds on the eigenvalues of one step of the prior
LOUD_NOISE = 0.1  # standard deviation per entry above which `prior_step` shrinks; below, shrinking costs 0.0005 RMSE
TYPICAL_PROFILES = (20, 40, 80, 160, 350)  # numbers of ratings that `best_known_directions` averages over


def count_posterior(sums: FloatArray, deviations: FloatArray, columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the posterior means of n_j and of log n_j (at least 0) for each item j, which n_j people rated.

    The noisy counts `sums` are s_j = n_j + N(0, σ_j²), with `deviations` σ_j. The prior is log n_j ~ N(F_j a, τ²), with
    `columns` F. Coefficients a and variance τ² come from expectation maximization on a grid of log n: the E-step
    computes the posterior weights of the grid points, the M-step fits a by ridge regression and τ² from the posterior
    moments.
    """
    grid = np.linspace(np.log(SMALLEST_COUNT), np.log(1.3 * max(sums.max(), 10.0)), GRID_POINTS)
    design = np.concatenate([np.ones((len(sums), 1)), columns], axis=1)
    ridge = np.array([0.01] + [COUNT_RIDGE] * columns.shape[1])
    precision = weighted_gram(design, np.ones(len(sums))) + np.diag(ridge)
    factorize(precision)
    centre, spread = np.full(len(sums), np.log(max(sums.mean(), 1.0)) - 1), 2.0
    for _ in range(COUNT_ROUNDS):
        mean, log_mean, variance = _grid_moments(sums, deviations, grid, centre, spread)
        moments = multiply(np.ascontiguousarray(design.T), log_mean[:, None])[:, 0]
        centre = multiply(design, solve_factor(precision, moments)[:, None])[:, 0]
        spread = max(float(np.mean((log_mean - centre) ** 2 + variance)), SMALLEST_LOG_SPREAD)
    return np.maximum(mean, SMALLEST_COUNT), np.maximum(log_mean, 0)


@njit(cache=True)
def _grid_moments(sums, deviations, grid, centre, spread):  # type: ignore[no-untyped-def]
    """Return the posterior means of n and log n and the variance of log n of each item, as three arrays `(n_items,)`.

    The posterior is computed on the points `grid`, which are values of log n. For an item with noisy count s and
    deviation σ, a point has the weight exp(−(s − n)²/2σ² − (log n − centre)²/2τ²). `centre` has the prior mean of log n
    for each item, and `spread` is τ², the prior variance.
    """
    counts, weights = np.exp(grid), np.empty(len(grid))
    mean, log_mean, variance = np.empty(len(sums)), np.empty(len(sums)), np.empty(len(sums))
    for j in range(len(sums)):
        largest = -np.inf
        for g in range(len(grid)):
            off = (sums[j] - counts[g]) / deviations[j]
            weights[g] = -0.5 * (off * off + (grid[g] - centre[j]) ** 2 / spread)
            largest = max(largest, weights[g])
        total, first, log_first, log_second = 0.0, 0.0, 0.0, 0.0
        for g in range(len(grid)):
            weight = np.exp(weights[g] - largest)
            total += weight
            first += weight * counts[g]
            log_first += weight * grid[g]
            log_second += weight * grid[g] ** 2
        mean[j], log_mean[j] = first / total, log_first / total
        variance[j] = log_second / total - log_mean[j] ** 2
    return mean, log_mean, variance


def regress(
    estimates: FloatArray, precisions: FloatArray, columns: FloatArray, usual_ridge: float | None = None
) -> FloatArray:
    """Regress K estimates per item on `columns` by weighted ridge regression; return fitted values, `(n_items, K)`.

    The first column is the intercept, with a small ridge of its own. For each of the K estimates y, the ridge ρ of the
    other columns maximizes twice the log evidence, log det D − log det(A + D) + qᵀ(A + D)⁻¹q. D is diagonal, with the
    ridge of each column; A = FᵀWF and q = FᵀWy, where F are the `columns` and W the `precisions` of the items. With a
    `usual_ridge`, which is the median of a log-normal prior of ρ, −log²(ρ/`usual_ridge`) is added.
    """
    together = np.concatenate([columns, estimates], axis=1)
    gram = weighted_gram(together, precisions)
    width = columns.shape[1]
    priors = np.zeros(len(RIDGES)) if usual_ridge is None else -(np.log(RIDGES / usual_ridge) ** 2)
    coefficients = _ridge_coefficients(gram[:width, :width], gram[:width, width:], RIDGES, priors, INTERCEPT_RIDGE)
    return np.asarray(multiply(columns, coefficients))


@njit(cache=True)
def _ridge_coefficients(gram, moments, ridges, priors, intercept_ridge):  # type: ignore[no-untyped-def]
    """Return the ridge coefficients (A + ρI)⁻¹q for each column q of `moments`, `(width, K)`, where A is `gram`.

    Each q gets the ρ among `ridges` with the largest evidence; `priors` are added to twice the logarithms of the
    evidence. The intercept, which comes first, has `intercept_ridge`.
    """
    width, n_estimates = moments.shape
    found, best = np.zeros((width, n_estimates)), np.full(n_estimates, -np.inf)
    for ridge, prior in zip(ridges, priors):  # noqa: B905 (Numba has no `strict`)
        factor = gram.copy()
        factor[0, 0] += intercept_ridge
        for k in range(1, width):
            factor[k, k] += ridge
        factorize(factor)
        log_determinant = 0.0
        for k in range(width):
            log_determinant += 2.0 * np.log(factor[k, k])
        for column in range(n_estimates):
            solution = solve_factor(factor, np.ascontiguousarray(moments[:, column]))
            evidence = prior + (width - 1) * np.log(ridge) - log_determinant
            for k in range(width):
                evidence += moments[k, column] * solution[k]
            if evidence > best[column]:
                best[column] = evidence
                for k in range(width):
                    found[k, column] = solution[k]
    return found


def effect_posterior(
    estimates: FloatArray, variances: FloatArray, columns: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the posterior means and variances of one number θ_j per item, from noisy estimates of these numbers.

    The model is y_j = θ_j + N(0, v_j) with the prior θ_j ~ N(F_j a, τ²), where y are the `estimates`, v the `variances`
    and F the `columns`. `regress` gives F_j a, and τ² maximizes its marginal likelihood times its prior.
    """
    spread = USUAL_SPREAD
    for _ in range(EFFECT_ROUNDS):
        centre = regress(estimates[:, None], 1 / (variances + spread), columns, USUAL_RIDGE)[:, 0]
        residual = estimates - centre
        total = variances[:, None] + SPREADS
        surprise = (np.log(total) + residual[:, None] ** 2 / total).sum(axis=0) + np.log(SPREADS / USUAL_SPREAD) ** 2
        spread = float(SPREADS[np.argmin(surprise)])
    posterior = 1 / (1 / spread + 1 / variances)
    return centre + posterior * residual / variances, posterior


def pool(estimates: list[FloatArray], variances: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return the precision-weighted mean of independent estimates of the same numbers, and its variance."""
    precision = sum(1 / variance for variance in variances)
    total = sum(estimate / variance for estimate, variance in zip(estimates, variances, strict=True))
    return np.asarray(total / precision), np.asarray(1 / precision)


class RowNoise(NamedTuple):
    """The K × K covariance of the error in the row of each item j: Σ_j = a_j G + b_j H.

    a (`private`) and G (`private_shape`) describe the noise added for privacy; b (`sampling`) and H (`sampling_shape`)
    describe the sampling noise of the ratings.
    """

    private: FloatArray  # a_j: noise added for privacy, (n_items,)
    private_shape: FloatArray  # G, (K, K)
    sampling: FloatArray  # b_j: sampling noise of the ratings, (n_items,)
    sampling_shape: FloatArray  # H, (K, K)


def column_posterior(estimates: FloatArray, noise: RowNoise, columns: FloatArray) -> FloatArray:
    """Return the posterior mean of a row of K numbers per item, `(n_items, K)`, from noisy `estimates` of the rows.

    The model is y_j = θ_j + N(0, Σ_j) for the estimate y_j of row θ_j, with Σ_j from `noise`. The prior of row θ_j is
    N(F_j A, T) with `columns` F. `regress` gives F_j A, and expectation maximization gives the K × K matrix T. For T,
    rows are weighted by how much is known about them, because many items that nobody rated would otherwise keep T from
    changing.
    """
    weights = 1 / np.maximum(noise.private + noise.sampling, np.finfo(np.float64).tiny)
    spread = np.diag(np.maximum(0.1 * np.average(estimates**2, axis=0, weights=weights), 1e-3))
    posterior = np.zeros_like(estimates)
    private, sampling = (np.trace(shape) / len(shape) for shape in (noise.private_shape, noise.sampling_shape))
    for _ in range(COLUMN_ROUNDS):
        typical = np.trace(spread) / len(spread) + noise.private * private + noise.sampling * sampling
        centre = regress(estimates, 1 / typical, columns)
        spread = _spread_rows(estimates - centre, *noise, spread, SPREAD_ROUNDS, posterior)
    return np.asarray(centre + posterior)


@njit(cache=True)
def _spread_rows(rows, private, private_shape, sampling, sampling_shape, spread, rounds, posterior):  # type: ignore[no-untyped-def]
    """Return the prior covariance T of `column_posterior` after `rounds` steps of expectation maximization.

    `rows` are the estimates minus their prior means F_j A. T starts as `spread`. A step replaces T by the weighted
    average over items of m_j m_jᵀ + T − T A_j⁻¹T, where r_j is row j, Σ_j the covariance of its noise (see `RowNoise`),
    A_j = T + Σ_j, and m_j = T A_j⁻¹r_j the posterior mean of the row. The weight of row j is tr(T A_j⁻¹T) / tr T, from
    0 (nothing is known about the row) to 1. `posterior` is filled with the posterior means under the last T.

    With the Cholesky factor U of A_j = UᵀU, X = U⁻ᵀT and z = U⁻ᵀr_j, these are m_j = Xᵀz and T A_j⁻¹T = XᵀX.
    """
    n_rows, width = rows.shape
    noisy, solved, known = np.empty((width, width)), np.empty((width, width + 1)), np.empty((width, width))
    for step in range(rounds + 1):
        total, total_weight, prior = np.zeros((width, width)), 0.0, np.trace(spread)
        for j in range(n_rows):
            for a in range(width):
                for b in range(width):
                    noisy[a, b] = spread[a, b] + private[j] * private_shape[a, b] + sampling[j] * sampling_shape[a, b]
                    solved[a, b] = spread[a, b]
                solved[a, width] = rows[j, a]
            factorize(noisy)
            _solve_forward(noisy, solved)
            known[:] = 0.0
            posterior[j] = 0.0
            for k in range(width):
                for a in range(width):
                    posterior[j, a] += solved[k, a] * solved[k, width]
                    for b in range(width):
                        known[a, b] += solved[k, a] * solved[k, b]
            weight = np.trace(known) / prior
            total_weight += weight
            for a in range(width):
                for b in range(width):
                    total[a, b] += weight * (posterior[j, a] * posterior[j, b] + spread[a, b] - known[a, b])
        if step < rounds:
            spread = total / total_weight
    return spread


@njit(cache=True)
def _solve_forward(factor, right):  # type: ignore[no-untyped-def]
    """Replace `right` by U⁻ᵀ right in place, where U = `factor` is an upper triangular Cholesky factor."""
    for k in range(len(factor)):
        right[k] /= factor[k, k]
        for i in range(k + 1, len(factor)):
            for c in range(right.shape[1]):
                right[i, c] -= factor[k, i] * right[k, c]


def prior_step(
    means: FloatArray, moments: FloatArray, deviation: float, over_relaxation: float
) -> tuple[FloatArray, FloatArray]:
    """Return the mean (L,) and covariance (L, L) of the prior of tastes, N(0, I) so far, after one step of learning.

    The step is an over-relaxed step of expectation maximization. Each person's taste has a posterior mean d and
    covariance V. `means` is the average of d over people, and `moments` the average of V + ddᵀ − I. Both have noise: of
    standard deviation `deviation` on the diagonal of `moments`, `deviation`/√2 off the diagonal, and `deviation`/2 on
    `means`. The mean of the prior becomes `means`, and its covariance Aᵖ, where A = I + moments − means meansᵀ with
    clipped eigenvalues and p is `over_relaxation`.

    If `deviation` exceeds `LOUD_NOISE`, the mean, the diagonal and the off-diagonal part are first shrunk toward 0,
    each by the share of its mean square that noise explains (James-Stein shrinkage).
    """
    if deviation > LOUD_NOISE:
        means = means * _signal_share(means, deviation / 2)
        diagonal = np.diag(moments)
        off = moments - np.diag(diagonal)
        upper = off[np.triu_indices(len(off), 1)]
        moments = np.diag(diagonal * _signal_share(diagonal, deviation)) + off * _signal_share(
            upper, deviation / np.sqrt(2)
        )
    values, vectors = np.linalg.eigh(np.eye(len(means)) + moments - np.outer(means, means))
    return means, np.asarray((vectors * np.clip(values, *CHANGE_LIMITS) ** over_relaxation) @ vectors.T)


def _signal_share(values: FloatArray, deviation: float) -> float:
    """Return max(0, 1 − deviation²/mean square), the share of the mean square of `values` that is not noise."""
    if values.size == 0:
        return 1.0
    square = float(np.mean(values**2))
    return 1 - deviation**2 / square if square > deviation**2 else 0.0


def weighted_covariance(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the covariance matrix of the L columns of `rows`, `(L, L)`; `weights` has a weight for each row."""
    centred = rows - np.average(rows, axis=0, weights=weights)
    return np.asarray(weighted_gram(np.ascontiguousarray(centred), weights) / weights.sum())


def best_known_directions(covariance: FloatArray, noise: float, count: int) -> FloatArray:
    """Return the matrix D, `(L, count)`, for which the numbers Dᵀd tell most about a typical person's ratings.

    d is the posterior mean of the person's taste. The prior of a taste is N(0, I), and its posterior covariance after h
    ratings is about (I + hM/noise)⁻¹, where M is the `covariance` of item rows, and `noise` the variance of a rating,
    given taste and item. So the covariance of d over people is about C: I minus the mean of that matrix over the
    numbers of ratings in `TYPICAL_PROFILES`. The columns of D are √M times the first `count` eigenvectors of √M C √M,
    scaled so that each entry of Dᵀd has variance 1.
    """
    identity = np.eye(len(covariance))
    unknown = [np.linalg.inv(identity + h * covariance / noise) for h in TYPICAL_PROFILES]
    known = identity - np.mean(unknown, axis=0)
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 1e-9))) @ vectors.T
    sizes, axes = np.linalg.eigh(root @ known @ root)
    chosen = slice(None, -count - 1, -1)
    return np.asarray(root @ (axes[:, chosen] / np.sqrt(np.maximum(sizes[chosen], 1e-9))))
