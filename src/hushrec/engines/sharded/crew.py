"""The interface of a crew, a pool of workers that run the parts of a problem.

A *part* is a range of people, and knows where their training ratings come from. A *worker* holds these ratings and the
kernels that process them. The result of a call depends only on the worker's part and the arguments, so that a lost
worker can be made again from its part and the call repeated.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hushrec.simulation.training_problem import AnyProblem


class Part(Protocol):
    """A range of people of a training problem, with a method that loads their ratings on any machine."""

    def load(self) -> AnyProblem:
        """Return the problem restricted to the people of this part."""


MakePart = Callable[[int, int], Part]  # (first, stop) → the part with people first … stop − 1


@dataclass(frozen=True)
class InMemory:
    """A part of a problem whose ratings are in memory; the whole part is sent to its worker."""

    problem: AnyProblem

    def load(self) -> AnyProblem:
        return self.problem


@dataclass(frozen=True)
class Worker:
    """A worker for one part of the people. The ratings of the part are in `people`, a `People` or a `MaskedPeople`."""

    part: Any  # a `Part`
    people: Any


MakeWorker = Callable[..., Any]  # makes a worker from one of the `sources` of `Crew.start`


class Crew(Protocol):
    """A pool of workers, one for each part of the people, on which functions can be run.

    `share` and `ask` return a *reference* to a value, which may still be computed on another machine.
    """

    def n_parts(self, n_ratings: int) -> int:
        """Return the number of parts into which a problem with this number of ratings should be divided."""

    def start(self, make: MakeWorker, sources: Sequence[tuple[Any, ...]]) -> None:
        """Set how workers are made: the worker of part i is `make(*sources[i])`, made now or at its first call."""

    def share(self, value: Any) -> Any:
        """Make a value available to all workers; return a reference that `ask` accepts as an argument."""

    def ask(self, part: int, function: Callable[..., Any], *arguments: Any, n_results: int = 1) -> Any:
        """Start `function(worker, *arguments)` on a part's worker, and return a reference to the result.

        References among the arguments are replaced by their values. If the function returns a tuple of `n_results` > 1
        values, return a sequence of references, one for each value.
        """

    def get(self, result: Any) -> Any:
        """Wait for the value of a reference, and return the value."""
