"""Compiled functions that compute one device's entries for each block of a round, before clipping and noise.

Devices and the CPU engine call the same functions. Callers handle a person without ratings, whose entries are exact
zeros.
"""

import math

import numpy as np
from numba import njit

from hushrec.models.audience import sum_rows
from hushrec.protocols.masked import plan
from hushrec.protocols.masked.evaluation import COUNT_UNIT, LARGEST_SQUARED_ERROR

_ROWS = [name for block in (plan.AUDIENCE, plan.BIAS, plan.FACTORS) for name in (block, plan.curvature_of(block))]
KINDS = (plan.COUNTS, plan.MOMENTS, *_ROWS, plan.PRIOR, plan.EVALUATION)  # names of all blocks, in a fixed order
COUNTS, MOMENTS, AUDIENCE, _, BIAS, _, FACTORS, _, PRIOR, EVALUATION = range(len(KINDS))  # `_`: curvature blocks
SECOND_MOMENTS = 10.0  # the second half of a curvature block is multiplied by this / C


@njit(cache=True, nogil=True)
def describe(items, taste_columns, spread, offset, usual_log):  # type: ignore[no-untyped-def]
    """Return the description of a person, a vector that summarizes the rated items, `(n_columns + 1,)`.

    For h items it is spread · Σ_j taste_columns[j] / (h + offset), followed by log h − usual_log. The number `offset`
    shrinks the descriptions of people with few items, and `usual_log` is a typical log h.
    """
    width, total = taste_columns.shape[1], sum_rows(items, taste_columns)
    found = np.empty(width + 1)
    for k in range(width):
        found[k] = total[k] * (spread / (len(items) + offset))
    found[width] = math.log(len(items)) - usual_log
    return found


