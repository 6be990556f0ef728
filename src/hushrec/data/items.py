"""Readers of items files: titles and public attributes, from files of MovieLens and the Netflix Prize or from your own.

Attributes are returned as `NAME=CATEGORY` flags and as numbers, one row per item, in the order of the requested ids. An
item that the file does not list gets its id as its title, and neither flags nor numbers.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from hushrec.data.columns import clean_ids, is_item_name, with_decimal_points
from hushrec.data.frames import RatingTable, positions, read_frame
from hushrec.data.ratings import MOST_CATEGORIES, Catalogue, year_of
from hushrec.data.tables import Table, read_table
from hushrec.data.texts import read_bytes
from hushrec.errors import DataError

_GENRES = (
    "unknown|Action|Adventure|Animation|Children's|Comedy|Crime|Documentary|Drama|Fantasy|Film-Noir|Horror|Musical|"
    "Mystery|Romance|Sci-Fi|Thriller|War|Western"
)
GENRES_100K = _GENRES.split("|")
GAPS = ("na", "n/a", "nan", "null", "none")  # in lower case, what other programs write for a missing number
LARGEST = 1e100  # a larger number is a gap too, because its square could overflow


@dataclass(frozen=True, eq=False)
class Listing:
    """The rows of an items file: ids, titles (null if missing), and attributes as numbers or text."""

    path: Path
    ids: pl.Series
    titles: pl.Series
    attributes: pl.DataFrame


def list_items(path: Path) -> tuple[list[str], list[str]]:
    """Return the ids and titles of all items in a file, in the file's order; the id replaces a missing title."""
    listing = _read_listing(path)
    ids = listing.ids.to_list()
    return ids, [title or item for title, item in zip(listing.titles, ids, strict=True)]


def read_items(
    source: str | Path | RatingTable,
    item_ids: Sequence[str],
    encoding: str | None = None,
    *,
    ratings: str | Path = "ratings",
) -> tuple[list[str], pl.DataFrame | None, Catalogue]:
    """Return the titles and attributes of `item_ids`, in this order, and the catalogue of all items in `source`.

    The attributes are None if `source` has none. Raise `DataError` if `source` has none of `item_ids`, which are the
    ids of the rated items in the file `ratings`. `encoding` is the encoding of a text file; it is ignored for files of
    MovieLens and the Netflix Prize, whose encoding is known.
    """
    listing = _read_listing(source, encoding)
    row_of = {item: row for row, item in enumerate(listing.ids.to_list())}
    unlisted = [item for item in item_ids if item not in row_of]
    if len(unlisted) == len(item_ids):
        raise DataError(
            f"{listing.path} must list the items that {ratings} rates: none of the {len(item_ids)} rated items is among"
            f" its {len(row_of)} ids, such as {listing.ids[0]!r}. Write the ids in the same way in both."
        )
    ids = [*row_of, *unlisted]
    left_out = tuple(column.name for column in listing.attributes if _has_many_categories(column))
    whole = Catalogue(ids, *_gather(listing, row_of, ids), positions(item_ids, ids), len(unlisted), left_out)
    return *_gather(listing, row_of, item_ids), whole


def _gather(listing: Listing, row_of: Mapping[str, int], ids: Sequence[str]) -> tuple[list[str], pl.DataFrame | None]:
    rows = pl.Series([row_of.get(item) for item in ids], dtype=pl.UInt32)
    titles = [title or item for title, item in zip(listing.titles.gather(rows), ids, strict=True)]
    return titles, _encode(listing.path, [column.gather(rows) for column in listing.attributes])


def _read_listing(source: str | Path | RatingTable, encoding: str | None = None) -> Listing:
    """Return the items in a file of MovieLens or the Netflix Prize, in another file, or in a table in memory."""
    path = Path(source) if isinstance(source, str | Path) else Path("items")
    name = path.name.removesuffix(".gz")
    if not isinstance(source, str | Path):
        listing = _list_own(read_frame(source, "items"))
    elif name in PUBLISHED:
        listing = PUBLISHED[name](path)
    else:
        listing = _list_own(read_table(path, encoding=encoding, one_column=True))
    if not len(listing.ids):
        raise DataError(f"{path} must have at least one item below its header. Add a row for each item.")
    repeats = len(listing.ids) - listing.ids.n_unique()
    if repeats:
        raise DataError(
            f"{path}, column 1: expected each item id once, but {repeats}"
            f" {'row repeats' if repeats == 1 else 'rows repeat'} an earlier id. Remove the repeated rows."
        )
    return listing


def _encode(path: Path, columns: list[pl.Series]) -> pl.DataFrame | None:
    """Return number columns unchanged, and each text column as one flag per category; None if no column is left.

    Text columns with more than `MOST_CATEGORIES` categories are left out. `path` is for error messages.
    """
    encoded: list[pl.Series] = []
    for column in columns:
        if column.dtype == pl.Float64:
            encoded.append(column)
        elif not _has_many_categories(column):
            lists = _category_lists(column)
            encoded += [lists.list.contains(one).alias(f"{column.name}={one}") for one in sorted(_categories(lists))]
    names = [column.name for column in encoded]
    repeated = [name for name in names if names.count(name) > 1]
    if repeated:
        name, _, category = repeated[0].partition("=")
        raise DataError(
            f"{path}, line 1: expected no column {repeated[0]!r}, because the category {category!r} of column {name!r}"
            " gets that name. Rename one of them."
        )
    return pl.DataFrame(encoded) if encoded else None


