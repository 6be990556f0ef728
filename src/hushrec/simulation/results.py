"""What a training run leaves behind: a `Result` in memory, a run folder on disk.

A folder holds `run.json` (what `train --json` prints), `model.npz` (vectors, and who rated what how, to leave
those out and to say why) and `items.parquet` (ids and titles). It holds *user vectors*: it is
private to its owner (mode 0700), because this is a simulation in which one party plays all the devices.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import ParameterError, RunError
from hushrec.files import check_free, replacing
from hushrec.models import Model, make_model

FORMAT = 1


@dataclass(frozen=True)
class Recommendation:
    """One recommended item. `score` ranks it; `predicted` is the rating to show, within the file's own scale.

    A rating model's score is its prediction on that scale, and may lie outside of it. A ranking model predicts no
    rating: only the order of its scores means something, and `predicted` is None.
    """

    item: str
    title: str | None
    predicted: float | None
    score: float


@dataclass(frozen=True, repr=False)  # holds a rating
class Reason:
    """One of a person's own ratings, on the file's own scale, and how alike the item is, from -1 to 1."""

    item: str
    title: str | None
    rating: float
    likeness: float


@dataclass(frozen=True, eq=False)
class Result:
    """A finished run. `record` is what `train --json` prints."""

    record: dict[str, Any] = field(repr=False)
    user_ids: list[str] = field(repr=False)
    item_ids: list[str] = field(repr=False)
    titles: list[str] | None = field(repr=False)
    user_vectors: FloatArray = field(repr=False)
    item_vectors: FloatArray = field(repr=False)
    starts: IntArray = field(repr=False)
    rated_items: IntArray = field(repr=False)
    rated_values: FloatArray = field(repr=False)  # on the scale 1 to 5; 1 for one-class data
    attributes: FloatArray | None = field(default=None, repr=False)  # of the items, where the model uses them

    @property
    def metrics(self) -> dict[str, float]:
        """Accuracy on the test part."""
        return dict(self.record["metrics"])

    def recommend(self, user: str | int, n: int = 10) -> list[Recommendation]:
        """Return the n unrated items with the highest scores for one user, the best first."""
        row = self._row_of(user, n)
        model = self._model()
        scores = model.predict(self.user_vectors[row], model.item_rows(self.item_vectors))
        rated = self.rated_items[self.starts[row] : self.starts[row + 1]]
        scores[rated] = -np.inf
        best = np.argsort(-scores, kind="stable")[: min(n, len(scores) - len(rated))]
        return [self._recommendation(item, float(scores[item]), is_rating=not model.one_class) for item in best]

    def _recommendation(self, item: int, score: float, *, is_rating: bool) -> Recommendation:
        title = None if self.titles is None else self.titles[item]
        if not is_rating:
            return Recommendation(self.item_ids[item], title, None, score)
        low, high = self.record["data"]["scale"] or (1, 5)
        score = low + (score - 1) * (high - low) / 4
        return Recommendation(self.item_ids[item], title, min(high, max(low, score)), score)

    def explain(self, user: str | int, item: str | int, n: int = 3) -> list[Reason]:
        """Why this item: of what the user rated, not below their own mean, the items most like it, the likest first.

        It needs the user's ratings and the public item vectors, nothing else: a device answers this itself, and sends
        nothing. It is a reason that a person can check, not a derivation of the prediction.
        """
        row = self._row_of(user, n)
        if str(item) not in self.item_ids:
            raise ParameterError(f"item {item} is not among the {len(self.item_ids)} items of this run.")
        alike = likeness(self._model().item_rows(self.item_vectors), self.item_ids.index(str(item)))
        rated = self.rated_items[self.starts[row] : self.starts[row + 1]]
        values = self.rated_values[self.starts[row] : self.starts[row + 1]]
        low, high = self.record["data"]["scale"] or (1, 5)
        reasons = [
            Reason(
                item=self.item_ids[other],
                title=None if self.titles is None else self.titles[other],
                rating=float(low + (value - 1) * (high - low) / 4),
                likeness=float(alike[other]),
            )
            for other, value in zip(rated, values, strict=True)
            if value >= values.mean() and alike[other] > 0
        ]
        return sorted(reasons, key=lambda reason: -reason.likeness)[:n]

    def _model(self) -> Model:
        return make_model(
            self.record["model"], self.record["factors"], order=self.record.get("order"), attributes=self.attributes
        )

    def _row_of(self, user: str | int, n: int) -> int:
        if n < 1:
            raise ParameterError(f"n must be at least 1, got {n}.")
        try:
            return self.user_ids.index(str(user))
        except ValueError:
            raise ParameterError(f"user {user} is not among the {len(self.user_ids)} users of this run.") from None

    def save(self, folder: str | Path) -> None:
        """Keeps this result in a folder that `hushrec.load` reads."""
        save(self, folder)


def likeness(vectors: FloatArray, item: int) -> FloatArray:
    """How alike each item is to the given one, `(n_items,)`: the cosine of their vectors, off the mean of all.

    Without the mean taken off all would be alike, since every vector first says that ratings are positive.
    """
    centred = vectors - vectors.mean(axis=0)
    norms = np.linalg.norm(centred, axis=1)
    unit = centred / np.where(norms > 0, norms, 1)[:, None]
    return np.asarray(unit @ unit[item])


def save(result: Result, folder: str | Path, *, replace: bool = False) -> None:
    """Writes the three files; `run.json` goes first and comes last, so that a folder with it is whole.

    With `replace`, the folder is that of this very run, and may hold its checkpoints and what an interruption left.
    """
    if not replace:
        check_free(folder)
    path = Path(folder)
    arrays: dict[str, Any] = {
        "user_vectors": result.user_vectors,
        "item_vectors": result.item_vectors,
        "starts": result.starts,
        "rated_items": result.rated_items,
        "rated_values": result.rated_values,
        "user_ids": np.array(result.user_ids),
    }
    if result.attributes is not None:
        arrays["attributes"] = result.attributes
    titles = result.titles if result.titles is not None else [None] * len(result.item_ids)
    table = pl.DataFrame({"item": result.item_ids, "title": titles}, schema={"item": pl.String, "title": pl.String})
    record = {"format": FORMAT, "private": "holds user vectors and who rated what: do not share", **result.record}
    (path / "run.json").unlink(missing_ok=True)
    with replacing(path / "model.npz") as file:
        np.savez_compressed(file, **arrays)
    with replacing(path / "items.parquet") as file:
        table.write_parquet(file)
    with replacing(path / "run.json") as file:
        file.write(json.dumps(to_json(record), indent=1).encode())


def read_record(folder: str | Path) -> dict[str, Any]:
    """A run's `run.json` alone, checked for its version."""
    path = Path(folder)
    try:
        record = json.loads((path / "run.json").read_text())
    except (OSError, ValueError) as error:
        raise RunError(f"{path} must be a run folder with a readable run.json ({type(error).__name__}).") from None
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        raise RunError(f"{path}/run.json must have format {FORMAT}. It was written by another version of hushrec.")
    return {name: value for name, value in record.items() if name not in ("format", "private")}


