"""The maths of model `gp`: one person's Gaussian process over items, from public item rows and the person's ratings.

The public table has an offset o_j, a row x_j and a variance v_j for every item j. A person's taste is a vector d ~ N(0,
I), and a rating is r_j = o_j + x_jᵀd + N(0, v_j). The table is *whitened*: its rows are scaled so that the prior of
every person's taste is the standard normal distribution. For h ratings with residuals y_j = r_j − o_j and precisions
w_j = 1/v_j:

    posterior      d ~ N(V Σ w_j y_j x_j, V),      V = (I + Σ w_j x_j x_jᵀ)⁻¹
    prediction     a Gaussian process with kernel k(j, l) = x_jᵀx_l + a exp(−‖x_j − x_l‖²/2ℓ²) + t_jᵀt_l,

where t_j is the title row of item j (`hushrec.models.titles`), and a and ℓ are the amplitude and the length of the
nonlinear part. The linear part x_jᵀx_l alone gives the same predictions as the posterior of d. The vectors d and x_j
have L entries.

Every function is compiled without fast-math and processes one person in a fixed order of operations, so that results
are bit-identical on every engine and with any number of threads.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.linear import add_gram, factorize, inverse_of_factor, solve_factor

USUAL_SCATTER = 5.0  # weight of the model's own variances in `scatter_of`, in ratings; decision 0026
LEAST_SCATTER = 1e-4  # smallest mean ratio in `scatter_of`, for people whose ratings are predicted exactly
MOST_RATINGS = 600  # ratings of a person that a prediction uses at most; its cost is cubic in their number


class ItemTable(NamedTuple):
    """The public table of model `gp`: the arrays from which ratings are predicted."""

    offsets: FloatArray  # o_j, the expected rating for an average taste, on the scale 1 to 5, (n_items,)
    rows: FloatArray  # x_j, whose product with the taste is added to the offset, (n_items, L)
    variances: FloatArray  # v_j, the variance of a rating of item j by a person of known taste, (n_items,)
    log_counts: FloatArray  # expected logarithm of the number of raters, (n_items,)
    kernel: FloatArray  # amplitude a and squared length ℓ² of the kernel's nonlinear part, (2,)
    title_starts: IntArray  # this and the next two are the fields of a `TitleRows`
    title_columns: IntArray
    title_weights: FloatArray


@njit(cache=True, nogil=True)
def taste_posterior(rows, residuals, precisions):  # type: ignore[no-untyped-def]
    """Return the posterior mean `(L,)` and covariance `(L, L)` of the taste vector of a person with h ratings.

    `rows` `(h, L)` are the rows of the rated items. `residuals` `(h,)` are the ratings minus the items' offsets, and
    `precisions` `(h,)` the inverse variances of the ratings.
    """
    h, length = rows.shape
    scaled = np.empty((h, length))
    moment = np.zeros(length)
    for t in range(h):
        root = math.sqrt(precisions[t])
        for k in range(length):
            scaled[t, k] = root * rows[t, k]
        for k in range(length):
            moment[k] += root * residuals[t] * scaled[t, k]
    precision = np.eye(length)
    add_gram(scaled, precision)
    factorize(precision)
    covariance = inverse_of_factor(precision)
    mean = np.zeros(length)
    for k in range(length):
        for c in range(length):
            mean[c] += moment[k] * covariance[k, c]
    return mean, covariance


@njit(cache=True, nogil=True, error_model="numpy")
def held_out_residuals(rows, residuals, mean, covariance):  # type: ignore[no-untyped-def]
    """Return approximate leave-one-out residuals, `(h,)`: each rating minus its prediction from the other ratings.

    `rows` and `residuals` are the arguments of `taste_posterior`, `mean` and `covariance` its results. The leverage of
    a rating says how much its own value changes its prediction. The exact leave-one-out residual is the rating minus
    its prediction from all ratings, divided by 1 − leverage. We divide by 1 − the *mean* leverage instead, as
    generalized cross-validation does [Golub1979]. The mean leverage is (L − tr V) / h, where V is the covariance.
    This takes half the work and is as accurate (decision 0010).
    """
    h, length = rows.shape
    trace = 0.0
    for k in range(length):
        trace += covariance[k, k]
    left = residuals.copy()
    if h == 0:
        return left
    factor = 1.0 / (1.0 - (length - trace) / h)
    for t in range(h):
        predicted = 0.0
        for k in range(length):
            predicted += rows[t, k] * mean[k]
        left[t] = (left[t] - predicted) * factor
    return left


@njit(cache=True, nogil=True)
def predict_taste(mean, wanted, rows):  # type: ignore[no-untyped-def]
    """Return each wanted item's row times the taste `mean`, `(n_wanted,)`: the predicted rating minus the offset."""
    found = np.zeros(len(wanted))
    for place in range(len(wanted)):
        for k in range(len(mean)):
            found[place] += rows[wanted[place], k] * mean[k]
    return found


