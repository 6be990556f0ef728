"""Who runs the parts of a problem: this process, one part after the other, or anything with the same four methods.

A *part* says where the training ratings of some people come from; a *worker* holds them and the kernels that run over
them. Whatever a worker is asked is a function of the worker and of arguments, without side effects that matter: a
worker that is lost is made again from its part, and asked again.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hushrec.simulation.training_problem import AnyProblem


class Part(Protocol):
    """Where the training ratings of a part of the people come from."""

    def load(self) -> AnyProblem:
        """Return the problem of these people alone."""


@dataclass(frozen=True)
class InMemory:
    """A part whose ratings the driver holds and hands over."""

    problem: AnyProblem

    def load(self) -> AnyProblem:
        return self.problem


class Worker(Protocol):
    """What a crew keeps of a part: the part, and the kernels over its people."""

    part: Part


MakeWorker = Callable[..., Any]  # from what `Crew.start` was given for a part


class Crew(Protocol):
    """Runs functions on the workers of all parts."""

    def n_parts(self, n_ratings: int) -> int:
        """Return into how many parts so many ratings should be cut."""

    def start(self, make: MakeWorker, sources: Sequence[tuple[Any, ...]]) -> None:
        """Make a worker of each source, now or when it is first asked: `make(*source)`."""

    def share(self, value: Any) -> Any:
        """Hand a value to all workers, once; what is returned stands for it in `ask`."""

    def ask(self, part: int, function: Callable[..., Any], *arguments: Any, n_results: int = 1) -> Any:
        """Run `function(worker, *arguments)` on a part; return what stands for its result, or for its results."""

    def get(self, result: Any) -> Any:
        """Return the value that `ask` or `share` returned something for; waits for it."""


class LocalCrew:
    """Every part in this process, one after the other, on all of Numba's threads; everything stays in memory."""

    def __init__(self, n_parts: int) -> None:
        self._n_parts = n_parts
        self._workers: list[Any] = []

    def n_parts(self, n_ratings: int) -> int:
        return self._n_parts

    def start(self, make: MakeWorker, sources: Sequence[tuple[Any, ...]]) -> None:
        self._workers = [make(*source) for source in sources]

    def share(self, value: Any) -> Any:
        return value

    def ask(self, part: int, function: Callable[..., Any], *arguments: Any, n_results: int = 1) -> Any:
        return function(self._workers[part], *arguments)

    def get(self, result: Any) -> Any:
        return result
