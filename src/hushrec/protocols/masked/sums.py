"""What noisy sums say, for every model that learns from them: popularity, moments of descriptions, audiences."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.models.item_columns import ItemColumns
from hushrec.protocols.masked.blocks import SECOND_MOMENTS
from hushrec.protocols.masked.encoding import DecodedSum
from hushrec.protocols.masked.plan import Block
from hushrec.protocols.masked.posteriors import RowNoise, column_posterior, count_posterior

SMALLEST_DEVIATION = 0.3  # of the noise of counts: their grid is no finer
SMALLEST_WEIGHT = 1e-3  # mean weight of a clipped rating, which noise could make negative
TINY = 1e-9


class Popularity(NamedTuple):
    """What the counts of a run say of every item."""

    counts: FloatArray  # E n_j, (n_items,)
    log_counts: FloatArray  # E log n_j, (n_items,)
    prior_columns: FloatArray  # F_j of every item prior, (n_items, n_columns), an intercept first


class CountSum(NamedTuple):
    """Noisy counts of all devices."""

    sums: FloatArray  # (n_items,)
    variances: FloatArray  # of the noise in them, (n_items,)


def count_sum(noisy: DecodedSum, share: float, weights: FloatArray) -> CountSum:
    """Return the counts of all devices, without item weights, from the sum over the `share` of them that reported."""
    deviations = np.maximum(deviation_of(noisy) / (share * weights), SMALLEST_DEVIATION)
    return CountSum(noisy.values / (share * weights), deviations**2)


def popularity_of(counts: CountSum, public: ItemColumns) -> Popularity:
    """Return the posterior of counts.

    Its logarithm and that squared become columns of every item prior, beside the public ones.
    """
    columns = np.concatenate([public.taste, public.details], axis=1)
    found = count_posterior(counts.sums, np.sqrt(counts.variances), columns)
    popularity = (found.log_mean - found.log_mean.mean())[:, None]
    squared = popularity**2 - np.mean(popularity**2)
    parts = [np.ones_like(popularity), public.taste, popularity, squared, public.details]
    return Popularity(found.mean, found.log_mean, np.concatenate(parts, axis=1))


class Moments(NamedTuple):
    """Mean and covariance of descriptions over people."""

    mean: FloatArray  # (L,)
    covariance: FloatArray  # (L, L)


def moments_of(noisy: DecodedSum, length: int, survivors: int) -> Moments:
    """Return the moments of descriptions of this length."""
    averages = noisy.values / survivors
    mean = averages[:length]
    return Moments(mean, symmetric(averages[length:], length) - np.outer(mean, mean))


@dataclass(frozen=True, eq=False)
class ItemSum:
    """The noisy sum of an item block, and what its curvature block says of the weights c that clipping left.

    A curvature block has the rank of the vectors q that it is made of: those of the block, or 1.
    """

    sums: FloatArray  # Σ c value q of each item, item weights taken out, (n_items, K)
    deviations: FloatArray  # of the noise in them, (n_items,)
    mean_weight: FloatArray  # M, the mean of c qqᵀ over ratings, (K, K) or (1, 1)
    squared_weight: FloatArray  # the mean of c² qqᵀ, of the same shape


def item_sum(
    block: Block, noisy: DecodedSum, curvature: DecodedSum, weights: FloatArray, counts: FloatArray, share: float
) -> ItemSum:
    """Return an item block's sum over all devices, from the sum over the `share` of them that reported."""
    means = curvature.values / (share * counts.sum())
    half = len(means) // 2
    rank = int(np.sqrt(2 * half))  # rank (rank + 1) / 2 numbers in each half
    return ItemSum(
        sums=noisy.values.reshape(block.shape) / (share * weights[:, None]),
        deviations=deviation_of(noisy) / (share * weights),
        mean_weight=at_least(symmetric(means[:half], rank), SMALLEST_WEIGHT),
        squared_weight=at_least(symmetric(means[half:], rank) * block.clip / SECOND_MOMENTS, TINY),
    )


def audience_means(noisy: ItemSum, counts: FloatArray, prior_columns: FloatArray) -> FloatArray:
    """Return the audience of each item: the posterior mean of its people's descriptions, `(n_items, K)`."""
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
    """Return the standard deviation of what was added to each number of a sum: noise, and rounding."""
    return float(np.sqrt(noisy.noise_variance + noisy.rounding_variance))


def unit_weights(weights: FloatArray, counts: FloatArray) -> FloatArray:
    """Return the weights, scaled so that their mean square over ratings is 1."""
    return np.asarray(weights / np.sqrt(np.average(weights**2, weights=counts)))


def symmetric(upper: FloatArray, length: int) -> FloatArray:
    """Return the symmetric matrix with this upper triangle, row by row."""
    matrix = np.zeros((length, length))
    matrix[np.triu_indices(length)] = upper
    return np.asarray(matrix + matrix.T - np.diag(np.diag(matrix)))


def at_least(matrix: FloatArray, smallest: float) -> FloatArray:
    """Return the matrix with eigenvalues of at least `smallest`: a mean of squares under noise need not be positive."""
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.maximum(values, smallest)) @ vectors.T)
