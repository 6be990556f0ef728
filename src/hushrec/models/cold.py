"""Predictions of matrix factorization where it has learned nothing: a person without ratings, an untouched item.

Such a vector is still the random one of the start, and its products mean nothing. What is known instead, to a device
and without another message:

- an item whose public vector never moved was reported by nobody: the device predicts its person's own mean rating;
- a person without ratings has no vector: the mean of the item vectors that moved stands for one. Both kinds of vectors
  start alike and grow alike, so that its products lie where ratings lie;
- of such a person and such an item, the mean of these products.

Departs from [SDCF], which predicts from the random vectors.
"""

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray

BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ColdStart:
    """Which people and items training has not seen, and what to predict for them."""

    own_means: FloatArray = field(repr=False)  # (n_users,) mean rating on the scale 1 to 5; NaN without ratings
    untouched: BoolArray = field(repr=False)  # (n_items,) whether the item's vector is that of the start

    def settle_pairs(self, predicted: FloatArray, rows: FloatArray, users: IntArray, items: IntArray) -> FloatArray:
        """Replace the predictions of (user, item) pairs that vectors know nothing about; `rows` are the items'."""
        newcomers, unknown = np.isnan(self.own_means[users]), self.untouched[items]
        found = np.where(unknown, self.own_means[users], predicted)
        if newcomers.any():
            found[newcomers] = self._for_newcomers(rows)[items[newcomers]]
        return found

    def settle_table(self, predicted: FloatArray, rows: FloatArray, users: IntArray) -> FloatArray:
        """Replace such predictions in a table of all items for some users, `(len(users), n_items)`."""
        found = np.where(self.untouched, self.own_means[users][:, None], predicted)
        newcomers = np.isnan(self.own_means[users])
        if newcomers.any():
            found[newcomers] = self._for_newcomers(rows)
        return found

    def _for_newcomers(self, rows: FloatArray) -> FloatArray:
        """Return the predictions for a person without ratings, by item."""
        moved = rows[~self.untouched] if not self.untouched.all() else rows
        typical = moved.mean(axis=0)
        return np.where(self.untouched, float((moved @ typical).mean()), rows @ typical)


def own_means(starts: IntArray, values: FloatArray) -> FloatArray:
    """Mean rating of every user, whose ratings are `values[starts[i]:starts[i + 1]]`; NaN where there is none."""
    counts = np.diff(starts)
    sums = np.bincount(np.repeat(np.arange(len(counts)), counts), values, minlength=len(counts))
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
