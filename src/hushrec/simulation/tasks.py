"""Tasks: the training and test part of a run, and how its model is measured (errors of ratings, or ranks of items)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar

import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.data.ratings import Ratings, Scale
from hushrec.data.splits import Split, everything, leave_one_out, random_split, validation_split
from hushrec.errors import DataError, ParameterError
from hushrec.evaluate import list_metrics, ranking_metrics, rating_metrics, shrink
from hushrec.models.baselines import rating_baselines
from hushrec.models.cold import own_means
from hushrec.models.predictor import Predictor
from hushrec.scale import HIGHEST, LOWEST

STRENGTH = 100.0  # weight of the person's own mean, in ratings (docs/decisions/0014-support-of-lists.md)
LIKED = 4.0  # the lowest rating that counts as liked, on the scale 1 to 5: the upper quarter of any scale

Metrics = dict[str, float]
Scorer = Callable[[IntArray], FloatArray]


class Candidates:
    """The items that are ranked when a model is measured: those that have ratings, in the order of the catalogue."""

    def __init__(self, ratings: Ratings) -> None:
        self.items = np.sort(ratings.rated_items)
        self.ranks = np.full(ratings.n_items, -1)  # position of each item among the candidates, or -1
        self.ranks[self.items] = np.arange(len(self.items))

    def scorer(self, score: Scorer) -> Scorer:
        """Return the function `score`, restricted to the columns of the candidate items."""
        if len(self.items) == len(self.ranks):
            return score
        return lambda users: score(users)[:, self.items]


@dataclass(frozen=True, eq=False)
class Profiles:
    """Ratings by user: user i rated `items[starts[i]:starts[i + 1]]`, ascending, as `values` on the scale 1 to 5."""

    starts: IntArray = field(repr=False)  # (n_users + 1,)
    items: IntArray = field(repr=False)
    values: FloatArray = field(repr=False)
    support: FloatArray = field(repr=False)  # (n_items,) number of ratings

    @staticmethod
    def of(users: IntArray, items: IntArray, values: FloatArray, n_users: int, n_items: int) -> "Profiles":
        starts, rows = by_user(users, items, n_users)
        support = np.bincount(items, minlength=n_items).astype(np.float64)
        return Profiles(starts, items[rows], values[rows], support)

    @cached_property
    def means(self) -> FloatArray:
        """The mean rating of every user, `(n_users,)`; NaN for a user without ratings."""
        return own_means(self.starts, self.values)

    def scorer(self, predictor: Predictor) -> Scorer:
        """Return a function from users to the scores that sort their lists of recommended items (`list_scores`)."""
        return lambda users: list_scores(predictor, users, self.means, self.support)


def by_user(users: IntArray, items: IntArray, n_users: int) -> tuple[IntArray, IntArray]:
    """Return where each user's rows begin after sorting by user and item, `(n_users + 1,)`, and the sorting order."""
    counts = np.bincount(users, minlength=n_users)
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), np.lexsort((items, users))


