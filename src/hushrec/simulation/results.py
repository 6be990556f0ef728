"""The result of a training run: a `Result` in memory, a run folder on disk.

A run folder holds three files. `run.json` is the output of `train --json`. `model.npz` has the model and every rating
of the file, including the test part: ratings are needed to leave rated items out of lists, to explain recommendations,
and to train on all ratings later. `items.parquet` has ids, titles and public attributes of the items. If the run is
trained again on all ratings, `final.npz` has that model. Because the folder holds *user vectors* of all simulated
devices, only its owner can read it (mode 0700).
"""

import json
import zipfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hushrec.arrays import FloatArray, IntArray, PublicRatings
from hushrec.data.ratings import Catalogue, Ratings
from hushrec.errors import ParameterError, RunError, require
from hushrec.files import check_free, replacing, stamp
from hushrec.json_values import to_json
from hushrec.models import find_model
from hushrec.models.lists import are_liked, best_items, most_similar
from hushrec.models.predictor import Predictor
from hushrec.options import Option
from hushrec.protocols import find_protocol
from hushrec.scale import HIGHEST, LOWEST, Scale
from hushrec.simulation.tasks import STRENGTH, Profiles

ATTRIBUTE = "attribute "
Profile = Mapping[str, float] | Collection[str]  # items with ratings, or items alone

FORMAT = 3
READABLE = (1, 2, 3)  # formats whose run.json reports can read


@dataclass(frozen=True)
class Recommendation:
    """A recommended item.

    The score of a rating model is its prediction, shrunk toward the person's mean if `support` is small. Models that
    estimate the `deviation` of their predictions, and models that rank, compute scores of their own.
    """

    item: str
    title: str | None
    predicted: float | None  # the rating to show, clipped to the file's scale; None for a model that ranks
    score: float  # the list is sorted by it, the highest first
    support: int  # the number of the item's ratings, or the noisy number if the protocol released one
    deviation: float | None = None  # standard deviation of the person's rating around `predicted`; None if unknown


@dataclass(frozen=True, repr=False)  # holds a rating
class Reason:
    """A reason for a recommendation: an item that the person rated, and its similarity to the recommendation."""

    item: str
    title: str | None
    rating: float | None  # on the file's scale; None if the file or the profile has no values
    likeness: float  # -1 to 1