def load(folder: str | Path) -> Result:
    """Reads a run folder back."""
    path = Path(folder)
    record = read_record(path)
    try:
        with np.load(path / "model.npz", allow_pickle=False) as arrays:
            model = {name: arrays[name] for name in arrays.files}
        table = pl.read_parquet(path / "items.parquet")
        titles = table["title"].to_list()
        return Result(
            record=record,
            user_ids=[str(name) for name in model["user_ids"]],
            item_ids=table["item"].to_list(),
            titles=None if all(title is None for title in titles) else titles,
            user_vectors=model["user_vectors"],
            item_vectors=model["item_vectors"],
            starts=model["starts"],
            rated_items=model["rated_items"],
            attributes=model.get("attributes"),
            rated_values=model["rated_values"],
        )
    except (OSError, ValueError, KeyError, pl.exceptions.PolarsError) as error:
        raise RunError(
            f"{path} is damaged: model.npz or items.parquet cannot be read ({type(error).__name__})."
        ) from None


def to_json(value: Any) -> Any:
    """The same value with infinity as the string "inf", so that it is standard JSON."""
    if isinstance(value, dict):
        return {name: to_json(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(entry) for entry in value]
    if isinstance(value, float | np.floating):
        if np.isinf(value):
            return "inf" if value > 0 else "-inf"
        return None if np.isnan(value) else float(value)
    return value
