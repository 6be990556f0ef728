"""Estimates from noisy sums that models `gp` and `audience` share: popularity, moments of descriptions, and audiences.

A *description* is a vector that summarizes one person's items. The *audience* of an item is the mean description of the
people who rated it.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.models.item_columns import ItemColumns
from hushrec.protocols.masked.blocks import SECOND_MOMENTS
from hushrec.protocols.masked.encoding import DecodedSum
from hushrec.protocols.masked.plan import Block
from hushrec.protocols.masked.posteriors import RowNoise, column_posterior, count_posterior

SMALLEST_DEVIATION = 0.3  # lower bound on the noise of counts, because the grid of log counts is no finer
SMALLEST_WEIGHT = 1e-3  # lower bound on the mean weight of a clipped rating
TINY = 1e-9


class Popularity(NamedTuple):
    """The estimated popularity of each item, from the noisy counts of a run."""

    counts: FloatArray  # expected number of ratings, (n_items,)
    log_counts: FloatArray  # expected logarithm of that number, (n_items,)
    prior_columns: FloatArray  # predictors in regressions for an item's numbers; the first is 1, (n_items, P)


def count_sum(noisy: DecodedSum, share: float, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the noisy count of each item, scaled up to all devices, and the variance of its noise.

    `noisy` is the sum of a counts block over the fraction `share` of the devices. `weights` are the item weights by
    which devices multiplied their entries.
    """
    deviations = np.maximum(deviation_of(noisy) / (share * weights), SMALLEST_DEVIATION)
    return noisy.values / (share * weights), deviations**2


def popularity_of(sums: FloatArray, variances: FloatArray, public: ItemColumns) -> Popularity:
    """Return the posterior means of each item's number of ratings and of its logarithm, and the `prior_columns`.

    `sums` are the noisy counts, and `variances` the variances of their noise. The prior columns are an intercept, the
    public columns of the item, its log-popularity and the square of its log-popularity.
    """
    columns = np.concatenate([public.taste, public.details], axis=1)
    counts, log_counts = count_posterior(sums, np.sqrt(variances), columns)
    popularity = (log_counts - log_counts.mean())[:, None]
    squared = popularity**2 - np.mean(popularity**2)
    parts = [np.ones_like(popularity), public.taste, popularity, squared, public.details]
    return Popularity(counts, log_counts, np.concatenate(parts, axis=1))


def moments_of(noisy: DecodedSum, length: int, survivors: int) -> tuple[FloatArray, FloatArray]:
    """Return the mean (L,) and covariance (L, L) over people of descriptions of `length` L.

    `noisy` is the sum of a moments block over `survivors` devices.
    """
    averages = noisy.values / survivors
    mean = averages[:length]
    return mean, symmetric(averages[length:], length) - np.outer(mean, mean)


@dataclass(frozen=True, eq=False)
class ItemSum:
    """The noisy sum of an item block, and the effect of clipping, which its curvature block measures.

    Clipping multiplies all rows of a person by a factor c. In model `gp`, a person's row of a rated item is v q: a
    number v, such as the residual, times a vector q of K numbers that is the same in all rows of the person. There,
    `mean_weight` and `squared_weight` are the means of c qqᵀ and c² qqᵀ over ratings, K × K. In model `audience` they
    are the means of c and c², 1 × 1.
    """

    sums: FloatArray  # sum over people of c v q for each item, without item weights, (n_items, K)
    deviations: FloatArray  # standard deviations of the noise in `sums`, (n_items,)
    mean_weight: FloatArray  # M, the mean of c qqᵀ over ratings, (K, K) or (1, 1)
    squared_weight: FloatArray  # the mean of c² qqᵀ, of the same shape


def item_sum(
    block: Block, noisy: DecodedSum, curvature: DecodedSum, weights: FloatArray, counts: FloatArray, share: float
) -> ItemSum:
    """Return the sum of an item block over all devices, and the effect of clipping on it.

    `noisy` is the sum over the fraction `share` of the devices, and `curvature` the sum of its curvature block.
    `weights` are the item weights by which devices multiplied their rows, and `counts` the ratings per item.

    M (`mean_weight`) is inverted later. So its eigenvalues are raised to 2σ√K, the usual norm of a symmetric K × K
    matrix of noise with deviation σ. Below that they are mostly noise, and their inverse would exaggerate the rows.
    """
    means = curvature.values / (share * counts.sum())
    half = len(means) // 2
    rank = int(np.sqrt(2 * half))  # rank (rank + 1) / 2 numbers in each half
    noise = 2 * np.sqrt(rank) * deviation_of(curvature) / (share * counts.sum())
    return ItemSum(
        sums=noisy.values.reshape(block.shape) / (share * weights[:, None]),
        deviations=deviation_of(noisy) / (share * weights),
        mean_weight=at_least(symmetric(means[:half], rank), max(SMALLEST_WEIGHT, noise)),
        squared_weight=at_least(symmetric(means[half:], rank) * block.clip / SECOND_MOMENTS, TINY),
    )


def audience_means(noisy: ItemSum, counts: FloatArray, prior_columns: FloatArray) -> FloatArray:
    """Return the audience of each item, the mean description of its raters, as a posterior mean, `(n_items, K)`.

    `counts` are the ratings per item. In the prior, an item's audience is a linear function of its `prior_columns`.
    """
    width, rank = noisy.sums.shape[1], len(noisy.mean_weight)
    weight = float(np.trace(noisy.mean_weight)) / rank
    noise = RowNoise(
        private=(noisy.deviations / (counts * weight)) ** 2,
        private_shape=np.eye(width),
        sampling=1 / (counts * weight**2),
        sampling_shape=noisy.squared_weight * np.eye(width) if rank == 1 else noisy.squared_weight,
    )
    return column_posterior(noisy.sums / (counts[:, None] * weight), noise, prior_columns)


def deviation_of(noisy: DecodedSum) -> float:
    """Return the standard deviation of the error in each number of a sum, from noise and rounding together."""
    return float(np.sqrt(noisy.noise_variance + noisy.rounding_variance))


def unit_weights(weights: FloatArray, counts: FloatArray) -> FloatArray:
    """Return the item weights divided by one number, so that their mean square over all ratings is 1."""
    return np.asarray(weights / np.sqrt(np.average(weights**2, weights=counts)))


def symmetric(upper: FloatArray, length: int) -> FloatArray:
    """Return the symmetric matrix whose upper triangle, row by row, is `upper`."""
    matrix = np.zeros((length, length))
    matrix[np.triu_indices(length)] = upper
    return np.asarray(matrix + matrix.T - np.diag(np.diag(matrix)))


def at_least(matrix: FloatArray, smallest: float) -> FloatArray:
    """Return the symmetric matrix with its eigenvalues raised to at least `smallest`; noise may make them negative."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, smallest)) @ vectors.T)
