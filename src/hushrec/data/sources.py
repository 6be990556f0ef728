"""`load`: ratings from a named set, a file, or the generator."""

import dataclasses
import os
from pathlib import Path

import numpy as np
import polars as pl

from hushrec.data import named
from hushrec.data.columns import choose_columns, read_values, without_missing
from hushrec.data.items import read_items
from hushrec.data.ratings import FloatArray, IntArray, Ratings, Scale, index_ids
from hushrec.data.synthetic import from_name as synthetic_from_name
from hushrec.data.tables import Table, read_table
from hushrec.errors import DataError

DUPLICATES = ("refuse", "first", "last", "mean")


@dataclasses.dataclass(frozen=True)
class Form:
    """How a file is read; the fields are the settings of `load`."""

    columns: str | None = None
    scale: Scale | None = None
    duplicates: str = "refuse"
    implicit: bool = False
    encoding: str | None = None
    skip_rows: int = 0
    missing: str | float | None = None

    def __post_init__(self) -> None:
        if self.duplicates not in DUPLICATES:
            raise DataError(f"duplicates must be one of {', '.join(DUPLICATES)}, got {self.duplicates!r}.")


def load(
    source: str | Path,
    *,
    data_dir: str | Path | None = None,
    columns: str | None = None,
    scale: Scale | str | None = None,
    duplicates: str = "refuse",
    items_file: str | Path | None = None,
    implicit: bool = False,
    encoding: str | None = None,
    skip_rows: int = 0,
    missing: str | float | None = None,
) -> Ratings:
    """Ratings from `source`: the name of a set, or the path of a CSV, TSV, `::` or Parquet file.

    `columns` says which columns are user, item and rating, by name or position from 1; `scale` the smallest and
    largest rating; `duplicates` what to do with a (user, item) pair that comes twice: refuse, or keep the first,
    the last, or the mean; `items_file` gives titles and attributes; `implicit` leaves ratings out. `encoding` is that
    of text files, `skip_rows` the number of lines above the ratings, `missing` what stands for no rating.
    """
    scale = Scale.parse(scale) if isinstance(scale, str) else scale
    form = Form(columns, scale, duplicates, implicit, encoding, skip_rows, missing)
    items_path = Path(items_file) if items_file else None
    if isinstance(source, str) and source.partition(":")[0] == "synthetic":
        if items_path or form != Form(implicit=implicit, duplicates=duplicates):
            raise DataError("synthetic ratings need no reading: leave out all settings of it but implicit.")
        ratings = synthetic_from_name(source)
        return dataclasses.replace(ratings, values=None, scale=None) if implicit else ratings
    if isinstance(source, str) and source in named.SETS:
        place = named.find(source, data_dir)
        return dataclasses.replace(
            _from_file(source, place.ratings, items_path or place.items, form), scale_is_guessed=False
        )
    if not os.path.exists(source):
        names = ", ".join(["synthetic", *named.SETS])
        raise DataError(f"{source}: no such file, and no set of that name. Named sets: {names}.")
    path = Path(source)
    return _from_file(path.name, path, items_path, form)


def _from_file(name: str, path: Path, items_path: Path | None, form: Form) -> Ratings:
    table = read_table(path, encoding=form.encoding, skip_rows=form.skip_rows)
    chosen = without_missing(choose_columns(table, form.columns, implicit=form.implicit), form.missing)
    values: FloatArray | None = None
    scale: Scale | None = None
    if chosen.ratings is not None:
        values, scale = read_values(chosen.table, chosen.ratings, form.scale)
    user_ids, users = index_ids(chosen.users)
    item_ids, items = index_ids(chosen.items)
    users, items, values = _settle_duplicates(chosen.table, users, items, values, form.duplicates)
    titles, attributes = read_items(items_path, item_ids, form.encoding) if items_path else (None, None)
    guessed = scale is not None and form.scale is None
    return Ratings(name, user_ids, item_ids, users, items, values, scale, titles, attributes, guessed)


def _settle_duplicates(
    table: Table, users: IntArray, items: IntArray, values: FloatArray | None, mode: str
) -> tuple[IntArray, IntArray, FloatArray | None]:
    """Refuses pairs that come twice, or keeps one row for each pair, in the file's order."""
    pairs = pl.Series("pair", users * (int(items.max()) + 1) + items)
    if pairs.n_unique() == len(pairs):
        return users, items, values
    if mode == "refuse":
        raise _duplicate(table, pairs)
    if mode == "mean" and values is not None:
        values = _mean_by_pair(pairs, values)
    keep = (pairs.is_last_distinct() if mode == "last" else pairs.is_first_distinct()).to_numpy()
    return users[keep], items[keep], None if values is None else values[keep]


def _mean_by_pair(pairs: pl.Series, values: FloatArray) -> FloatArray:
    frame = pl.DataFrame({"pair": pairs, "value": values})
    means = frame.select(pl.col("value").mean().over("pair")).to_series()
    return means.to_numpy().astype(np.float64)


def _duplicate(table: Table, pairs: pl.Series) -> DataError:
    again = np.flatnonzero(~pairs.is_first_distinct().to_numpy())
    second = int(again[0])
    first = int(np.flatnonzero(pairs.to_numpy() == pairs[second])[0])
    return DataError(
        f"{table.place(second)}: expected each (user, item) pair once, but this is the pair of "
        f"{table.place(first).removeprefix(f'{table.path}, ')}; {len(again)} rows repeat an earlier pair. "
        "Pass --duplicates first, last or mean to keep one of each."
    )
