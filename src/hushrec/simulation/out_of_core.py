"""Out-of-core training on one machine: only one part of the people's data is in memory at a time.

Arrays that are computed for a part, such as the vectors of its users, are stored in a temporary folder and read back as
memory maps. A file is removed when no object refers to its array any more.
"""

import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hushrec.engines.sharded.crew import MakeWorker


class Stored:
    """An array that is stored in a file. The file is removed when this object is garbage-collected."""

    def __init__(self, path: Path, array: Any) -> None:
        self._path = path
        np.save(path, array)
        weakref.finalize(self, path.unlink, missing_ok=True)

    def array(self) -> Any:
        """Return the array as a copy-on-write memory map, because compiled kernels require writable arrays."""
        return np.asarray(np.load(self._path, mmap_mode="c"))


class DiskCrew:
    """A `Crew` (a pool of workers) in this process: it computes one part after the other, to save memory.

    A part has about `ratings_at_once` ratings.
    """

    def __init__(self, scratch: Path, ratings_at_once: int) -> None:
        self._scratch, self._ratings_at_once = scratch, ratings_at_once
        self._make: MakeWorker = tuple
        self._sources: Sequence[tuple[Any, ...]] = ()
        self._n_stored = 0

    def n_parts(self, n_ratings: int) -> int:
        return -(-n_ratings // self._ratings_at_once)

    def start(self, make: MakeWorker, sources: Sequence[tuple[Any, ...]]) -> None:
        self._make, self._sources = make, sources

    def share(self, value: Any) -> Any:
        return value

    def ask(self, part: int, function: Callable[..., Any], *arguments: Any, n_results: int = 1) -> Any:
        worker = self._make(*self._sources[part])
        found = function(worker, *(self.get(argument) for argument in arguments))
        return self._kept(found) if n_results == 1 else tuple(self._kept(one) for one in found)

    def get(self, result: Any) -> Any:
        return result.array() if isinstance(result, Stored) else result

    def _kept(self, value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        self._n_stored += 1
        return Stored(self._scratch / f"{self._n_stored}.npy", value)
