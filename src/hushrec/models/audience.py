"""The maths of model `audience`: score items for a person from public item data and the person's one-class data.

Every item j has a public row p_j. The *description* of a person who chose h items is

    z = Σ p_j / (h + o) + s (log h − usual) + b,     scaled down to norm limit · √K if it is longer,

a vector of K numbers with mean about 0 and variance about 1 over people. The vectors s and b are public. Three numbers
are constants: o shrinks the descriptions of small profiles, *usual* is the log h of a typical person, and *limit* is
the largest norm of a description, in units of √K. The *audience* a_j of item j is the mean description of the people
who chose j. A person's score of item j is

    log n_j + β (a_jᵀz − ½ ‖a_j‖²) + γ log((Σ k(i, j) + c g_j) / ((h + c) g_j)) + θ y_jᵀu,

where i runs over the items that the person chose, n_j is the number of people who chose j, and β, γ and θ are weights.
The four terms are: the popularity of j; the log likelihood ratio of the person's description under the audience of j
and under the whole population; the log ratio of two densities around j, of the person's items and of everybody's items;
and the product of the person's *taste* u with the features of j. The similarity k(i, j) = exp(−½ ‖x_i − x_j‖²) compares
public vectors of audience, attributes and popularity, g_j is the density of everybody's items at j, and c is the weight
of the population as a prior, in items.

The public features y_j have mean 0 and covariance diag(λ) over everybody's items. The taste u ~ N(0, I) is the
parameter of a multinomial logistic regression: the person chooses item j with probability p(j | u) ∝ n_j exp(y_jᵀu). A
few Newton steps approximate the posterior mode of u. Instead of the person's own curvature they use that of the whole
population, h diag(λ), which is diagonal, times a constant factor κ:

    u ← u + (Σ y_i − h E[y | u] − u) / (1 + κ h λ).

Every function is compiled without fast-math and processes one person in a fixed order of operations, so results are
bit-identical on every engine and with any number of threads.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray

NEWTON_STEPS = 3  # for the taste: more steps fit the profile more closely but rank no better
DAMPING = 1.5  # κ: a person's choice can vary more than the population's


class Description(NamedTuple):
    """The public parameters of z, the description of a person.

    For a person who chose h items, z = Σ p_j / (h + o) + s (log h − usual) + b, with a sum over the chosen items j. If
    z is longer than limit · √K, it is scaled down to this norm.
    """

    rows: FloatArray  # p_j, (n_items, K)
    base: FloatArray  # b, (K,)
    slope: FloatArray  # s, (K,)
    shape: FloatArray  # the constants o, usual and limit, (3,)


@njit(cache=True, nogil=True)
def describe_person(items, parameters):  # type: ignore[no-untyped-def]
    """Return the description z of a person who chose these items, `(K,)`; zeros if there are no items.

    `parameters` is a `Description`, whose docstring has the formula of z.
    """
    found = np.zeros(len(parameters.base))
    if len(items) == 0:
        return found
    total = sum_rows(items, parameters.rows)
    _fill_description(total, len(items), len(items), parameters, found)
    return found


@njit(cache=True, nogil=True)
def describe_without_each(items, parameters):  # type: ignore[no-untyped-def]
    """Return one description z of a person for each chosen item, `(len(items), K)`: row i is z without `items[i]`.

    The item is left out of Σ p_j / (h + o), but log h still counts it (`Description` has the formula of z). Row i
    enters the audience of `items[i]`; if it included the item, the audience of a rare item would mostly repeat the
    item's own row p_j. `parameters` is a `Description`.
    """
    found = np.empty((len(items), len(parameters.base)))
    total = sum_rows(items, parameters.rows)
    left = np.empty(len(total))
    for i in range(len(items)):
        for k in range(len(total)):
            left[k] = total[k] - parameters.rows[items[i], k]
        _fill_description(left, len(items) - 1, len(items), parameters, found[i])
    return found


@njit(cache=True, nogil=True)
def sum_rows(items, rows):  # type: ignore[no-untyped-def]
    """Return the sum of the rows of these items, `(row length,)`."""
    total = np.zeros(rows.shape[1])
    for item in items:
        for k in range(rows.shape[1]):
            total[k] += rows[item, k]
    return total


@njit(cache=True, nogil=True)
def _fill_description(total, n_summed, n_chosen, parameters, out):  # type: ignore[no-untyped-def]
    """Fill `out` with z, the description of a person who chose `n_chosen` items.

    `total` is Σ p_j, the sum of the rows of `n_summed` of these items. `parameters` is a `Description`, whose docstring
    has the formula of z.
    """
    offset, usual, limit = parameters.shape
    length = math.log(n_chosen) - usual
    squared = 0.0
    for k in range(len(out)):
        out[k] = total[k] / (n_summed + offset) + length * parameters.slope[k] + parameters.base[k]
        squared += out[k] * out[k]
    excess = math.sqrt(squared / max(len(out), 1)) / limit
    if excess > 1.0:
        for k in range(len(out)):
            out[k] /= excess


class ItemTable(NamedTuple):
    """The public table of model `audience`: the arrays from which scores are computed.

    Arrays with one column per item let loops over items read contiguous memory.
    """

    log_counts: FloatArray  # expected value of log n_j, where n_j people chose item j, (n_items,)
    counts: FloatArray  # expected value of n_j, (n_items,); not used by scores
    audiences: FloatArray  # a_j, the mean description of the people who chose j, (n_items, K)
    description_rows: FloatArray  # this and the next three are the fields of a `Description`
    description_base: FloatArray
    description_slope: FloatArray
    description_shape: FloatArray
    places: FloatArray  # x_j as columns: items at close places are similar, (number of coordinates, n_items)
    crowd: FloatArray  # g_j, the density of everybody's items at j, (n_items,)
    features: FloatArray  # y_j as columns, (number of features, n_items)
    ranking_shape: FloatArray  # the weights β, γ and θ, and the prior c, (4,)


@njit(cache=True, nogil=True)
def fill_kernel(own, places, out):  # type: ignore[no-untyped-def]
    """Fill `out[j]` with the similarity exp(−½ ‖own − x_j‖²) for every column x_j of `places`."""
    out[:] = 0.0
    for k in range(len(own)):
        for j in range(len(out)):
            out[j] += (own[k] - places[k, j]) ** 2
    for j in range(len(out)):
        out[j] = math.exp(-0.5 * out[j])


@njit(cache=True, nogil=True)
def item_density(counts, places):  # type: ignore[no-untyped-def]
    """Return how densely the items that people chose lie around each item j: Σ n_i k(i, j) / Σ n_i, `(n_items,)`.

    n_i, an entry of `counts`, is the number of people who chose item i, and k(i, j) the similarity of `fill_kernel`.
    """
    found, total = counts.copy(), 0.0  # k(j, j) = 1; the loop computes k once for each pair of items
    for i in range(len(counts)):
        total += counts[i]
        near = np.empty(len(counts) - i - 1)
        fill_kernel(places[:, i], places[:, i + 1 :], near)
        for place in range(len(near)):
            found[i + 1 + place] += counts[i] * near[place]
            found[i] += counts[i + 1 + place] * near[place]
    return found / total


@njit(cache=True, nogil=True)
def own_density(items, places, kernel):  # type: ignore[no-untyped-def]
    """Return, for every item j, the sum of its similarities k(i, j) to the person's items i, `(n_items,)`.

    `kernel` has the similarities of all pairs of items, `(n_items, n_items)`. If it is empty, the function computes
    them from `places`, a field of `ItemTable`, by `fill_kernel`.
    """
    found, near = np.zeros(places.shape[1]), np.empty(places.shape[1])
    for item in items:
        if kernel.shape[0]:
            near = kernel[item]
        else:
            fill_kernel(places[:, item], places, near)
        for j in range(len(found)):
            found[j] += near[j]
    return found


@njit(cache=True, nogil=True)
def choice_of(log_weights):  # type: ignore[no-untyped-def]
    """Return the softmax of `log_weights`, `(n_items,)`: the probability of choosing each item."""
    chances = np.exp(log_weights - log_weights.max())
    return chances / chances.sum()


@njit(cache=True, nogil=True)
def feature_variances(log_counts, features):  # type: ignore[no-untyped-def]
    """Return λ, the mean square of each feature over all items that people chose, `(n_features,)`.

    Items are weighted by the number of people who chose them, exp(`log_counts`). `features` has one column per item.
    """
    chances = choice_of(log_counts)
    found = np.zeros(len(features))
    for k in range(len(features)):
        for j in range(len(chances)):
            found[k] += chances[j] * features[k, j] ** 2
    return found


@njit(cache=True, nogil=True)
def taste_scores(items, log_counts, features, variances):  # type: ignore[no-untyped-def]
    """Return y_jᵀu, the product of item j's features and the person's taste, for every item j, `(n_items,)`.

    A few Newton steps estimate the taste u from the `items` that the person chose, as this module explains. `variances`
    has the λ of the features, from `feature_variances`.
    """
    fit, taste = np.zeros(len(log_counts)), np.zeros(len(features))
    for _ in range(NEWTON_STEPS):
        chances = choice_of(log_counts + fit)
        for k in range(len(features)):
            met, expected = 0.0, 0.0
            for item in items:
                met += features[k, item]
            for j in range(len(chances)):
                expected += chances[j] * features[k, j]
            gradient = met - len(items) * expected - taste[k]
            step = gradient / (1.0 + DAMPING * len(items) * variances[k])
            taste[k] += step
            for j in range(len(fit)):
                fit[j] += step * features[k, j]
    return fit


@njit(cache=True, nogil=True)
def score_items(items, table, variances, kernel):  # type: ignore[no-untyped-def]
    """Return every item's score for a person who chose `items`, `(n_items,)`, by the formula in the module docstring.

    `table` is an `ItemTable`, `variances` has the λ of its features, and `kernel` the similarities for `own_density`.
    """
    scores = table.log_counts.copy()
    if len(items) == 0:
        return scores
    audience_weight, density_weight, taste_weight, prior = table.ranking_shape
    person = describe_person(
        items,
        Description(table.description_rows, table.description_base, table.description_slope, table.description_shape),
    )
    own = own_density(items, table.places, kernel)
    liked = taste_scores(items, table.log_counts, table.features, variances)
    for j in range(len(scores)):
        fit = 0.0
        for k in range(len(person)):
            fit += table.audiences[j, k] * (person[k] - 0.5 * table.audiences[j, k])
        density = table.crowd[j]
        closer = math.log((own[j] + prior * density) / ((len(items) + prior) * density))
        scores[j] += audience_weight * fit + density_weight * closer + taste_weight * liked[j]
    return scores
