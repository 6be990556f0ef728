"""`hushrec.Recommender`: settings, and a model once it is fitted; `hushrec.train` measures one on held-out ratings."""

import inspect
import logging
from collections.abc import Collection, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, Unpack, cast, get_type_hints

import numpy as np
import numpy.typing as npt
import polars as pl

from hushrec.data.frames import RatingTable, SparseMatrix, is_pandas, positions, read_pairs, with_ratings
from hushrec.data.ratings import Ratings, Scale
from hushrec.data.sources import load as load_ratings
from hushrec.engines import Remark
from hushrec.errors import LocalProtocolError, ParameterError
from hushrec.models import find_model
from hushrec.simulation.held_out import held_out_metrics, row_aucs, training_profiles
from hushrec.simulation.results import Profile, Reason, Recommendation, Result, from_json, load
from hushrec.simulation.run import CHECKPOINT_EVERY, Progress
from hushrec.simulation.settings import ModelSettings, Settings, flat, nested, unknown_setting
from hushrec.simulation.summaries import as_html, in_one_line
from hushrec.simulation.tasks import Profiles, without_values
from hushrec.simulation.training import load_final
from hushrec.simulation.training import train as train_run

Source = str | Path | Ratings | RatingTable | SparseMatrix
Frame = Any  # a polars DataFrame; a pandas DataFrame where the ratings came as one
NAMES = tuple(ModelSettings.__annotations__)
LOGGER = logging.getLogger("hushrec")  # hears remarks that the caller has no function for