@njit(cache=True, nogil=True)
def moment_entries(description):  # type: ignore[no-untyped-def]
    """Return a person's entries of a moments block: the `description` d and the upper triangle of ddᵀ."""
    width = len(description)
    found = np.empty(width + width * (width + 1) // 2)
    for k in range(width):  # a slice assignment takes seconds to compile
        found[k] = description[k]
    fill_products(description, found[width:])
    return found


@njit(cache=True, nogil=True)
def fill_products(vector, out):  # type: ignore[no-untyped-def]
    """Fill `out` with the upper triangle of the outer product vector vectorᵀ, row by row."""
    index = 0
    for k in range(len(vector)):
        for c in range(k, len(vector)):
            out[index] = vector[k] * vector[c]
            index += 1


@njit(cache=True, nogil=True)
def audience_scores(description, centre, matrix, limit):  # type: ignore[no-untyped-def]
    """Return a person's whitened description, K numbers: matrixᵀ(description − centre).

    It is shortened to norm limit · √K if it is longer. In an audience block of model `gp`, each row of the person is
    this vector times a number.
    The public table has `centre`, the mean of all people's descriptions, and `matrix`, which has K columns.
    """
    found = np.zeros(matrix.shape[1])
    for k in range(matrix.shape[0]):
        for c in range(matrix.shape[1]):
            found[c] += (description[k] - centre[k]) * matrix[k, c]
    shorten(found, limit)
    return found


@njit(cache=True, nogil=True)
def factor_scores(mean, directions, limit):  # type: ignore[no-untyped-def]
    """Return the vector of K + 1 numbers of which a person's rows in a factor block are multiples.

    It is (Dᵀd, 1) for d = `mean`, the posterior mean of the person's taste, and the matrix D = `directions` of the
    public table. Dᵀd is scaled down to norm limit · √K if it is longer.
    """
    count = directions.shape[1]
    found = np.zeros(count + 1)
    for k in range(len(mean)):
        for c in range(count):
            found[c] += mean[k] * directions[k, c]
    shorten(found[:count], limit)
    found[count] = 1.0
    return found


@njit(cache=True, nogil=True)
def shorten(vector, limit):  # type: ignore[no-untyped-def]
    """Scale a vector of K entries down to norm limit · √K, in place, if it is longer."""
    norm = norm_of(vector) / math.sqrt(max(len(vector), 1)) / limit
    if norm > 1.0:
        for k in range(len(vector)):
            vector[k] /= norm


@njit(cache=True, nogil=True)
def norm_of(vector):  # type: ignore[no-untyped-def]
    """Return the norm of a vector; squares are added in the order of the entries, so that all engines agree."""
    total = 0.0
    for value in vector:
        total += value * value
    return math.sqrt(total)


@njit(cache=True, nogil=True)
def item_entries(items, values, weights, scores):  # type: ignore[no-untyped-def]
    """Return a person's rows of an item block, one for each of the h rated items, as one array `(h · K,)`.

    `values` has one number per rated item, in the order of `items`: 1 or a residual. `weights` has one number for each
    item of the catalogue. The row of a rated item is its value times its weight times `scores`, a vector of length K
    that is the same for all items of the person.
    """
    width = len(scores)
    found = np.empty(len(items) * width)
    for i in range(len(items)):
        value = values[i] * weights[items[i]]
        for k in range(width):
            found[i * width + k] = value * scores[k]
    return found


@njit(cache=True, nogil=True)
def row_entries(items, weights, rows):  # type: ignore[no-untyped-def]
    """Return a person's rows of an item block, one for each of the h items, as one array `(h · K,)`.

    `rows` has one row per rated item, in the order of `items`. `weights` has one number for each item of the catalogue.
    The result has each row times the weight of its item.
    """
    width = rows.shape[1]
    found = np.empty(len(items) * width)
    for i in range(len(items)):
        weight = weights[items[i]]
        for k in range(width):
            found[i * width + k] = weight * rows[i, k]
    return found


@njit(cache=True, nogil=True)
def curvature_entries(entries, clip, n_rated, scores):  # type: ignore[no-untyped-def]
    """Return a person's entries of the curvature block, from which the server learns the effect of clipping.

    A curvature block belongs to an item block. `entries` are the person's entries of the item block, and C = `clip` is
    its clip, so clipping multiplies them by c = min(1, C/‖entries‖). The result has the upper triangles of c h qqᵀ and
    (10/C) c² h qqᵀ, for h = `n_rated` and q = `scores`. The rows of the item block are multiples of q; in model
    `audience`, where they are not, q = 1.
    """
    norm = norm_of(entries)
    kept = 1.0 if norm <= clip else clip / norm
    size = len(scores) * (len(scores) + 1) // 2
    found = np.empty(2 * size)
    fill_products(scores, found[:size])
    for k in range(size):
        product = kept * n_rated * found[k]
        found[k] = product
        found[size + k] = product * kept * SECOND_MOMENTS / clip
    return found


@njit(cache=True, nogil=True)
def prior_entries(mean, covariance):  # type: ignore[no-untyped-def]
    """Return a person's entries of a prior block, for the posterior mean d and covariance V of the person's taste.

    They are 2d and the upper triangle of V + ddᵀ − I, in which off-diagonal entries are multiplied by √2.
    """
    length = len(mean)
    found = np.empty(length + length * (length + 1) // 2)
    index = length
    for k in range(length):
        found[k] = 2.0 * mean[k]
        for c in range(k, length):
            moment = covariance[k, c] + mean[k] * mean[c]
            found[index] = moment - 1.0 if k == c else moment * math.sqrt(2.0)
            index += 1
    return found


@njit(cache=True, nogil=True)
def evaluation_entries(rows, residuals, mean, level):  # type: ignore[no-untyped-def]
    """Return three sums over a person's h held-out ratings, with which the server measures accuracy.

    They are Σ (min(e², 9) − 1) for the errors e of the model, the same sum for the bias model, and h/2. For a residual
    y (rating minus item offset) and item row x, the error is y − x · mean in the model, where `mean` is the posterior
    mean of the person's taste, and y − level in the bias model, where `level` is the person's bias from `level_of`.
    """
    found = np.zeros(3)
    for t in range(len(residuals)):
        predicted = 0.0
        for k in range(len(mean)):
            predicted += rows[t, k] * mean[k]
        found[0] += min((residuals[t] - predicted) ** 2, LARGEST_SQUARED_ERROR) - 1.0
        found[1] += min((residuals[t] - level) ** 2, LARGEST_SQUARED_ERROR) - 1.0
    found[2] = COUNT_UNIT * len(residuals)
    return found


@njit(cache=True, nogil=True)
def level_of(residuals, offset):  # type: ignore[no-untyped-def]
    """Return a person's bias: the sum of h residuals, divided by h + `offset`, which shrinks it for small h.

    A residual is a rating minus the offset of its item.
    """
    total = 0.0
    for value in residuals:
        total += value
    return total / (len(residuals) + offset)
