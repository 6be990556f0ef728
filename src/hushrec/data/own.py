"""Readers of one person's own ratings from a small text file, for `device import` and `recommend --user-ratings`."""

import csv
from collections.abc import Collection
from pathlib import Path

from hushrec.data.ratings import Scale
from hushrec.errors import DataError


def read_own_ratings(path: Path) -> dict[str, float]:
    """Return ratings by item from a text file of two columns; line 1 is a header if its second field is no number."""
    return {item: rating for _, item, rating in _rated_rows(path, _read_rows(path))}


def read_own_profile(path: Path, items: Collection[str], scale: Scale) -> dict[str, float] | list[str]:
    """Return the ratings in a file by item or, if the file has only one column, the list of items.

    `items` and `scale` are those of a run; raise `DataError` for another item, or a rating off the scale. The first
    line of a file with one column is a header if it is a usual name of an item column, such as `item`.
    """
    from hushrec.data.columns import role_of

    lines = _read_rows(path)
    is_rated = any(len(cells) > 1 for _, cells in lines)
    if not is_rated and lines and role_of(lines[0][1][0].strip()) == "item":
        lines = lines[1:]
    rows = _rated_rows(path, lines) if is_rated else [(line, cells[0].strip(), scale.low) for line, cells in lines]
    if not rows:
        raise DataError(f"{path} must contain at least one rating. Write an item and its rating on each line.")
    known, profile = set(items), dict[str, float]()
    for line, item, rating in rows:
        place = f"{path}, line {line}"
        if item not in known:
            raise DataError(f"{place}: expected one of the {len(known)} items of the run. Correct or remove the line.")
        if item in profile:
            raise DataError(f"{place}: expected each item once, but an earlier line has it too. Remove one line.")
        if not scale.low <= rating <= scale.high:
            raise DataError(f"{place}: expected a rating on the scale of the run, {scale}. Correct or remove the line.")
        profile[item] = rating
    return profile if is_rated else list(profile)


def _rated_rows(path: Path, rows: list[tuple[int, list[str]]]) -> list[tuple[int, str, float]]:
    """Return the line number, item and rating of every row below the header, if there is one."""
    if rows and not is_number(rows[0][1][-1]):
        rows = rows[1:]
    for line, cells in rows:
        if len(cells) != 2 or not is_number(cells[1]):
            raise DataError(
                f"{path}, line {line}: expected an item and its rating, separated by a comma. Correct or remove the"
                " line."
            )
    return [(line, cells[0].strip(), float(cells[1])) for line, cells in rows]


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
