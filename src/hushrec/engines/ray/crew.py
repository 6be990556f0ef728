"""A crew of Ray actors: each keeps the workers of its parts; what is shared goes through the object store once.

Whatever a worker is asked is a function of its part and of arguments, so that Ray may do it again: an actor that dies
is started anew on any machine of the cluster, makes its workers from their parts, and runs what was asked of it.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numba
import ray

from hushrec.engines.sharded.crew import MakeWorker

FOREVER = -1  # how often Ray starts an actor anew and asks it again
RATINGS_PER_PART = 10_000_000  # at most: making a worker takes several times the memory that it keeps


class Host:
    """One process of the cluster, with the workers of some parts, on one core."""

    def __init__(self) -> None:
        numba.set_num_threads(1)
        self._workers: dict[int, Any] = {}

    def ask(
        self, part: int, make: MakeWorker, source: tuple[Any, ...], function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Run a function on the worker of a part; make it where this process does not have it (any more).

        Arrays of the object store are read-only, and kernels are compiled for others: all are copied.
        """
        if part not in self._workers:
            self._workers[part] = make(*deepcopy(source))
        return function(self._workers[part], *deepcopy(arguments))


class RayCrew:
    """One actor for each core of the cluster that this program is connected to."""

    def __init__(self) -> None:
        self._n_hosts = int(ray.cluster_resources().get("CPU", 1))
        self._hosts: list[Any] = []
        self._sources: list[Any] = []
        self._make: MakeWorker = tuple

    def n_parts(self, n_ratings: int) -> int:
        """Return as many for each actor."""
        return self._n_hosts * max(1, -(-n_ratings // (self._n_hosts * RATINGS_PER_PART)))

    def start(self, make: MakeWorker, sources: Sequence[tuple[Any, ...]]) -> None:
        host = ray.remote(
            max_restarts=FOREVER,
            max_task_retries=FOREVER,
            num_cpus=0,  # reserves nothing: several runs, one after the other, share the cores
            scheduling_strategy="SPREAD",
        )(Host)
        self._make, self._sources = make, [ray.put(source) for source in sources]
        self._hosts = [host.remote() for _ in range(min(self._n_hosts, len(sources)))]

    def share(self, value: Any) -> Any:
        return ray.put(value)

    def ask(self, part: int, function: Callable[..., Any], *arguments: Any, n_results: int = 1) -> Any:
        method = self._hosts[part % len(self._hosts)].ask.options(num_returns=n_results)
        return method.remote(part, self._make, self._sources[part], function, *arguments)

    def get(self, result: Any) -> Any:
        return ray.get(result)
