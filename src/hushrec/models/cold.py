"""Cold-start predictions of matrix factorization, for people without ratings and for items that nobody reported.

The vectors of such people and items still have their random initial values, so that their products are meaningless. A
device predicts instead, without any further message:

- for an item whose public vector never changed: the mean of the person's own ratings;
- for a person without ratings: the product of the item vector and the mean of the item vectors that changed, which
  replaces the missing user vector. User and item vectors have similar lengths, so that these products lie in the
  range of ratings;
- for such a person and such an item: the mean of those products over the items that changed.

Departs from [SDCF], which predicts from the random vectors.
"""

from dataclasses import dataclass, field

import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.models.baselines import group_means


@dataclass(frozen=True, eq=False)
class ColdStart:
    """The cold-start predictions of a run, for people without ratings and for items that nobody reported."""

    own_means: FloatArray = field(repr=False)  # (n_users,) mean rating on the scale 1 to 5; NaN without ratings
    untouched: BoolArray = field(repr=False)  # (n_items,) whether the item's vector still has its initial value

    def settle_pairs(self, predicted: FloatArray, rows: FloatArray, users: IntArray, items: IntArray) -> FloatArray:
        """Return `predicted`, the predictions of (user, item) pairs, with some of them replaced by cold-start values.

        The predictions for users without ratings and for items that nobody reported are replaced. `rows` holds the
        item vectors.
        """
        newcomers, unknown = np.isnan(self.own_means[users]), self.untouched[items]
        found = np.where(unknown, self.own_means[users], predicted)
        if newcomers.any():
            found[newcomers] = self._for_newcomers(rows)[items[newcomers]]
        return found

    def settle_table(self, predicted: FloatArray, rows: FloatArray, users: IntArray) -> FloatArray:
        """Return the predictions of all items, `(len(users), n_items)`, with cold-start values as in `settle_pairs`."""
        found = np.where(self.untouched, self.own_means[users][:, None], predicted)
        newcomers = np.isnan(self.own_means[users])
        if newcomers.any():
            found[newcomers] = self._for_newcomers(rows)
        return found

    def _for_newcomers(self, rows: FloatArray) -> FloatArray:
        """Return the predictions for a person without ratings, `(n_items,)`; `rows` holds the item vectors."""
        moved = rows[~self.untouched] if not self.untouched.all() else rows
        typical = moved.mean(axis=0)
        return np.where(self.untouched, float((moved @ typical).mean()), rows @ typical)


def own_means(starts: IntArray, values: FloatArray) -> FloatArray:
    """Return the mean rating of every user, NaN without ratings; user i has `values[starts[i]:starts[i + 1]]`."""
    counts = np.diff(starts)
    return group_means(np.repeat(np.arange(len(counts)), counts), values, len(counts), np.nan)
