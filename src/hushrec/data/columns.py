"""Selection of the user, item and rating columns of a table, checks of their values, and repeated pairs."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from hushrec.data.ratings import BoolArray, FloatArray, IntArray, Scale
from hushrec.data.tables import Table
from hushrec.errors import DataError

DUPLICATES = ("refuse", "first", "last", "mean")
ROLES = ("user", "item", "rating")
_NAMES = {
    "user": "user users userid uid username reviewer reviewerid customer customerid member memberid",
    "item": "item items itemid iid movie movieid film filmid book bookid isbn product productid asin song songid track "
    "trackid artist artistid game gameid article articleid",
    "rating": "rating ratings score stars rate value bookrating overall ratingvalue userrating",
}
TIMES = frozenset(["timestamp", "time", "date", "datetime", "ratedat", "unixtime", "unixreviewtime", "reviewtime"])
KNOWN_NAMES = {role: frozenset(names.split()) for role, names in _NAMES.items()}


@dataclass(frozen=True, eq=False)
class Columns:
    """The selected columns of a table, and the table itself, from which error messages take line numbers."""

    table: Table
    users: pl.Series  # ids as text
    items: pl.Series  # ids as text
    ratings: pl.Series | None  # numbers or text, unchecked; None for (user, item) pairs without ratings
    times: pl.Series | None = None  # as `_times` returns them


def choose_columns(table: Table, spec: str | Sequence[str] | None, *, implicit: bool) -> Columns:
    """Return the columns that `find_columns` finds, and the times if any; raise `DataError` if a column is missing."""
    positions, has_header = find_columns(table, spec, implicit=implicit)
    body = table.without_first() if has_header else table
    if body.frame.is_empty():
        raise only_a_header(table.path)
    return replace(take_columns(body, positions), times=_times(body, table, positions))


def only_a_header(path: Path) -> DataError:
    """Return the error for a file with a header but no ratings."""
    return DataError(f"{path}: expected one rating per line below the header, found none.")


def find_columns(table: Table, spec: str | Sequence[str] | None, *, implicit: bool) -> tuple[list[int], bool]:
    """Return the positions, from 0, of the columns user, item and (optional) rating, and whether line 1 is a header.

    The columns are those in `spec`, names or positions from 1. Without `spec` they are found by their names in the
    header, or else are columns 1, 2 and 3. A file with two columns has no ratings; `implicit` ignores ratings. Line 1
    is a header only if it contains known column names or the names in `spec`; otherwise it is data, and is checked as
    data.
    """
    wanted = _split_spec(spec, implicit=implicit)
    if wanted and all(part.isascii() and part.isdigit() for part in wanted):
        positions = _by_position(table, [int(part) for part in wanted])
        first = table.first_row()
        roles = [role_of(first[position]) for position in positions]
        return positions, table.names is None and roles == list(ROLES[: len(roles)])
    if wanted:
        return _by_given_names(table, wanted), table.names is None
    return _by_known_names(table, implicit=implicit)


def take_columns(body: Table, positions: list[int]) -> Columns:
    """Return the columns at these positions of a table whose header line has been removed, with ids as clean text."""
    columns = [body.frame.to_series(position) for position in positions]
    users, items = (clean_ids(body, column, role) for column, role in zip(columns, ROLES[:2], strict=False))
    return Columns(body, users, items, columns[2] if len(columns) == 3 else None)


def _times(body: Table, table: Table, taken: list[int]) -> pl.Series | None:
    """Return the times of the ratings: dates as seconds since 1970, numbers as they are in the table.

    The column of times has a name in `TIMES`; in a text file with four columns and no header, it is the fourth one. The
    result is None if there is no such column, if there are several, or if a field is neither a number nor a date.
    `body` is the table without its header, and `taken` are the positions of the user, item and rating columns.
    """
    names = [_plain(name) for name in table.first_row()]
    named = [place for place, name in enumerate(names) if name in TIMES and place not in taken]
    if not named and body is table and table.names is None and table.frame.width == 4 and taken == [0, 1, 2]:
        named = [3]
    if len(named) != 1:
        return None
    column = body.frame.to_series(named[0])
    if column.dtype.is_temporal():
        return column.cast(pl.Datetime("us"), strict=False).dt.epoch("us").cast(pl.Float64) / 1e6
    seconds = column.cast(pl.Float64, strict=False)
    is_date = column.str.contains(r"^\d{4}-\d\d-\d\d") if column.dtype == pl.String else pl.Series([False])
    if seconds.is_null().any() and is_date.fill_null(False).all():
        seconds = column.str.to_datetime(time_unit="us", strict=False).dt.epoch("us").cast(pl.Float64) / 1e6
    return seconds if seconds.is_finite().fill_null(False).all() else None


def _split_spec(spec: str | Sequence[str] | None, *, implicit: bool) -> list[str]:
    if spec is None:
        return []
    parts = [str(part).strip() for part in (spec.split(",") if isinstance(spec, str) else spec)]
    allowed = (2, 3) if not implicit else (2,)
    if len(parts) not in allowed or "" in parts or len(set(parts)) != len(parts):
        expected = "user,item" if implicit else "user,item,rating (or user,item for pairs without ratings)"
        raise DataError(f"columns must give one name or position for each of {expected}, and none twice, got {spec!r}.")
    return parts


def is_item_name(name: str) -> bool:
    """Return whether a column with this name contains item ids: it is called `id`, or a usual name such as `movie`."""
    return name.lower() == "id" or role_of(name) == "item"


def role_of(name: str) -> str | None:
    """Return the role of a column, "user", "item" or "rating", by its name; None if the name is not known.

    Case, `_`, `-`, spaces and a suffix such as `:token` are ignored.
    """
    return next((role for role, names in KNOWN_NAMES.items() if _plain(name) in names), None)


def _plain(name: str) -> str:
    return "".join(letter for letter in name.partition(":")[0].lower() if letter.isalnum())


def _by_position(table: Table, wanted: list[int]) -> list[int]:
    width = table.frame.width
    if not all(1 <= position <= width for position in wanted):
        raise DataError(
            f"{table.path}: columns must be positions from 1 to {width}, the number of columns, got"
            f" {','.join(map(str, wanted))}."
        )
    return [position - 1 for position in wanted]


def _by_given_names(table: Table, wanted: list[str]) -> list[int]:
    names = [name.strip() for name in table.first_row()]
    for name in wanted:
        if names.count(name) != 1:
            count = "none" if name not in names else "more than one"
            raise DataError(
                f"{_header_place(table)}: expected one column {name!r}, found {count} among {len(names)} columns."
                " Pass --columns (in Python: columns) with names from the header, or with positions from 1."
            )
    return [names.index(name) for name in wanted]


def _by_known_names(table: Table, *, implicit: bool) -> tuple[list[int], bool]:
    found = [role_of(name) for name in table.first_row()]
    width = table.frame.width
    needed = ROLES[:2] if implicit or width == 2 else ROLES
    if table.names is None and not any(found):
        if width < 2:
            raise DataError(
                f"{_header_place(table)}: expected the columns user, item and rating, found {width} column. Separate"
                " the fields by commas, or skip lines above the ratings with --skip-rows."
            )
        return list(range(len(needed))), False
    for role in needed:
        if found.count(role) != 1:
            count = f"{found.count(role)} candidates" if role in found else "none"
            hint = ", or --implicit (implicit=True) for (user, item) pairs without ratings" if role == "rating" else ""
            raise DataError(
                f"{_header_place(table)}: expected one column for the {role}, found {count}. Name the columns of user,"
                " item and rating with --columns reader,book,stars (in Python: hushrec.data.load(...,"
                f' columns="reader,book,stars")){hint}.'
            )
    return [found.index(role) for role in needed], table.names is None


def _header_place(table: Table) -> str:
    return f"{table.path}, line {table.first_line}" if table.names is None else str(table.path)


def clean_ids(table: Table, column: pl.Series, role: str) -> pl.Series:
    """Return ids as text without surrounding spaces; raise `DataError`, which names `role`, if an id is empty."""
    if column.dtype != pl.String:
        if not (column.dtype.is_integer() or isinstance(column.dtype, (pl.Categorical, pl.Enum))):
            raise DataError(
                f"{table.path}, column {role}: expected whole numbers or text as ids, found {column.dtype}. Convert the"
                " column to text."
            )
        column = column.cast(pl.String)
    column = column.str.strip_chars()
    empty = (column.is_null() | (column == "")).fill_null(True)
    if empty.any():
        place = table.place(_first_true(empty), role)
        raise DataError(f"{place}: expected an id, found an empty field. Fill it in, or remove the {table.unit}.")
    return column


def without_missing(columns: Columns, missing: str | float | None) -> Columns:
    """Return the rows whose rating is not `missing`, the value that means "no rating"; None keeps all rows.

    Ratings are compared with `missing` as numbers and as text; "" means an empty field.
    """
    if missing is None:
        return columns
    if columns.ratings is None:
        raise DataError(
            f"{columns.table.path}: --missing (in Python: missing) must not be given for a file without ratings. Leave"
            " it out."
        )
    text = columns.ratings.cast(pl.String).str.strip_chars().fill_null("")
    absent = text == str(missing).strip()
    with suppress(ValueError):
        absent |= (text.cast(pl.Float64, strict=False) == float(missing)).fill_null(False)
    kept = ~absent
    users, items, ratings = (column.filter(kept) for column in (columns.users, columns.items, columns.ratings))
    times = None if columns.times is None else columns.times.filter(kept)
    return Columns(columns.table.rows(kept), users, items, ratings, times)


def all_missing(path: Path) -> DataError:
    """Return the error for a file in which every rating equals `missing`."""
    return DataError(
        f"{path}, column rating: expected ratings other than the value of --missing (in Python: missing), found none."
        " Correct the value, or leave it out."
    )


def read_values(table: Table, column: pl.Series, scale: Scale | None) -> FloatArray:
    """Return the ratings as finite numbers; raise `DataError` if one is not a number, or not on the given scale."""
    if not (column.dtype == pl.String or column.dtype.is_numeric()):
        raise DataError(
            f"{table.path}, column rating: expected numbers, found {column.dtype}. Convert the column to numbers."
        )
    if column.dtype == pl.String:
        column = column.str.strip_chars()
    numbers = column.cast(pl.Float64, strict=False)
    expected = "a finite number" if scale is None else f"a number from {scale.low:g} to {scale.high:g}"
    bad = ~numbers.is_finite().fill_null(False)
    if not bad.any() and scale is not None:
        bad = pl.Series(~scale.holds(numbers.to_numpy()))
    if bad.any():
        row, hint = _first_true(bad), ""
        if table.names is None and table.lines is None and row == 0:
            header = f"line {table.first_line}"
            hint = f" If {header} is a header, pass --columns with the names it gives to user, item and rating."
        elif column[row] in {None, ""}:
            hint = " If empty fields mean no rating, pass --missing '' (in Python: missing=\"\")."
        remedy = "Correct or remove the row" + (", or change --scale." if scale is not None else ".")
        raise DataError(f"{table.place(row, 'rating')}: expected {expected}. {remedy}{hint}")
    return numbers.to_numpy().astype(np.float64)


def guess_scale(path: Path, values: FloatArray) -> Scale:
    """Return the first usual scale, such as 1 to 5, that contains all `values`; raise `DataError` if none does.

    It is enough to pass the smallest and the largest value.
    """
    try:
        return Scale.guess(values)
    except DataError as error:
        raise DataError(f"{path}, column rating: {error}") from None


def _first_true(flags: pl.Series) -> int:
    position = flags.arg_max()
    assert position is not None
    return position


def number_pairs(users: IntArray, items: IntArray) -> pl.Series:
    """Return one number per row; rows have the same number exactly if they have the same (user, item) pair."""
    return pl.Series("pair", users * (int(items.max(initial=0)) + 1) + items)


def kept_rows(pairs: pl.Series, mode: str) -> BoolArray | None:
    """Return for each row whether it is kept, so that each pair keeps one row; None if no pair is repeated.

    Mode "last" keeps the last row of a pair, every other mode the first.
    """
    if pairs.n_unique() == len(pairs):
        return None
    keep = pairs.is_last_distinct() if mode == "last" else pairs.is_first_distinct()
    return np.asarray(keep.to_numpy())


def first_repeat(pairs: pl.Series, keep: BoolArray) -> list[int]:
    """Return the positions of two rows with the same pair: the pair's first row, then the first row that is not kept.

    `keep` is the result of `kept_rows` in mode "refuse", where a row is not kept if an earlier row has the same pair.
    """
    again = int(np.flatnonzero(~keep)[0])
    return [int(np.flatnonzero(pairs.to_numpy() == pairs[again])[0]), again]


def mean_by_pair(pairs: pl.Series, values: FloatArray) -> FloatArray:
    """Return for each row the mean value of all rows with the same pair."""
    frame = pl.DataFrame({"pair": pairs, "value": values})
    means = frame.select(pl.col("value").mean().over("pair")).to_series()
    return means.to_numpy().astype(np.float64)


def duplicate_error(path: Path, unit: str, first: int, second: int, count: int) -> DataError:
    """Return the error for a file in which `count` rows have the same (user, item) pair as an earlier row.

    The message names two rows with the same pair by their line numbers, `first` and `second`. `unit` is what it calls a
    line (`Table.unit`).
    """
    return DataError(
        f"{path}, {unit} {second}: expected each (user, item) pair once, but this pair is also in {unit} {first};"
        f" {count} rows repeat an earlier pair. Pass --duplicates first, last or mean (in Python: duplicates=...) to"
        " keep one of each."
    )
