"""What a server concludes from noisy sums whose noise it knows: empirical Bayes, all of it free post-processing.

No function here sees a sum without its noise. Each takes estimates with known variances and public columns F_j of the
items, fits a prior to all items at once, and returns every item's posterior under that prior. How wide a prior is, and
how strongly a column is believed, is read from the data by their evidence (marginal likelihood); nothing is tuned.
"""

from typing import NamedTuple

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray
from hushrec.models.linear import factorize, multiply, solve_factor, weighted_gram

GRID_POINTS = 120  # of log counts
SMALLEST_COUNT = 0.3  # people: what is rarer does not matter
COUNT_ROUNDS, EFFECT_ROUNDS, COLUMN_ROUNDS, SPREAD_ROUNDS = 20, 3, 2, 15  # iterations, enough to settle
COUNT_RIDGE = 10.0
INTERCEPT_RIDGE = 0.1
RIDGES = np.geomspace(0.1, 3000, 10)
SPREADS = np.geomspace(1e-4, 2, 60)  # τ², in squared rating points
SMALLEST_LOG_SPREAD = 0.05
CHANGE_LIMITS = (0.1, 4.0)  # of the eigenvalues of one step of the prior
LOUD_NOISE = 0.1  # per entry of the average of a prior step: from here on shrinking gains, below it costs 0.0005 RMSE
TYPICAL_PROFILES = (20, 40, 80, 160, 350)  # numbers of ratings at which directions are compared


class Counts(NamedTuple):
    """Posterior of how many people rated each item."""

    mean: FloatArray  # E n_j, (n_items,)
    log_mean: FloatArray  # E log n_j, at least 0


class Effects(NamedTuple):
    """Posterior of one number per item."""

    mean: FloatArray  # (n_items,)
    variance: FloatArray  # (n_items,)


def count_posterior(sums: FloatArray, deviations: FloatArray, columns: FloatArray) -> Counts:
    """Return E n_j and E log n_j from noisy counts s_j = n_j + N(0, σ_j²), where log n_j ~ N(F_j a, τ²).

    Expectation maximization on a grid of log n: posterior weights of the grid, then a by ridge regression and τ² from
    their moments.
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
    return Counts(np.maximum(mean, SMALLEST_COUNT), np.maximum(log_mean, 0))


@njit(cache=True)
def _grid_moments(sums, deviations, grid, centre, spread):  # type: ignore[no-untyped-def]
    """Return E n, E log n and Var log n of each item under weights exp(−(s − n)²/2σ_j² − (log n − centre)²/2τ²)."""
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


def regress(estimates: FloatArray, precisions: FloatArray, columns: FloatArray) -> FloatArray:
    """Return F_j a for each of K estimates per item, `(n_items, K)`: generalized least squares with a ridge.

    The first column is the intercept, which is hardly penalized. The ridge ρ of the others maximizes, for each estimate
    by itself, the evidence log ∏ρ − log det(A + ρI) + qᵀ(A + ρI)⁻¹q, with A = FᵀWF and q = FᵀWy.
    """
    together = np.concatenate([columns, estimates], axis=1)
    gram = weighted_gram(together, precisions)
    width = columns.shape[1]
    coefficients = _ridge_coefficients(gram[:width, :width], gram[:width, width:], RIDGES, INTERCEPT_RIDGE)
    return np.asarray(multiply(columns, coefficients))


@njit(cache=True)
def _ridge_coefficients(gram, moments, ridges, intercept_ridge):  # type: ignore[no-untyped-def]
    """Return a = (A + ρI)⁻¹q for each column q of `moments`, ρ by evidence; the first diagonal entry has its own."""
    width, n_estimates = moments.shape
    found, best = np.zeros((width, n_estimates)), np.full(n_estimates, -np.inf)
    for ridge in ridges:
        factor = gram.copy()
        factor[0, 0] += intercept_ridge
        for k in range(1, width):
            factor[k, k] += ridge
        factorize(factor)
        log_determinant = 0.0
        for k in range(width):
            log_determinant += 2.0 * np.log(factor[k, k])
        for place in range(n_estimates):
            solution = solve_factor(factor, np.ascontiguousarray(moments[:, place]))
            evidence = (width - 1) * np.log(ridge) - log_determinant
            for k in range(width):
                evidence += moments[k, place] * solution[k]
            if evidence > best[place]:
                best[place] = evidence
                for k in range(width):
                    found[k, place] = solution[k]
    return found


def effect_posterior(estimates: FloatArray, variances: FloatArray, columns: FloatArray) -> Effects:
    """Return the posterior of θ_j ~ N(F_j a, τ²) from y_j = θ_j + N(0, v_j); τ² maximizes the marginal likelihood."""
    spread = 0.1
    for _ in range(EFFECT_ROUNDS):
        centre = regress(estimates[:, None], 1 / (variances + spread), columns)[:, 0]
        residual = estimates - centre
        total = variances[:, None] + SPREADS
        spread = float(SPREADS[np.argmin((np.log(total) + residual[:, None] ** 2 / total).sum(axis=0))])
    posterior = 1 / (1 / spread + 1 / variances)
    return Effects(centre + posterior * residual / variances, posterior)


def pool(estimates: list[FloatArray], variances: list[FloatArray]) -> tuple[FloatArray, FloatArray]:
    """Return the mean of independent estimates, weighted by precision, and its variance."""
    precision = sum(1 / variance for variance in variances)
    total = sum(estimate / variance for estimate, variance in zip(estimates, variances, strict=True))
    return np.asarray(total / precision), np.asarray(1 / precision)


class RowNoise(NamedTuple):
    """Covariance of the noise of each row: Σ_j = a_j G + b_j H."""

    private: FloatArray  # a_j: noise that was added, (n_items,)
    private_shape: FloatArray  # G, (K, K)
    sampling: FloatArray  # b_j: noise of the ratings themselves, (n_items,)
    sampling_shape: FloatArray  # H, (K, K)


def column_posterior(estimates: FloatArray, noise: RowNoise, columns: FloatArray) -> FloatArray:
    """Return the posterior means of rows θ_j ~ N(F_j A, T) from y_j = θ_j + N(0, Σ_j), `(n_items, K)`.

    A by `regress`, T (full K × K) by expectation maximization, in which a row counts as much as is known of it: the
    catalogue may hold many items that nobody rated, and an average over all of them would hardly move T.
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
    """Return T after `rounds` steps T ← average of E_j E_jᵀ + T − T A_j⁻¹T, A_j = T + Σ_j, E_j = T A_j⁻¹r_j.

    The weight of row j in the average is tr(T A_j⁻¹T) / tr T, what is known of it: from 0 to 1.

    `posterior` gets the E_j under the last T. With A = UᵀU, X = U⁻ᵀT and z = U⁻ᵀr these are Xᵀz and XᵀX.
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
    """Replace `right` by U⁻ᵀ right."""
    for k in range(len(factor)):
        right[k] /= factor[k, k]
        for i in range(k + 1, len(factor)):
            for c in range(right.shape[1]):
                right[i, c] -= factor[k, i] * right[k, c]


class PriorStep(NamedTuple):
    """How the prior of everybody's taste moves, in whitened coordinates."""

    shift: FloatArray  # of the mean, (L,)
    growth: FloatArray  # the new covariance, where I was the old one, (L, L)


