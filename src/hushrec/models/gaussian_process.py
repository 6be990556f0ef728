"""Model `gp`: what it knows of the items, and everybody's predictions from a public table and their own ratings."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numba import njit

from hushrec.arrays import FloatArray, IntArray
from hushrec.models import gp
from hushrec.models.item_columns import ItemColumns
from hushrec.models.predictor import Arrays, cosine_likeness

LOWEST, HIGHEST = 1.0, 5.0
THREADS = 2
PEOPLE_PER_TASK = 64


@dataclass(frozen=True, eq=False)
class GaussianProcess:
    """The model as training knows it: the public columns of the items."""

    name: ClassVar[str] = "gp"

    columns: ItemColumns = field(repr=False)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], columns: ItemColumns) -> "GaussianProcess":
        """The model for a catalogue; it has no options."""
        return cls(columns)

    @property
    def attributes(self) -> FloatArray:
        """What is learned from besides ratings."""
        return np.concatenate([self.columns.taste, self.columns.details], axis=1)

    @property
    def n_attributes(self) -> int:
        """Taste columns."""
        return int(self.columns.taste.shape[1])


class ItemTable(NamedTuple):
    """What predictions need of the public table and of titles: one entry or row per item."""

    offsets: FloatArray  # o_j on the scale 1 to 5, (n_items,)
    rows: FloatArray  # x_j, (n_items, L)
    variances: FloatArray  # v_j, (n_items,)
    effect_variances: FloatArray  # the part of v_j that is doubt about the item, (n_items,)
    log_counts: FloatArray  # E log n_j, (n_items,)
    kernel: FloatArray  # amplitude and squared length, (2,)
    title_starts: IntArray
    title_columns: IntArray
    title_weights: FloatArray


class Ratings(NamedTuple):
    """Everybody's ratings on the scale 1 to 5: those of user i are at starts[i] … starts[i + 1] − 1."""

    starts: IntArray
    items: IntArray
    values: FloatArray


@dataclass(frozen=True, eq=False)
class GaussianProcessPredictor:
    """Everybody's predictions. Each person's are computed from the public table and from their own ratings alone."""

    table: ItemTable = field(repr=False)
    ratings: Ratings = field(repr=False)

    def predict(self, users: IntArray, items: IntArray) -> FloatArray:
        """Predicted ratings of (user, item) pairs, within the scale 1 to 5."""
        order = np.argsort(users, kind="stable")
        wanted = items[order].astype(np.int64)
        people, counts = np.unique(users[order], return_counts=True)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        found = np.empty(len(users))

        def predict(first: int) -> None:
            stop = min(first + PEOPLE_PER_TASK, len(people))
            _predict_people(people, starts, wanted, first, stop, self.table, self.ratings, self._n_words, found)

        with ThreadPoolExecutor(THREADS) as threads:
            list(threads.map(predict, range(0, len(people), PEOPLE_PER_TASK)))
        unsorted = np.empty(len(users))
        unsorted[order] = found
        return unsorted

    def scores(self, users: IntArray) -> FloatArray:
        """Log-popularity plus predicted rating: best predictions alone put what few people rated on top."""
        n_items = len(self.table.offsets)
        everything = np.tile(np.arange(n_items), len(users))
        predicted = self.predict(np.repeat(np.asarray(users), n_items), everything)
        return np.asarray(predicted.reshape(len(users), n_items) + self.table.log_counts)

    def likeness(self, item: int) -> FloatArray:
        return cosine_likeness(self.table.rows, item)

    def deviations(self, user: int) -> FloatArray:
        """Standard deviation of each predicted rating: doubt about the person's taste, and about the item."""
        starts, items, values = self.ratings
        own = slice(starts[user], starts[user + 1])
        return self.of_profile(items[own], values[own])[:, 1]

    def of_profile(self, items: IntArray, values: FloatArray) -> FloatArray:
        """Predicted rating and its deviation for every item, `(n_items, 2)`, from any profile on the scale 1 to 5."""
        found: FloatArray = _predict_profile(items.astype(np.int64), values, self.table, self._n_words)
        return found

    @cached_property
    def _n_words(self) -> int:
        return int(self.table.title_columns.max(initial=-1)) + 1

    def arrays(self) -> Arrays:
        """The public table; ratings are kept beside it."""
        return dict(self.table._asdict())


@njit(cache=True, nogil=True)
def _predict_people(people, starts, wanted, first, stop, table, ratings, n_words, found):  # type: ignore[no-untyped-def]
    """Fill `found` with predictions of the wanted items of people[first:stop]."""
    titles = (table.title_starts, table.title_columns, table.title_weights)
    kernel = (table.kernel[0], table.kernel[1])
    words = np.zeros(n_words)
    for place in range(first, stop):
        user = people[place]
        begin = ratings.starts[user]
        end = min(ratings.starts[user + 1], begin + gp.MOST_RATINGS)
        items, mine = ratings.items[begin:end], wanted[starts[place] : starts[place + 1]]
        residuals = ratings.values[begin:end] - table.offsets[items]
        if kernel[0] == 0.0:  # the linear part alone: regression is quicker than the process
            mean, _ = gp.taste_posterior(table.rows[items], residuals, 1 / table.variances[items])
            own = gp.predict_taste(mean, mine, table.rows)
        else:
            factor, alpha = gp.fit_process(items, residuals, table.variances, table.rows, kernel, titles, words)
            own = gp.predict_process(items, factor, alpha, mine, table.rows, kernel, titles, words, False)[:, 0]
        for k in range(len(mine)):
            found[starts[place] + k] = min(max(table.offsets[mine[k]] + own[k], LOWEST), HIGHEST)


@njit(cache=True, nogil=True)
def _predict_profile(items, values, table, n_words):  # type: ignore[no-untyped-def]
    """Return prediction and deviation for every item, `(n_items, 2)`."""
    titles = (table.title_starts, table.title_columns, table.title_weights)
    kernel = (table.kernel[0], table.kernel[1])
    words = np.zeros(n_words)
    kept = items[: gp.MOST_RATINGS]
    residuals = values[: gp.MOST_RATINGS] - table.offsets[kept]
    factor, alpha = gp.fit_process(kept, residuals, table.variances, table.rows, kernel, titles, words)
    wanted = np.arange(len(table.offsets))
    found = gp.predict_process(kept, factor, alpha, wanted, table.rows, kernel, titles, words, True)
    for k in range(len(wanted)):
        found[k, 0] = min(max(found[k, 0] + table.offsets[k], LOWEST), HIGHEST)
        found[k, 1] = np.sqrt(found[k, 1] ** 2 + table.effect_variances[k])
    return found
