"""Titles and public attributes of items, from the publishers' own files or from a table of your own.

Attributes come out as `NAME=CATEGORY` flags and as numbers, one row per item, in the order of the ids asked
for. An item that the file does not list has its id for a title, no flag set and no number.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import polars as pl

from hushrec.data.ratings import year_of
from hushrec.data.tables import Table, read_bytes, read_table
from hushrec.errors import DataError

MOST_CATEGORIES = 100
_GENRES = (
    "unknown|Action|Adventure|Animation|Children's|Comedy|Crime|Documentary|Drama|Fantasy|Film-Noir|Horror|Musical|"
    "Mystery|Romance|Sci-Fi|Thriller|War|Western"
)
GENRES_100K = _GENRES.split("|")

Items = tuple[list[str], pl.DataFrame | None]


def read_items(path: Path, item_ids: Sequence[str]) -> Items:
    """Titles and attributes of `item_ids`, in that order."""
    name = path.name.removesuffix(".gz")
    listed = PUBLISHED[name](path) if name in PUBLISHED else _read_own(path)
    if listed["id"].is_duplicated().any():
        raise DataError(
            f"{path}, column 1: expected each item id once; {listed['id'].is_duplicated().sum()} rows repeat one."
        )
    wanted = pl.DataFrame({"id": list(item_ids)}, schema={"id": pl.String})
    table = wanted.join(listed, on="id", how="left", maintain_order="left")
    titles = table.select(pl.col("title").fill_null(pl.col("id"))).to_series().to_list()
    attributes = _encode(table.drop("id", "title"))
    return titles, attributes if attributes.width else None


def _encode(columns: pl.DataFrame) -> pl.DataFrame:
    """Text columns to one flag per category; numbers stay. A text column of many categories is left out."""
    encoded: list[pl.Series] = []
    for column in columns:
        if column.dtype == pl.Float64:
            encoded.append(column)
        else:
            encoded.extend(_flags(column))
    return pl.DataFrame(encoded)


def _flags(column: pl.Series) -> list[pl.Series]:
    lists = column.fill_null("").str.split("|").list.eval(pl.element().str.strip_chars())
    categories = sorted(set(lists.explode().drop_nulls().to_list()) - {""})
    if len(categories) > MOST_CATEGORIES:
        return []
    return [lists.list.contains(category).alias(f"{column.name}={category}") for category in categories]


def _read_own(path: Path) -> pl.DataFrame:
    """A table with a header: the id first, a `title` (or `name`) if there is one, attributes."""
    table = read_table(path)
    names = table.names if table.names is not None else [str(field).strip() for field in table.frame.row(0)]
    body = table if table.names is not None else table.without_first()
    if len(set(names)) != len(names) or "" in names:
        raise DataError(f"{path}, line 1: expected a header of different column names: id, title and attributes.")
    frame = body.frame.rename(dict(zip(body.frame.columns, names, strict=True)))
    ids = _item_ids(body, frame.to_series(0))
    title = next((name for name in names[1:] if name.lower() in ("title", "name")), None)
    titles = pl.Series("title", [None] * len(ids), dtype=pl.String) if title is None else frame[title].cast(pl.String)
    others = [_own_attribute(frame[name]) for name in names[1:] if name != title]
    return pl.DataFrame(
        [ids, titles.alias("title"), *(series for series in others if series.name not in ("id", "title"))]
    )


def _item_ids(table: Table, column: pl.Series) -> pl.Series:
    if not (column.dtype == pl.String or column.dtype.is_integer()):
        raise DataError(f"{table.path}, column 1: expected item ids, as whole numbers or text.")
    ids = column.cast(pl.String).str.strip_chars().alias("id")
    empty = (ids.is_null() | (ids == "")).fill_null(True)
    if empty.any():
        row = empty.arg_max()
        assert row is not None
        raise DataError(f"{table.place(row, '1')}: expected an item id, found an empty field.")
    return ids


def _own_attribute(column: pl.Series) -> pl.Series:
    """Numbers if every filled field is one, else text."""
    if column.dtype.is_numeric() or column.dtype == pl.Boolean:
        return column.cast(pl.Float64)
    text = column.cast(pl.String, strict=False).str.strip_chars()
    filled = text.set(text == "", None)
    numbers = filled.cast(pl.Float64, strict=False)
    usable = numbers.is_finite().fill_null(False)
    return numbers if filled.is_not_null().any() and bool((usable | filled.is_null()).all()) else text


def _lines(path: Path, separator: str, n_fields: int) -> list[list[str]]:
    """A publisher's latin-1 file, cut into `n_fields`; the last field may hold the separator."""
    rows = [line.rstrip("\r").split(separator, n_fields - 1) for line in read_bytes(path).decode("latin-1").split("\n")]
    rows = rows[:-1] if rows[-1] == [""] else rows
    for number, row in enumerate(rows, start=1):
        if len(row) != n_fields:
            raise DataError(
                f"{path}, line {number}: expected {n_fields} fields separated by {separator!r}, found {len(row)}."
            )
    return rows


def _read_ml_100k(path: Path) -> pl.DataFrame:
    """`u.item`: id, title, release date, video date, address, 19 flags."""
    rows = _lines(path, "|", 5 + len(GENRES_100K))
    genres = ["|".join(name for name, flag in zip(GENRES_100K, row[5:], strict=True) if flag == "1") for row in rows]
    years = [year_of(row[1]) or _year_of_date(row[2]) for row in rows]
    return _published(rows, [row[1] for row in rows], years, genres)


def _read_ml_1m(path: Path) -> pl.DataFrame:
    """`movies.dat`: id, title, genres."""
    rows = _lines(path, "::", 3)
    return _published(rows, [row[1] for row in rows], [year_of(row[1]) for row in rows], [row[2] for row in rows])


def _read_netflix(path: Path) -> pl.DataFrame:
    """`movie_titles.csv`: id, year or NULL, title."""
    rows = _lines(path, ",", 3)
    years = [float(row[1]) if row[1].isascii() and row[1].isdigit() else None for row in rows]
    return _published(rows, [row[2] for row in rows], years, None)


def _published(
    rows: list[list[str]], titles: list[str], years: list[float | None], genres: list[str] | None
) -> pl.DataFrame:
    columns = [
        pl.Series("id", [row[0] for row in rows], dtype=pl.String),
        pl.Series("title", titles, dtype=pl.String),
        pl.Series("year", years, dtype=pl.Float64),
    ]
    return pl.DataFrame(columns + ([] if genres is None else [pl.Series("genre", genres, dtype=pl.String)]))


def _year_of_date(date: str) -> float | None:
    match = re.search(r"(\d{4})$", date)
    return float(match[1]) if match else None


PUBLISHED: dict[str, Callable[[Path], pl.DataFrame]] = {
    "u.item": _read_ml_100k,
    "movies.dat": _read_ml_1m,
    "movie_titles.csv": _read_netflix,
}
