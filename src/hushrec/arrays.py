"""The array types of hushrec, ratings that anybody may see, and arrays as bytes for a store."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
WordArray = npt.NDArray[np.uint32]


def pack_arrays(arrays: Mapping[str, npt.NDArray[Any]]) -> bytes:
    """Return arrays by name as bytes, bit for bit: for a store of one's own, never for the wire."""
    return msgspec.msgpack.encode({name: (a.dtype.str, a.shape, a.tobytes()) for name, a in arrays.items()})


def unpack_arrays(packed: bytes) -> dict[str, npt.NDArray[Any]]:
    """Return what `pack_arrays` was given."""
    entries: dict[str, tuple[str, list[int], bytes]] = msgspec.msgpack.decode(packed)
    return {name: np.frombuffer(data, dtype=dtype).reshape(shape) for name, (dtype, shape, data) in entries.items()}


class PublicRatings(NamedTuple):
    """Ratings that anybody may see, on the scale 1 to 5: of volunteers, critics or an open set.

    Person i rated `items[starts[i]:starts[i + 1]]`, rising; items are places in the catalogue.
    """

    starts: IntArray
    items: IntArray
    values: FloatArray

    @property
    def n_people(self) -> int:
        return len(self.starts) - 1
