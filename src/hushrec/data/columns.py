"""Selection of the user, item and rating columns of a table, checks of their values, and repeated pairs."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import polars as pl

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.data.tables import Table
from hushrec.errors import DataError, NoUsualScale
from hushrec.scale import Scale

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
    times: pl.Series | None = None  # dates as seconds since 1970, numbers as they are in the table


def choose_columns(table: Table, spec: str | Sequence[str] | None, *, implicit: bool) -> Columns:
    """Return the user, item and rating columns that `find_columns` finds, and the times of the ratings if any.

    Raise `DataError` if a column is missing, or if there is nothing below the header.
    """
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

    `spec` has the names of the columns, or their positions from 1. Names are searched in line 1 of a text file, which
    is then a header. With positions, line 1 is a header only if the columns at these positions have usual names such as
    `movie`. Without `spec`, the columns are found by usual names; if line 1 of a text file has none, it is data, and
    the columns are 1, 2 and 3. A table with two columns has no ratings; `implicit` ignores ratings. Raise `DataError`
    if a column is missing.
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
    return Columns(body, users, items, with_decimal_points(columns[2]) if len(columns) == 3 else None)


def with_decimal_points(column: pl.Series) -> pl.Series:
    """Return text without surrounding spaces and with decimal points in place of decimal commas; numbers unchanged.

    A comma before exactly three digits stays, because it could separate thousands.
    """
    if column.dtype != pl.String:
        return column
    text = column.str.strip_chars()
    if text.str.contains(",", literal=True).any():
        text = text.str.replace(r"^([-+]?\d+),(\d\d?|\d{4,})$", "${1}.${2}")
    return text


def _times(body: Table, table: Table, others: list[int]) -> pl.Series | None:
    """Return the times of the ratings: dates as seconds since 1970, numbers as they are in the table.

    `body` is `table` without its header, and `others` are the positions of the user, item and rating columns. The
    column of times has a name in `TIMES`. In a text file with four columns and no header, it is column 4 if columns 1
    to 3 are user, item and rating. The result is None if there is no column of times, if there are several, or if a
    field is neither a number nor a date.
    """
    names = [_plain(name) for name in table.first_row()]
    named = [position for position, name in enumerate(names) if name in TIMES and position not in others]
    if not named and body is table and table.names is None and table.frame.width == 4 and others == [0, 1, 2]:
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
    """Return whether a column with this name has item ids: the name is `id`, or a usual one such as `movie`."""
    return name.lower() == "id" or role_of(name) == "item"


def role_of(name: str) -> str | None:
    """Return the role of a column with this name: "user", "item" or "rating"; None for an unusual name.

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
                f"{_header_location(table)}: expected one column {name!r}, found {count} among {len(names)} columns."
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
                f"{_header_location(table)}: expected the columns user, item and rating, found {width} column. Separate"
                " the fields by commas, or skip lines above the ratings with --skip-rows."
            )
        return list(range(len(needed))), False
    for role in needed:
        if found.count(role) != 1:
            count = f"{found.count(role)} candidates" if role in found else "none"
            hint = ", or --implicit (implicit=True) for (user, item) pairs without ratings" if role == "rating" else ""
            raise DataError(
                f"{_header_location(table)}: expected one column for the {role}, found {count}. Name the columns of"
                " user, item and rating with --columns reader,book,stars (in Python: hushrec.data.load(...,"
                f' columns="reader,book,stars")){hint}.'
            )
    return [found.index(role) for role in needed], table.names is None


def _header_location(table: Table) -> str:
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
        location = table.location(_first_true(empty), role)
        raise DataError(f"{location}: expected an id, found an empty field. Fill it in, or remove the {table.unit}.")
    return column


def without_missing(columns: Columns, missing: str | float | None) -> Columns:
    """Return the rows whose rating is not `missing`, the value that means "no rating"; all rows if it is None.

    Ratings are compared with `missing` as numbers and as text; "" means an empty field.
    """
    if missing is None:
        return columns
    if columns.ratings is None:
        raise DataError(
            f"{columns.table.path}: --missing (in Python: missing) must not be given if no ratings are read. Leave it"
            " out."
        )
    text = columns.ratings.cast(pl.String).str.strip_chars().fill_null("")
    absent = text == str(missing).strip()
    with suppress(ValueError):
        absent |= (text.cast(pl.Float64, strict=False) == float(missing)).fill_null(False)
    kept = ~absent
    users, items, ratings = (column.filter(kept) for column in (columns.users, columns.items, columns.ratings))
    times = None if columns.times is None else columns.times.filter(kept)
    return Columns(columns.table.filter(kept), users, items, ratings, times)