@dataclass(frozen=True, eq=False)
class Result:
    """The result of a run: its record (the output of `train --json`), all ratings, and the trained predictor."""

    record: dict[str, Any] = field(repr=False)
    ratings: Ratings = field(repr=False)  # including those that were held out
    predictor: Predictor = field(repr=False)

    @property
    def user_ids(self) -> list[str]:
        return self.ratings.user_ids

    @property
    def item_ids(self) -> list[str]:
        return self.ratings.item_ids

    @cached_property
    def profiles(self) -> Profiles:
        """All ratings grouped by user, on the scale 1 to 5; all values are 1 if the file has none."""
        ratings = self.ratings
        values = np.ones(ratings.n_ratings) if ratings.values is None else self.scale.to_unit(ratings.values)
        return Profiles.of(ratings.users, ratings.items, values, ratings.n_users, ratings.n_items)

    @property
    def metrics(self) -> dict[str, float]:
        """The accuracy on the test part by name of the metric, such as "rmse"; empty if nothing was measured."""
        return dict(self.record["metrics"])

    @property
    def predicts_ratings(self) -> bool:
        """Whether the model predicts ratings; otherwise it ranks items."""
        return find_model(self.record["model"]).predicts == "rating"

    def recommend(self, user: str | int, n: int = 10, *, shrink: bool = True) -> list[Recommendation]:
        """Return the `n` items with the highest scores for one user, the best first, without items the user rated.

        Without `shrink`, a rating model's items are sorted by raw predictions, which favours items with few ratings.
        """
        n = _checked_count(n)
        row, own = _index_of(user, self.user_ids, "user"), self.profiles
        strength = STRENGTH if shrink and self.predicts_ratings else 0.0
        scores = own.list_scores(self.predictor, np.array([row]), strength)[0]
        best = best_items(scores, self._profile(row)[0], n)
        deviations = self.predictor.deviations(row)
        predicted = self.predictor.predict(np.full(len(best), row), best) if self.predicts_ratings else None
        if self.predicts_ratings and deviations is None:
            scores = self.scale.from_unit(scores)
        return self._recommended(best, scores, predicted, None if deviations is None else deviations[best])

    def recommend_to(self, profile: Profile, n: int = 10) -> list[Recommendation]:
        """Return the `n` best items for a person who took no part in training, without items the person rated.

        `profile` maps ids of items to ratings on the file's scale. For a model that ranks and was trained without
        `at_least`, it may be a list of ids. If the run's file has no rating values, those of the profile are ignored.
        """
        n = _checked_count(n)
        rated, values = self._read_profile(profile)
        counted = values >= self._lowest_used
        found = self.predictor.of_profile(rated[counted], values[counted])
        if found is None:
            raise ParameterError(
                f"model must predict for people who took no part in training, got a run of {self.record['model']}."
                " Train gp or audience."
            )
        best = best_items(found.scores, rated, n)
        predicted, deviations = (None if one is None else one[best] for one in found[1:])
        return self._recommended(best, found.scores, predicted, deviations)

    @property
    def _lowest_used(self) -> float:
        """The lowest rating that a ranking model uses: the setting `at_least`, mapped to the scale 1 to 5.

        It is minus infinity if the setting was not given, so that every rating is used.
        """
        lowest = self.record.get("at_least")
        return -np.inf if lowest is None else float(self.scale.to_unit(np.array([lowest]))[0]) - 1e-9

    def _recommended(
        self, best: IntArray, scores: FloatArray, predicted: FloatArray | None, deviations: FloatArray | None
    ) -> list[Recommendation]:
        """Return recommendations of the items `best`, in this order.

        `scores` has a number for every item of the catalogue. `predicted` and `deviations` have one for each of `best`.
        """
        released = self.predictor.released_support()
        support = self.profiles.support if released is None else released
        scale = self.scale
        shown = None if predicted is None else np.clip(scale.from_unit(predicted), scale.low, scale.high)
        widths = None if deviations is None else deviations * (scale.high - scale.low) / (HIGHEST - LOWEST)
        return [
            Recommendation(
                item=self.item_ids[item],
                title=self._title(item),
                predicted=None if shown is None else float(shown[place]),
                score=float(scores[item]),
                support=round(support[item]),
                deviation=None if widths is None else float(widths[place]),
            )
            for place, item in enumerate(best)
        ]

    def explain(self, user: str | int, item: str | int, n: int = 3) -> list[Reason]:
        """Return up to `n` items that the user likes and that are most similar to the given item, most similar first.

        A user likes an item if its rating is at or above the user's own mean. For a model that ranks, the rating must
        be at or above the setting `at_least`; without this setting, every rated item counts as liked. Items without a
        positive similarity are left out. There are no reasons if the model cannot compare items (`compares_items`).
        """
        return self._reasons(item, *self._profile(_index_of(user, self.user_ids, "user")), n, valued=True)

    def explain_to(self, profile: Profile, item: str | int, n: int = 3) -> list[Reason]:
        """Return up to `n` liked items of a profile that are most similar to the given item, as `explain` does."""
        return self._reasons(item, *self._read_profile(profile), n, valued=isinstance(profile, Mapping))

    @property
    def compares_items(self) -> bool:
        """Whether the model can tell which items are similar; if not, there are no reasons."""
        return self.predictor.compares_items

    def similar_items(self, item: str | int, n: int = 10) -> list[tuple[str, str | None, float]]:
        """Return id, title and similarity of the `n` items most similar to the given item, in descending order.

        If the model cannot compare items (`compares_items`), the similarity means nothing.
        """
        n = _checked_count(n)
        place = _index_of(item, self.item_ids, "item")
        alike = self.predictor.likeness(place)
        best = best_items(alike, np.array([place]), n)
        return [(self.item_ids[other], self._title(int(other)), float(alike[other])) for other in best]

    def _reasons(self, item: str | int, rated: IntArray, values: FloatArray, n: int, *, valued: bool) -> list[Reason]:
        """Return the reasons of `explain` for `item`, given the person's items `rated` and their ratings, `values`.

        `Reason.rating` is None unless `valued`.
        """
        n = _checked_count(n)
        place = _index_of(item, self.item_ids, "item")
        if not self.compares_items:
            return []
        liked = are_liked(values) if self.predicts_ratings else values >= self._lowest_used
        rated, shown = rated[liked], self.scale.from_unit(values[liked])
        alike = self.predictor.likeness(place)[rated]
        return [
            Reason(
                item=self.item_ids[rated[place]],
                title=self._title(rated[place]),
                rating=float(shown[place]) if valued and self.ratings.values is not None else None,
                likeness=float(alike[place]),
            )
            for place in most_similar(alike, n)
        ]

    @property
    def scale(self) -> Scale:
        """The scale of the file's ratings; 1 to 5 if they have no values."""
        return self.ratings.scale or Scale(LOWEST, HIGHEST)

    def _title(self, item: int) -> str | None:
        return None if self.ratings.titles is None else self.ratings.titles[item]

    def _profile(self, row: int) -> tuple[IntArray, FloatArray]:
        own = self.profiles
        rows = slice(own.starts[row], own.starts[row + 1])
        return own.items[rows], own.values[rows]

    def _read_profile(self, profile: Profile) -> tuple[IntArray, FloatArray]:
        """Return the positions of a profile's items among the run's items, ascending, and the ratings mapped to 1 to 5.

        Raise `ParameterError` if the profile has unknown items, missing ratings, or ratings outside the run's scale.
        """
        places = {item: place for place, item in enumerate(self.item_ids)}
        if not isinstance(profile, Mapping):
            lowest = self.record.get("at_least")
            if self.predicts_ratings or lowest is not None:
                used = "predicts ratings" if lowest is None else f"uses only ratings of at least {lowest:g} (at_least)"
                raise ParameterError(
                    f"profile must give a rating with each of its items, because this run's model {used}. Give a"
                    " mapping from item ids to ratings or, in a file, an item and its rating on each line."
                )
            profile = dict.fromkeys(profile, self.scale.high)
        unknown = sum(item not in places for item in profile)
        if unknown:
            raise ParameterError(
                f"profile must hold ids of the run's {len(places)} items, but {unknown} of its ids are unknown. Remove"
                " them."
            )
        values = np.array([profile[item] for item in profile], dtype=np.float64)
        if self.ratings.values is None:
            values = np.full(len(values), self.scale.high)
        off = int(np.count_nonzero(~self.scale.holds(values)))
        if off:
            raise ParameterError(
                f"profile must hold ratings on the scale of the run, {self.scale}, but {off} of its {len(values)} are"
                " not. Correct them."
            )
        items = np.array([places[item] for item in profile], dtype=np.int64)
        order = np.argsort(items)
        return items[order], self.scale.to_unit(values[order])

    def save(self, folder: str | Path, *, replace: bool = False) -> None:
        """Write this result to a run folder, for `load`; without `replace`, the folder must be new or empty.

        `run.json` is removed first and written last, so that its presence marks a complete folder. Use `replace` only
        for a folder that this run has reserved, which may hold its checkpoints and files of an interrupted run.
        """
        if not replace:
            check_free(folder)
        path = Path(folder)
        ratings = self.ratings
        arrays: dict[str, Any] = {
            **self.predictor.arrays(),
            "user_ids": np.array(ratings.user_ids),
            "rating_users": ratings.users,
            "rating_items": ratings.items,
            "item_places": ratings.rated_items,
        }
        if ratings.values is not None:
            arrays["rating_values"] = ratings.values
        if ratings.public is not None:
            arrays |= {f"public_{name}": array for name, array in ratings.public._asdict().items()}
        record = {
            "format": FORMAT,
            "private": "holds user vectors and who rated what: do not share",
            "written": stamp(),
            **self.record,
        }
        (path / "run.json").unlink(missing_ok=True)
        with replacing(path / "model.npz") as file:
            np.savez_compressed(file, **arrays)
        with replacing(path / "items.parquet") as file:
            _items_table(ratings).write_parquet(file)
        with replacing(path / "run.json") as file:
            file.write(json.dumps(to_json(record), indent=1).encode())


