"""Ratings as a folder of Parquet files (shards), each with the ratings of some people.

    manifest.json        name, counts, scale, and the people, ratings and SHA-256 of every shard
    items.parquet        the catalogue: id, title, attributes, and each rated item's position among the rated items
    shard-0000.parquet   one row per person: id, items (ascending), values, and row numbers of the ratings

An item is stored as its position among the rated items, sorted by id as in `index_ids`. A row number is the position of
a rating among all ratings that `load` returns for the original file. Because shards keep the row numbers, a split with
the same seed holds out the same ratings as for the original file.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from hushrec.arrays import FloatArray, IntArray, by_user, row_starts
from hushrec.data.ratings import Catalogue, Ratings
from hushrec.errors import DataError
from hushrec.scale import Scale

FORMAT = "hushrec shards 1"
MANIFEST, ITEMS = "manifest.json", "items.parquet"
RATINGS_PER_SHARD = 2_000_000
OWN_COLUMNS = ("id", "title", "rated")  # of items.parquet; the others are attributes


class Profiles(NamedTuple):
    """The ratings of consecutive people; person i has the ratings `starts[i]` … `starts[i + 1]` − 1."""

    starts: IntArray  # (n_people + 1,); the other arrays have one entry per rating
    items: IntArray  # positions among the rated items, ascending for each person
    values: FloatArray | None  # on the file's scale; None for one-class data
    rows: IntArray  # positions among all ratings that `load` returns for the original file


def is_shards(source: object) -> bool:
    """Return whether a source is the path of a folder of shards."""
    return isinstance(source, str | Path) and (Path(source) / MANIFEST).is_file()


def write_shards(ratings: Ratings, folder: str | Path, ratings_per_shard: int = RATINGS_PER_SHARD) -> "Shards":
    """Write ratings to a new folder, as shards of about `ratings_per_shard` ratings each; return the shards."""
    if ratings.public is not None:
        raise DataError("public must not be given, because shards cannot contain public ratings. Leave it out.")
    starts, order = by_user(ratings.users, ratings.items, ratings.n_users)

    def cut() -> Iterator[tuple[list[str], Profiles]]:
        for first, stop in pairwise(cut_people(starts, ratings_per_shard)):
            rows = order[starts[first] : starts[stop]]
            values = None if ratings.values is None else ratings.values[rows]
            own = Profiles(starts[first : stop + 1] - starts[first], ratings.items[rows], values, rows)
            yield ratings.user_ids[first:stop], own

    return write_profiles(folder, cut(), items_frame(ratings), ratings)


def cut_people(starts: IntArray, ratings_per_shard: int) -> list[int]:
    """Return the position of the first person of each shard, followed by the number of people.

    A shard gets about `ratings_per_shard` ratings. Person i has ratings `starts[i]` … `starts[i + 1]` − 1.
    """
    n_shards = max(1, round(int(starts[-1]) / ratings_per_shard))
    cuts = np.searchsorted(starts, starts[-1] * np.arange(1, n_shards) / n_shards)
    borders: list[int] = np.unique(np.concatenate([[0], cuts, [len(starts) - 1]])).tolist()
    return borders


def check_new(path: Path) -> None:
    """Raise `DataError` unless the folder is new or empty."""
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise DataError(
            f"{path} must be a new or empty folder, but is a file or contains files. Choose another folder."
        )


def write_profiles(
    folder: str | Path, chunks: Iterable[tuple[list[str], Profiles]], items: pl.DataFrame, about: Ratings
) -> "Shards":
    """Write each chunk, the ids and ratings of some people, as one shard to a new folder; return the shards.

    Each chunk is written before the next one is read, so that the ratings need not fit into memory. `items` is the
    result of `items_frame`. `about` provides the name, the scale and the catalogue; its ratings are not used.
    """
    path = Path(folder)
    check_new(path)
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    items.write_parquet(path / ITEMS)
    shards, levels = [], 0
    for number, (ids, own) in enumerate(chunks):
        shards.append(_write_shard(path, number, ids, own))
        levels = max(levels, 0 if about.scale is None or own.values is None else about.scale.levels(own.values))
    manifest = {
        "format": FORMAT,
        "name": about.name,
        "scale": None if about.scale is None else [about.scale.low, about.scale.high],
        "scale_is_guessed": about.scale_is_guessed,
        "rating_levels": levels,
        "people": sum(one["people"] for one in shards),
        "items": int(items["rated"].count()),
        "catalogue": None if about.catalogue is None else len(items),
        "unlisted": about.n_unlisted,
        "ratings": sum(one["ratings"] for one in shards),
        "items_sha256": _sha256(path / ITEMS),
        "shards": shards,
    }
    (path / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n")
    return Shards(path)


def _write_shard(folder: Path, number: int, ids: list[str], own: Profiles) -> dict[str, Any]:
    """Write shard `number` with the people `ids` and their ratings `own`; return the shard's entry in the manifest."""
    name = f"shard-{number:04}.parquet"
    rows_kind = pl.UInt32 if own.rows.max(initial=0) < 2**32 else pl.UInt64
    columns: dict[str, tuple[Any, Any]] = {"items": (own.items, pl.UInt32), "rows": (own.rows, rows_kind)}
    if own.values is not None:
        columns["values"] = (own.values, pl.Float64)
    who = np.repeat(np.arange(len(ids), dtype=np.uint32), np.diff(own.starts))
    flat = pl.DataFrame({"who": who} | {key: pl.Series(column).cast(kind) for key, (column, kind) in columns.items()})
    lists = flat.group_by("who", maintain_order=True).agg(pl.all())
    people = pl.DataFrame({"who": np.arange(len(ids), dtype=np.uint32), "id": ids}).join(lists, on="who", how="left")
    frame = people.sort("who").drop("who").with_columns(pl.col(key).fill_null([]) for key in columns)
    frame.write_parquet(folder / name, statistics=False)
    return {"file": name, "people": len(ids), "ratings": len(own.items), "sha256": _sha256(folder / name)}


