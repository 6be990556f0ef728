"""Tasks: the training and test part of a run, and how its model is measured (errors of ratings, or ranks of items)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import ClassVar, NamedTuple

import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray, by_user
from hushrec.data.ratings import Ratings
from hushrec.data.splits import Split, everything, leave_one_out, random_split, validation_split
from hushrec.errors import DataError, ParameterError
from hushrec.evaluate import held_out_ranks, is_chance, list_values, means, rating_metrics, shrink, values_of_ranks
from hushrec.models.baselines import rating_baselines
from hushrec.models.cold import own_means
from hushrec.models.predictor import Predictor
from hushrec.scale import HIGHEST, LOWEST, Scale

STRENGTH = 100.0  # weight of a user's mean in `Profiles.list_scores` (docs/decisions/0014-support-of-lists.md)
LIKED = 4.0  # the lowest rating that counts as liked, on the scale 1 to 5: the upper quarter of any scale

Metrics = dict[str, float]
Scorer = Callable[[IntArray], FloatArray]


class Measured(NamedTuple):
    """The metrics of one model on the test part, and what each person contributes to them.

    `of_people` maps names of metrics to arrays with one number per person: for "rmse" the sum of the person's squared
    errors, for any other metric its value for this person alone. There is no array for "mae". People for whom a metric
    is not defined are left out.
    """

    metrics: Metrics
    of_people: dict[str, FloatArray]

    def within_chance(self, other: "Measured") -> list[str]:
        """Return the names of the metrics in which a paired test over people finds no difference from `other`."""
        shared = self.of_people.keys() & other.of_people.keys()
        return sorted(name for name in shared if is_chance(self.of_people[name] - other.of_people[name]))


class Candidates:
    """The items that are ranked when a model is measured: all items that anybody rated, in the catalogue's order."""

    def __init__(self, ratings: Ratings) -> None:
        self.items = np.sort(ratings.rated_items)
        self.ranks = np.full(ratings.n_items, -1)  # position of each item among the candidates, or -1
        self.ranks[self.items] = np.arange(len(self.items))

    def scorer(self, score: Scorer) -> Scorer:
        """Return a function like `score` whose result has columns for the candidate items only."""
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

    def list_scores(self, predictor: Predictor, users: IntArray, strength: float = STRENGTH) -> FloatArray:
        """Return the scores that sort the recommended items of each user in `users`, `(len(users), n_items)`.

        Models with item vectors do not know how certain their predictions are, and their lists would fill up with items
        that have only a few ratings. Their predictions, on the scale 1 to 5, are therefore shrunk (`evaluate.shrink`)
        toward the user's mean rating, or toward 3 for a user without ratings. The mean has the weight of `strength`
        ratings, and a prediction has the weight of the item's number of ratings. Nothing is shrunk if the model
        estimates deviations, as `gp` does, or if `strength` is 0. For a model that ranks, `strength` must be 0. The
        number of ratings per item is assumed to be public, like a shop's sales figures; no gradient protocol sends it
        to devices.
        """
        scores = predictor.scores(users)
        if strength == 0 or predictor.estimates_deviations:
            return scores
        center = self.means[users]
        return shrink(scores, np.where(np.isnan(center), (LOWEST + HIGHEST) / 2, center), self.support, strength)

    def scorer(self, predictor: Predictor, *, ranks: bool = False) -> Scorer:
        """Return the function that maps users to their `list_scores`; if the model `ranks` items, nothing is shrunk."""
        return partial(self.list_scores, predictor, strength=0.0 if ranks else STRENGTH)


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


