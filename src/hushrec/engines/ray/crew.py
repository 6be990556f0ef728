"""A pool of Ray actors (`Crew`); each actor holds the workers of some parts of the people.

The result of a call depends only on the worker's part and the arguments, so that Ray may repeat the call. If an actor
dies, Ray restarts it on any machine of the cluster, and the actor makes its workers again from their parts.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numba
import ray

from hushrec.engines.sharded.crew import MakeWorker

FOREVER = -1  # Ray's value for unlimited restarts and retries
RATINGS_PER_PART = 10_000_000  # largest number: making a worker needs several times the worker's final memory


class Host:
    """A Ray actor: one process on one core, which holds the workers of some parts of the people."""

    def __init__(self) -> None:
        numba.set_num_threads(1)
        self._workers: dict[int, Any] = {}

    def ask(
        self, part: int, make: MakeWorker, source: tuple[Any, ...], function: Callable[..., Any], *arguments: Any
    ) -> Any:
        """Return `function(worker, *arguments)` for the worker of a part.

        If this process lacks the worker, it is first made by `make(*source)`. All arguments are copied, because arrays
        in Ray's object store are read-only and kernels are compiled for writable ones.
        """
        if part not in self._workers:
            self._workers[part] = make(*deepcopy(source))
        return function(self._workers[part], *deepcopy(arguments))


class RayCrew:
    """A pool of workers (`Crew`), held by at most one actor for each core of the connected Ray cluster."""

    def __init__(self) -> None:
        self._n_hosts = int(ray.cluster_resources().get("CPU", 1))
        self._hosts: list[Any] = []
        self._sources: list[Any] = []
        self._make: MakeWorker = tuple

    def n_parts(self, n_ratings: int) -> int:
        """Return the number of parts into which a problem with this number of ratings should be divided.

        It is the smallest multiple of the number of cores for which the mean part has at most `RATINGS_PER_PART`
        ratings.
        """
        return self._n_hosts * max(1, -(-n_ratings // (self._n_hosts * RATINGS_PER_PART)))

    def start(self, make: MakeWorker, sources: Sequence[tuple[Any, ...]]) -> None:
        host = ray.remote(
            max_restarts=FOREVER,
            max_task_retries=FOREVER,
            num_cpus=0,  # reserves no core, since several runs share the cores one after the other
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
