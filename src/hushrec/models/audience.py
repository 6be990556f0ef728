"""The maths of model `audience`: who meets an item, and how well that fits a person, from public numbers of items.

Every item j has a public row p_j. A person who met h items has the *description*

    z = Σ p_j / (h + o) + s (log h − usual) + b,     shortened to the norm limit · √K,

K numbers that have about mean 0 and variance 1 over people; o, the offset, shrinks small profiles toward nothing. Item
j has an *audience*: a_j, the mean description of the people who met it. A person's score of an item is

    log n_j + β (a_jᵀz − ½ ‖a_j‖²) + γ log((Σ k(i, j) + c g_j) / ((h + c) g_j)) + θ y_jᵀu,

i over the items that the person met: how popular j is, how much likelier its audience has this description than the
crowd has, how much denser the person's own items lie around j than the crowd's, and the person's *preference*.
k(i, j) = exp(−½ ‖x_i − x_j‖²), g_j is the density of everybody's items at j, and c the number of items of the crowd
that a profile starts with.

Features y_j have mean 0 and covariance diag(λ) over everybody's items. The preference u ~ N(0, I) says how a person's
choice p(j | u) ∝ n_j exp(y_jᵀu) differs from the crowd's: a logistic regression of all items on one profile. Its
posterior mode is approached in a few Newton steps with the curvature of the crowd, which is diagonal,

    u ← u + (Σ y_i − h E[y | u] − u) / (1 + κ h λ).

Every function is compiled and runs one person in a fixed order of operations, without fast-math: every engine and
every number of threads gets the same bits.
"""

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray

NEWTON_STEPS = 3  # of a preference: more of them fit the profile closer, and rank no better
DAMPING = 1.5  # κ: a person's choice may vary more than the crowd's


class Description(NamedTuple):
    """From the items that a person met to z: public, the same for everybody."""

    rows: FloatArray  # p_j, (n_items, K)
    base: FloatArray  # b, (K,)
    slope: FloatArray  # s, (K,)
    shape: FloatArray  # offset o, usual log h, limit, (3,)


@njit(cache=True, nogil=True)
def describe_person(items, description):  # type: ignore[no-untyped-def]
    """Return z of a person who met these items, `(K,)`; zeros of one who met none."""
    found = np.zeros(len(description.base))
    if len(items) == 0:
        return found
    total = _total(items, description.rows)
    _fill_description(total, len(items), len(items), description, found)
    return found


@njit(cache=True, nogil=True)
def describe_without_each(items, description):  # type: ignore[no-untyped-def]
    """Return z of the same person with one item left out after the other, `(h, K)`; h itself stays.

    An item must not describe its own audience: a rare one would be its own crowd.
    """
    found = np.empty((len(items), len(description.base)))
    total = _total(items, description.rows)
    left = np.empty(len(total))
    for i in range(len(items)):
        for k in range(len(total)):
            left[k] = total[k] - description.rows[items[i], k]
        _fill_description(left, len(items) - 1, len(items), description, found[i])
    return found


@njit(cache=True, nogil=True)
def _total(items, rows):  # type: ignore[no-untyped-def]
    total = np.zeros(rows.shape[1])
    for item in items:
        for k in range(rows.shape[1]):
            total[k] += rows[item, k]
    return total


@njit(cache=True, nogil=True)
def _fill_description(total, n_summed, n_met, description, out):  # type: ignore[no-untyped-def]
    """Fill `out` with z: `total` is the sum of the rows of `n_summed` items."""
    offset, usual, limit = description.shape
    length = math.log(n_met) - usual
    squared = 0.0
    for k in range(len(out)):
        out[k] = total[k] / (n_summed + offset) + length * description.slope[k] + description.base[k]
        squared += out[k] * out[k]
    excess = math.sqrt(squared / max(len(out), 1)) / limit
    if excess > 1.0:
        for k in range(len(out)):
            out[k] /= excess


class Ranking(NamedTuple):
    """What scores need of the items besides descriptions: public, one entry or row per item."""

    log_counts: FloatArray  # log n_j, (n_items,)
    audiences: FloatArray  # a_j, (n_items, K)
    places: FloatArray  # x_j as columns, (L, n_items): loops over items run along memory
    crowd: FloatArray  # g_j, (n_items,)
    features: FloatArray  # y_j as columns, (R, n_items)
    variances: FloatArray  # λ, (R,)
    shape: FloatArray  # β, γ, θ, c, (4,)


