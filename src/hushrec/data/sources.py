"""The function `load`, which reads ratings from a named set, a file, a table in memory or the synthetic generator."""

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hushrec.arrays import PublicRatings
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
from hushrec.data.ratings import Catalogue, FloatArray, Ratings, Scale, index_ids
from hushrec.data.synthetic import from_name as synthetic_from_name
from hushrec.data.tables import Table, read_table
from hushrec.errors import DataError
from hushrec.plugins import plugins


@dataclasses.dataclass(frozen=True)
class Form:
    """The options of `load` that say how a file is read; `load` explains them."""

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
    def of(cls, scale: Scale | str | None = None, **settings: Any) -> "Form":
        """Return the reading options from arguments of `load`; `scale` may also be text such as "1,5"."""
        return cls(scale=Scale.parse(scale) if isinstance(scale, str) else scale, **settings)


def load(
    source: str | Path | RatingTable | SparseMatrix,
    *,
    data_dir: str | Path | None = None,
    columns: str | Sequence[str] | None = None,
    scale: Scale | str | None = None,
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
        scale: the smallest and the largest rating, as in "0,10"; by default guessed from the ratings.
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
    if public is None:
        return ratings
    return with_public(ratings, _read(public, None, dataclasses.replace(form, scale=ratings.scale), data_dir))


def with_public(ratings: Ratings, others: Ratings) -> Ratings:
    """Return `ratings` with `others` as its public ratings, mapped to the scale 1 to 5.

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
    order = np.lexsort((items, others.users))
    starts = np.searchsorted(others.users[order], np.arange(others.n_users + 1)).astype(np.int64)
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
        if items is not None or form != Form(implicit=form.implicit, duplicates=form.duplicates):
            names = _names_given(items, form, but=("implicit", "duplicates"))
            raise DataError(
                f"synthetic ratings accept only the option implicit, got {names}. Leave the other options out; they are"
                " for files."
            )
        ratings = synthetic_from_name(source)
        return dataclasses.replace(ratings, values=None, scale=None) if form.implicit else ratings
    offered = offered_sets()
    if isinstance(source, str) and source in offered:
        if items is not None or form != Form():
            raise DataError(
                f"set {source} accepts no options, because a plug-in loads it, got {_names_given(items, form)}. Leave"
                " them out; they are for files."
            )
        ratings = offered[source]()
        if not isinstance(ratings, Ratings):
            raise DataError(f"the plug-in of set {source} must return Ratings, got {type(ratings).__name__}.")
        return dataclasses.replace(ratings, name=source)
    file = find_file(source, items, data_dir)
    table = read_table(file.path, encoding=form.encoding, skip_rows=form.skip_rows)
    ratings = _from_table(file.name, table, file.items, form)
    return dataclasses.replace(ratings, scale_is_guessed=ratings.scale_is_guessed and not file.is_named)


def _names_given(items: object, form: Form, but: Sequence[str] = ()) -> str:
    """Return the names of the options that differ from their defaults, separated by commas, without those in `but`."""
    fields = [one.name for one in dataclasses.fields(Form) if getattr(form, one.name) != one.default]
    return ", ".join([name for name in fields if name not in but] + ["items"] * (items is not None))


def is_made(source: str | Path) -> bool:
    """Return whether a source is the name of a data set that the generator or a plug-in makes, not a file."""
    return isinstance(source, str) and (source.partition(":")[0] == "synthetic" or source in offered_sets())


class File(NamedTuple):
    """A file of ratings, and the file or table that describes its items."""

    name: str  # of the data set
    path: Path
    items: str | Path | RatingTable | None
    is_named: bool  # whether it belongs to a named set, whose scale is known


def find_file(
    source: str | Path, items: str | Path | RatingTable | None = None, data_dir: str | Path | None = None
) -> File:
    """Return the file of a named set, or the file at a path; raise `DataError` if there is neither.

    If `items` is None, a named set gets its own items file.
    """
    if isinstance(source, str) and source in named.SETS:
        ratings, listed = named.find(source, data_dir)
        return File(source, ratings, listed if items is None else items, is_named=True)
    if not os.path.exists(source):
        names = ", ".join(["synthetic", *named.SETS, *offered_sets()])
        raise DataError(f"{source} must be a file or a named set ({names}), but is neither.")
    return File(Path(source).name, Path(source), items, is_named=False)


def offered_sets() -> Mapping[str, Any]:
    """Return the data sets of plug-ins: by name, a function without arguments that returns the `Ratings`."""
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
    user_ids, item_ids = ([str(place) for place in range(size)] for size in data.shape)
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
    if kept is not None and form.duplicates == "refuse":
        first, second = chosen.table.all_lines[first_repeat(pairs, kept)].tolist()
        raise duplicate_error(table.path, table.unit, first, second, int(np.count_nonzero(~kept)))
    times = None if chosen.times is None else chosen.times.to_numpy().astype(np.float64)
    found = (None, None, None) if items is None else read_items(items, item_ids, form.encoding)
    titles, attributes, catalogue = found
    known = titles, attributes, scale is not None and form.scale is None, times, catalogue
    ratings = Ratings(name, user_ids, item_ids, users, columns, values, scale, *known)
    return ratings if kept is None else ratings.rows(np.flatnonzero(kept))
