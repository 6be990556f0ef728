"""One person's own ratings from a small table: what a device imports, and what `recommend --user-ratings` reads."""

import csv
from pathlib import Path

from hushrec.errors import DataError


def read_own_ratings(path: Path) -> dict[str, float]:
    """Return item → rating from a table of two columns; a first line without a number in its second is a header."""
    rows = _read_rows(path)
    if rows and not is_number(rows[0][-1]):
        rows = rows[1:]
    for number, row in enumerate(rows, start=1):
        if len(row) != 2 or not is_number(row[1]):
            raise DataError(f"{path}: expected item and rating, separated by a comma; row {number} is not that.")
    return {row[0].strip(): float(row[1]) for row in rows}


def read_own_profile(path: Path) -> dict[str, float] | list[str]:
    """Return item → rating as `read_own_ratings` does, or the items of a table that has no other column.

    The first line of such a table is a header if it is a usual name of items, such as `item`.
    """
    from hushrec.data.columns import role_of

    rows = _read_rows(path)
    if any(len(row) > 1 for row in rows):
        return read_own_ratings(path)
    names = [row[0].strip() for row in rows]
    return names[1:] if names and role_of(names[0]) == "item" else names


def _read_rows(path: Path) -> list[list[str]]:
    try:
        return [row for row in csv.reader(path.read_text("utf-8-sig").splitlines()) if row]
    except (OSError, UnicodeDecodeError):
        raise DataError(f"{path} must be a readable text file.") from None


def is_number(text: str) -> bool:
    """Return whether a text is a number."""
    try:
        float(text)
    except ValueError:
        return False
    return True