@njit(cache=True, nogil=True)
def fill_kernel(item, places, out):  # type: ignore[no-untyped-def]
    """Fill `out[j]` with k(item, j) for every item j."""
    fill_kernel_row(places[:, item], places, out)


@njit(cache=True, nogil=True)
def fill_kernel_row(own, places, out):  # type: ignore[no-untyped-def]
    """Fill `out[j]` with exp(−½ ‖own − x_j‖²) for every column x_j of `places`."""
    out[:] = 0.0
    for k in range(len(own)):
        for j in range(len(out)):
            out[j] += (own[k] - places[k, j]) ** 2
    for j in range(len(out)):
        out[j] = math.exp(-0.5 * out[j])


@njit(cache=True, nogil=True)
def crowd_density(counts, places):  # type: ignore[no-untyped-def]
    """Return g_j = Σ n_i k(i, j) / Σ n_i, `(n_items,)`; each pair of items is looked at once."""
    found, total = counts.copy(), 0.0  # k(j, j) = 1
    for i in range(len(counts)):
        total += counts[i]
        near = np.empty(len(counts) - i - 1)
        fill_kernel_row(places[:, i], places[:, i + 1 :], near)
        for place in range(len(near)):
            found[i + 1 + place] += counts[i] * near[place]
            found[i] += counts[i + 1 + place] * near[place]
    return found / total


@njit(cache=True, nogil=True)
def own_density(items, places, kernel):  # type: ignore[no-untyped-def]
    """Return Σ k(i, j) over the person's items i, `(n_items,)`; `kernel` holds k where it is kept, or has no rows."""
    found, near = np.zeros(places.shape[1]), np.empty(places.shape[1])
    for item in items:
        if kernel.shape[0]:
            near = kernel[item]
        else:
            fill_kernel(item, places, near)
        for j in range(len(found)):
            found[j] += near[j]
    return found


@njit(cache=True, nogil=True)
def choice_of(log_weights):  # type: ignore[no-untyped-def]
    """Return exp(log_weights), scaled to sum 1, `(n_items,)`."""
    chances = np.exp(log_weights - log_weights.max())
    return chances / chances.sum()


@njit(cache=True, nogil=True)
def feature_variances(log_counts, features):  # type: ignore[no-untyped-def]
    """Return λ, the mean of y² over everybody's items, `(R,)`."""
    chances = choice_of(log_counts)
    found = np.zeros(len(features))
    for k in range(len(features)):
        for j in range(len(chances)):
            found[k] += chances[j] * features[k, j] ** 2
    return found


@njit(cache=True, nogil=True)
def preferred(items, ranking):  # type: ignore[no-untyped-def]
    """Return y_jᵀu of every item j, `(n_items,)`, u the preference of a person who met these items."""
    features, variances = ranking.features, ranking.variances
    fit, preference = np.zeros(len(ranking.log_counts)), np.zeros(len(features))
    for _ in range(NEWTON_STEPS):
        chances = choice_of(ranking.log_counts + fit)
        for k in range(len(features)):
            met, expected = 0.0, 0.0
            for item in items:
                met += features[k, item]
            for j in range(len(chances)):
                expected += chances[j] * features[k, j]
            gradient = met - len(items) * expected - preference[k]
            step = gradient / (1.0 + DAMPING * len(items) * variances[k])
            preference[k] += step
            for j in range(len(fit)):
                fit[j] += step * features[k, j]
    return fit


@njit(cache=True, nogil=True)
def score_items(items, description, ranking, kernel):  # type: ignore[no-untyped-def]
    """Return a person's score of every item, `(n_items,)`; of one who met none, log n_j."""
    scores = ranking.log_counts.copy()
    if len(items) == 0:
        return scores
    audience_weight, density_weight, preference_weight, prior = ranking.shape
    person = describe_person(items, description)
    density = own_density(items, ranking.places, kernel)
    preference = preferred(items, ranking)
    for j in range(len(scores)):
        fit = 0.0
        for k in range(len(person)):
            fit += ranking.audiences[j, k] * (person[k] - 0.5 * ranking.audiences[j, k])
        crowd = ranking.crowd[j]
        closer = math.log((density[j] + prior * crowd) / ((len(items) + prior) * crowd))
        scores[j] += audience_weight * fit + density_weight * closer + preference_weight * preference[j]
    return scores