def all_missing(path: Path) -> DataError:
    """Return the error for a file in which every rating equals `missing`."""
    return DataError(
        f"{path}, column rating: expected ratings other than the value of --missing (in Python: missing), found none."
        " Correct the value, or leave it out."
    )


def read_values(table: Table, column: pl.Series, scale: Scale | None) -> FloatArray:
    """Return a column of ratings as finite numbers, True as 1 and False as 0.

    Raise `DataError` for other values, or ratings off the scale.
    """
    if not (column.dtype in (pl.String, pl.Boolean) or column.dtype.is_numeric()):
        raise DataError(
            f"{table.path}, column rating: expected numbers, found {column.dtype}. Convert the column to numbers."
        )
    numbers = column.cast(pl.Float64, strict=False)
    expected = "a finite number" if scale is None else f"a number from {scale.low:g} to {scale.high:g}"
    bad = ~numbers.is_finite().fill_null(False)
    if not bad.any() and scale is not None:
        bad = pl.Series(~scale.holds(numbers.to_numpy()))
    if bad.any():
        row, hint = _first_true(bad), ""
        if table.names is None and table.lines[row] == table.first_line:
            hint = f" If line {table.first_line} is a header, pass --columns with its names for user, item and rating."
        elif column[row] in {None, ""}:
            hint = " If empty fields mean no rating, pass --missing '' (in Python: missing=\"\")."
        remedy = "Correct or remove the row" + (", or change --scale." if scale is not None else ".")
        raise DataError(f"{table.location(row, 'rating')}: expected {expected}. {remedy}{hint}")
    return numbers.to_numpy().astype(np.float64)


def guess_scale(path: Path, values: FloatArray) -> Scale:
    """Return the first usual scale, such as 1 to 5, that contains all `values`; raise `NoUsualScale` if none does.

    It is enough to pass the smallest and the largest value.
    """
    try:
        return Scale.guess(values)
    except NoUsualScale as error:
        raise NoUsualScale(f"{path}, column rating: {error}", low=error.low, high=error.high) from None


def _first_true(flags: pl.Series) -> int:
    position = flags.arg_max()
    assert position is not None
    return position


def number_pairs(users: IntArray, items: IntArray) -> pl.Series:
    """Return one number per row; rows have the same number exactly if they have the same (user, item) pair."""
    return pl.Series("pair", users * (int(items.max(initial=0)) + 1) + items)


def kept_rows(pairs: pl.Series, mode: str) -> BoolArray:
    """Return for each row whether it is kept, so that one row of each (user, item) pair remains.

    `pairs` has the number of each row's pair (`number_pairs`). Mode "last" keeps the last row of a pair, every other
    mode the first.
    """
    keep = pairs.is_last_distinct() if mode == "last" else pairs.is_first_distinct()
    return np.asarray(keep.to_numpy())


def first_repeat(pairs: pl.Series, keep: BoolArray) -> list[int]:
    """Return the positions of the first row of a repeated (user, item) pair, and of the earliest row that repeats it.

    `pairs` has the number of each row's pair (`number_pairs`). `keep` is false for rows that repeat an earlier pair
    (`kept_rows` in mode "refuse"); there must be such a row.
    """
    again = int(np.flatnonzero(~keep)[0])
    return [int(np.flatnonzero(pairs.to_numpy() == pairs[again])[0]), again]


def mean_by_pair(pairs: pl.Series, values: FloatArray) -> FloatArray:
    """Return for each row the mean value of all rows with the same (user, item) pair (`number_pairs`)."""
    frame = pl.DataFrame({"pair": pairs, "value": values})
    means = frame.select(pl.col("value").mean().over("pair")).to_series()
    return means.to_numpy().astype(np.float64)


def duplicate_error(path: Path, unit: str, first: int, second: int, count: int) -> DataError:
    """Return the error for a file in which `count` rows have the same (user, item) pair as an earlier row.

    `first` and `second` are the line numbers of two rows with the same pair. `unit` is the word for a line in the
    message (`Table.unit`).
    """
    repeat = "row repeats" if count == 1 else "rows repeat"
    return DataError(
        f"{path}, {unit} {second}: expected each (user, item) pair once, but this pair is also in {unit} {first};"
        f" {count} {repeat} an earlier pair. Pass --duplicates first, last or mean (in Python: duplicates=...) to keep"
        " one of each."
    )
