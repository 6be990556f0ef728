"""Accuracy of a finished run on a separate set of test ratings: rating metrics and ranking metrics."""

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray, by_user
from hushrec.data.ratings import Ratings
from hushrec.evaluate import auc_of_ranks, held_out_ranks, list_metrics, ranking_metrics, rating_metrics
from hushrec.json_values import from_json
from hushrec.models.baselines import rating_baselines
from hushrec.simulation.results import Result
from hushrec.simulation.settings import Settings
from hushrec.simulation.tasks import Profiles, Scorer, is_liked, same_for_all

Metrics = dict[str, float]


def training_profiles(result: Result) -> Profiles:
    """Return the ratings that a run was trained on, grouped by user."""
    return Settings(**from_json(result.record["settings"])).make_task(result.ratings).profiles


def held_out_metrics(
    result: Result,
    own: Profiles,
    users: IntArray,
    items: IntArray,
    values: FloatArray | None,
    predicted: FloatArray | None,
) -> Metrics:
    """Return the metrics of a run on test ratings; the arrays have one entry for each test rating.

    `own` holds the training ratings. `users` and `items` are positions in the run's data, or -1 if they do not occur
    there. `values` are the test ratings and `predicted` the predictions for them, both on the file's scale; both are
    None for a model that ranks.

    The ranking metrics leave out test ratings whose user or item is unknown, and items that the user rated in training.
    For a model that predicts ratings, they also leave out ratings below the upper quarter of the scale.
    """
    errors, listed = {}, _may_be_listed(own, users, items)
    if predicted is not None and values is not None:
        errors = rating_metrics(predicted, values)
        listed &= is_liked(values, result.scale)
    scorer = own.scorer(result.predictor, ranks=not result.predicts_ratings)
    return errors | _lists_of(scorer, own, users[listed], items[listed])


def row_aucs(result: Result, own: Profiles, users: IntArray, items: IntArray) -> FloatArray:
    """Return, for each test rating, the AUC of its item among all items that its user did not rate in training.

    The AUC is NaN if the user or the item is unknown, or if the user rated the item in training.
    """
    known = _may_be_listed(own, users, items)
    found = np.full(len(users), np.nan)
    if known.any():
        scorer = own.scorer(result.predictor, ranks=not result.predicts_ratings)
        ranks = held_out_ranks(scorer, users[known], items[known], own.starts, own.items)
        found[known] = auc_of_ranks(*ranks)
    return found


def _may_be_listed(own: Profiles, users: IntArray, items: IntArray) -> npt.NDArray[np.bool_]:
    """Return whether the item of each test rating may be in a list for its user.

    User and item must be known, and the item must not be among the user's training items in `own`.
    """
    n_items = len(own.support)
    owners = np.repeat(np.arange(len(own.starts) - 1), np.diff(own.starts))
    learned = np.isin(users * n_items + items, owners * n_items + own.items)
    return np.asarray((users >= 0) & (items >= 0) & ~learned)


def non_personal_metrics(train: Ratings, test: Ratings, *, ranks: bool) -> dict[str, Metrics]:
    """Return the test metrics of the non-personal models, by name of the model.

    "global_mean", "user_mean", "item_mean" and "bias" have rating metrics, "popularity" has ranking metrics. The result
    has "popularity" only if the ratings have no values, or if `ranks` says that they are compared with a model that
    ranks items.
    """
    training = Profiles.of(train.users, train.items, np.ones(train.n_ratings), train.n_users, train.n_items)
    found: dict[str, Metrics] = {}
    liked = np.ones(test.n_ratings, dtype=np.bool_)
    if not ranks and train.values is not None and test.values is not None and test.scale is not None:
        fitted = rating_baselines(train.users, train.items, train.values, train.n_users, train.n_items)
        found = {name: rating_metrics(guess(test.users, test.items), test.values) for name, guess in fitted.items()}
        liked = is_liked(test.values, test.scale)
    popular = _lists_of(same_for_all(training.support), training, test.users[liked], test.items[liked])
    return found | {"popularity": popular}


def _lists_of(score: Scorer, own: Profiles, users: IntArray, items: IntArray) -> Metrics:
    """Return the ranking metrics of lists that are sorted by `score`: AUC, and precision, recall and NDCG at 10.

    `users` and `items` are those of the test ratings. A user's list does not contain the user's training items in
    `own`. Without test ratings, the result is empty.
    """
    if len(users) == 0:
        return {}
    starts, rows = by_user(users, items, len(own.starts) - 1)
    auc = ranking_metrics(score, users[rows], items[rows], own.starts, own.items)["auc"]
    return {"auc": auc} | list_metrics(score, starts, items[rows], own.starts, own.items)