@dataclass(frozen=True, eq=False)
class _Task:
    ratings: Ratings
    split: Split

    def training(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Return users, items and values of the training part; values are from 1 to 5, or all 1 in a ranking task."""
        rows, values, scale = self.split.train, self.ratings.values, self.ratings.scale
        unit = np.ones(len(rows)) if values is None or scale is None else scale.to_unit(values[rows])
        return self.ratings.users[rows], self.ratings.items[rows], unit

    @cached_property
    def profiles(self) -> Profiles:
        return Profiles.of(*self.training(), self.ratings.n_users, self.ratings.n_items)

    def list_metrics(self, predictor: Predictor) -> Metrics:
        """Return precision, recall and NDCG of lists of 10 items for each user; empty for a ranking task.

        The lists are sorted by `list_scores`, as those of `hushrec recommend` are.
        """
        return {}


@dataclass(frozen=True, eq=False)
class RatingTask(_Task):
    """The task of predicting ratings, measured on a random fifth of all ratings, which is held out."""

    headline: ClassVar[str] = "rmse"

    values: FloatArray = field(repr=False)  # of all rows, on the file's scale
    scale: Scale

    def validation(self, seed: int) -> "RatingTask":
        """Return a task within the training part, of which a fifth is held out; the test part is not used."""
        return replace(self, split=validation_split(self.split, seed))

    def metrics(self, predictor: Predictor) -> Metrics:
        """Return RMSE and MAE on the test part, on the file's scale; predictions are not clipped."""
        users, items, actual = self._test()
        return rating_metrics(self.scale.from_unit(predictor.predict(users, items)), actual)

    def list_metrics(self, predictor: Predictor) -> Metrics:
        return self.measure_lists(self.profiles.scorer(predictor))

    def measure_lists(self, score: Scorer) -> Metrics:
        """Return precision, recall and NDCG at 10 of lists sorted by `score`; empty if no test item is liked.

        A test item is liked if its rating is in the upper quarter of the scale: at least 4 on the scale 1 to 5. Items
        of the catalogue without ratings are left out, so that results are comparable with those of other libraries.
        """
        users, items, actual = self._test()
        liked = is_liked(actual, self.scale)
        starts, rows = by_user(users[liked], items[liked], self.ratings.n_users)
        own, among = self.profiles, Candidates(self.ratings)
        return list_metrics(
            among.scorer(score), starts, among.ranks[items[liked][rows]], own.starts, among.ranks[own.items]
        )

    def baselines(self) -> dict[str, Metrics]:
        """Return the metrics on the same split of models that are not personal, by the model's name.

        They are those of `rating_baselines` and "popularity", lists of the items with the most training ratings. The
        latter has list metrics only, and is left out if no test item is liked.
        """
        ratings, rows = self.ratings, self.split.train
        fitted = rating_baselines(
            ratings.users[rows], ratings.items[rows], self.values[rows], ratings.n_users, ratings.n_items
        )
        users, items, actual = self._test()
        found = {name: rating_metrics(predict(users, items), actual) for name, predict in fitted.items()}
        popular = self.measure_lists(same_for_all(self.profiles.support))
        return found | ({"popularity": popular} if popular else {})

    def released_baselines(self, support: FloatArray | None) -> dict[str, Metrics]:
        """Return the metrics of lists sorted by `support`, the noisy popularity that a run released; empty if None."""
        lists = {} if support is None else self.measure_lists(same_for_all(support))
        return {"private_popularity": lists} if lists else {}

    def _test(self) -> tuple[IntArray, IntArray, FloatArray]:
        rows = self.split.test
        return self.ratings.users[rows], self.ratings.items[rows], self.values[rows]


@dataclass(frozen=True, eq=False)
class RankingTask(_Task):
    """The task of ranking one held-out item per user among all items with ratings except the user's training items."""

    headline: ClassVar[str] = "auc"
    scale: ClassVar[None] = None

    def validation(self, seed: int) -> "RankingTask":
        """Return a task within the training part, of which one item per user is held out; the test part is not used."""
        return ranking_task(self.ratings.rows(self.split.train), seed)

    def metrics(self, predictor: Predictor) -> Metrics:
        """Return AUC, and hit rate, NDCG and recall at 10, with the test item ranked among all candidate items."""
        return self._ranking(predictor.scores)

    def baselines(self) -> dict[str, Metrics]:
        """Return the metrics of ranking by popularity in the training part, and of a random order."""
        scores = {"popularity": self.profiles.support, "random": np.zeros(self.ratings.n_items)}
        return {name: self._ranking(same_for_all(own)) for name, own in scores.items()}

    def released_baselines(self, support: FloatArray | None) -> dict[str, Metrics]:
        """Return the metrics of ranking by `support`, the noisy popularity that a run released; empty if None."""
        return {} if support is None else {"private_popularity": self._ranking(same_for_all(support))}

    def _ranking(self, score: Scorer) -> Metrics:
        rows, own, among = self.split.test, self.profiles, Candidates(self.ratings)
        held_out = self.ratings.users[rows], among.ranks[self.ratings.items[rows]]
        return ranking_metrics(among.scorer(score), *held_out, own.starts, among.ranks[own.items])


Task = RatingTask | RankingTask


def list_scores(
    predictor: Predictor, users: IntArray, own_means: FloatArray, support: FloatArray, strength: float = STRENGTH
) -> FloatArray:
    """Return the scores that sort the recommended items of each user in `users`, `(len(users), n_items)`.

    Models with item vectors do not know how certain their predictions are, and their lists would fill up with items
    that have only a few ratings. Their predictions, on the scale 1 to 5, are therefore shrunk (`evaluate.shrink`)
    toward the user's mean rating in `own_means`, or toward 3 if that is NaN. The mean has the weight of `strength`
    ratings. A prediction has the weight of the item's number of ratings, which `support` has for every item. Scores of
    a model that has `deviations` (`gp`), and all scores if `strength` is 0, are not shrunk. The number of ratings per
    item is assumed to be public, like a shop's sales figures; no gradient protocol sends it to devices.
    """
    scores = predictor.scores(users)
    if strength == 0 or predictor.deviations(int(users[0])) is not None:
        return scores
    center = own_means[users]
    return shrink(scores, np.where(np.isnan(center), (LOWEST + HIGHEST) / 2, center), support, strength)


def is_liked(values: FloatArray, scale: Scale) -> BoolArray:
    """Return whether each rating is in the upper quarter of its scale; rounding errors do not matter."""
    return np.asarray(scale.to_unit(values) >= LIKED - 1e-9)


def same_for_all(scores: FloatArray) -> Scorer:
    """Return a function from users to scores that are the same for every user: `scores`, one per item."""
    return lambda users: np.tile(scores, (len(users), 1))


def rating_task(ratings: Ratings, split_seed: int, *, final: bool = False) -> RatingTask:
    """Return the task for models that predict ratings; with `final`, nothing is held out."""
    if ratings.values is None or ratings.scale is None:
        raise ParameterError(
            "ratings must have values, because this model predicts them, but the file has none. Use --model audience."
        )
    split = everything(ratings.n_ratings) if final else random_split(ratings.n_ratings, split_seed)
    return RatingTask(ratings, split, ratings.values, ratings.scale)


def ranking_task(
    ratings: Ratings, split_seed: int, at_least: float | None = None, *, final: bool = False
) -> RankingTask:
    """Return the task for models that rank items; ratings below `at_least` are left out.

    With `final`, nothing is held out.
    """
    ratings = without_values(ratings, at_least)
    split = everything(ratings.n_ratings) if final else leave_one_out(ratings, split_seed)
    if len(split.test) == 0 and not final:
        raise DataError(
            "ratings must include a user with at least two rated items, so that one can be held out. Give more data,"
            " hold nothing out with --final, or lower --at-least, which leaves out ratings below its value."
        )
    return RankingTask(ratings, split)


def without_values(ratings: Ratings, at_least: float | None = None) -> Ratings:
    """Return which user rated which item, without the values; ratings below `at_least` are left out.

    Users and items keep their numbers, even those whose ratings are all left out.
    """
    if ratings.values is None or ratings.scale is None:
        if at_least is not None:
            raise ParameterError("at_least must not be given for a file without rating values. Leave it out.")
        return ratings
    if at_least is None:
        return replace(ratings, values=None, scale=None)
    if not ratings.scale.low <= at_least <= ratings.scale.high:
        raise ParameterError(f"at_least must be on the rating scale, {ratings.scale}, got {at_least:g}.")
    rows = np.flatnonzero(ratings.values >= at_least)
    return replace(ratings.rows(rows), values=None, scale=None)
