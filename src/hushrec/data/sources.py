"""The function `load`, which reads ratings from a named set, a file, a table in memory or the synthetic generator."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from hushrec.arrays import FloatArray, PublicRatings, by_user
from hushrec.data import named
from hushrec.data.columns import (
    DUPLICATES,
    all_missing,
    choose_columns,
    duplicate_error,
    first_repeat,
    guess_scale,
    kept_rows,
    mean_by_pair,
    number_pairs,
    read_values,
    without_missing,
)
from hushrec.data.frames import RatingTable, SparseMatrix, positions, read_frame
from hushrec.data.items import read_items
from hushrec.data.ratings import Catalogue, Ratings, index_ids
from hushrec.data.synthetic import from_name as synthetic_from_name
from hushrec.data.tables import Table, read_table
from hushrec.errors import DataError
from hushrec.plugins import plugins
from hushrec.scale import Scale


@dataclasses.dataclass(frozen=True)
class Form:
    """The arguments of `load` that say how to read a file."""

    columns: str | Sequence[str] | None = None
    scale: Scale | None = None
    duplicates: str = "refuse"
    implicit: bool = False
    encoding: str | None = None
    skip_rows: int = 0
    missing: str | float | None = None

    def __post_init__(self) -> None:
        if self.duplicates not in DUPLICATES:
            raise DataError(f"duplicates must be one of {', '.join(DUPLICATES)}, got {self.duplicates!r}.")

    @classmethod
    def of(cls, scale: Scale | str | Sequence[float] | None = None, **settings: Any) -> "Form":
        """Return a `Form` with these arguments of `load`; `scale` is a `Scale`, two numbers, or text such as "1,5"."""
        return cls(scale=scale if scale is None or isinstance(scale, Scale) else Scale.parse(scale), **settings)

    def of_column(self, ratings: pl.Series | None) -> "Form":
        """Return the form for a column of ratings: truth values have the scale 0 to 1 unless another one is given."""
        if self.scale is None and ratings is not None and ratings.dtype == pl.Boolean:
            return dataclasses.replace(self, scale=Scale(0, 1))
        return self

    def given(self) -> dict[str, Any]:
        """Return the arguments that differ from their defaults."""
        values = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        return {name: value for name, value in values.items() if value != getattr(Form, name)}


def load(
    source: str | Path | RatingTable | SparseMatrix,
    *,
    data_dir: str | Path | None = None,
    columns: str | Sequence[str] | None = None,
    scale: Scale | str | Sequence[float] | None = None,
    duplicates: str = "refuse",
    items: str | Path | RatingTable | None = None,
    implicit: bool = False,
    encoding: str | None = None,
    skip_rows: int = 0,
    missing: str | float | None = None,
    public: str | Path | RatingTable | None = None,
) -> Ratings:
    """Return the ratings in `source`; raise `DataError` if they cannot be read.

    Args:
        source: the name of a data set; the path of a CSV, TSV, `::` or Parquet file; or a table in memory: a polars or
            pandas frame, an Arrow table, a NumPy array or rows of (user, item, rating), or a SciPy sparse matrix with
            users as rows and items as columns.
        data_dir: the folder that is searched first for a named set; next are `$HUSHREC_DATA` and the user's cache.
        columns: the columns of user, item and rating, by name or by position from 1: "reader,book,stars", or a list.
        scale: the smallest and the largest rating, as in "0,10" or (0, 10); by default guessed from the ratings.
        duplicates: how to treat repeated (user, item) pairs: "refuse" them, or keep the "first", the "last" or the
            "mean" rating.
        items: a file or a table with the items' ids, titles and attributes.
        implicit: ignore the ratings' values, and keep only the (user, item) pairs.
        encoding: the encoding of a text file; by default UTF-8.
        skip_rows: the number of lines to skip above the ratings.
        missing: the value that means "no rating".
        public: a second source, with ratings of other people that everybody may see. It is read with the same options,
            except that it has the scale of `source` and no `items`.
    """
    form = Form.of(
        scale,
        columns=columns,
        duplicates=duplicates,
        implicit=implicit,
        encoding=encoding,
        skip_rows=skip_rows,
        missing=missing,
    )
    ratings = _read(source, items, form, data_dir)
    if public is not None:
        others = _read(public, None, dataclasses.replace(form, scale=ratings.scale), data_dir)
        ratings = with_public(ratings, others)
    paths = {"source": source, "items": items, "public": public, "data_dir": data_dir}
    return dataclasses.replace(ratings, reading=_reading(paths, form))


def _reading(paths: dict[str, Any], form: Form) -> dict[str, Any] | None:
    """Return the arguments of `load` that were given, as JSON data; None if one of `paths` is a table in memory.

    Paths, columns and scale become text, as on the command line.
    """
    given = {name: path for name, path in paths.items() if path is not None}
    if not all(isinstance(path, str | Path) for path in given.values()):
        return None
    found = {name: str(path) for name, path in given.items()} | form.given()
    if form.scale is not None:
        found["scale"] = f"{form.scale.low:.15g},{form.scale.high:.15g}"
    if form.columns is not None:
        found["columns"] = form.columns if isinstance(form.columns, str) else ",".join(map(str, form.columns))
    return found


def with_public(ratings: Ratings, others: Ratings) -> Ratings:
    """Return `ratings` unchanged except for its field `public`: the ratings `others`, mapped to the scale 1 to 5.

    The people in `others` are treated as different from the users, even if their ids are equal. All items of `others`
    must be in the catalogue of `ratings`, because the items of a run must not depend on ratings. Without a catalogue,
    they must be among the items of `ratings`.
    """
    if ratings.scale is None or others.values is None or others.scale is None:
        raise DataError("public must be given only if the ratings and the public ratings have values. Leave it out.")
    known = ratings.item_ids if ratings.catalogue is None else ratings.catalogue.ids
    items = positions(others.item_ids, known)[others.items]
    unknown = int(np.count_nonzero(items < 0))
    if unknown:
        raise DataError(
            f"public must contain only ratings of the {len(known)} items in the ratings and the items file, but"
            f" {unknown} of its {others.n_ratings} ratings are of other items. Remove these ratings, or add their"
            " items to the items file."
        )
    starts, order = by_user(others.users, items, others.n_users)
    public = PublicRatings(starts, items[order], others.scale.to_unit(others.values[order]))
    return dataclasses.replace(ratings, public=public)


def _read(
    source: str | Path | RatingTable | SparseMatrix,
    items: str | Path | RatingTable | None,
    form: Form,
    data_dir: str | Path | None,
) -> Ratings:
    if not isinstance(source, str | Path):
        return _from_memory(source, items, form)
    if isinstance(source, str) and source.partition(":")[0] == "synthetic":
        _refuse_options("synthetic ratings accept only the option implicit", items, form, ("implicit", "duplicates"))
        ratings = synthetic_from_name(source)
        return dataclasses.replace(ratings, values=None, scale=None) if form.implicit else ratings
    offered = offered_sets()
    if isinstance(source, str) and source in offered:
        _refuse_options(f"set {source} accepts no options, because a plug-in loads it", items, form)
        ratings = offered[source]()
        if not isinstance(ratings, Ratings):
            raise DataError(f"the plug-in of set {source} must return Ratings, got {type(ratings).__name__}.")
        return dataclasses.replace(ratings, name=source)
    file = find_file(source, items, data_dir)
    table = read_table(file.path, encoding=form.encoding, skip_rows=form.skip_rows)
    ratings = _from_table(file.name, table, file.items, form)
    return dataclasses.replace(ratings, scale_is_guessed=ratings.scale_is_guessed and not file.is_named)


def _refuse_options(reason: str, items: object, form: Form, allowed: Sequence[str] = ()) -> None:
    refused = [name for name in form.given() if name not in allowed] + ["items"] * (items is not None)
    if refused:
        raise DataError(f"{reason}, got {', '.join(refused)}. Leave these options out; they are for files.")


def is_made(source: str | Path) -> bool:
    """Return whether `source` names a data set that is not read from a file: synthetic, or from a plug-in."""
    return isinstance(source, str) and (source.partition(":")[0] == "synthetic" or source in offered_sets())


class File(NamedTuple):
    """A file of ratings, and the file or table that describes its items."""

    name: str  # of the data set
    path: Path
    items: str | Path | RatingTable | None
    is_named: bool  # whether the file belongs to a named set; such a file's scale is not guessed


def find_file(
    source: str | Path, items: str | Path | RatingTable | None = None, data_dir: str | Path | None = None
) -> File:
    """Return the file of ratings of a named set or at a path; raise `DataError` if `source` is neither.

    `items` describes the items; by default, a named set has its own items file.
    """
    if isinstance(source, str) and source in named.SETS:
        ratings, listed = named.find(source, data_dir)
        return File(source, ratings, listed if items is None else items, is_named=True)
    if not os.path.exists(source):
        names = ", ".join(["synthetic", *named.SETS, *offered_sets()])
        raise DataError(f"{source} must be a file or a named set ({names}), but is neither.")
    return File(Path(source).name, Path(source), items, is_named=False)


def offered_sets() -> Mapping[str, Any]:
    """Return the data sets of plug-ins: a mapping from names to functions without arguments that return `Ratings`."""
    return plugins("sources", (*named.SETS, "synthetic"))


def _from_memory(data: RatingTable | SparseMatrix, items: str | Path | RatingTable | None, form: Form) -> Ratings:
    """Return the ratings of a table in memory; the ids of a sparse matrix are its row and column numbers, from 0."""
    if form.encoding is not None or form.skip_rows:
        raise DataError("encoding and skip_rows must not be given for a table in memory. Leave them out.")
    if not isinstance(data, SparseMatrix):
        return _from_table("ratings", read_frame(data), items, form)
    if form.columns is not None or form.missing is not None:
        raise DataError("columns and missing must not be given for a sparse matrix. Leave them out.")
    entries = data.tocsr().tocoo()  # adds up entries at the same position
    if entries.nnz == 0:
        raise DataError("a sparse matrix of ratings must have at least one stored entry, got none.")
    users, columns, numbers = entries.row.astype(np.int64), entries.col.astype(np.int64), entries.data.astype(float)
    user_ids, item_ids = ([str(number) for number in range(size)] for size in data.shape)
    catalogue = Catalogue(item_ids, None, None, np.arange(len(item_ids)), n_unlisted=0)
    titles, attributes, catalogue = (None, None, catalogue) if items is None else read_items(items, item_ids)
    scale = None if form.implicit else form.scale or Scale.guess(numbers)
    if scale is not None and not scale.holds(numbers).all():
        raise DataError(f"entries of a sparse matrix must lie on the scale, {scale}. Pass another scale.")
    values = None if scale is None else numbers
    known = titles, attributes, scale is not None and form.scale is None, None, catalogue
    return Ratings("ratings", user_ids, item_ids, users, columns, values, scale, *known)


def _from_table(name: str, table: Table, items: str | Path | RatingTable | None, form: Form) -> Ratings:
    chosen = without_missing(choose_columns(table, form.columns, implicit=form.implicit), form.missing)
    if chosen.users.is_empty():
        raise all_missing(table.path)
    form = form.of_column(chosen.ratings)
    values: FloatArray | None = None
    scale: Scale | None = None
    if chosen.ratings is not None:
        values = read_values(chosen.table, chosen.ratings, form.scale)
        scale = form.scale or guess_scale(table.path, values)
    user_ids, users = index_ids(chosen.users)
    item_ids, columns = index_ids(chosen.items)
    pairs = number_pairs(users, columns)
    if form.duplicates == "mean" and values is not None:
        values = mean_by_pair(pairs, values)
    kept = kept_rows(pairs, form.duplicates)
    if form.duplicates == "refuse" and not kept.all():
        first, second = chosen.table.lines[first_repeat(pairs, kept)].tolist()
        raise duplicate_error(table.path, table.unit, first, second, int(np.count_nonzero(~kept)))
    times = None if chosen.times is None else chosen.times.to_numpy().astype(np.float64)
    titles, attributes, catalogue = (
        (None, None, None) if items is None else read_items(items, item_ids, form.encoding, ratings=table.path)
    )
    known = titles, attributes, scale is not None and form.scale is None, times, catalogue
    ratings = Ratings(name, user_ids, item_ids, users, columns, values, scale, *known)
    return ratings.rows(np.flatnonzero(kept))