def _checked_count(n: int) -> int:
    count = int(Option("n", int, "Number of items to return.").checked(n))
    require(count >= 1, "n", "at least 1", n)
    return count


def _index_of(given: str | int, ids: list[str], name: str) -> int:
    try:
        return ids.index(str(given))
    except ValueError:
        raise ParameterError(
            f"{name} must be the id of one of the run's {len(ids)} {name}s, got {given}. Give an id as in the rating"
            f" file; in Python, `{name}_ids` lists them."
        ) from None


def _items_table(ratings: Ratings) -> pl.DataFrame:
    titles = ratings.titles if ratings.titles is not None else [None] * ratings.n_items
    table = pl.DataFrame({"item": ratings.item_ids, "title": titles}, schema={"item": pl.String, "title": pl.String})
    if ratings.attributes is None:
        return table
    return table.hstack([column.alias(f"{ATTRIBUTE}{column.name}") for column in ratings.attributes])


def _read_ratings(record: dict[str, Any], model: dict[str, Any], table: pl.DataFrame) -> Ratings:
    ids = table["item"].to_list()
    titles = None if table["title"].is_null().all() else table["title"].to_list()
    columns = [column for column in table if column.name.startswith(ATTRIBUTE)]
    attributes = pl.DataFrame([one.alias(one.name.removeprefix(ATTRIBUTE)) for one in columns]) if columns else None
    data = record["data"]
    published = data.get("unlisted", len(ids)) < len(ids)
    scale = data["rating_scale"]
    return Ratings(
        record["dataset"],
        [str(name) for name in model["user_ids"]],
        ids,
        model["rating_users"],
        model["rating_items"],
        model.get("rating_values"),
        None if scale is None else Scale(*scale),
        titles,
        attributes,
        catalogue=Catalogue(ids, titles, attributes, model["item_places"], data["unlisted"]) if published else None,
        public=PublicRatings(*(model[f"public_{name}"] for name in PublicRatings._fields))
        if data.get("public")
        else None,
        reading=record.get("reading"),
    )