def prior_step(means: FloatArray, moments: FloatArray, deviation: float, over_relaxation: float) -> PriorStep:
    """Return one over-relaxed step of expectation maximization for d ~ N(0, I).

    `means` are averages over people of d, `moments` of V + ddᵀ − I, both with noise of `deviation` per entry (the
    average of 2d has that of d twice). The step of the mean is its average. The covariance becomes Aᵖ with
    A = I + average − mean meanᵀ, eigenvalues limited, p the over-relaxation.

    Where the noise is loud (above `LOUD_NOISE`), mean, diagonal and off-diagonal are first shrunk toward 0, each by the
    share of its mean square that noise explains (James and Stein's rule).
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
    return PriorStep(means, (vectors * np.clip(values, *CHANGE_LIMITS) ** over_relaxation) @ vectors.T)


def _signal_share(values: FloatArray, deviation: float) -> float:
    """Return 1 − σ²/mean square, at least 0: the part of the mean square that is signal; 1 where there are none."""
    if values.size == 0:
        return 1.0
    return float(max(0.0, 1 - deviation**2 / max(float(np.mean(values**2)), np.finfo(np.float64).tiny)))


def weighted_covariance(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Covariance of rows, each counted `weights` times, `(L, L)`."""
    centred = rows - np.average(rows, axis=0, weights=weights)
    return np.asarray(weighted_gram(np.ascontiguousarray(centred), weights) / weights.sum())


def best_known_directions(covariance: FloatArray, noise: float, count: int) -> FloatArray:
    """Return `count` directions D, `(L, count)`, in which a typical person's taste is best known: p = Dᵀd.

    M is the covariance of item rows; with h ratings the posterior of d is about (I + hM/noise)⁻¹, so that
    C = I − mean over h of that is the covariance of posterior means. The directions are those in which √M C √M, the
    part of the ratings' variance that is known, is largest; p has variance 1 in each.
    """
    identity = np.eye(len(covariance))
    unknown = [np.linalg.inv(identity + h * covariance / noise) for h in TYPICAL_PROFILES]
    known = identity - np.mean(unknown, axis=0)
    values, vectors = np.linalg.eigh(covariance)
    root = (vectors * np.sqrt(np.maximum(values, 1e-9))) @ vectors.T
    sizes, axes = np.linalg.eigh(root @ known @ root)
    chosen = slice(None, -count - 1, -1)
    return np.asarray(root @ (axes[:, chosen] / np.sqrt(np.maximum(sizes[chosen], 1e-9))))