def _category_lists(column: pl.Series) -> pl.Series:
    return column.fill_null("").str.split("|").list.eval(pl.element().str.strip_chars())


def _categories(lists: pl.Series) -> set[str]:
    return set(lists.explode().drop_nulls().to_list()) - {""}


def _has_many_categories(column: pl.Series) -> bool:
    return column.dtype != pl.Float64 and len(_categories(_category_lists(column))) > MOST_CATEGORIES


def _list_own(table: Table) -> Listing:
    """Return the items of a table: ids in the first column, titles in `title` or `name`, attributes in all others."""
    path = table.path
    names = [name.strip() for name in table.first_row()]
    body = table if table.names is not None else table.without_first()
    if len(set(names)) != len(names) or "" in names or not is_item_name(names[0]):
        raise DataError(
            f"{path}, line 1: expected a header without empty or repeated names: the item id first (id, item, movie,"
            " …), then title and attributes. Add or correct the header."
        )
    columns = dict(zip(names, body.frame, strict=True))
    ids = clean_ids(body, columns.pop(names[0]), "1 (item id)")
    by_lower_name = {name.lower(): name for name in columns}
    title = by_lower_name.get("title", by_lower_name.get("name"))
    titles = pl.Series([None] * len(ids), dtype=pl.String) if title is None else _text(path, columns.pop(title))
    attributes = [_own_attribute(path, column).alias(name) for name, column in columns.items()]
    return Listing(path, ids, titles, pl.DataFrame(attributes))


def _own_attribute(path: Path, column: pl.Series) -> pl.Series:
    """Return a column as numbers if every field is a number, empty or in `GAPS`, otherwise as text.

    `GAPS` has words for a missing number, such as "na". Missing and infinite numbers and those beyond `LARGEST` become
    null.
    """
    is_text = not (column.dtype.is_numeric() or column.dtype == pl.Boolean)
    text = _text(path, column) if is_text else column
    numbers = with_decimal_points(text).cast(pl.Float64, strict=False)
    known = (numbers.abs() <= LARGEST).fill_null(False)
    if is_text:
        are_words = numbers.is_null() & text.is_not_null() & ~text.str.to_lowercase().is_in(GAPS)
        if are_words.any() or not known.any():
            return text
    return numbers.set(~known, None)


def _text(path: Path, column: pl.Series) -> pl.Series:
    """Return a column as text without surrounding spaces, null if empty; a list of texts becomes one text `a|b`."""
    if column.dtype == pl.List(pl.String):
        column = column.list.join("|", ignore_nulls=True)
    if column.dtype.is_nested() or column.dtype in (pl.Binary, pl.Object):
        raise DataError(
            f"{path}: expected numbers, text or lists of text in every column. Remove columns of other types."
        )
    text = column.cast(pl.String).str.strip_chars()
    return text.set((text == "").fill_null(False), None)


def _lines(path: Path, separator: str, n_fields: int) -> list[list[str]]:
    """Return the rows of a latin-1 file without empty lines.

    A row has `n_fields` fields, of which the last may contain separators.
    """
    rows = []
    for number, line in enumerate(read_bytes(path).decode("latin-1").split("\n"), start=1):
        row = line.rstrip("\r").split(separator, n_fields - 1)
        if row == [""]:
            continue
        if len(row) != n_fields:
            raise DataError(
                f"{path}, line {number}: expected {n_fields} fields separated by {separator!r}, found {len(row)}."
            )
        rows.append(row)
    return rows


def _read_ml_100k(path: Path) -> Listing:
    """Read `u.item` of MovieLens 100K: id, title, release date, video date, address, 19 genre flags."""
    rows = _lines(path, "|", 5 + len(GENRES_100K))
    genres = ["|".join(name for name, flag in zip(GENRES_100K, row[5:], strict=True) if flag == "1") for row in rows]
    years = [year_of(row[1]) or (float(row[2][-4:]) if re.search(r"\d{4}$", row[2]) else None) for row in rows]
    return _published(path, rows, [row[1] for row in rows], years, genres)


def _read_ml_1m(path: Path) -> Listing:
    """Read `movies.dat` of MovieLens 1M: id, title, genres."""
    rows = _lines(path, "::", 3)
    return _published(path, rows, [row[1] for row in rows], [year_of(row[1]) for row in rows], [row[2] for row in rows])


def _read_netflix(path: Path) -> Listing:
    """Read `movie_titles.csv` of the Netflix Prize: id, year or NULL, title."""
    rows = _lines(path, ",", 3)
    years = [float(row[1]) if row[1].isascii() and row[1].isdigit() else None for row in rows]
    return _published(path, rows, [row[2] for row in rows], years, None)


def _published(
    path: Path, rows: list[list[str]], titles: list[str], years: list[float | None], genres: list[str] | None
) -> Listing:
    attributes = [pl.Series("year", years, dtype=pl.Float64)]
    if genres is not None:
        attributes.append(pl.Series("genre", genres, dtype=pl.String))
    ids = pl.Series([row[0] for row in rows], dtype=pl.String)
    return Listing(path, ids, pl.Series(titles, dtype=pl.String), pl.DataFrame(attributes))


PUBLISHED: dict[str, Callable[[Path], Listing]] = {
    "u.item": _read_ml_100k,
    "movies.dat": _read_ml_1m,
    "movie_titles.csv": _read_netflix,
}
