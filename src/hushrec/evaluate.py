"""Accuracy metrics on NumPy arrays."""

from collections.abc import Callable, Iterator

import numpy as np

from hushrec.arrays import FloatArray, IntArray

CELLS_PER_BLOCK = 1 << 20  # scores in memory at a time
HEADINGS = {"rmse": "RMSE", "mae": "MAE", "auc": "AUC", "hr_at_10": "HR@10", "precision_at_10": "Prec@10"}  # in tables
HEADINGS |= {"recall_at_10": "Recall@10", "ndcg_at_10": "NDCG@10"}
LARGER_IS_BETTER = {"rmse": False, "auc": True}  # the main metrics: of rating models, and of models that rank

CHANCE = 1.96  # standard deviations of chance up to which a difference counts as chance: 95 %


def gain(own: float, other: float, metric: str) -> float:
    """Return by how much `own` is better than `other` in a main metric, "rmse" or "auc"; negative if it is worse."""
    return own - other if LARGER_IS_BETTER[metric] else other - own


def rmse(predicted: FloatArray, actual: FloatArray) -> float:
    """Return the root mean squared error of predicted ratings."""
    _check(predicted, actual)
    return float(np.sqrt(np.mean((predicted - actual) ** 2)))


def mae(predicted: FloatArray, actual: FloatArray) -> float:
    """Return the mean absolute error of predicted ratings."""
    _check(predicted, actual)
    return float(np.mean(np.abs(predicted - actual)))


def rating_metrics(predicted: FloatArray, actual: FloatArray) -> dict[str, float]:
    """Return the RMSE and the MAE of predicted ratings under the names `rmse` and `mae`."""
    return {"rmse": rmse(predicted, actual), "mae": mae(predicted, actual)}


def ranking_metrics(
    score: Callable[[IntArray], FloatArray],
    users: IntArray,
    held_out: IntArray,
    starts: IntArray,
    rated_items: IntArray,
    k: int = 10,
) -> dict[str, float]:
    """Return the mean ranking metrics of one held-out item per user, ranked among *all* items unrated in training.

    `held_out[n]` is the held-out item of user `users[n]`. `score(users)` returns scores of shape
    `(len(users), n_items)`. User i trained on `rated_items[starts[i]:starts[i + 1]]`. With c other unrated items, of
    which g score higher than the held-out item and t score the same:

        AUC = (c − g − t/2) / c      HR@k = P(rank < k)      NDCG@k = E[1 / log₂(rank + 2) if rank < k, else 0]

    Ranks begin at 0. Ties are broken at random: the rank is g, …, g + t with equal probability. The metrics are
    expectations, so that equal scores give the metrics of a random order. With one held-out item, Recall@k equals HR@k.
    """
    if not len(users) == len(held_out) > 0 or k < 1:
        raise ValueError(
            f"users and held_out must have the same length, at least 1, and k must be at least 1, got {len(users)},"
            f" {len(held_out)} and {k}."
        )
    return metrics_of_ranks(*held_out_ranks(score, users, held_out, starts, rated_items), k)


def metrics_of_ranks(above: IntArray, tied: IntArray, others: IntArray, k: int = 10) -> dict[str, float]:
    """Return the means of `values_of_ranks` over the held-out items."""
    return means(values_of_ranks(above, tied, others, k))


def values_of_ranks(above: IntArray, tied: IntArray, others: IntArray, k: int = 10) -> dict[str, FloatArray]:
    """Return AUC, HR@k, NDCG@k and Recall@k of every held-out item, as `ranking_metrics` defines them.

    For each held-out item, `others` counts the other unrated items (c), `above` those of them that score higher (g),
    and `tied` those that score the same (t).
    """
    hits, gains = _hits_and_gains(above, tied, k)
    return {
        "auc": auc_of_ranks(above, tied, others),
        f"hr_at_{k}": hits,
        f"ndcg_at_{k}": gains,
        f"recall_at_{k}": hits,
    }


