"""Model `gp`: the class that the registry names, and the predictor, a Gaussian process over items for each person."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache, cached_property
from threading import Lock
from typing import Any, ClassVar, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import scipy.sparse as sp
from numba import njit
from threadpoolctl import ThreadpoolController

from hushrec.arrays import FloatArray, IntArray
from hushrec.models import gp
from hushrec.models.gp import ItemTable
from hushrec.models.item_columns import ModelOfColumns
from hushrec.models.predictor import Arrays, Predictor, ProfilePredictions
from hushrec.models.titles import TitleRows
from hushrec.scale import HIGHEST, LOWEST

PEOPLE_PER_TASK = 32
PLAIN_COLUMNS = 3  # item columns that every run has: quality, log-popularity and 1
LIST_QUALITY, LIST_TASTE = 0.5, 1.5  # the weights q and t of `list_scores`
_ALONE = Lock()
_libraries = cache(ThreadpoolController)  # of NumPy and SciPy; finding them takes milliseconds


class GaussianProcess(ModelOfColumns):
    """Model `gp` with its public item columns: every device fits a Gaussian process to its own ratings."""

    name: ClassVar[str] = "gp"


class Ratings(NamedTuple):
    """Everybody's ratings, on the scale 1 to 5.

    User i rated the items `items[starts[i]:starts[i + 1]]`; their ratings are the same slice of `values`.
    """

    starts: IntArray
    items: IntArray
    values: FloatArray

    def arrays(self) -> Arrays:
        """Return the arrays by the names under which run folders store them."""
        return {"rated_starts": self.starts, "rated_items": self.items, "rated_values": self.values}


@dataclass(frozen=True, eq=False)
class GaussianProcessPredictor(Predictor):
    """The predictor of model `gp`, from the public table and each person's own ratings.

    A prediction is a weighted sum over the person's ratings. The weights are computed once per person and cached.
    """

    table: ItemTable = field(repr=False)
    ratings: Ratings = field(repr=False)

    def predict(self, users: IntArray, items: IntArray) -> FloatArray:
        order = np.argsort(users, kind="stable")
        people, counts = np.unique(users[order], return_counts=True)
        self._fit(people)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        wanted = np.ascontiguousarray(items[order], dtype=np.int64)
        found, unsorted = np.empty(len(users)), np.empty(len(users))
        arguments = people, starts, wanted, self.table, self.ratings, self._alphas, found
        in_threads(_predict_people, len(people), *arguments)
        unsorted[order] = found
        return unsorted

    def scores(self, users: IntArray) -> FloatArray:
        return list_scores(self.predict_items(users), self.table.log_counts, self.table.offsets)

    def predict_items(self, users: IntArray) -> FloatArray:
        """Return the predicted ratings of every item, clipped to the scale 1 to 5, `(len(users), n_items)`.

        A part of the computation is in single precision, so that results differ slightly from `predict`.
        """
        self._fit(np.unique(users))
        found = np.empty((len(users), len(self.table.offsets)))

        def predict(first: int, stop: int) -> None:
            for place in range(first, stop):
                found[place] = self._predict_all(int(users[place]))

        in_threads(predict, len(users))
        return found

    @property
    def compares_items(self) -> bool:
        """Whether item rows have more than `PLAIN_COLUMNS`, or predictions use titles, as they do after the last round.

        The plain columns say how popular and how good an item is, and nothing of what it is like.
        """
        return self.table.rows.shape[1] > PLAIN_COLUMNS or bool(self.table.title_starts[-1] > 0)

    def likeness(self, item: int) -> FloatArray:
        return np.asarray(self.likeness_between(np.array([item]), np.arange(len(self.table.offsets)))[0])

    def likeness_between(self, items: IntArray, others: IntArray) -> FloatArray:
        """Return the prior correlation of the ratings of `items` and `others`, `(len(items), len(others))`.

        The mean over all item rows is subtracted from each row first, because it would make all items similar.
        """
        rows, titles, centre = self.table.rows, self._titles, self.table.rows.mean(axis=0)
        amplitude, length_squared = self.table.kernel
        first, second = rows[items] - centre, rows[others] - centre
        distance = np.stack([((second - row) ** 2).sum(axis=1) for row in first]) if len(first) else first @ second.T
        together = first @ second.T + amplitude * np.exp(-0.5 * distance / length_squared)
        together += (titles[items] @ titles[others].T).toarray()
        own, other = (
            (part**2).sum(axis=1) + amplitude + np.asarray(titles[chosen].multiply(titles[chosen]).sum(axis=1)).ravel()
            for part, chosen in ((first, items), (second, others))
        )
        return np.asarray(together / np.sqrt(np.maximum(np.outer(own, other), np.finfo(np.float64).tiny)))

    def deviations(self, user: int) -> FloatArray:
        """Return the standard deviation of the user's own rating of every item around the prediction, `(n_items,)`.

        It expresses the uncertainty about the user's taste and about the item, and what the model does not know about a
        single rating. The last part cannot be left out: no run can tell the taste that its item columns do not express
        from the scatter of ratings. How far the user's own ratings are from the model's predictions widens or narrows
        all deviations of the user by one factor (`gp.scatter_of`). About two thirds of held-out ratings are within one
        deviation of the prediction.
        """
        own = slice(self.ratings.starts[user], self.ratings.starts[user + 1])
        return np.asarray(self.of_profile(self.ratings.items[own], self.ratings.values[own]).deviations)

    def of_profile(self, items: IntArray, values: FloatArray) -> ProfilePredictions:
        found: FloatArray = _predict_profile(items.astype(np.int64), values, self.table, gp.USUAL_SCATTER)
        predicted, deviations = found.T
        scores = list_scores(predicted, self.table.log_counts, self.table.offsets)
        return ProfilePredictions(scores, predicted, deviations)

    def released_support(self) -> FloatArray:
        """Return the estimated number of raters of every item, exp(E log n): its posterior geometric mean."""
        return np.exp(self.table.log_counts)

    def arrays(self) -> Arrays:
        return {**self.table._asdict(), **self.ratings.arrays()}

    @cached_property
    def _alphas(self) -> FloatArray:
        return np.zeros(len(self.ratings.items))

    @cached_property
    def _fitted(self) -> npt.NDArray[np.bool_]:
        return np.zeros(len(self.ratings.starts) - 1, dtype=np.bool_)

    @cached_property
    def _titles(self) -> "sp.csr_array[np.float64]":
        return TitleRows(self.table.title_starts, self.table.title_columns, self.table.title_weights).matrix

    def _fit(self, people: IntArray) -> None:
        """Compute and cache the weights of these people's ratings (α of `gp.fit_process`), unless they are cached."""
        missing = people[~self._fitted[people]]
        in_threads(_fit_people, len(missing), missing, self.table, self.ratings, self._alphas)
        self._fitted[missing] = True

    def _predict_all(self, user: int) -> FloatArray:
        """Return the predicted ratings of every item for one user, `(n_items,)`.

        The nonlinear part of the kernel is computed in single precision. The linear parts of the kernel
        (products of item rows and of title rows) are first summed over the user's ratings with the weights α, then
        multiplied by the rows of all items at once.
        """
        own = slice(self.ratings.starts[user], self.ratings.starts[user + 1])
        items, alpha = self.ratings.items[own], self._alphas[own]
        table, rows = self.table, self._single_rows
        amplitude, length_squared = table.kernel
        squares = 0.5 * (rows**2).sum(axis=1)
        exponent = (rows @ rows[items].T - squares[:, None] - squares[items]) / np.float32(length_squared)
        near = np.exp(np.minimum(exponent, 0, out=exponent), out=exponent) @ alpha.astype(np.float32)
        linear = table.rows @ (table.rows[items].T @ alpha) + self._titles @ (self._titles[items].T @ alpha)
        return np.asarray(np.clip(table.offsets + linear + amplitude * near, LOWEST, HIGHEST))

    @cached_property
    def _single_rows(self) -> npt.NDArray[np.float32]:
        return self.table.rows.astype(np.float32)