def items_frame(ratings: Ratings) -> pl.DataFrame:
    """Return all items of the catalogue as a frame: id, title, attributes, and `rated`.

    Column `rated` has the item's position among the rated items; null for an item without ratings.
    """
    whole = ratings.with_catalogue()
    rated = np.full(whole.n_items, -1)
    rated[whole.rated_items] = np.arange(len(whole.rated_items))
    numbers = pl.Series("rated", rated).replace(-1, None)
    frame = pl.DataFrame({"id": whole.item_ids, "rated": numbers})
    if whole.titles is not None:
        frame = frame.with_columns(pl.Series("title", whole.titles))
    return frame if whole.attributes is None else pl.concat([frame, whole.attributes], how="horizontal")


@dataclass(frozen=True)
class Shards:
    """A folder of shards, whose files are read only when they are needed."""

    folder: Path

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """The content of manifest.json; raises `DataError` if the file is missing or has another format."""
        try:
            found: dict[str, Any] = json.loads((self.folder / MANIFEST).read_text())
        except (OSError, ValueError):
            raise DataError(
                f"{self.folder} must be a folder of shards. Write one with `hushrec data shard DATA OUT`."
            ) from None
        if found.get("format") != FORMAT:
            raise DataError(
                f"{self.folder} must have format {FORMAT!r}, but was written by another version of hushrec. Write it"
                " again with `hushrec data shard DATA OUT`."
            )
        return found

    @property
    def n_people(self) -> int:
        return int(self.manifest["people"])

    @property
    def n_ratings(self) -> int:
        return int(self.manifest["ratings"])

    @cached_property
    def borders(self) -> IntArray:
        """The position of the first person of every shard, followed by the number of people."""
        return row_starts([one["people"] for one in self.manifest["shards"]])

    def check(self) -> None:
        """Raise `DataError` if a file of the folder is missing, or does not match its checksum in the manifest."""
        wanted = {ITEMS: self.manifest["items_sha256"]}
        wanted |= {one["file"]: one["sha256"] for one in self.manifest["shards"]}
        for name, digest in wanted.items():
            if not (self.folder / name).is_file() or _sha256(self.folder / name) != digest:
                raise DataError(
                    f"{self.folder / name} must exist and match its checksum in {MANIFEST}. Write the shards again."
                )

    def without_ratings(self) -> Ratings:
        """Return `Ratings` with the name, scale and items of the data set, but without users and ratings."""
        frame, about = pl.read_parquet(self.folder / ITEMS), self.manifest
        scale = None if about["scale"] is None else Scale(*about["scale"])
        guessed = about.get("scale_is_guessed", False)
        if about["catalogue"] is None:
            columns, catalogue = _split_columns(frame), None
        else:
            rated = frame.with_row_index("position").drop_nulls("rated").sort("rated")
            positions = rated["position"].to_numpy().astype(np.int64)
            columns = _split_columns(rated.drop("position"))
            catalogue = Catalogue(*_split_columns(frame), positions, about["unlisted"])
        ids, titles, attributes = columns
        facts = {"titles": titles, "attributes": attributes, "scale_is_guessed": guessed, "catalogue": catalogue}
        facts |= {"stored_levels": about.get("rating_levels"), "stored_mean": about["ratings"] / about["people"]}
        return Ratings.of_items(about["name"], ids, scale, **facts)

    def read(self, first: int, stop: int) -> Profiles:
        """Return the ratings of people `first` … `stop` − 1."""
        shards = range(int(np.searchsorted(self.borders, first, "right")) - 1, int(np.searchsorted(self.borders, stop)))
        frames = [self._slice(shard, first, stop) for shard in shards]
        frame = pl.concat(frames) if len(frames) > 1 else frames[0]
        starts = row_starts(frame["items"].list.len().to_numpy())
        lists = frame.filter(pl.col("items").list.len() > 0)
        flat = {name: lists[name].explode().to_numpy() for name in lists.columns}
        values = flat["values"].astype(np.float64) if "values" in flat else None
        return Profiles(starts, flat["items"].astype(np.int64), values, flat["rows"].astype(np.int64))

    def _slice(self, shard: int, first: int, stop: int) -> pl.DataFrame:
        begin, end = int(self.borders[shard]), int(self.borders[shard + 1])
        frame = pl.read_parquet(self.folder / self.manifest["shards"][shard]["file"])
        return frame.drop("id").slice(max(first, begin) - begin, min(stop, end) - max(first, begin))


def _split_columns(frame: pl.DataFrame) -> tuple[list[str], list[str] | None, pl.DataFrame | None]:
    attributes = frame.drop([name for name in OWN_COLUMNS if name in frame.columns])
    titles = frame["title"].to_list() if "title" in frame.columns else None
    return frame["id"].to_list(), titles, attributes if attributes.width else None


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
