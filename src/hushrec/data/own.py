"""Readers of one person's own ratings from a small file, for `device import` and `recommend --user-ratings`."""

from collections.abc import Collection
from pathlib import Path

from hushrec.errors import DataError
from hushrec.scale import Scale


def read_own_ratings(path: Path) -> dict[str, float]:
    """Return the ratings in a file with the columns item and rating, by item."""
    lines, items, ratings = _read_columns(path)
    if lines and not ratings:
        raise _not_rated(path, lines[0])
    return dict(zip(items, ratings, strict=True))


def read_own_profile(path: Path, items: Collection[str], scale: Scale) -> dict[str, float] | list[str]:
    """Return the ratings in a file by item or, if the file has only one column, the list of items.

    `items` and `scale` belong to a run; raise `DataError` for an item that is not in `items` or a rating off the scale.
    """
    lines, own_items, ratings = _read_columns(path)
    if not lines:
        raise DataError(f"{path} must contain at least one rating. Write an item and its rating on each line.")
    known, profile = set(items), dict[str, float]()
    for line, item, rating in zip(lines, own_items, ratings or [scale.low] * len(lines), strict=True):
        location = f"{path}, line {line}"
        if item not in known:
            raise DataError(
                f"{location}: expected one of the {len(known)} items of the run. Correct or remove the line."
            )
        if item in profile:
            raise DataError(f"{location}: expected each item once, but an earlier line has this item. Remove one line.")
        if not scale.low <= rating <= scale.high:
            raise DataError(
                f"{location}: expected a rating on the scale of the run, {scale}. Correct or remove the line."
            )
        profile[item] = rating
    return profile if ratings else list(profile)


def _read_columns(path: Path) -> tuple[list[int], list[str], list[float]]:
    """Return the line numbers, the items and the ratings in a file; no ratings if the file has only one column.

    Columns are found by usual names in line 1, as in rating files. If line 1 has no such name, it is data, and the
    columns are item and rating, in this order.
    """
    from hushrec.data.columns import clean_ids, role_of, with_decimal_points
    from hushrec.data.tables import read_table

    table = read_table(path, one_column=True)
    wanted = ["item", "rating"][: table.frame.width]
    named = [role_of(name) for name in table.first_row()]
    roles = named if any(named) else wanted
    if table.frame.width != len(wanted) or set(roles) != set(wanted):
        raise _not_rated(path, table.first_line)
    body = table.without_first() if any(named) and table.names is None else table
    columns = dict(zip(roles, body.frame, strict=True))
    lines, items = body.lines.tolist(), clean_ids(body, columns["item"], "item").to_list()
    if "rating" not in columns:
        return lines, items, []
    ratings = with_decimal_points(columns["rating"]).cast(float, strict=False)
    bad = ~ratings.is_finite().fill_null(False)
    if bad.any():
        raise _not_rated(path, lines[bad.arg_max() or 0])
    return lines, items, ratings.to_list()


def _not_rated(path: Path, line: int) -> DataError:
    return DataError(
        f"{path}, line {line}: expected an item and its rating, or a header with the names item and rating. Correct or"
        " remove the line."
    )


def is_number(text: str) -> bool:
    """Return whether a text can be converted to a float."""
    try:
        float(text)
    except ValueError:
        return False
    return True
