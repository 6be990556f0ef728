"""The class `hushrec.Recommender`, and `hushrec.train`, which trains one and measures it on held-out ratings."""

import inspect
import logging
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, Unpack, cast, get_type_hints

import numpy as np
import numpy.typing as npt
import polars as pl

from hushrec.data.frames import RatingTable, SparseMatrix, is_pandas, positions, read_pairs, with_ratings
from hushrec.data.ratings import Ratings
from hushrec.data.sources import is_made
from hushrec.data.sources import load as load_ratings
from hushrec.engines import Remark
from hushrec.errors import LocalProtocolError, ParameterError
from hushrec.json_values import from_json
from hushrec.scale import Scale
from hushrec.simulation.held_out import held_out_metrics, row_aucs, training_profiles
from hushrec.simulation.results import Profile, Reason, Recommendation, Result, load
from hushrec.simulation.run import CHECKPOINT_EVERY, Progress
from hushrec.simulation.settings import ModelSettings, Settings, flat, nested, unknown_setting
from hushrec.simulation.summaries import as_html, in_one_line
from hushrec.simulation.tasks import Profiles, without_values
from hushrec.simulation.training import load_final
from hushrec.simulation.training import train as train_run

Source = str | Path | Ratings | RatingTable | SparseMatrix
Frame = Any  # a polars DataFrame, or a pandas DataFrame if the ratings were one
NAMES = tuple(ModelSettings.__annotations__)
LOGGER = logging.getLogger("hushrec")  # receives remarks if the caller passes no function for them