class Recommender:
    """A recommender that learns without seeing a rating: `masked` with ε = 8 for a whole profile unless told otherwise.

    Every setting is a keyword, and None stands for its default:

        recommender = hushrec.Recommender(epsilon=4).fit(ratings)
        recommender.recommend("ann", 10)
        recommender.recommend_for({"Alien": 5, "Heat": 2})  # somebody who took no part

    `protocol` is what devices send (`masked`, `sdcf`, `isgld`, `plain`, or a plug-in's), `model` what is learned (`gp`
    and `audience` with `masked`; `mf`, `fm` and `bpr` with the others), `epsilon` the budget, `seed` the seed of all
    noise, `engine` how it is computed; `options` holds the options of a plug-in. `hushrec train --help` explains all.

    Ratings are a polars or pandas frame, an Arrow table, a NumPy array, a SciPy sparse matrix, a list of rows, a file
    or the name of a set. Tables come back as pandas frames where the ratings came as one, otherwise as polars frames.
    This class simulates every device on one machine: what it holds is private to whoever runs it (docs/privacy.md).

    It has the methods that scikit-learn asks of an estimator: `clone`, `GridSearchCV` and `cross_validate` take it,
    with a frame of user, item and rating as X, or user and item as X and the ratings as y.
    """

    def __init__(self, **settings: Unpack[ModelSettings]) -> None:
        unknown = settings.keys() - set(NAMES)
        if unknown:
            raise unknown_setting(unknown, NAMES)
        self._settings = settings
        Settings(**flat(settings))  # refused now rather than after the data is read
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
        """Learn from every rating, and return this recommender.

        `y`, where it is given, holds the ratings of the (user, item) rows of `ratings`. `items`, a file or a frame, has
        an id, a title and public attributes for each item. `progress` is called after every round. `remark` is called
        with a sentence that a person should see, such as why the first run on a machine takes longer; without it, the
        logger `hushrec` gets that sentence as a warning.
        """
        read = read_ratings(ratings, y, items)
        return self._now(
            train_run(
                read,
                final=True,
                compare=False,
                progress=progress,
                remark=remark or LOGGER.warning,
                **flat(self._settings),
            ),
            pandas=is_pandas(ratings),
        )

    def _now(self, result: Result, *, pandas: bool = False) -> Self:
        """Replace what was learned before by this result."""
        self._result, self._pandas = result, pandas
        for kept in ("_newcomer", "_training"):
            self.__dict__.pop(kept, None)
        return self

    def predict(self, pairs: RatingTable) -> npt.NDArray[np.float64]:
        """Return the predicted rating of each (user, item) row, on the scale of the training ratings, not clipped.

        Somebody unknown is predicted like a person without ratings, an unknown item by the person's own mean. A model
        that ranks returns scores, of which only the order means something, and NaN for what it does not know.
        """
        users, items = read_pairs(pairs)
        return self._predict(positions(users, self.user_ids), positions(items, self.item_ids))

    def _predict(self, users: npt.NDArray[np.int64], items: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        result, known = self._fitted, (users >= 0) & (items >= 0)
        found = np.full(len(users), np.nan)
        if known.any():
            found[known] = result.predictor.predict(users[known], items[known])
        if not self._predicts_ratings:
            return found
        means = self._training.means
        overall = float(self._training.values.mean())
        own = np.where(users >= 0, means[users], overall)
        found[items < 0] = np.where(np.isnan(own), overall, own)[items < 0]
        strangers = (users < 0) & (items >= 0)
        found[strangers] = overall if self._newcomer is None else self._newcomer[items[strangers]]
        return result.scale.from_unit(found)

    @cached_property
    def _training(self) -> Profiles:
        return training_profiles(self._fitted)

    @cached_property
    def _newcomer(self) -> npt.NDArray[np.float64] | None:
        """Predictions for somebody without ratings, on the scale 1 to 5; None of a model that has none."""
        found = self._fitted.predictor.of_profile(np.empty(0, dtype=np.int64), np.empty(0))
        return None if found is None else found.predicted

    def recommend(self, user: str | int | Sequence[str | int], n: int = 10, *, shrink: bool = True) -> Frame:
        """Return the n best items that a user has not rated, the best first; of several users, one list after another.

        The columns are user, item, title, predicted (within the scale), deviation (where the model knows it), score
        (what the list is sorted by) and support (how many ratings the item has, as far as it was released). Without
        `shrink` a model of vectors sorts by its predictions, however few ratings support them.
        """
        several = isinstance(user, Sequence) and not isinstance(user, str)
        users = cast(Sequence[str | int], user) if several else [cast(str | int, user)]
        lists = [self._fitted.recommend(one, n, shrink=shrink) for one in users]
        names = [str(one) for one, found in zip(users, lists, strict=True) for _ in found]
        rows = [entry for found in lists for entry in found]
        return self._out(_recommended(rows).insert_column(0, pl.Series("user", names, dtype=pl.String)))

    def recommend_for(self, profile: Mapping[Any, float] | Collection[Any], n: int = 10) -> Frame:
        """Return the n best items for somebody who took no part in training, from a map of items to ratings.

        Nothing is trained, and it costs no budget: a device computes it from the public table and its own ratings. For
        a model that ranks, a list of items will do.
        """
        return self._out(_recommended(self._fitted.recommend_to(_by_id(profile), n)))

    def similar_items(self, item: str | int, n: int = 10) -> Frame:
        """Return the n items that are most like one: item, title and likeness, from -1 to 1."""
        found = self._fitted.similar_items(item, n)
        kinds = {"item": pl.String, "title": pl.String, "likeness": pl.Float64}
        return self._out(pl.DataFrame(found, schema=kinds, orient="row"))

    def explain(self, user: str | int, item: str | int, n: int = 3) -> Frame:
        """Return what the user rated, not below their own mean, that is most like an item: its reasons.

        The columns are item, title, rating and likeness. A reason that a person can check, not a derivation.
        """
        return self._out(_reasons(self._fitted.explain(user, item, n)))

    def explain_for(self, profile: Mapping[Any, float] | Collection[Any], item: str | int, n: int = 3) -> Frame:
        """Return the reasons for an item, as `explain` does, for somebody with these ratings."""
        return self._out(_reasons(self._fitted.explain_to(_by_id(profile), item, n)))

    def measure(self, ratings: Source, y: npt.ArrayLike | None = None) -> dict[str, float]:
        """Return the accuracy on ratings that training has not seen, by the names that `train --json` uses.

        `rmse` and `mae` of a model that predicts ratings. Of every model `auc`, `precision_at_10`, `recall_at_10` and
        `ndcg_at_10` of the lists, where somebody likes a test item: a rating in the upper quarter of the scale; for
        models that rank, any action. Rows that training learned from are in no list, and count in none of these four.
        """
        test = self._test_part(ratings, y)
        users, items = self._places(test)
        predicted = self._predict(users, items) if self._predicts_ratings else None
        return held_out_metrics(self._fitted, self._training, users, items, test.values, predicted)

    def _test_part(self, ratings: Source, y: npt.ArrayLike | None) -> Ratings:
        """Read held-out ratings: with values where the model predicts them, otherwise what counts as an action."""
        test = read_ratings(ratings, y)
        if not self._predicts_ratings:
            return without_values(test, self.record["at_least"])
        if test.values is None:
            raise ParameterError(f"model {self.record['model']} is measured on ratings with values; these have none.")
        return test

    def _places(self, test: Ratings) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Positions of the users and items of other ratings among those of this recommender, -1 where unknown."""
        users = positions(pl.Series(test.user_ids, dtype=pl.String), self.user_ids)[test.users]
        return users, positions(pl.Series(test.item_ids, dtype=pl.String), self.item_ids)[test.items]

    def _losses(self, test: Ratings) -> npt.NDArray[np.float64]:
        """The squared error of each row, or 1 − AUC of a model that ranks; NaN where that is not known."""
        users, items = self._places(test)
        if test.values is None:
            return 1 - row_aucs(self._fitted.predictor, self._training, users, items)
        return np.asarray((self._predict(users, items) - test.values) ** 2)

    def score(self, ratings: Source, y: npt.ArrayLike | None = None) -> float:
        """Return one number of which larger is better: minus the RMSE, or the AUC of a model that ranks."""
        found = self.measure(ratings, y)
        if self._predicts_ratings:
            return -found["rmse"]
        if "auc" not in found:
            raise ParameterError(
                "ratings must hold a row of a user and an item that training knew, and that it did not learn from; got"
                " none. Hold some out before fit."
            )
        return found["auc"]

    @property
    def metrics(self) -> dict[str, float]:
        """Accuracy on the test part that `hushrec.train` held out; empty after `fit`."""
        return self._fitted.metrics

    @property
    def record(self) -> dict[str, Any]:
        """Everything about the run but its model: what `hushrec train --json` prints."""
        return self._fitted.record

    @property
    def budget(self) -> dict[str, Any]:
        """What training cost each person, with its unit, and what is not covered."""
        return dict(self._fitted.record["budget"])

    @property
    def user_ids(self) -> list[str]:
        """Ids of the users, as text."""
        return self._fitted.user_ids

    @property
    def scale(self) -> Scale:
        """The scale of the ratings; 1 to 5 where they have no values."""
        return self._fitted.scale

    @property
    def item_ids(self) -> list[str]:
        """Ids of the items, as text."""
        return self._fitted.item_ids

    def save(self, folder: str | Path) -> None:
        """Keep this in a new folder, which `Recommender.load` and the command line read; it holds everybody's ratings.

        JSON, NumPy arrays and Parquet: reading it back runs no code.
        """
        self._fitted.save(folder)

    @classmethod
    def load(cls, folder: str | Path, *, refit: bool = False, remark: Remark | None = None) -> Self:
        """Read a folder that `save` or `train` wrote.

        With `refit`, a run that held a test part out is trained again on every rating, once: a training of its own, for
        which real devices would pay its budget again.
        """
        return cls._around(load_final(folder, remark=remark or LOGGER.warning) if refit else load(folder))

    @classmethod
    def _around(cls, result: Result) -> Self:
        chosen = from_json(result.record["settings"])
        own = {name: value for name, value in chosen.items() if name not in OF_A_RUN}
        return cls(**nested(own))._now(result)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return every setting by name, None where it stands at its default."""
        return {name: self._settings.get(name, 0 if name == "seed" else None) for name in NAMES}

    def set_params(self, **params: Unpack[ModelSettings]) -> Self:
        """Change settings; what was learned is forgotten."""
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

    @property
    def _predicts_ratings(self) -> bool:
        return find_model(self._fitted.record["model"]).predicts == "rating"

    def _out(self, frame: pl.DataFrame) -> Frame:
        return as_output(frame, pandas=self._pandas)


def _shown_signature() -> inspect.Signature:
    """Every setting with its type and default, for `help` and notebooks, which show no TypedDict."""
    kind = inspect.Parameter.KEYWORD_ONLY
    settings = get_type_hints(ModelSettings).items()
    defaults = {"seed": 0}
    return inspect.Signature(
        [inspect.Parameter(name, kind, default=defaults.get(name), annotation=hint) for name, hint in settings]
    )


Recommender.__signature__ = _shown_signature()  # type: ignore[attr-defined]


def read_ratings(
    source: Source, y: npt.ArrayLike | None = None, items: str | Path | RatingTable | None = None
) -> Ratings:
    """Return ratings in any form; `y`, where it is given, holds the ratings of the (user, item) rows of `source`."""
    if isinstance(source, Ratings):
        if y is not None or items is not None:
            raise ParameterError("Ratings hold their values and items: leave out y and items.")
        return source
    if y is None:
        return load_ratings(source, items=items)
    if isinstance(source, str | Path | SparseMatrix):
        raise ParameterError("y belongs to a table of users and items; leave it out.")
    return load_ratings(with_ratings(source, y), items=items)


def as_output(frame: pl.DataFrame, *, pandas: bool) -> Frame:
    """Return the frame as the ratings came: pandas for pandas."""
    if not pandas:
        return frame
    from pandas import DataFrame  # type: ignore[import-untyped,unused-ignore]

    return DataFrame(frame.to_dict(as_series=False))


OF_A_RUN = ("split_seed", "patience", "final")  # settings of `train` that are none of a recommender


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
    """Train a `Recommender` on a data set's training part, measure it on the rest beside baselines, and return it.

    A random fifth of the ratings is held out, or one item of each user where the model ranks. `record` of what comes
    back has metrics, baselines, curve, budget and a verdict. With `compare`, the non-private model and `isgld` are
    trained on the same split where they speak the model. `patience` stops training when a validation part of the
    training ratings has not improved for so many rounds. `final` holds nothing out: that is `Recommender.fit`.

    With `out`, the run is kept in that folder, and a checkpoint after every `checkpoint_every` rounds until then;
    `resume` goes on from there, bit for bit as if nothing had happened. Ctrl-C keeps a checkpoint of the last whole
    round, and what was trained. `progress` and `remark` are those of `Recommender.fit`.
    """
    recommender = Recommender(**settings)
    ratings = data if isinstance(data, Ratings) else load_ratings(data, data_dir=data_dir)
    result = train_run(
        ratings,
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
    kinds = {"item": pl.String, "title": pl.String, "predicted": pl.Float64, "deviation": pl.Float64}
    kinds |= {"score": pl.Float64, "support": pl.Int64}
    return pl.DataFrame({name: [getattr(entry, name) for entry in found] for name in kinds}, schema=kinds)


def _reasons(found: list[Reason]) -> pl.DataFrame:
    kinds = {"item": pl.String, "title": pl.String, "rating": pl.Float64, "likeness": pl.Float64}
    return pl.DataFrame({name: [getattr(entry, name) for entry in found] for name in kinds}, schema=kinds)


def _by_id(profile: Mapping[Any, float] | Collection[Any]) -> Profile:
    """The profile with ids as text, so that 4 and "4" are the same item."""
    if isinstance(profile, str):
        raise ParameterError("a profile must be item ids, or item ids with ratings, got one text.")
    if not isinstance(profile, Mapping):
        return [str(item) for item in profile]
    try:
        return {str(item): float(rating) for item, rating in profile.items()}
    except (TypeError, ValueError):
        raise ParameterError("the ratings of a profile must be numbers.") from None
