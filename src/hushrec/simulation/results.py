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
from hushrec.data.ratings import Scale
from hushrec.errors import ParameterError, RunError
from hushrec.files import check_free, replacing
from hushrec.models import find_model
from hushrec.models.predictor import Predictor
from hushrec.protocols import find_protocol
from hushrec.scale import HIGHEST, LOWEST

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
    predictor: Predictor = field(repr=False)
    starts: IntArray = field(repr=False)
    rated_items: IntArray = field(repr=False)
    rated_values: FloatArray = field(repr=False)  # on the scale 1 to 5; 1 for one-class data

    @property
    def metrics(self) -> dict[str, float]:
        """Accuracy on the test part."""
        return dict(self.record["metrics"])

    def recommend(self, user: str | int, n: int = 10) -> list[Recommendation]:
        """Return the n unrated items with the highest scores for one user, the best first."""
        row = self._row_of(user, n)
        scores = self.predictor.scores(np.array([row]))[0]
        rated = self.rated_items[self.starts[row] : self.starts[row + 1]]
        scores[rated] = -np.inf
        best = np.argsort(-scores, kind="stable")[: min(n, len(scores) - len(rated))]
        score = self._scale.from_unit(scores[best])
        predicted = self._scale.from_unit(self.predictor.predict(np.full(len(best), row), best))
        is_rating = find_model(self.record["model"]).predicts == "rating"
        return [
            Recommendation(
                item=self.item_ids[item],
                title=None if self.titles is None else self.titles[item],
                predicted=float(np.clip(rating, self._scale.low, self._scale.high)) if is_rating else None,
                score=float(score[place] if is_rating else scores[item]),
            )
            for place, (item, rating) in enumerate(zip(best, predicted, strict=True))
        ]

    def explain(self, user: str | int, item: str | int, n: int = 3) -> list[Reason]:
        """Why this item: of what the user rated, not below their own mean, the items most like it, the likest first.

        It needs the user's ratings and the public item vectors, nothing else: a device answers this itself, and sends
        nothing. It is a reason that a person can check, not a derivation of the prediction.
        """
        row = self._row_of(user, n)
        if str(item) not in self.item_ids:
            raise ParameterError(f"item {item} is not among the {len(self.item_ids)} items of this run.")
        alike = self.predictor.likeness(self.item_ids.index(str(item)))
        rated = self.rated_items[self.starts[row] : self.starts[row + 1]]
        values = self.rated_values[self.starts[row] : self.starts[row + 1]]
        shown = self._scale.from_unit(values)
        reasons = [
            Reason(
                item=self.item_ids[other],
                title=None if self.titles is None else self.titles[other],
                rating=float(rating),
                likeness=float(alike[other]),
            )
            for other, value, rating in zip(rated, values, shown, strict=True)
            if value >= values.mean() and alike[other] > 0
        ]
        return sorted(reasons, key=lambda reason: -reason.likeness)[:n]

    @property
    def _scale(self) -> Scale:
        return Scale(*(self.record["data"]["scale"] or (LOWEST, HIGHEST)))

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


def save(result: Result, folder: str | Path, *, replace: bool = False) -> None:
    """Writes the three files; `run.json` goes first and comes last, so that a folder with it is whole.

    With `replace`, the folder is that of this very run, and may hold its checkpoints and what an interruption left.
    """
    if not replace:
        check_free(folder)
    path = Path(folder)
    arrays: dict[str, Any] = {
        **result.predictor.arrays(),
        "starts": result.starts,
        "rated_items": result.rated_items,
        "rated_values": result.rated_values,
        "user_ids": np.array(result.user_ids),
    }
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
            predictor=find_protocol(record["protocol"]).load_predictor(record, model),
            starts=model["starts"],
            rated_items=model["rated_items"],
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
