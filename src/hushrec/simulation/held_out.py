"""Accuracy of a finished run on ratings that it has not seen: rating metrics, and ranking metrics of every model."""

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.evaluate import list_metrics, ranking_metrics, rating_metrics
from hushrec.models.predictor import Predictor
from hushrec.simulation.lists import LIKED, list_scores
from hushrec.simulation.results import Result, from_json
from hushrec.simulation.settings import Settings
from hushrec.simulation.tasks import Profiles, by_user

Metrics = dict[str, float]


def training_profiles(result: Result) -> Profiles:
    """Return who rated what in the training part of a run, without what it held out."""
    task = Settings(**from_json(result.record["settings"])).make_task(result.ratings)
    return Profiles.of(*task.training(), result.ratings.n_users, result.ratings.n_items)


def held_out_metrics(
    result: Result,
    own: Profiles,
    users: IntArray,
    items: IntArray,
    values: FloatArray | None,
    predicted: FloatArray | None,
) -> Metrics:
    """Return the metrics of test rows; `users` and `items` are positions, -1 where training did not know them.

    `predicted` has the predicted ratings of a model that predicts them, on the scale of `values`. Rows that training
    did not know count in the error, and in no list.
    """
    if predicted is not None and values is None:
        raise ValueError("a model that predicts ratings is measured on ratings with values.")
    errors = {} if predicted is None or values is None else rating_metrics(predicted, values)
    liked = np.ones(len(users), dtype=np.bool_)
    if predicted is not None and values is not None:
        liked = result.scale.to_unit(values) >= LIKED - 1e-9
    listed = liked & (users >= 0) & (items >= 0)
    return errors | _list_metrics(result.predictor, own, users[listed], items[listed])


def _list_metrics(predictor: Predictor, own: Profiles, users: IntArray, items: IntArray) -> Metrics:
    """Return AUC of every liked test item, and precision, recall and NDCG at 10 of the lists that people get."""
    if len(users) == 0:
        return {}
    starts, rows = by_user(users, items, len(own.starts) - 1)

    def score(people: IntArray) -> FloatArray:
        return list_scores(predictor, people, own.means, own.support)

    auc = ranking_metrics(score, users[rows], items[rows], own.starts, own.items)["auc"]
    return {"auc": auc} | list_metrics(score, starts, items[rows], own.starts, own.items)
