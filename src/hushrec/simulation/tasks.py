"""What a run trains on and how it is measured: ratings by their error, one-class feedback by its ranking."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.data.ratings import Ratings, Scale
from hushrec.data.splits import Split, leave_one_out, random_split, validation_split
from hushrec.errors import DataError, ParameterError
from hushrec.evaluate import ranking_metrics, rating_metrics
from hushrec.models.baselines import rating_baselines
from hushrec.models.predictor import Predictor

Metrics = dict[str, float]
Scorer = Callable[[IntArray], FloatArray]


@dataclass(frozen=True, eq=False)
class RatingTask:
    """Predict held-out ratings: a random fifth of the file."""

    headline: ClassVar[str] = "rmse"

    ratings: Ratings
    split: Split
    values: FloatArray = field(repr=False)  # of all rows, on the file's own scale
    scale: Scale

    def training(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Users, items and values of the training part, mapped to 1 to 5 as every device does."""
        rows = self.split.train
        return self.ratings.users[rows], self.ratings.items[rows], self.scale.to_unit(self.values[rows])

    def metrics(self, predictor: Predictor) -> Metrics:
        """Error on the test part; predictions are not clipped."""
        users, items, actual = self._test()
        unit = predictor.predict(users, items)
        return rating_metrics(self.scale.from_unit(unit), actual)

    def validation(self, seed: int) -> "RatingTask":
        """The same task inside the training part: a fifth of it is held out, the test part is not looked at."""
        return replace(self, split=validation_split(self.split, seed))

    def baselines(self) -> dict[str, Metrics]:
        """The non-personal models on the same split."""
        ratings, rows = self.ratings, self.split.train
        fitted = rating_baselines(
            ratings.users[rows], ratings.items[rows], self.values[rows], ratings.n_users, ratings.n_items
        )
        users, items, actual = self._test()
        return {name: rating_metrics(predict(users, items), actual) for name, predict in fitted.items()}

    def _test(self) -> tuple[IntArray, IntArray, FloatArray]:
        rows = self.split.test
        return self.ratings.users[rows], self.ratings.items[rows], self.values[rows]


@dataclass(frozen=True, eq=False)
class RankingTask:
    """Rank one held-out item per user among all that the user did not rate in training."""

    headline: ClassVar[str] = "auc"
    scale: ClassVar[None] = None

    ratings: Ratings
    split: Split
    starts: IntArray = field(repr=False)  # of each user's training items in `items`
    items: IntArray = field(repr=False)

    def training(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Users and items of the training part; the values are all alike and mean nothing."""
        rows = self.split.train
        return self.ratings.users[rows], self.ratings.items[rows], np.ones(len(rows))

    def metrics(self, predictor: Predictor) -> Metrics:
        """AUC over all unrated items, HR, NDCG and Recall at 10 with full ranking."""
        return self._ranking(predictor.scores)

    def validation(self, seed: int) -> "RankingTask":
        """The same task inside the training part: one more item of each user is held out."""
        rows = self.split.train
        return ranking_task(replace(self.ratings, users=self.ratings.users[rows], items=self.ratings.items[rows]), seed)

    def baselines(self) -> dict[str, Metrics]:
        """Most popular: how many people met an item in training. Random: what chance is worth."""
        popularity = np.bincount(self.items, minlength=self.ratings.n_items).astype(np.float64)
        return {
            "popularity": self._ranking(lambda users: np.tile(popularity, (len(users), 1))),
            "random": self._ranking(lambda users: np.zeros((len(users), self.ratings.n_items))),
        }

    def _ranking(self, score: Scorer) -> Metrics:
        rows = self.split.test
        return ranking_metrics(score, self.ratings.users[rows], self.ratings.items[rows], self.starts, self.items)


Task = RatingTask | RankingTask


def rating_task(ratings: Ratings, split_seed: int) -> RatingTask:
    """The task of models that predict values; refused where there are none."""
    if ratings.values is None or ratings.scale is None:
        raise ParameterError("this model learns from ratings with values; this file has none. Use --model bpr.")
    return RatingTask(ratings, random_split(ratings.n_ratings, split_seed), ratings.values, ratings.scale)


def ranking_task(ratings: Ratings, split_seed: int, at_least: float | None = None) -> RankingTask:
    """The task of models that rank: any rating is an action, or only those from `at_least` up."""
    ratings = without_values(ratings, at_least)
    split = leave_one_out(ratings, split_seed)
    if len(split.test) == 0:
        raise DataError("no user has two actions, so none can be held out. Give more data, or lower at_least.")
    rows = split.train[np.lexsort((ratings.items[split.train], ratings.users[split.train]))]
    counts = np.bincount(ratings.users[rows], minlength=ratings.n_users)
    return RankingTask(ratings, split, np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), ratings.items[rows])


def without_values(ratings: Ratings, at_least: float | None = None) -> Ratings:
    """Who met what, without values; the lists of users and of items stay as they are."""
    if ratings.values is None or ratings.scale is None:
        if at_least is not None:
            raise ParameterError("at_least needs ratings with values; this file has none. Leave it out.")
        return ratings
    if at_least is None:
        return replace(ratings, values=None, scale=None)
    if not ratings.scale.low <= at_least <= ratings.scale.high:
        raise ParameterError(f"at_least must be on the scale of the ratings, {ratings.scale}, got {at_least:g}.")
    rows = np.flatnonzero(ratings.values >= at_least)
    return replace(ratings, users=ratings.users[rows], items=ratings.items[rows], values=None, scale=None)
