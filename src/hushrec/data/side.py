"""Public attributes of items as numeric columns, for models that learn from attributes."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl

from hushrec.arrays import FloatArray
from hushrec.data.ratings import Ratings
from hushrec.errors import ParameterError

LARGEST_NORM = 0.7


def attribute_names(ratings: Ratings) -> list[str]:
    """Return the names of the items' attributes, such as `genre` for all flags `genre=…`, or `year` for a number."""
    columns = [] if ratings.attributes is None else ratings.attributes.columns
    return list(dict.fromkeys(column.partition("=")[0] for column in columns))


def side_columns(ratings: Ratings, wanted: str | None = None) -> FloatArray | None:
    """Return the attributes in `wanted` as scaled columns, `(n_items, n_columns)`; None if there are none.

    `wanted` has names of attributes, separated by commas, or is "none"; None means all attributes. Flags are divided by
    the square root of the number of flags that the item has for the same attribute. Numbers are centred and divided by
    their largest deviation from the mean; a missing number becomes 0, the mean. Finally all columns are multiplied by
    `LARGEST_NORM` / √(number of attributes). Then no item's row has a norm above `LARGEST_NORM`, and one step size
    suits every file.
    """
    available = attribute_names(ratings)
    names = available if wanted is None else [name.strip() for name in wanted.split(",")]
    if names == ["none"] or not names:
        return None
    unknown = [name for name in names if name not in available]
    if unknown:
        allowed = f"'none' or names among {', '.join(available)}" if available else "'none' without an items file"
        raise ParameterError(f"attributes must be {allowed}, got {wanted}.")
    assert ratings.attributes is not None
    share = LARGEST_NORM / math.sqrt(len(names))
    return np.asarray(share * np.concatenate([_attribute(ratings.attributes, name) for name in names], axis=1))


def machine_columns(ratings: Ratings, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword argument `attributes` of model `fm`, a factorization machine, as a dict with this one key.

    Its value is the result of `side_columns` for the attributes that `options["attributes"]` names.
    """
    return {"attributes": side_columns(ratings, options["attributes"])}


def _attribute(frame: pl.DataFrame, name: str) -> FloatArray:
    """Return the columns of one attribute, `(n_items, n_categories)` or `(n_items, 1)`; rows have norm 1 at most."""
    chosen = frame.select([column for column in frame.columns if column.partition("=")[0] == name])
    values = chosen.cast(pl.Float64).fill_null(float("nan")).to_numpy().astype(np.float64)
    if chosen.dtypes[0] == pl.Boolean:
        values = np.nan_to_num(values)
        return np.asarray(values / np.sqrt(np.maximum(values.sum(axis=1, keepdims=True), 1)))
    known = np.isfinite(values)
    centred = np.where(known, values - (values[known].mean() if known.any() else 0), 0.0)
    return np.asarray(centred / max(np.abs(centred).max(), np.finfo(np.float64).tiny))
