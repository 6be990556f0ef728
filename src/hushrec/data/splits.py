"""Which ratings are for training and which are for testing.

Users and items of which training knows nothing stay in the test part; `cold_counts` counts them.
"""

from dataclasses import dataclass

import numpy as np

from hushrec.data.ratings import IntArray, Ratings
from hushrec.errors import ParameterError


@dataclass(frozen=True, eq=False)
class Split:
    """Row numbers of the ratings to train on, and of those held out."""

    train: IntArray
    test: IntArray

    def __repr__(self) -> str:
        return f"Split({len(self.train)} train, {len(self.test)} test)"


def random_split(n_ratings: int, seed: int, test_share: float = 0.2) -> Split:
    """A seeded permutation of the rows, cut once: the first 1 − test_share of it trains.

    The rows of `numpy.random.default_rng(seed).permutation(n_ratings)`, in that order.
    """
    order = np.random.default_rng(_check_seed(seed)).permutation(n_ratings)
    n_test = _n_held_out(n_ratings, test_share, "test_share")
    return Split(order[: n_ratings - n_test], order[n_ratings - n_test :])


def everything(n_ratings: int) -> Split:
    """All rows train and none is held out: for the model that is used, after others were measured."""
    return Split(np.arange(n_ratings), np.empty(0, dtype=np.int64))


def validation_split(split: Split, seed: int, share: float = 0.2) -> Split:
    """Cuts the *training* part again; the test part is not looked at. `.test` holds the validation rows."""
    order = np.random.default_rng([_check_seed(seed), 1]).permutation(len(split.train))
    n_validation = _n_held_out(len(split.train), share, "share")
    rows = split.train[order]
    return Split(rows[: len(rows) - n_validation], rows[len(rows) - n_validation :])


def leave_one_out(ratings: Ratings, seed: int) -> Split:
    """Holds out one random rating of every user who has at least two; the others only train."""
    shuffled = np.random.default_rng(_check_seed(seed)).permutation(ratings.n_ratings)
    users = ratings.users[shuffled]
    _, first = np.unique(users, return_index=True)
    counts = np.bincount(users, minlength=ratings.n_users)
    held_out = shuffled[first[counts[users[first]] >= 2]]
    is_train = np.ones(ratings.n_ratings, dtype=bool)
    is_train[held_out] = False
    return Split(np.flatnonzero(is_train), held_out)


def cold_counts(ratings: Ratings, split: Split) -> tuple[int, int]:
    """How many users, and how many items, are in the test part but not in the training part."""
    cold_users = np.setdiff1d(ratings.users[split.test], ratings.users[split.train])
    cold_items = np.setdiff1d(ratings.items[split.test], ratings.items[split.train])
    return len(cold_users), len(cold_items)


def _check_seed(seed: int) -> int:
    if seed < 0:
        raise ParameterError(f"the split's seed must be 0 or more, got {seed}.")
    return seed


def _n_held_out(n_rows: int, share: float, name: str) -> int:
    if not 0 < share < 1:
        raise ParameterError(f"{name} must lie between 0 and 1, got {share}.")
    n_held_out = n_rows - int((1 - share) * n_rows)
    if not 0 < n_held_out < n_rows:
        raise ParameterError(f"{name} {share} of {n_rows} ratings leaves one part empty; expected rows in both.")
    return n_held_out