def means(values: dict[str, FloatArray]) -> dict[str, float]:
    """Return the mean of each array."""
    return {name: float(own.mean()) for name, own in values.items()}


def is_chance(gaps: FloatArray) -> bool:
    """Return whether chance explains the difference of two recommenders in a metric.

    `gaps` has one number g per person: the metric or the squared errors of this person under one recommender, minus
    those under the other. Chance explains the difference if |Σ g| ≤ 1.96 √(Σ g²). This is the paired permutation test
    of `hushrec.compare` at the level of 5 %, with the normal distribution in place of random signs.
    """
    return bool(abs(gaps.sum()) <= CHANCE * np.sqrt(gaps @ gaps))


def auc_of_ranks(above: IntArray, tied: IntArray, others: IntArray) -> FloatArray:
    """Return the AUC of every held-out item, (others − above − tied/2) / others; 1/2 where `others` is 0."""
    return np.where(others > 0, (others - above - tied / 2) / np.maximum(others, 1), 0.5)


def list_metrics(
    score: Callable[[IntArray], FloatArray],
    liked_starts: IntArray,
    liked_items: IntArray,
    starts: IntArray,
    rated_items: IntArray,
    k: int = 10,
) -> dict[str, float]:
    """Return the means of `list_values` over all users with a liked held-out item; empty if there are none."""
    return means(list_values(score, liked_starts, liked_items, starts, rated_items, k))


def list_values(
    score: Callable[[IntArray], FloatArray],
    liked_starts: IntArray,
    liked_items: IntArray,
    starts: IntArray,
    rated_items: IntArray,
    k: int = 10,
) -> dict[str, FloatArray]:
    """Return precision, recall and NDCG of each user's list of `k` items, measured on held-out items that people like.

    `score(users)` returns scores of shape `(len(users), n_items)`. User i likes the held-out items
    `liked_items[liked_starts[i]:liked_starts[i + 1]]`, and trained on `rated_items[starts[i]:starts[i + 1]]`, which
    lists do not contain. For a user with L liked items, of which H are in the list:

        precision@k = H / k      recall@k = H / L      NDCG@k = Σ d(rank) / Σ_{r < min(k, L)} d(r)

    Here d(rank) = 1 / log₂(rank + 2), ranks begin at 0, and the first sum is over the H items. The arrays have an entry
    for each user with L > 0; the result is empty if there are none. Ties are broken at random; the metrics are
    expectations.
    """
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}.")
    n_liked = np.diff(liked_starts)
    users = np.flatnonzero(n_liked)
    if len(users) == 0:
        return {}
    hits, gains = np.zeros(len(users)), np.zeros(len(users))
    for rows, scores in _blocks(score, users, starts, rated_items):
        who, cells = _cells_of(users[rows], liked_starts)
        in_list, gain = _hits_and_gains(*_ranks(scores, who, liked_items[cells], k), k)
        hits[rows] = np.bincount(who, in_list, minlength=len(scores))
        gains[rows] = np.bincount(who, gain, minlength=len(scores))
    most = n_liked[users]
    return {
        f"precision_at_{k}": hits / k,
        f"recall_at_{k}": hits / most,
        f"ndcg_at_{k}": gains / _discounts(k)[np.minimum(most, k)],
    }


def shrink(scores: FloatArray, center: FloatArray, support: FloatArray, strength: float) -> FloatArray:
    """Return predictions s shrunk toward a center c, strongly if few ratings n support them: c + (s − c) n / (n + w).

    This is the mean of a Gaussian posterior whose prior, centred at c, has the weight of w = `strength` ratings.
    `scores` is `(n_users, n_items)`, `center` `(n_users,)`, and `support`, the number of ratings, `(n_items,)`.
    """
    share = support / (support + strength)
    return np.asarray(center[:, None] + (scores - center[:, None]) * share)


def _discounts(k: int) -> FloatArray:
    """Return an array whose entry n, from 0 to k, is the sum of 1 / log₂(rank + 2) over the ranks 0 to n − 1."""
    return np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(k) + 2))])


