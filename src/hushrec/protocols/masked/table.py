"""The public table of a masked run with model `gp`, and checks for the public tables of all models."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, TypeVar

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import RemoteProtocolError
from hushrec.protocols.masked.secagg.primitives import TABLE_LABEL, digest, number

LARGEST_ENTRY = 1e6
TableT = TypeVar("TableT")


def freeze_entries(table: Any) -> None:
    """Round the arrays of a table to float32 and make them read-only.

    Messages carry float32 numbers, so the server and all devices compute with the same numbers. Raise
    `RemoteProtocolError` for an entry that is not finite or above `LARGEST_ENTRY` in absolute value.
    """
    for entry in fields(table):
        with np.errstate(over="ignore"):  # a number beyond float32 becomes infinite and is refused below
            values = np.ascontiguousarray(getattr(table, entry.name), dtype=np.float32).astype(np.float64)
        if not np.all(np.abs(values) <= LARGEST_ENTRY):
            raise RemoteProtocolError(
                f"{entry.name} of a public table must be finite and at most {LARGEST_ENTRY:g} in absolute value."
                " Devices refuse the table."
            )
        values.flags.writeable = False
        object.__setattr__(table, entry.name, values)


def published_digest(published: Mapping[str, Any]) -> bytes:
    """Return the SHA-256 of a public table, computed from the name, shape and float32 numbers of each array."""
    parts = []
    for name, array in sorted(published.items()):
        lengths = (len(name), array.ndim, *array.shape)
        parts += [b"".join(map(number, lengths)), name.encode(), np.asarray(array, dtype="<f4").tobytes()]
    return digest(TABLE_LABEL, *parts)


def table_in(kind: type[TableT], published: Mapping[str, Any]) -> TableT:
    """Return the public table, of class `kind`, from its arrays; raise `RemoteProtocolError` if one is missing."""
    names = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    missing = [name for name in names if name not in published]
    if missing:
        raise RemoteProtocolError(f"the public table must have an array called {missing[0]}. Devices refuse the table.")
    return kind(**{name: published[name] for name in names})


def check_shapes(table: Any, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raise `RemoteProtocolError` if an array of the table does not have the shape that `expected` has for its name."""
    for name, shape in expected.items():
        found = getattr(table, name).shape
        if found != shape:
            raise RemoteProtocolError(
                f"{name} of a public table must have shape {shape}, got {found}. Devices refuse the table."
            )


@dataclass(frozen=True, eq=False)
class PublicTable:
    """The public table of model `gp` after the rounds so far, in coordinates in which a taste d has the prior N(0, I).

    A device refuses a table with an entry that is not finite or above `LARGEST_ENTRY`, a negative weight, or a variance
    that is not positive: computations could fail on such a table, and a failure could reveal something about the
    ratings.
    """

    offsets: FloatArray = field(repr=False)  # predicted rating at taste d = 0, (n_items,)
    rows: FloatArray = field(repr=False)  # a prediction is offset + rowᵀd, (n_items, L)
    variances: FloatArray = field(repr=False)  # variance of a rating, given the taste, (n_items,)
    weights: FloatArray = field(repr=False)  # multipliers of the rows in bias and audience blocks, (n_items,)
    factor_weights: FloatArray = field(repr=False)  # the same in factor blocks, (n_items,)
    directions: FloatArray = field(repr=False)  # D, (L, n_factors): factor blocks use the scores Dᵀd
    description_centre: FloatArray = field(repr=False)  # mean description of people, (n_taste + 1,)
    description_map: FloatArray = field(repr=False)  # whitens: mapᵀ(description − centre), (n_taste + 1, n_audience)
    log_counts: FloatArray = field(repr=False)  # expected log number of ratings, for ranking, (n_items,)
    length_squared: FloatArray = field(repr=False)  # squared length scale of the kernel, (1,)

    def __post_init__(self) -> None:
        freeze_entries(self)
        if not (np.all(self.variances > 0) and np.all(self.length_squared > 0)):
            raise RemoteProtocolError(
                "variances and length_squared of a public table must be positive. Devices refuse the table."
            )
        if not (np.all(self.weights >= 0) and np.all(self.factor_weights >= 0)):
            raise RemoteProtocolError(
                "weights and factor_weights of a public table must not be negative. Devices refuse the table."
            )
        n_items, length = self.rows.shape if self.rows.ndim == 2 else (-1, -1)
        check_shapes(
            self,
            {
                **dict.fromkeys(("offsets", "variances", "weights", "factor_weights", "log_counts"), (n_items,)),
                "directions": (length, self.directions.shape[-1]),
                "description_map": (len(self.description_centre), self.description_map.shape[-1]),
                "length_squared": (1,),
            },
        )

    @property
    def n_items(self) -> int:
        return len(self.rows)
