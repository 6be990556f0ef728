"""Model `audience`: the class that the registry names, and the predictor, which scores items from one-class data."""

from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.audience import ItemTable, feature_variances, fill_kernel, score_items
from hushrec.models.gaussian_process import Ratings, in_threads
from hushrec.models.item_columns import ModelOfColumns
from hushrec.models.predictor import Arrays, Predictor, ProfilePredictions

MOST_KEPT_ITEMS = 5000  # the kernel matrix of a larger catalogue is not kept in memory (200 MB at this size)
PEOPLE_PER_TASK = 8


class Audience(ModelOfColumns):
    """Model `audience` with the public columns of its items."""

    name: ClassVar[str] = "audience"


@dataclass(frozen=True, eq=False)
class AudiencePredictor(Predictor):
    """The predictor of model `audience`: it scores items from the public table and each person's own items."""

    table: ItemTable = field(repr=False)
    ratings: Ratings = field(repr=False)

    def predict(self, users: IntArray, items: IntArray) -> FloatArray:
        found = np.empty(len(users))
        for user in np.unique(users):
            own = users == user
            found[own] = self.scores(np.array([user]))[0, items[own]]
        return found

    def scores(self, users: IntArray) -> FloatArray:
        """Return the score of every item for each user, `(len(users), n_items)`.

        A user without items gets the log popularity of each item as its score.
        """
        people = np.ascontiguousarray(users, dtype=np.int64)
        found = np.empty((len(people), len(self.table.log_counts)))
        arguments = people, self.table, self._variances, self._kernel, self.ratings, found
        in_threads(_score_people, len(people), *arguments, per_task=PEOPLE_PER_TASK)
        return found

    @property
    def compares_items(self) -> bool:
        """Whether items have audiences or attributes; they have neither if the run learned counts only."""
        return len(self.table.places) > 0

    def likeness(self, item: int) -> FloatArray:
        """Return the similarity k of `models.audience` between `item` and every item, `(n_items,)`, from 0 to 1.

        It is 1 if both have the same public vector of audience, attributes and popularity.
        """
        found = np.empty(len(self.table.log_counts))
        fill_kernel(self.table.places[:, item], self.table.places, found)
        return found

    def released_support(self) -> FloatArray:
        """Return the estimated number of people who chose each item, `(n_items,)`.

        People with many items count less than 1, because their reports are clipped.
        """
        return self.table.counts

    def of_profile(self, items: IntArray, values: FloatArray) -> ProfilePredictions:
        own = np.ascontiguousarray(items, dtype=np.int64)
        return ProfilePredictions(score_items(own, self.table, self._variances, self._kernel))

    def arrays(self) -> Arrays:
        return {**self.table._asdict(), **self.ratings.arrays()}

    @cached_property
    def _variances(self) -> FloatArray:
        return np.asarray(feature_variances(self.table.log_counts, self.table.features))

    @cached_property
    def _kernel(self) -> FloatArray:
        """The matrix of similarities of all items; empty if there are more than `MOST_KEPT_ITEMS` items."""
        n_items = len(self.table.log_counts)
        if n_items > MOST_KEPT_ITEMS:
            return np.empty((0, 0))
        found = np.empty((n_items, n_items))
        for item in range(n_items):
            fill_kernel(self.table.places[:, item], self.table.places, found[item])
        return found


@njit(cache=True, nogil=True)
def _score_people(first, stop, people, table, variances, kernel, ratings, found):  # type: ignore[no-untyped-def]
    """Fill rows `first` … `stop` − 1 of `found` with the scores of all items for `people[first:stop]`."""
    for place in range(first, stop):
        user = people[place]
        items = ratings.items[ratings.starts[user] : ratings.starts[user + 1]]
        found[place] = score_items(items, table, variances, kernel)