class Recommender:
    """A private recommender. By default it uses protocol `masked` with a budget of ε = 8 for a whole profile.

    Every setting is a keyword argument; None means the setting's default:

        recommender = hushrec.Recommender(epsilon=4).fit(ratings)
        recommender.recommend("ann", 10)
        recommender.recommend_for({"Alien": 5, "Heat": 2})  # a person who took no part in training

    `protocol` determines what devices send (`masked`, `sdcf`, `isgld`, `plain`, or a plug-in's protocol), `model` what
    is learned (`gp` and `audience` with `masked`; `mf` and `fm` with the others, and `bpr` with `sdcf` and `plain`).
    `epsilon` is the budget of `masked` and `isgld`, `seed` the seed of all random draws, and `engine` the
    implementation that computes the rounds; `options` holds the options of a plug-in. `hushrec train --help` explains
    all settings.

    Ratings are a polars or pandas frame, an Arrow table, a NumPy array, a SciPy sparse matrix, a list of rows, a file
    or the name of a data set. Methods return pandas frames if the ratings were a pandas frame, otherwise polars frames.
    This class simulates every device on one machine, and therefore holds everybody's ratings (docs/privacy.md).

    The class is a scikit-learn estimator: `clone`, `GridSearchCV` and `cross_validate` accept it, with a frame of user,
    item and rating as X, or with user and item as X and the ratings as y.
    """

    def __init__(self, **settings: Unpack[ModelSettings]) -> None:
        unknown = settings.keys() - set(NAMES)
        if unknown:
            raise unknown_setting(unknown, NAMES)
        self._settings = settings
        Settings(**flat(settings))  # raises now rather than after the data is read
        self._result: Result | None = None
        self._pandas = False

    def fit(
        self,
        ratings: Source,
        y: npt.ArrayLike | None = None,
        *,
        items: str | Path | RatingTable | None = None,
        progress: Progress | None = None,
        remark: Remark | None = None,
    ) -> Self:
        """Learn from all given ratings; return this recommender.

        If `y` is given, it holds the ratings of the (user, item) rows of `ratings`. `items` is a file or a frame with
        an id, a title and public attributes for each item. `progress` is called after every round, with the protocol's
        name, the number of the round, the number of all rounds, and NaN, because there is no test error. `remark` is
        called with texts for the user, for example why the first run on a machine takes longer; by default, these texts
        are warnings of the logger `hushrec`.
        """
        read, remark = read_ratings(ratings, y, items), remark or LOGGER.warning
        found = train_run(read, final=True, compare=False, progress=progress, remark=remark, **flat(self._settings))
        return self._now(found, pandas=is_pandas(ratings))

    def _now(self, result: Result, *, pandas: bool = False) -> Self:
        self._result, self._pandas = result, pandas
        for cached in ("_newcomer", "_training"):
            self.__dict__.pop(cached, None)
        return self

    def predict(self, pairs: RatingTable) -> npt.NDArray[np.float64]:
        """Return the predicted rating of each (user, item) row, on the scale of the training ratings.

        Model `gp` clips its predictions to the scale; `mf` and `fm` do not. For an unknown user the result is the
        prediction for a person without ratings or, if the model has none, the mean of all ratings. For an unknown item
        the result is the user's mean rating. With a model that ranks, the results are scores, of which only the order
        is meaningful, and NaN for unknown users and items.
        """
        users, items = read_pairs(pairs)
        return self._predict(positions(users, self.user_ids), positions(items, self.item_ids))

    def _predict(self, users: npt.NDArray[np.int64], items: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        result, known = self._fitted, (users >= 0) & (items >= 0)
        found = np.full(len(users), np.nan)
        if known.any():
            found[known] = result.predictor.predict(users[known], items[known])
        if not result.predicts_ratings:
            return found
        overall = float(self._training.values.mean())
        own = np.where(users >= 0, self._training.means[users], overall)
        found[items < 0] = np.where(np.isnan(own), overall, own)[items < 0]
        strangers = (users < 0) & (items >= 0)
        found[strangers] = overall if self._newcomer is None else self._newcomer[items[strangers]]
        return result.scale.from_unit(found)

    @cached_property
    def _training(self) -> Profiles:
        return training_profiles(self._fitted)

    @cached_property
    def _newcomer(self) -> npt.NDArray[np.float64] | None:
        """Predictions for a person without ratings, on the scale 1 to 5; None if the model cannot make them."""
        found = self._fitted.predictor.of_profile(np.empty(0, dtype=np.int64), np.empty(0))
        return None if found is None else found.predicted

    def recommend(self, user: str | int | Iterable[str | int], n: int = 10, *, shrink: bool = True) -> Frame:
        """Return the `n` best items that a user has not rated, the best first; for several users, list after list.

        The columns are user, item, title, predicted (clipped to the scale), deviation (the standard deviation of the
        user's own rating around the predicted one, if the model computes it), score (by which the list is sorted) and
        support (the number of the item's ratings, or the noisy number that the protocol released). Models `mf` and `fm`
        shrink the scores of items with few ratings towards the user's mean rating; with `shrink=False` they sort by raw
        predictions. Other models ignore `shrink`.
        """
        users = list(user) if isinstance(user, Iterable) and not isinstance(user, str) else [user]
        lists = [self._fitted.recommend(one, n, shrink=shrink) for one in users]
        names = [str(one) for one, found in zip(users, lists, strict=True) for _ in found]
        rows = [entry for found in lists for entry in found]
        return self._out(_recommended(rows).insert_column(0, pl.Series("user", names, dtype=pl.String)))

    def recommend_for(self, profile: Mapping[Any, float] | Collection[Any], n: int = 10) -> Frame:
        """Return the `n` best items for a person who took no part in training, given a mapping from items to ratings.

        Nothing is trained and no budget is spent: a device computes the list from the public table and its own ratings.
        For a model that ranks, `profile` may be a list of items.
        """
        return self._out(_recommended(self._fitted.recommend_to(_by_id(profile), n)))

    def similar_items(self, item: str | int, n: int = 10) -> Frame:
        """Return the `n` items most similar to an item, as columns item, title and likeness (−1 to 1).

        The likeness means nothing if the run knows too little of the items (`compares_items`).
        """
        found = self._fitted.similar_items(item, n)
        kinds = {"item": pl.String, "title": pl.String, "likeness": pl.Float64}
        return self._out(pl.DataFrame(found, schema=kinds, orient="row"))

    def explain(self, user: str | int, item: str | int, n: int = 3) -> Frame:
        """Return up to `n` items that the user liked and that are similar to `item`, the most similar first.

        A liked item is rated at or above the user's own mean. For a model that ranks, it is rated at or above the
        setting `at_least`; without that setting, every rated item is liked. The columns are item, title, rating and
        likeness, which is above 0. These items are reasons that a person can check, not a derivation of the prediction.
        There are none if the run knows no attributes or titles of the items and has learned no columns of its own
        (`compares_items`): all it knows of an item then is how popular and how good it is.
        """
        return self._out(_reasons(self._fitted.explain(user, item, n)))

    def explain_for(self, profile: Mapping[Any, float] | Collection[Any], item: str | int, n: int = 3) -> Frame:
        """Return up to `n` items of a profile that the person liked and that are similar to `item`.

        `profile` is like that of `recommend_for`, and the result like that of `explain`.
        """
        return self._out(_reasons(self._fitted.explain_to(_by_id(profile), item, n)))

    def measure(self, ratings: Source, y: npt.ArrayLike | None = None) -> dict[str, float]:
        """Return the metrics on held-out ratings by name, as in `train --json`.

        A model that predicts ratings has `rmse` and `mae`, and needs ratings on the scale of the training ratings.
        Every model also has `auc`, `precision_at_10`, `recall_at_10` and `ndcg_at_10`, which measure how high liked
        items are ranked. An item is liked if its rating is in the upper quarter of the scale. For a model that ranks,
        an item is liked if its rating is at least the setting `at_least`; without this setting, every rated item is
        liked. These four metrics do not count rows with an unknown user or item, nor rows that were in the training
        ratings. They are missing if no item is liked.
        """
        test = self._test_part(ratings, y)
        users, items = self._positions(test)
        predicted = self._predict(users, items) if self._fitted.predicts_ratings else None
        return held_out_metrics(self._fitted, self._training, users, items, test.values, predicted)

    def _test_part(self, ratings: Source, y: npt.ArrayLike | None) -> Ratings:
        """Return the held-out ratings as a `Ratings` object.

        For a model that ranks, the result has (user, item) pairs without ratings. If the setting `at_least` is given,
        pairs with a lower rating are left out.
        """
        if not self._fitted.predicts_ratings:
            return without_values(read_ratings(ratings, y), self.record["at_least"])
        known = isinstance(ratings, Ratings) or (isinstance(ratings, str | Path) and is_made(ratings))
        test = read_ratings(ratings, y, scale=None if known else self.scale)
        if test.values is None:
            raise ParameterError(f"ratings must have values to measure model {self.record['model']}, but have none.")
        off = int(np.count_nonzero(~self.scale.holds(test.values)))
        if off:
            raise ParameterError(
                f"ratings must lie on the scale of the training ratings, {self.scale}, but {off} of {test.n_ratings} do"
                " not. Correct them, or map them to this scale."
            )
        return test

    def _positions(self, test: Ratings) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return, for each row of `test`, the positions of its user in `user_ids` and of its item in `item_ids`.

        The position of an unknown user or item is −1.
        """
        users = positions(test.user_ids, self.user_ids)[test.users]
        return users, positions(test.item_ids, self.item_ids)[test.items]

    def _losses(self, test: Ratings) -> npt.NDArray[np.float64]:
        """Return the squared error of each row, or 1 − AUC for a model that ranks; NaN for a row without a result."""
        users, items = self._positions(test)
        if test.values is None:
            return 1 - row_aucs(self._fitted, self._training, users, items)
        return np.asarray((self._predict(users, items) - test.values) ** 2)

    def score(self, ratings: Source, y: npt.ArrayLike | None = None) -> float:
        """Return a score for scikit-learn, larger is better: minus the RMSE, or the AUC for a model that ranks."""
        found = self.measure(ratings, y)
        if self._fitted.predicts_ratings:
            return -found["rmse"]
        if "auc" not in found:
            raise ParameterError(
                "ratings must hold a row with a known user and a known item that is not among the training ratings, got"
                " none. Hold some rows out before fit."
            )
        return found["auc"]

    @property
    def metrics(self) -> dict[str, float]:
        """The accuracy on the test ratings that `hushrec.train` held out; empty after `fit`."""
        return self._fitted.metrics

    @property
    def record(self) -> dict[str, Any]:
        """The record of the run, as printed by `hushrec train --json`."""
        return self._fitted.record

    @property
    def budget(self) -> dict[str, Any]:
        """The privacy budget that training cost each person, with its unit, and what the guarantee does not cover."""
        return dict(self._fitted.record["budget"])

    @property
    def user_ids(self) -> list[str]:
        """The ids of all users in the training data, as text."""
        return self._fitted.user_ids

    @property
    def compares_items(self) -> bool:
        """Whether the run knows enough of the items to give reasons: attributes, titles or learned columns."""
        return self._fitted.compares_items

    @property
    def scale(self) -> Scale:
        """The scale of the ratings; 1 to 5 if the ratings have no values."""
        return self._fitted.scale

    @property
    def item_ids(self) -> list[str]:
        """The ids of all items, as text."""
        return self._fitted.item_ids

    def save(self, folder: str | Path) -> None:
        """Write this recommender to a new folder, for `Recommender.load` and the command line.

        The folder contains everybody's ratings. Its files are JSON, NumPy arrays and Parquet, so that loading them runs
        no code.
        """
        self._fitted.save(folder)

    @classmethod
    def load(cls, folder: str | Path, *, refit: bool = False, remark: Remark | None = None) -> Self:
        """Return the recommender from a folder that `save` or `train` wrote.

        With `refit`, a run with held-out test ratings is first trained again on all ratings, and the result is stored
        in the folder for later calls. This is another training, for which real devices would pay the budget again.
        """
        result = load_final(folder, remark=remark or LOGGER.warning) if refit else load(folder)
        chosen = from_json(result.record["settings"])
        own = {name: value for name, value in chosen.items() if name not in OF_A_RUN}
        return cls(**nested(own))._now(result)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return every setting by name; None means its default."""
        return {name: self._settings.get(name, 0 if name == "seed" else None) for name in NAMES}

    def set_params(self, **params: Unpack[ModelSettings]) -> Self:
        """Change settings and discard the fitted model; return this recommender."""
        Recommender.__init__(self, **cast(ModelSettings, {**self._settings, **params}))
        return self

    def __sklearn_is_fitted__(self) -> bool:
        return self._result is not None

    def __sklearn_tags__(self) -> Any:
        from sklearn.utils import InputTags, RegressorTags, Tags, TargetTags

        return Tags(
            estimator_type="regressor",
            target_tags=TargetTags(required=False),
            regressor_tags=RegressorTags(),
            input_tags=InputTags(string=True, categorical=True),
        )

    def __repr__(self) -> str:
        given = {name: value for name, value in self._settings.items() if value is not None}
        shown = f"Recommender({', '.join(f'{name}={value!r}' for name, value in given.items())})"
        return shown if self._result is None else f"<{shown} {in_one_line(self._result)}>"

    def _repr_html_(self) -> str:
        return as_html(self._result, repr(self))

    @property
    def _fitted(self) -> Result:
        if self._result is None:
            raise LocalProtocolError("this recommender must be fitted first. Call fit, or read one with load.")
        return self._result

    def _out(self, frame: pl.DataFrame) -> Frame:
        return as_output(frame, pandas=self._pandas)


def _shown_signature() -> inspect.Signature:
    """Return the signature of `Recommender` with every setting, because `help` does not expand a TypedDict."""
    kind, settings, defaults = inspect.Parameter.KEYWORD_ONLY, get_type_hints(ModelSettings).items(), {"seed": 0}
    return inspect.Signature(
        [inspect.Parameter(name, kind, default=defaults.get(name), annotation=hint) for name, hint in settings]
    )


Recommender.__signature__ = _shown_signature()  # type: ignore[attr-defined]


def read_ratings(
    source: Source,
    y: npt.ArrayLike | None = None,
    items: str | Path | RatingTable | None = None,
    scale: Scale | None = None,
) -> Ratings:
    """Return the ratings of any supported source; `y` has the ratings if `source` has only (user, item) rows.

    `scale` is ignored with `Ratings`, which have one; by default it is guessed from the ratings.
    """
    if isinstance(source, Ratings):
        if y is not None or items is not None:
            raise ParameterError("y and items must not be given with Ratings, which contain both. Leave them out.")
        return source
    if y is None:
        return load_ratings(source, items=items, scale=scale)
    if isinstance(source, str | Path | SparseMatrix):
        raise ParameterError("y must not be given with a file, a named set or a sparse matrix. Leave it out.")
    return load_ratings(with_ratings(source, y), items=items, scale=scale)


def as_output(frame: pl.DataFrame, *, pandas: bool) -> Frame:
    """Return a polars frame unchanged or, with `pandas`, converted to a pandas frame."""
    if not pandas:
        return frame
    from pandas import DataFrame  # type: ignore[import-untyped,unused-ignore]

    return DataFrame(frame.to_dict(as_series=False))


OF_A_RUN = ("split_seed", "patience", "final")  # settings that `train` has, but `Recommender` does not


def train(
    data: Source,
    *,
    data_dir: str | Path | None = None,
    split_seed: int = 0,
    patience: int | None = None,
    final: bool = False,
    compare: bool = True,
    out: str | Path | None = None,
    checkpoint_every: int = CHECKPOINT_EVERY,
    resume: bool = False,
    progress: Progress | None = None,
    remark: Remark | None = None,
    **settings: Unpack[ModelSettings],
) -> Recommender:
    """Train a `Recommender` on the training part of a data set, measure it on the test part, and return it.

    A random fifth of the ratings is held out, drawn by `split_seed`, or one item of each user for a model that ranks.
    The recommender's `record` has metrics, baselines, the learning curve, the budget, and a verdict: whether the run
    beats the best baseline. With `compare`, a run of `isgld` or `sdcf` also trains `plain` on the same split, and a run
    of `sdcf` also trains `isgld` if that protocol supports the model; the record has their metrics as "comparisons".
    `patience` enables early stopping: training stops after so many rounds without an improvement on a validation part
    of the training ratings. `final` holds nothing out, like `Recommender.fit`.

    With `out`, the finished run is written to that folder. During training, a checkpoint is written there after every
    `checkpoint_every` rounds; `resume` continues from it, with bit for bit the same result as without the interruption.
    Ctrl-C writes a checkpoint of the last complete round, and the model so far. `progress` and `remark` are like those
    of `Recommender.fit`, but unless `final` is set, `progress` gets the test RMSE or AUC instead of NaN.
    """
    recommender = Recommender(**settings)
    result = train_run(
        data,
        data_dir=data_dir,
        split_seed=split_seed,
        patience=patience,
        final=final,
        compare=compare,
        out=out,
        checkpoint_every=checkpoint_every,
        resume=resume,
        progress=progress,
        remark=remark or LOGGER.warning,
        **flat(settings),
    )
    return recommender._now(result, pandas=is_pandas(data))


def _recommended(found: list[Recommendation]) -> pl.DataFrame:
    numbers = dict.fromkeys(["predicted", "deviation", "score"], pl.Float64)
    return _frame(found, {"item": pl.String, "title": pl.String, **numbers, "support": pl.Int64})


def _reasons(found: list[Reason]) -> pl.DataFrame:
    return _frame(found, {"item": pl.String, "title": pl.String, "rating": pl.Float64, "likeness": pl.Float64})


def _frame(rows: Sequence[Any], kinds: dict[str, Any]) -> pl.DataFrame:
    return pl.DataFrame({name: [getattr(row, name) for row in rows] for name in kinds}, schema=kinds)


def _by_id(profile: Mapping[Any, float] | Collection[Any]) -> Profile:
    """Return the profile with item ids as text, so that 4 and "4" are the same item.

    A pandas series is a mapping from its index to its values.
    """
    if isinstance(profile, str) or hasattr(profile, "columns") or not isinstance(profile, Collection):
        raise ParameterError(
            "profile must be a list of item ids, or a mapping from item ids to ratings, got an object of type"
            f" {type(profile).__name__}."
        )
    if not isinstance(profile, Mapping) and not is_pandas(profile):
        return [str(item) for item in profile]
    try:
        rated = [(str(item), float(rating)) for item, rating in cast(Mapping[Any, float], profile).items()]
    except (TypeError, ValueError):
        raise ParameterError("profile must hold numbers as ratings, but one rating is not a number.") from None
    repeated = len(rated) - len(dict(rated))
    if repeated:
        raise ParameterError(
            f"profile must hold each item id once, but {repeated} of its ids repeat another id. Ids are compared as"
            ' text: 4 and "4" are the same id. Remove the repeated ids.'
        )
    return dict(rated)
