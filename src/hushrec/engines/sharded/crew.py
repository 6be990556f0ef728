"""The interface of a crew, which runs the parts of a problem on workers, and a crew in this process.

A *part* knows where the training ratings of some people come from. A *worker* holds these ratings and the kernels that
process them. The result of a call depends only on the worker's part and the arguments, so that a lost worker can be
made again from its part and the call repeated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hushrec.simulation.training_problem import AnyProblem


class Part(Protocol):
    """The source of the training ratings of a part of the people."""

    def load(self) -> AnyProblem:
        """Return the problem restricted to these people."""


MakePart = Callable[[int, int], Part]  # (first, stop) → the part with people first … stop − 1


@dataclass(frozen=True)
class InMemory:
    """A part whose ratings are in memory and are sent to its worker."""

    problem: AnyProblem

    def load(self) -> AnyProblem:
        return self.problem


MakeWorker = Callable[..., Any]  # makes a worker from one of the `sources` of `Crew.start`


class Crew(Protocol):
    """A set of workers, one for each part, that can run functions.

    `share` and `ask` return a *reference* to a value, which may still be computed on another machine.
    """

    def n_parts(self, n_ratings: int) -> int:
        """Return the number of parts that this number of ratings should be split into."""

    def start(self, make: MakeWorker, sources: Sequence[tuple[Any, ...]]) -> None:
        """Make the worker of each part by `make(*source)`, now or at its first call."""

    def share(self, value: Any) -> Any:
        """Make a value available to all workers; return a reference to pass to `ask` as an argument."""

    def ask(self, part: int, function: Callable[..., Any], *arguments: Any, n_results: int = 1) -> Any:
        """Start function(worker, *arguments) on the worker of a part; return a reference to each of its results."""

    def get(self, result: Any) -> Any:
        """Wait for the value of a reference and return it."""


class LocalCrew:
    """A `Crew` that runs the parts one after the other in this process, on all of Numba's threads."""

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
