"""Treatment of repeated (user, item) pairs: the rows to keep, their mean rating, and the error for a repeated pair."""

from pathlib import Path

import numpy as np
import polars as pl

from hushrec.data.ratings import BoolArray, FloatArray, IntArray
from hushrec.errors import DataError

DUPLICATES = ("refuse", "first", "last", "mean")


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


def mean_by_pair(pairs: pl.Series, values: FloatArray) -> FloatArray:
    """Return for each row the mean value of all rows with the same pair."""
    frame = pl.DataFrame({"pair": pairs, "value": values})
    means = frame.select(pl.col("value").mean().over("pair")).to_series()
    return means.to_numpy().astype(np.float64)


def duplicate_error(path: Path, unit: str, first: int, second: int, count: int) -> DataError:
    """Return the error for a file with repeated pairs.

    Line `second` has the same pair as line `first`; `count` lines repeat an earlier pair. `unit` is what the message
    calls a line: "line" or "row".
    """
    return DataError(
        f"{path}, {unit} {second}: expected each (user, item) pair once, but this pair is also in {unit} {first};"
        f" {count} rows repeat an earlier pair. Pass --duplicates first, last or mean (in Python: duplicates=...) to"
        " keep one of each."
    )