def list_scores(predicted: FloatArray, log_counts: FloatArray, offsets: FloatArray) -> FloatArray:
    """Return the scores by which lists are sorted: log n + q o + t (p − o) for each item.

    p is the predicted rating, n the number of raters, and o the offset, the prediction for an average taste; q and t
    are constants. Sorting by p alone would put items with few raters on top. The number of raters already indicates the
    quality of an item, so the offset weighs less than the person's deviation from it (decision 0012).
    """
    return np.asarray(log_counts + LIST_QUALITY * offsets + LIST_TASTE * (predicted - offsets))


def in_threads(work: Callable[..., None], count: int, *arguments: Any, per_task: int = PEOPLE_PER_TASK) -> None:
    """Call `work(first, stop, *arguments)` in threads, for ranges of `per_task` numbers that cover 0 … `count` − 1.

    Matrix products in these threads have no further threads, which would only compete with them. That is a setting of
    the whole process, so that one call waits for another.
    """

    def run(first: int) -> None:
        work(first, min(first + per_task, count), *arguments)

    if count <= per_task:
        run(0)
        return
    with _ALONE, _libraries().limit(limits=1, user_api="blas"), ThreadPoolExecutor(numba.get_num_threads()) as threads:
        list(threads.map(run, range(0, count, per_task)))