def read_record(folder: str | Path) -> dict[str, Any]:
    """Return the record in a run's `run.json`, with its date and version; raise `RunError` if it cannot be read."""
    content = _read_json(Path(folder), READABLE)
    return {name: value for name, value in content.items() if name not in ("format", "private")}


def _read_json(path: Path, formats: tuple[int, ...]) -> dict[str, Any]:
    try:
        content = json.loads((path / "run.json").read_text())
    except (OSError, ValueError) as error:
        raise RunError(
            f"{path} must be a run folder, but its run.json cannot be read ({type(error).__name__}). Give a folder that"
            " `hushrec train --out` wrote."
        ) from None
    if not isinstance(content, dict) or content.get("format") not in formats:
        raise RunError(
            f"{path}/run.json must have format {FORMAT}, but was written by another version of hushrec. Train again."
        )
    return content


def _read_arrays(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def load(folder: str | Path) -> Result:
    """Return the result stored in a run folder; raise `RunError` if the folder is damaged or of another format."""
    path = Path(folder)
    content = _read_json(path, (FORMAT,))
    record = {name: value for name, value in content.items() if name not in ("format", "private", "written")}
    try:
        model = _read_arrays(path / "model.npz")
        ratings = _read_ratings(record, model, pl.read_parquet(path / "items.parquet"))
        return Result(record, ratings, find_protocol(record["protocol"]).load_predictor(record, model))
    except (OSError, ValueError, KeyError, pl.exceptions.PolarsError) as error:
        raise RunError(
            f"{path} is damaged: model.npz or items.parquet cannot be read ({type(error).__name__}). Train again."
        ) from None


FINAL_FILE = "final.npz"


def save_final_model(folder: str | Path, final: Result) -> None:
    """Store record and model of `final`, a result of training on all ratings, in the folder of the measured run."""
    arrays: dict[str, Any] = {"record": np.array(json.dumps(to_json(final.record))), **final.predictor.arrays()}
    with replacing(Path(folder) / FINAL_FILE) as file:
        np.savez_compressed(file, **arrays)


def load_final_model(folder: str | Path, measured: Result) -> Result | None:
    """Return the result that `save_final_model` stored beside the result `measured`, or None if it is not readable."""
    try:
        model = _read_arrays(Path(folder) / FINAL_FILE)
        record = json.loads(str(model.pop("record")))
        return Result(record, measured.ratings, find_protocol(record["protocol"]).load_predictor(record, model))
    except (OSError, ValueError, KeyError, zipfile.BadZipFile):
        return None
