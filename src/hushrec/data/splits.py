"""Splits of ratings into a training part and a test part.

Users and items without training ratings (cold start) stay in the test part; `cold_counts` counts them.
"""

from dataclasses import dataclass, replace

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.data.ratings import Ratings
from hushrec.errors import ParameterError


@dataclass(frozen=True, eq=False)
class Split:
    """A split of ratings: the row numbers of the training ratings, and those of the held-out ratings."""

    train: IntArray
    test: IntArray

    def __repr__(self) -> str:
        return f"Split({len(self.train)} train, {len(self.test)} test)"


def random_split(n_ratings: int, seed: int, test_share: float = 0.2) -> Split:
    """Return a random split, with the fraction `test_share` of the rows for testing.

    The rows are permuted by `numpy.random.default_rng(seed).permutation(n_ratings)`; the last rows are for testing.
    """
    order = np.random.default_rng(_check_seed(seed)).permutation(n_ratings)
    return _hold_out_last(order, test_share, "test_share")


def everything(n_ratings: int) -> Split:
    """Return a split with all rows for training and none for testing, for a model that is not measured."""
    return Split(np.arange(n_ratings), np.empty(0, dtype=np.int64))


def validation_split(split: Split, seed: int, share: float = 0.2) -> Split:
    """Return a random split of the training rows of `split`; `test` of the result is the validation part.

    The validation part has a fraction `share` of the training rows. The test rows of `split` are in neither part.
    """
    order = np.random.default_rng([_check_seed(seed), 1]).permutation(len(split.train))
    return _hold_out_last(split.train[order], share, "share")


def leave_one_out(ratings: Ratings, seed: int) -> Split:
    """Return a split that holds out one random rating of every user who has at least two."""
    return _hold_out_first(ratings, np.random.default_rng(_check_seed(seed)).permutation(ratings.n_ratings))


def k_fold(n_ratings: int, k: int, seed: int) -> list[Split]:
    """Return `k` splits; their test parts are a random partition of the rows."""
    if not 2 <= k <= n_ratings:
        raise ParameterError(f"k must be at least 2 and at most the number of ratings, {n_ratings}, got {k}.")
    parts = np.array_split(np.random.default_rng(_check_seed(seed)).permutation(n_ratings), k)
    return [Split(np.concatenate(parts[:fold] + parts[fold + 1 :]), parts[fold]) for fold in range(k)]


def time_split(ratings: Ratings, test_share: float = 0.2) -> Split:
    """Return a split that holds out the latest fraction `test_share` of all ratings; ties keep the file's order."""
    return _hold_out_last(np.argsort(_times_of(ratings), kind="stable"), test_share, "test_share")


def leave_last_out(ratings: Ratings) -> Split:
    """Return a split that holds out the latest rating of every user who has at least two."""
    return _hold_out_first(ratings, np.argsort(_times_of(ratings), kind="stable")[::-1])


def _hold_out_first(ratings: Ratings, order: IntArray) -> Split:
    """Return a split that holds out the first rating, in this order of rows, of every user who has at least two."""
    _, first, counts = np.unique(ratings.users[order], return_index=True, return_counts=True)
    held_out = order[first[counts >= 2]]
    return Split(np.setdiff1d(np.arange(ratings.n_ratings), held_out), held_out)


def k_core(ratings: Ratings, *, per_user: int = 5, per_item: int = 5) -> Ratings:
    """Return the largest subset in which every user has at least `per_user` and every item `per_item` ratings.

    The result depends on who rated what, so that even its numbers of users and items reveal facts about ratings.
    """
    rows = np.arange(ratings.n_ratings)
    while True:
        users, items = ratings.users[rows], ratings.items[rows]
        enough = (np.bincount(users, minlength=ratings.n_users)[users] >= per_user) & (
            np.bincount(items, minlength=ratings.n_items)[items] >= per_item
        )
        if enough.all():
            break
        rows = rows[enough]
    if len(rows) == 0:
        raise ParameterError(
            f"per_user {per_user} and per_item {per_item} must leave at least one rating, but leave none. Lower them."
        )
    return _without_absent(ratings.rows(rows))


def _without_absent(ratings: Ratings) -> Ratings:
    users, user_rows = np.unique(ratings.users, return_inverse=True)
    items, item_rows = np.unique(ratings.items, return_inverse=True)
    return replace(
        ratings,
        user_ids=[ratings.user_ids[user] for user in users],
        item_ids=[ratings.item_ids[item] for item in items],
        users=user_rows.astype(np.int64),
        items=item_rows.astype(np.int64),
        titles=None if ratings.titles is None else [ratings.titles[item] for item in items],
        attributes=None if ratings.attributes is None else ratings.attributes[items],
        catalogue=None,  # which items are left depends on the ratings
    )


def _times_of(ratings: Ratings) -> FloatArray:
    if ratings.times is None:
        raise ParameterError("ratings must have times for this split, but have none. Add a column timestamp.")
    return ratings.times


def cold_counts(ratings: Ratings, split: Split) -> tuple[int, int]:
    """Return the numbers of users and of items that are in the test part but not in the training part."""
    cold_users = np.setdiff1d(ratings.users[split.test], ratings.users[split.train])
    cold_items = np.setdiff1d(ratings.items[split.test], ratings.items[split.train])
    return len(cold_users), len(cold_items)


def _check_seed(seed: int) -> int:
    if seed < 0:
        raise ParameterError(f"seed of a split must be 0 or more, got {seed}.")
    return seed


def _hold_out_last(rows: IntArray, share: float, name: str) -> Split:
    """Return a split that holds out the fraction `share` of `rows`, the last ones; errors call this fraction `name`."""
    if not 0 < share < 1:
        raise ParameterError(f"{name} must lie between 0 and 1, got {share}.")
    n_train = int((1 - share) * len(rows))
    if not 0 < n_train < len(rows):
        raise ParameterError(
            f"a split must leave ratings in both parts, but {name} {share} of {len(rows)} ratings leaves one part"
            " empty. Give more ratings, or train without a test part: --final (in Python: final=True)."
        )
    return Split(rows[:n_train], rows[n_train:])
