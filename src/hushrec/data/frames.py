"""Readers of ratings that are in memory: pandas, polars, Arrow, NumPy, SciPy sparse matrices, and lists of rows.

pandas and pyarrow need not be installed: a pandas frame is read column by column, an Arrow table through the Arrow C
stream.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt
import polars as pl

from hushrec.arrays import IntArray
from hushrec.data.columns import ROLES, choose_columns
from hushrec.data.tables import Table
from hushrec.errors import DataError


@runtime_checkable
class ArrowStream(Protocol):
    """An object that exports the Arrow C stream, such as a pyarrow, DuckDB, polars or pandas table."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@runtime_checkable
class SparseMatrix(Protocol):
    """A SciPy sparse matrix or array of ratings: one row per user, one column per item."""

    shape: tuple[int, ...]

    def tocsr(self) -> Any: ...


RatingTable: TypeAlias = pl.DataFrame | pl.LazyFrame | ArrowStream | npt.NDArray[Any] | Sequence[Sequence[Any]]


def read_frame(data: RatingTable, name: str = "ratings") -> Table:
    """Return an in-memory table as a `Table`; error messages refer to it by `name`."""
    frame = as_polars(data)
    if frame.is_empty():
        raise DataError(f"{name} must have at least one row, got none.")
    return Table(Path(name), frame, frame.columns, np.arange(len(frame)) + 1)


def as_polars(data: RatingTable) -> pl.DataFrame:
    """Return the data as a polars frame.

    Lists of rows and arrays without field names must have the columns user, item and (optional) rating, in this order.
    """
    if isinstance(data, pl.DataFrame | pl.LazyFrame):
        return data.lazy().collect()
    if is_pandas(data):
        frame: Any = data
        return pl.DataFrame({str(name): _pandas_column(frame[name]) for name in frame.columns})
    if isinstance(data, ArrowStream):
        return pl.DataFrame(data)
    if isinstance(data, np.ndarray) and data.dtype.names is None:
        return _from_array(data)
    if isinstance(data, np.ndarray):
        return pl.DataFrame({name: data[name] for name in data.dtype.names or ()})
    if isinstance(data, list | tuple):
        return _from_rows(data)
    raise DataError(
        "ratings must be a polars or pandas frame, an Arrow table, a NumPy array, a SciPy sparse matrix, a list of"
        f" rows, a file or the name of a data set; got {type(data).__name__}."
    )


def is_pandas(data: object) -> bool:
    """Return whether an object is a pandas frame or series, without importing pandas."""
    return type(data).__module__.partition(".")[0] == "pandas"


def _pandas_column(column: Any) -> Any:
    """Return a pandas column as data for polars: numbers, times, truth values, lists of text, or text."""
    if isinstance(column.dtype, np.dtype) and column.dtype.kind in "iufbM":
        return column.to_numpy()
    values = [None if gone else value for value, gone in zip(column.tolist(), column.isna().to_numpy(), strict=True)]
    if all(value is None or isinstance(value, bool) for value in values):
        return values
    if any(isinstance(value, list | tuple | np.ndarray) for value in values):
        rows = [value if isinstance(value, list | tuple | np.ndarray) else [value] for value in values]
        texts = [[str(one) for one in row if one is not None] for row in rows]
        return pl.Series(texts, dtype=pl.List(pl.String))
    return [None if value is None else str(value) for value in values]


def _from_array(array: npt.NDArray[Any]) -> pl.DataFrame:
    if array.ndim != 2 or array.shape[1] not in (2, 3):
        raise DataError(
            f"ratings must be an array with 2 columns (user, item) or 3 (user, item, rating), got shape {array.shape}."
        )
    return _from_columns(array.T)


def _from_rows(rows: Sequence[Sequence[Any]]) -> pl.DataFrame:
    widths = {len(row) for row in rows}
    if len(widths) != 1 or not widths <= {2, 3}:
        raise DataError("ratings must have at least one row, all of the form (user, item, rating) or (user, item).")
    return _from_columns(map(np.asarray, zip(*rows, strict=True)))


def _from_columns(columns: Iterable[npt.NDArray[Any]]) -> pl.DataFrame:
    return pl.DataFrame({role: _id_or_value(column, role) for role, column in zip(ROLES, columns, strict=False)})


def _id_or_value(column: npt.NDArray[Any], role: str) -> Any:
    """Return a column as data for polars; a column contains ids unless its `role` is "rating".

    If all ids of a column of floats are whole, they become integers, so that 4.0 and 4 are the same id.
    """
    if column.dtype.kind in "OUS":
        if role != "rating":
            return [str(value) for value in column]
        return [value if value is None or isinstance(value, str) else str(float(value)) for value in column]
    if role != "rating" and column.dtype.kind == "f" and np.all(column == np.floor(column)):
        return column.astype(np.int64)
    return column


def with_ratings(data: RatingTable, values: Any) -> pl.DataFrame:
    """Return a frame of user, item and rating from a table of pairs (scikit-learn's X) and the pairs' ratings (y)."""
    users, items = read_pairs(data)
    given = np.asarray(values, dtype=np.float64)
    if given.shape != (len(users),):
        raise DataError(f"y must have one rating per row of X: {len(users)} rows, y has shape {given.shape}.")
    return pl.DataFrame({"user": users, "item": items, "rating": given})


def read_pairs(data: RatingTable) -> tuple[pl.Series, pl.Series]:
    """Return the user ids and the item ids of a table as text, row by row; a column of ratings is ignored."""
    chosen = choose_columns(read_frame(data, "pairs"), None, implicit=True)
    return chosen.users, chosen.items


def positions(ids: Iterable[str], known: Sequence[str]) -> IntArray:
    """Return the position of each of `ids` in `known`, or -1 for an id that is not in it."""
    position_of = {name: position for position, name in enumerate(known)}
    return np.array([position_of.get(name, -1) for name in ids], dtype=np.int64)
