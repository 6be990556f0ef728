"""Accuracy metrics on NumPy arrays, usable without the rest of hushrec."""

from collections.abc import Callable, Iterator

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

CELLS_PER_BLOCK = 1 << 20  # scores in memory at a time
HEADINGS = {"rmse": "RMSE", "mae": "MAE", "auc": "AUC", "hr_at_10": "HR@10", "precision_at_10": "Prec@10"}  # in tables
HEADINGS |= {"recall_at_10": "Recall@10", "ndcg_at_10": "NDCG@10"}


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

        AUC = (c − g − t/2) / c      HR@k = P(rank < k)      NDCG@k = E[1 / log₂(rank + 2), if rank < k]

    The rank is g, …, g + t with equal probability: ties are broken at random and the expectation is taken, so that
    equal scores give the metrics of a random order. With one held-out item, Recall@k equals HR@k.
    """
    if not len(users) == len(held_out) > 0 or k < 1:
        raise ValueError(
            f"users and held_out must have the same length, at least 1, and k must be at least 1, got {len(users)},"
            f" {len(held_out)} and {k}."
        )
    return metrics_of_ranks(*held_out_ranks(score, users, held_out, starts, rated_items), k)


def metrics_of_ranks(above: IntArray, tied: IntArray, others: IntArray, k: int = 10) -> dict[str, float]:
    """Return the mean AUC, HR@k, NDCG@k and Recall@k of held-out items, as `ranking_metrics` defines them.

    For each held-out item, `others` counts the other unrated items (c), `above` those of them that score higher (g),
    and `tied` those that score the same (t).
    """
    hits, gains = _hits_and_gains(above, tied, k)
    return {
        "auc": float(auc_of_ranks(above, tied, others).mean()),
        f"hr_at_{k}": float(hits.mean()),
        f"ndcg_at_{k}": float(gains.mean()),
        f"recall_at_{k}": float(hits.mean()),
    }


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
    """Return precision, recall and NDCG of lists of `k` items, measured on held-out items that people like.

    `score(users)` returns scores of shape `(len(users), n_items)`. User i likes the held-out items
    `liked_items[liked_starts[i]:liked_starts[i + 1]]`, and trained on `rated_items[starts[i]:starts[i + 1]]`, which
    lists do not contain. For a user with L liked items, of which H are in the list, and with the discount d(rank) = 1 /
    log₂(rank + 2):

        precision@k = H / k      recall@k = H / L      NDCG@k = Σ d(rank) / Σ_{r < min(k, L)} d(r)

    The result has the means over all users with L > 0; it is empty if there are none. Ties are broken at random and the
    expectation is taken.
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
        f"precision_at_{k}": float((hits / k).mean()),
        f"recall_at_{k}": float((hits / most).mean()),
        f"ndcg_at_{k}": float((gains / _discounts(k)[np.minimum(most, k)]).mean()),
    }


def shrink(scores: FloatArray, center: FloatArray, support: FloatArray, strength: float) -> FloatArray:
    """Return predictions s shrunk toward a center c, strongly if few ratings n support them: c + (s − c) n / (n + w).

    This is the mean of a Gaussian posterior whose prior, centred at c, has the weight of w = `strength` ratings.
    `scores` is `(n_users, n_items)`, `center` `(n_users,)`, and `support`, the number of ratings, `(n_items,)`.
    """
    share = support / (support + strength)
    return np.asarray(center[:, None] + (scores - center[:, None]) * share)


def _discounts(k: int) -> FloatArray:
    """Return an array whose entry n, from 0 to k, is the sum of the first n discounts 1 / log₂(rank + 2)."""
    return np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(k) + 2))])


def _hits_and_gains(above: IntArray, tied: IntArray, k: int) -> tuple[FloatArray, FloatArray]:
    """Return the probability that each item is among the `k` best, and its expected discount 1 / log₂(rank + 2).

    The rank is above, …, above + tied with equal probability; from rank `k` on the discount is 0.
    """
    discounts = _discounts(k)
    first, last = np.minimum(above, k), np.minimum(above + tied + 1, k)
    return (last - first) / (tied + 1), (discounts[last] - discounts[first]) / (tied + 1)


def _blocks(
    score: Callable[[IntArray], FloatArray], users: IntArray, starts: IntArray, rated_items: IntArray
) -> Iterator[tuple[slice, FloatArray]]:
    """Yield slices of `users`, of bounded size, and their scores, with -inf for items rated in training."""
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
    """Return, for each pair (who, item), how many items of row `who` score higher, and how many other items the same.

    If the item scores below the `k` best items of its row, the result is (`k`, 0) instead of the two counts.
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
    """Return `above`, `tied` and `others` for `metrics_of_ranks`, each of shape `(len(users),)`.

    `ranking_metrics` explains the arguments.
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