@njit(cache=True, nogil=True)
def taste_of(items, alpha, rows):  # type: ignore[no-untyped-def]
    """Return a person's posterior mean taste in the linear model, `(L,)`: Σ α_i x_i over the rated `items`.

    `alpha` has the weights α from `fit_process`, one per rated item; `rows` are the rows x of all items.
    """
    found = np.zeros(rows.shape[1])
    for i in range(len(items)):
        for k in range(rows.shape[1]):
            found[k] += alpha[i] * rows[items[i], k]
    return found


@njit(cache=True, nogil=True)
def transposed(rows, items):  # type: ignore[no-untyped-def]
    """Return the rows of these items as columns, `(row length, len(items))`, so that loops read contiguous memory."""
    columns = np.empty((rows.shape[1], len(items)))
    for i in range(len(items)):
        for k in range(rows.shape[1]):
            columns[k, i] = rows[items[i], k]
    return columns


@njit(cache=True, nogil=True)
def kernel_row(row, columns, kernel, out):  # type: ignore[no-untyped-def]
    """Fill `out[i]` with x·x_i + a exp(−‖x − x_i‖²/2ℓ²); x is `row`, x_i is `columns[:, i]`, (a, ℓ²) is `kernel`."""
    amplitude, length_squared = kernel[0], kernel[1]
    n = columns.shape[1]
    distance = np.zeros(n)
    out[:] = 0.0
    for k in range(len(row)):
        a = row[k]
        for i in range(n):
            out[i] += a * columns[k, i]
            distance[i] += (a - columns[k, i]) ** 2
    for i in range(n):
        out[i] += amplitude * math.exp(-0.5 * distance[i] / length_squared)


@njit(cache=True, nogil=True)
def _title_scratch(table):  # type: ignore[no-untyped-def]
    """Return the working memory `words` of `_add_titles`: a zero for each word and each series of the titles."""
    return np.zeros(table.title_columns.max() + 1 if len(table.title_columns) else 0)


@njit(cache=True, nogil=True)
def _add_titles(item, others, table, words, out):  # type: ignore[no-untyped-def]
    """Add the product t_jᵀt_l of the title rows of `item` and `others[i]` to `out[i]`, for every i.

    The title row of an item has an entry for each word of its title and one for its series (`models.titles`). `words`
    is the result of `_title_scratch`, all zero before and after the call.
    """
    starts, columns, weights = table.title_starts, table.title_columns, table.title_weights
    if starts[item] == starts[item + 1]:
        return
    for place in range(starts[item], starts[item + 1]):
        words[columns[place]] = weights[place]
    for i in range(len(others)):
        for place in range(starts[others[i]], starts[others[i] + 1]):
            out[i] += words[columns[place]] * weights[place]
    for place in range(starts[item], starts[item + 1]):
        words[columns[place]] = 0.0


@njit(inline="always")  # a call would copy the whole record of the table
def fill_kernel(item, others, columns, table, words, out):  # type: ignore[no-untyped-def]
    """Fill `out[i]` with k(`item`, `others[i]`), the kernel of this module, for every i.

    `columns` has the rows of `others` as columns. `table` is the `ItemTable`, `words` the result of `_title_scratch`.
    """
    kernel_row(table.rows[item], columns, table.kernel, out)
    _add_titles(item, others, table, words, out)


