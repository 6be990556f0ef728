"""Recommendation lists and their reasons, from a model's scores and similarities; for devices and simulated runs."""

import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray

NO_REASONS = (
    "There are no reasons: the run knows only how popular and how good each item is, and not which items are similar."
    " An items file with attributes or titles would tell."
)
_ROUNDING = 1e-9  # the mean of equal ratings may differ from them by rounding


def best_items(scores: FloatArray, rated: IntArray, count: int) -> IntArray:
    """Return the positions of the `count` highest scores, in descending order, without the items `rated`.

    There are fewer if fewer items are unrated. Of equal scores, the first position comes first.
    """
    scores = np.array(scores)
    scores[rated] = -np.inf
    count = min(count, len(scores) - len(rated))
    if count == 0:
        return np.empty(0, dtype=np.int64)
    near = np.flatnonzero(scores >= np.partition(scores, -count)[-count])  # includes ties with the last
    return near[np.argsort(-scores[near], kind="stable")][:count].astype(np.int64)


def are_liked(values: FloatArray) -> BoolArray:
    """Return which of one person's ratings are at or above their mean."""
    return np.asarray(values >= np.mean(values) - _ROUNDING) if len(values) else np.empty(0, dtype=np.bool_)


def most_similar(likeness: FloatArray, count: int) -> IntArray:
    """Return the positions of the `count` largest positive similarities, in descending order."""
    best = np.argsort(-likeness, kind="stable")[:count]
    return best[likeness[best] > 0]
