"""Readers of one person's own ratings from a small text file, for `device import` and `recommend --user-ratings`."""

import csv
from collections.abc import Collection
from pathlib import Path
from typing import NamedTuple

from hushrec.data.ratings import Scale
from hushrec.errors import DataError


class Row(NamedTuple):
    """One line of the file; `rating` is None if the file lists items without ratings."""

    line: int
    item: str
    rating: float | None


def read_own_ratings(path: Path) -> dict[str, float]:
    """Return a mapping from items to ratings, read from a text file of two columns.

    The first line is a header if its second field is not a number.
    """
    return {row.item: row.rating for row in _rated_rows(path, _read_rows(path)) if row.rating is not None}


def read_own_profile(path: Path, items: Collection[str], scale: Scale) -> dict[str, float] | list[str]:
    """Return one person's ratings by item, for a run; from a file with one column, return the list of items instead.

    Items and ratings must be among `items` and on `scale`, those of the run; otherwise raise `DataError`. The first
    line of a file with one column is a header if it is a known name of item columns, such as `item`.
    """
    rows = _profile_rows(path)
    if not rows:
        raise DataError(f"{path} must contain at least one rating. Write an item and its rating on each line.")
    known, seen = set(items), set()
    for row in rows:
        if row.item not in known:
            raise DataError(
                f"{path}, line {row.line}: expected one of the {len(known)} items of the run. Correct or remove the"
                " line."
            )
        if row.item in seen:
            raise DataError(
                f"{path}, line {row.line}: expected each item once, but an earlier line has it too. Remove one line."
            )
        if row.rating is not None and not scale.low <= row.rating <= scale.high:
            raise DataError(
                f"{path}, line {row.line}: expected a rating on the scale of the run, {scale}. Correct or remove the"
                " line."
            )
        seen.add(row.item)
    if rows[0].rating is None:
        return [row.item for row in rows]
    return {row.item: float(row.rating) for row in rows if row.rating is not None}


def _profile_rows(path: Path) -> list[Row]:
    from hushrec.data.columns import role_of

    rows = _read_rows(path)
    if any(len(cells) > 1 for _, cells in rows):
        return _rated_rows(path, rows)
    if rows and role_of(rows[0][1][0].strip()) == "item":
        rows = rows[1:]
    return [Row(line, cells[0].strip(), None) for line, cells in rows]


def _rated_rows(path: Path, rows: list[tuple[int, list[str]]]) -> list[Row]:
    if rows and not is_number(rows[0][1][-1]):
        rows = rows[1:]
    for line, cells in rows:
        if len(cells) != 2 or not is_number(cells[1]):
            raise DataError(
                f"{path}, line {line}: expected an item and its rating, separated by a comma. Correct or remove the"
                " line."
            )
    return [Row(line, cells[0].strip(), float(cells[1])) for line, cells in rows]


def _read_rows(path: Path) -> list[tuple[int, list[str]]]:
    """Return (line number, fields) of every non-empty line; fields are separated by comma, semicolon or tab."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{path} must be a readable text file in UTF-8.") from None
    separator = next((mark for mark in ",;\t" if any(mark in line for line in lines)), ",")
    rows = csv.reader(lines, delimiter=separator)
    return [(number, cells) for number, cells in enumerate(rows, start=1) if any(cell.strip() for cell in cells)]


def is_number(text: str) -> bool:
    """Return whether a text can be converted to a float."""
    try:
        float(text)
    except ValueError:
        return False
    return True
