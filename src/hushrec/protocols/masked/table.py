"""The hash of a public table, and the checks that the public tables of all models share."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

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
