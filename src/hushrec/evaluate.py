"""Measures of accuracy on plain arrays, usable without the rest of hushrec."""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

CELLS_PER_BLOCK = 1 << 20  # scores in memory at once when ranking


def rmse(predicted: FloatArray, actual: FloatArray) -> float:
    """Root of the mean squared error."""
    _check(predicted, actual)
    return float(np.sqrt(np.mean((predicted - actual) ** 2)))


def mae(predicted: FloatArray, actual: FloatArray) -> float:
    """Mean absolute error."""
    _check(predicted, actual)
    return float(np.mean(np.abs(predicted - actual)))


def rating_metrics(predicted: FloatArray, actual: FloatArray) -> dict[str, float]:
    """Both of the above, by the names that results use."""
    return {"rmse": rmse(predicted, actual), "mae": mae(predicted, actual)}


def ranking_metrics(
    score: Callable[[IntArray], FloatArray],
    users: IntArray,
    held_out: IntArray,
    starts: IntArray,
    rated_items: IntArray,
    k: int = 10,
) -> dict[str, float]:
    """How high one held-out item per user ranks among *all* items unrated in training, averaged over the users.

    `score(users)` gives `(len(users), n_items)` scores; user i trained on `rated_items[starts[i]:starts[i + 1]]`.
    With g unrated items above the held-out one, t tied with it and c others in all:

        AUC = (c − g − t/2) / c      HR@k = P(rank < k)      NDCG@k = E[1 / log₂(rank + 2), if rank < k]

    rank = g, …, g + t, each with the same probability: ties are broken at random and the expectation is taken, so
    that equal scores are worth what chance is worth. With one item held out, Recall@k is HR@k.
    """
    if not len(users) == len(held_out) > 0 or k < 1:
        raise ValueError(f"there must be one held-out item per user, at least one, and k at least 1, got {k}.")
    return metrics_of_ranks(*_held_out_ranks(score, users, held_out, starts, rated_items), k)


def metrics_of_ranks(above: IntArray, tied: IntArray, others: IntArray, k: int = 10) -> dict[str, float]:
    """The means of `ranking_metrics` from g, t and c of every held-out item."""
    discounts = np.concatenate([[0.0], np.cumsum(1 / np.log2(np.arange(k) + 2))])
    first, last = np.minimum(above, k), np.minimum(above + tied + 1, k)
    hits = (last - first) / (tied + 1)
    gains = (discounts[last] - discounts[first]) / (tied + 1)
    auc = np.where(others > 0, (others - above - tied / 2) / np.maximum(others, 1), 0.5)
    return {
        "auc": float(auc.mean()),
        f"hr_at_{k}": float(hits.mean()),
        f"ndcg_at_{k}": float(gains.mean()),
        f"recall_at_{k}": float(hits.mean()),
    }


def _held_out_ranks(
    score: Callable[[IntArray], FloatArray],
    users: IntArray,
    held_out: IntArray,
    starts: IntArray,
    rated_items: IntArray,
) -> tuple[IntArray, IntArray, IntArray]:
    """g, t and c of `ranking_metrics`, each `(len(users),)`, from a block of users at a time."""
    above, tied, others = (np.empty(len(users), dtype=np.int64) for _ in range(3))
    size, start = 1, 0
    while start < len(users):
        rows = slice(start, start + size)
        block = users[rows]
        scores = score(block)
        own = scores[np.arange(len(block)), held_out[rows]][:, None]
        lengths = starts[block + 1] - starts[block]
        cells = np.repeat(starts[block] - np.cumsum(lengths) + lengths, lengths) + np.arange(lengths.sum())
        scores[np.repeat(np.arange(len(block)), lengths), rated_items[cells]] = -np.inf  # below every other
        above[rows] = np.count_nonzero(scores > own, axis=1)
        tied[rows] = np.count_nonzero(scores == own, axis=1) - 1
        others[rows] = scores.shape[1] - lengths - 1
        start, size = rows.stop, max(1, CELLS_PER_BLOCK // scores.shape[1])
    return above, tied, others


def _check(predicted: FloatArray, actual: FloatArray) -> None:
    if predicted.shape != actual.shape or predicted.size == 0:
        raise ValueError(
            f"predicted and actual must be of one shape and not empty, got {predicted.shape} and {actual.shape}."
        )
