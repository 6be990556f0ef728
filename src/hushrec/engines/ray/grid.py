"""Many independent runs on a Ray cluster, one core each. Results do not depend on the cluster."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numba
import ray

from hushrec.engines.ray.crew import FOREVER


def run_all(function: Callable[[Any, Any], Any], common: Any, ones: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    """Run `function(common, one)` on the cluster for each entry `one` of `ones`; yield (index, result) as calls end."""
    task = ray.remote(max_retries=FOREVER, num_cpus=1)(_on_one_core)
    shared = ray.put(common)
    places = {task.remote(function, shared, one): place for place, one in enumerate(ones)}
    while places:
        done, _ = ray.wait(list(places))
        yield places.pop(done[0]), ray.get(done[0])


def _on_one_core(function: Callable[[Any, Any], Any], common: Any, one: Any) -> Any:
    numba.set_num_threads(1)
    return function(common, one)