@njit(cache=True, nogil=True)
def fit_process(items, residuals, table):  # type: ignore[no-untyped-def]
    """Fit one person's Gaussian process; return the Cholesky factor U and the weights α of the ratings.

    K is the kernel matrix of the rated `items` and v their variances: K + diag(v) = UᵀU and α = (K + diag v)⁻¹ y. The
    `residuals` y are the ratings minus the items' offsets, and `table` is the `ItemTable`.
    """
    h = len(items)
    matrix, words = np.empty((h, h)), _title_scratch(table)
    columns = transposed(table.rows, items)
    for i in range(h):
        fill_kernel(items[i], items[i:], columns[:, i:], table, words, matrix[i, i:])
        matrix[i, i] += table.variances[items[i]]
    factorize(matrix)
    return matrix, solve_factor(matrix, residuals)


@njit(cache=True, nogil=True)
def scatter_of(residuals, alpha, usual):  # type: ignore[no-untyped-def]
    """Return the factor by which the variance of a person's ratings exceeds that of the model; it may be below 1.

    With C = K + diag(v), residuals y and their number h, the mean ratio yᵀC⁻¹y / h compares the squared error of each
    rating, as predicted from the ratings before it, with the variance that the model expects; the mean is 1 if the
    model is right. The result is this ratio to the power h / (n + h), which shrinks its logarithm towards 0 as if n =
    `usual` further ratings had the ratio 1. `alpha` are the weights C⁻¹y from `fit_process`.
    """
    total = 0.0
    for i in range(len(residuals)):
        total += residuals[i] * alpha[i]
    h = len(residuals)
    return max(total / h, LEAST_SCATTER) ** (h / (usual + h)) if h else 1.0


@njit(cache=True, nogil=True)
def predict_mean(items, alpha, wanted, table):  # type: ignore[no-untyped-def]
    """Return the predicted rating of each wanted item minus its offset, `(n_wanted,)`.

    For item j it is Σ α_i k(i, j) over the rated `items` i. `alpha` has the weights α from `fit_process`, and `table`
    is the `ItemTable`.
    """
    found, words = np.zeros(len(wanted)), _title_scratch(table)
    columns = transposed(table.rows, items)
    similar = np.empty(len(items))
    for place in range(len(wanted)):
        fill_kernel(wanted[place], items, columns, table, words, similar)
        for i in range(len(items)):
            found[place] += similar[i] * alpha[i]
    return found


@njit(cache=True, nogil=True)
def predict_deviation(items, factor, wanted, table):  # type: ignore[no-untyped-def]
    """Return the posterior standard deviation of the expected rating of each wanted item, `(n_wanted,)`.

    For item j it is √(k_jj − k_jᵀ(K + diag v)⁻¹k_j), where k_j is the kernel between j and the rated items. `factor` is
    the Cholesky factor of K + diag v, from `fit_process`, and `table` is the `ItemTable`.
    """
    found, words = np.zeros(len(wanted)), _title_scratch(table)
    columns = transposed(table.rows, items)
    similar = np.empty(len(items))
    for place in range(len(wanted)):
        fill_kernel(wanted[place], items, columns, table, words, similar)
        unexplained = prior_variance(wanted[place], table) - _explained(factor, similar)
        found[place] = math.sqrt(max(unexplained, 0.0))
    return found


@njit(cache=True, nogil=True)
def prior_variance(item, table):  # type: ignore[no-untyped-def]
    """Return an item's prior variance k(j, j): the squared norms of its row and title row, plus the amplitude a."""
    total = table.kernel[0]
    for k in range(table.rows.shape[1]):
        total += table.rows[item, k] ** 2
    for place in range(table.title_starts[item], table.title_starts[item + 1]):
        total += table.title_weights[place] ** 2
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _explained(factor, row):  # type: ignore[no-untyped-def]
    """Return kᵀ(UᵀU)⁻¹k, the variance that the ratings explain; U is `factor`, and k is `row`, which is overwritten."""
    total = 0.0
    for k in range(len(row)):
        a = row[k] / factor[k, k]
        total += a * a
        for i in range(k + 1, len(row)):
            row[i] -= factor[k, i] * a
    return total