def _hits_and_gains(above: IntArray, tied: IntArray, k: int) -> tuple[FloatArray, FloatArray]:
    """Return the probability that each item is among the `k` best, and its expected discount 1 / log₂(rank + 2).

    For each item, `above` counts the items that score higher, and `tied` the other items that score the same. Ranks
    begin at 0, and ties are broken at random: the rank is `above`, …, `above + tied` with equal probability. From rank
    `k` on the discount is 0.
    """
    discounts = _discounts(k)
    first, last = np.minimum(above, k), np.minimum(above + tied + 1, k)
    return (last - first) / (tied + 1), (discounts[last] - discounts[first]) / (tied + 1)


def _blocks(
    score: Callable[[IntArray], FloatArray], users: IntArray, starts: IntArray, rated_items: IntArray
) -> Iterator[tuple[slice, FloatArray]]:
    """Yield slices of `users` and the scores of these users, which are -inf for items rated in training.

    The slices are short, so that the scores fit into memory.
    """
    size, start = 1, 0
    while start < len(users):
        rows = slice(start, start + size)
        scores = np.array(score(users[rows]), dtype=np.float64)
        who, cells = _cells_of(users[rows], starts)
        scores[who, rated_items[cells]] = -np.inf
        yield rows, scores
        start, size = rows.stop, max(1, CELLS_PER_BLOCK // scores.shape[1])


def _cells_of(users: IntArray, starts: IntArray) -> tuple[IntArray, IntArray]:
    """Return, for each rating of these users, its user's position in `users`, and its index among all ratings."""
    lengths = starts[users + 1] - starts[users]
    cells = np.repeat(starts[users] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
    return np.repeat(np.arange(len(users)), lengths), cells


def _ranks(scores: FloatArray, who: IntArray, items: IntArray, k: int) -> tuple[IntArray, IntArray]:
    """Return for each item how many other items of the same row score higher, and how many score the same.

    The score of `items[n]` is in row `who[n]` of `scores`. An item that scores below the `k` best items of its row gets
    `k` and 0 instead of the two counts.
    """
    own = scores[who, items]
    place = max(scores.shape[1] - k, 0)
    threshold = np.partition(scores, place, axis=1)[:, place]
    above, tied = np.full(len(who), k, dtype=np.int64), np.zeros(len(who), dtype=np.int64)
    for entry in np.flatnonzero(own >= threshold[who]):
        row = scores[who[entry]]
        above[entry] = np.count_nonzero(row > own[entry])
        tied[entry] = np.count_nonzero(row == own[entry]) - 1
    return above, tied


def held_out_ranks(
    score: Callable[[IntArray], FloatArray],
    users: IntArray,
    held_out: IntArray,
    starts: IntArray,
    rated_items: IntArray,
) -> tuple[IntArray, IntArray, IntArray]:
    """Return for each held-out item how many other unrated items score higher, how many tie, and how many there are.

    These arrays, each `(len(users),)`, are the arguments `above`, `tied` and `others` of `metrics_of_ranks`.
    `ranking_metrics` explains the arguments of this function.
    """
    above, tied, others = (np.empty(len(users), dtype=np.int64) for _ in range(3))
    for rows, scores in _blocks(score, users, starts, rated_items):
        block = users[rows]
        own = scores[np.arange(len(block)), held_out[rows]][:, None]
        above[rows] = np.count_nonzero(scores > own, axis=1)
        tied[rows] = np.count_nonzero(scores == own, axis=1) - 1
        others[rows] = scores.shape[1] - (starts[block + 1] - starts[block]) - 1
    return above, tied, others


def _check(predicted: FloatArray, actual: FloatArray) -> None:
    if predicted.shape != actual.shape or predicted.size == 0:
        raise ValueError(
            f"predicted and actual must have the same shape and not be empty, got {predicted.shape} and {actual.shape}."
        )
