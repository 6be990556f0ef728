"""Array types, rows grouped by user, `PublicRatings` (ratings that everybody may see), and arrays as bytes."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint32]
BoolArray = npt.NDArray[np.bool_]


def row_starts(counts: npt.ArrayLike) -> IntArray:
    """Return where each group of rows begins, `(n_groups + 1,)`, from the number of rows of each group.

    Group i has the rows `starts[i]` to `starts[i + 1]` (exclusive).
    """
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def by_user(users: IntArray, items: IntArray, n_users: int) -> tuple[IntArray, IntArray]:
    """Return where each user's rows begin after sorting, and the permutation that sorts rows by user and item.

    The first array is `(n_users + 1,)`: user i has the sorted rows `starts[i]` to `starts[i + 1]` (exclusive).
    """
    return row_starts(np.bincount(users, minlength=n_users)), np.lexsort((items, users))


def pack_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return named arrays as bytes, without loss. The bytes are for local storage, not for the network."""
    return msgspec.msgpack.encode({name: (a.dtype.str, a.shape, a.tobytes()) for name, a in arrays.items()})


def unpack_arrays(packed: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return the named arrays, read-only, that `pack_arrays` converted to bytes."""
    entries: dict[str, tuple[str, list[int], bytes]] = msgspec.msgpack.decode(packed)
    return {name: np.frombuffer(data, dtype=dtype).reshape(shape) for name, (dtype, shape, data) in entries.items()}


class PublicRatings(NamedTuple):
    """Public ratings on the scale 1 to 5, for example of volunteers, critics or an open data set.

    `items` are positions in the catalogue, and `values` the rating of each. The ratings of person i are those from
    `starts[i]` to `starts[i + 1]` (exclusive), in ascending order of items.
    """

    starts: IntArray
    items: IntArray
    values: FloatArray

    @property
    def n_people(self) -> int:
        return len(self.starts) - 1
