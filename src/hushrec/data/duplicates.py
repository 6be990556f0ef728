"""Repeated (user, item) pairs: which rows to keep, their mean rating, and the error if they are refused."""

from pathlib import Path

import numpy as np
import polars as pl

from hushrec.data.ratings import BoolArray, FloatArray, IntArray
from hushrec.errors import DataError

DUPLICATES = ("refuse", "first", "last", "mean")


def number_pairs(users: IntArray, items: IntArray) -> pl.Series:
    """Return a number for each row that identifies its (user, item) pair."""
    return pl.Series("pair", users * (int(items.max(initial=0)) + 1) + items)


def kept_rows(pairs: pl.Series, mode: str) -> BoolArray | None:
    """Return for each row whether it is the one to keep of its pair; None if no pair is repeated."""
    if pairs.n_unique() == len(pairs):
        return None
    keep = pairs.is_last_distinct() if mode == "last" else pairs.is_first_distinct()
    return np.asarray(keep.to_numpy())


def mean_by_pair(pairs: pl.Series, values: FloatArray) -> FloatArray:
    """Return for each row the mean value of its pair."""
    frame = pl.DataFrame({"pair": pairs, "value": values})
    means = frame.select(pl.col("value").mean().over("pair")).to_series()
    return means.to_numpy().astype(np.float64)


def duplicate_error(path: Path, unit: str, first: int, second: int, count: int) -> DataError:
    """Return the error for a file with repeated pairs.

    Line `second` has the same pair as line `first`; `count` lines repeat an earlier pair. `unit` is the word for a line
    in the message.
    """
    return DataError(
        f"{path}, {unit} {second}: expected each (user, item) pair once, but this pair is also in {unit} {first};"
        f" {count} rows repeat an earlier pair. Pass --duplicates first, last or mean (in Python: duplicates=...) to"
        " keep one of each."
    )