@dataclass(frozen=True, eq=False)
class RatingTask(_Task):
    """The task of predicting ratings, measured on the test part of `split`: usually a random fifth of all ratings."""

    headline: ClassVar[str] = "rmse"  # the main metric

    values: FloatArray = field(repr=False)  # of all `ratings`, on the file's scale
    scale: Scale

    def validation(self, seed: int) -> "RatingTask":
        """Return a task within the training part, of which a fifth is held out; the test part is not used."""
        return replace(self, split=validation_split(self.split, seed))

    def metrics(self, predictor: Predictor) -> Metrics:
        """Return RMSE and MAE of the model's predictions on the test part, on the file's scale."""
        return self._errors(self._predict(predictor)).metrics

    def list_metrics(self, predictor: Predictor) -> Metrics:
        """Return the mean precision, recall and NDCG of the users' lists of 10 items.

        The lists are sorted by `Profiles.list_scores`, like the lists of `hushrec recommend`.
        """
        return self.measure_lists(self.profiles.scorer(predictor))

    def measured(self, predictor: Predictor) -> Measured:
        """Return `metrics` and `list_metrics` together, and what each person contributes to them."""
        errors, lists = self._errors(self._predict(predictor)), self._lists(self.profiles.scorer(predictor))
        return Measured(errors.metrics | lists.metrics, errors.of_people | lists.of_people)

    def measure_lists(self, score: Scorer) -> Metrics:
        """Return precision, recall and NDCG at 10 of lists sorted by `score`; empty if no test item is liked.

        A test item is liked if its rating is in the upper quarter of the scale: at least 4 on the scale 1 to 5. Items
        of the catalogue without ratings are left out, so that results are comparable with those of other libraries.
        """
        return self._lists(score).metrics

    def baselines(self) -> dict[str, Metrics]:
        """Return the metrics of non-personal models on the same split, by the model's name."""
        return {name: found.metrics for name, found in self.measured_baselines().items()}

    def measured_baselines(self) -> dict[str, Measured]:
        """Return the metrics of non-personal models on the same split, and each person's contributions, by model name.

        The models are those of `rating_baselines`, and "popularity": lists of the items with the most training ratings.
        "popularity" has list metrics only, and is left out if no test item is liked.
        """
        ratings, rows = self.ratings, self.split.train
        fitted = rating_baselines(
            ratings.users[rows], ratings.items[rows], self.values[rows], ratings.n_users, ratings.n_items
        )
        users, items, _ = self._test()
        found = {name: self._errors(predict(users, items)) for name, predict in fitted.items()}
        popular = self._lists(same_for_all(self.profiles.support))
        return found | ({"popularity": popular} if popular.metrics else {})

    def released_baselines(self, support: FloatArray | None) -> dict[str, Measured]:
        """Return the metrics of lists of the most popular items by `support`, as baseline "private_popularity".

        `support` has the noisy number of ratings of each item that a run released. If it is None, or if no test item is
        liked, the result is empty.
        """
        lists = {} if support is None else {"private_popularity": self._lists(same_for_all(support))}
        return {name: found for name, found in lists.items() if found.metrics}

    def _predict(self, predictor: Predictor) -> FloatArray:
        users, items, _ = self._test()
        return self.scale.from_unit(predictor.predict(users, items))

    def _errors(self, predicted: FloatArray) -> Measured:
        users, _, actual = self._test()
        squares = np.bincount(users, (predicted - actual) ** 2, self.ratings.n_users).astype(np.float64)
        return Measured(rating_metrics(predicted, actual), {"rmse": squares})

    def _lists(self, score: Scorer) -> Measured:
        users, items, actual = self._test()
        liked = is_liked(actual, self.scale)
        starts, rows = by_user(users[liked], items[liked], self.ratings.n_users)
        own, among = self.profiles, Candidates(self.ratings)
        found = list_values(
            among.scorer(score), starts, among.ranks[items[liked][rows]], own.starts, among.ranks[own.items]
        )
        return Measured(means(found), found)

    def _test(self) -> tuple[IntArray, IntArray, FloatArray]:
        rows = self.split.test
        return self.ratings.users[rows], self.ratings.items[rows], self.values[rows]


@dataclass(frozen=True, eq=False)
class RankingTask(_Task):
    """The task of ranking one held-out item per user among all items with ratings except the user's training items."""

    headline: ClassVar[str] = "auc"  # the main metric
    scale: ClassVar[None] = None

    def validation(self, seed: int) -> "RankingTask":
        """Return a task within the training part, of which one item per user is held out; the test part is not used."""
        return ranking_task(self.ratings.rows(self.split.train), seed)

    def metrics(self, predictor: Predictor) -> Metrics:
        """Return AUC, and hit rate, NDCG and recall at 10, with the test item ranked among all candidate items."""
        return self.measured(predictor).metrics

    def list_metrics(self, predictor: Predictor) -> Metrics:
        """Return an empty dictionary: `metrics` has all metrics of a ranking task."""
        return {}

    def measured(self, predictor: Predictor) -> Measured:
        """Return `metrics`, and what each person contributes to them."""
        return self._ranking(predictor.scores)

    def baselines(self) -> dict[str, Metrics]:
        """Return the metrics of ranking by popularity in the training part, and of a random order."""
        return {name: found.metrics for name, found in self.measured_baselines().items()}

    def measured_baselines(self) -> dict[str, Measured]:
        """Return the metrics of baselines "popularity" and "random", and what each person contributes to them.

        "popularity" ranks items by their number of training ratings, "random" in a random order.
        """
        scores = {"popularity": self.profiles.support, "random": np.zeros(self.ratings.n_items)}
        return {name: self._ranking(same_for_all(own)) for name, own in scores.items()}

    def released_baselines(self, support: FloatArray | None) -> dict[str, Measured]:
        """Return the metrics of ranking by `support`, as baseline "private_popularity".

        `support` has the noisy number of ratings of each item that a run released. If it is None, the result is empty.
        """
        return {} if support is None else {"private_popularity": self._ranking(same_for_all(support))}

    def _ranking(self, score: Scorer) -> Measured:
        rows, own, among = self.split.test, self.profiles, Candidates(self.ratings)
        held_out = self.ratings.users[rows], among.ranks[self.ratings.items[rows]]
        ranks = held_out_ranks(among.scorer(score), *held_out, own.starts, among.ranks[own.items])
        found = values_of_ranks(*ranks)
        return Measured(means(found), found)


Task = RatingTask | RankingTask


def is_liked(values: FloatArray, scale: Scale) -> BoolArray:
    """Return whether each rating is in the upper quarter of its scale, up to a rounding error."""
    return np.asarray(scale.to_unit(values) >= LIKED - 1e-9)


def same_for_all(scores: FloatArray) -> Scorer:
    """Return a function from users to scores, `(len(users), n_items)`, that gives every user the same `scores`."""
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

    Users and items keep their numbers, even if all their ratings are left out.
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