@njit(cache=True, nogil=True)
def _fit_people(first, stop, people, table, ratings, alphas):  # type: ignore[no-untyped-def]
    """Fill `alphas` with the weights α of the ratings of `people[first:stop]`, as `gp.fit_process` defines them.

    If the kernel has no nonlinear part (amplitude 0), the weights are computed faster, from the residuals of the linear
    model divided by the items' variances; the title rows are empty then. Otherwise only a person's first
    `gp.MOST_RATINGS` ratings get weights.
    """
    for place in range(first, stop):
        begin, end = ratings.starts[people[place]], ratings.starts[people[place] + 1]
        if table.kernel[0] != 0.0:
            end = min(end, begin + gp.MOST_RATINGS)
        items = ratings.items[begin:end]
        residuals = ratings.values[begin:end] - table.offsets[items]
        if table.kernel[0] == 0.0:
            mean, _ = gp.taste_posterior(table.rows[items], residuals, 1 / table.variances[items])
            expected = gp.predict_taste(mean, items, table.rows)
            alpha = (residuals - expected) / table.variances[items]
        else:
            _, alpha = gp.fit_process(items, residuals, table)
        for k in range(len(items)):  # a slice assignment takes seconds to compile
            alphas[begin + k] = alpha[k]


@njit(cache=True, nogil=True)
def _predict_people(  # type: ignore[no-untyped-def]
    first, stop, people, starts, wanted, table, ratings, alphas, found
):
    """Fill `found` with the predicted ratings of `people[first:stop]`, on the scale 1 to 5.

    `found` has the order of `wanted`: the entries `starts[i]` … `starts[i + 1]` − 1 are the items to predict for
    `people[i]`. `alphas` has the weights from `_fit_people`.
    """
    for place in range(first, stop):
        begin, end = ratings.starts[people[place]], ratings.starts[people[place] + 1]
        items, alpha = ratings.items[begin:end], alphas[begin:end]
        mine = wanted[starts[place] : starts[place + 1]]
        if table.kernel[0] == 0.0:
            own = gp.predict_taste(gp.taste_of(items, alpha, table.rows), mine, table.rows)
        else:
            own = gp.predict_mean(items, alpha, mine, table)
        for k in range(len(mine)):
            found[starts[place] + k] = min(max(table.offsets[mine[k]] + own[k], LOWEST), HIGHEST)


@njit(cache=True, nogil=True)
def _predict_profile(items, values, table, usual):  # type: ignore[no-untyped-def]
    """Return each item's predicted rating and its standard deviation, `(n_items, 2)`, for a person with these ratings.

    Only the first `gp.MOST_RATINGS` ratings are used. The variances of the model are multiplied by the person's
    `gp.scatter_of`, of which `usual` is a parameter; this changes no predicted rating.
    """
    kept = items[: gp.MOST_RATINGS]
    residuals = values[: gp.MOST_RATINGS] - table.offsets[kept]
    factor, alpha = gp.fit_process(kept, residuals, table)
    wanted = np.arange(len(table.offsets))
    means = gp.predict_mean(kept, alpha, wanted, table)
    deviations = gp.predict_deviation(kept, factor, wanted, table)
    scatter = gp.scatter_of(residuals, alpha, usual)
    found = np.empty((len(wanted), 2))
    for k in range(len(wanted)):
        found[k, 0] = min(max(means[k] + table.offsets[k], LOWEST), HIGHEST)
        found[k, 1] = np.sqrt(scatter * (deviations[k] ** 2 + table.variances[k]))
    return found
