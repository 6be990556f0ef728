"""A run of `masked` that was watched, who is attacked in it, and how findings about it are written down."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.devices import Clock
from hushrec.audit.findings import Finding
from hushrec.audit.masked import trials
from hushrec.audit.masked.sums import PersonTables, Profile, SeenRun, profile_of
from hushrec.models import find_model
from hushrec.simulation.settings import Settings
from hushrec.simulation.training_problem import AnyProblem

People = Mapping[str, IntArray]
NEARLY = 0.97  # of the largest distance: of those people, the one with the fewest numbers is the quickest to attack


class Named(NamedTuple):
    """What an attack says of itself."""

    name: str
    target: str
    claim: str


@dataclass(frozen=True, eq=False)
class Watched:
    """One run of one budget. Ratings in it are the judge's; attacks get `seen`, and what each docstring says."""

    settings: Settings
    problem: AnyProblem = field(repr=False)
    seen: SeenRun = field(repr=False)
    victims: IntArray = field(repr=False)
    people: People | None = field(default=None, repr=False)  # attributes of everybody, where they are known
    clock: Clock | None = field(default=None, repr=False)  # None: nothing is timed

    @property
    def label(self) -> str:
        """The column of an audit: protocol and budget."""
        return label_of(self.settings)

    @cached_property
    def budget(self) -> dict[str, Any]:
        """The statement of the run."""
        statement: dict[str, Any] = self.problem.terms.priced.statement()
        return statement

    @property
    def profile_claim(self) -> str:
        """What is claimed for a whole profile."""
        return f"whole profile: ε = {self.budget['epsilon']:g}"

    @property
    def rating_claim(self) -> str:
        """What is claimed for one rating."""
        return f"one rating: ε = {self.budget['item_level']:.3g}"

    @property
    def predicts_values(self) -> bool:
        """Whether the model learns from values."""
        return find_model(self.settings.model).predicts != "ranking"

    def draws(self, part: int) -> np.random.Generator:
        """Return the random numbers of one attack alone: adding an attack changes no other's numbers."""
        return np.random.default_rng([self.settings.seed, 9, part])

    def profile(self, user: int | np.integer[Any]) -> Profile:
        """Rated items and their values."""
        return profile_of(self.problem, int(user))

    def tables(self, profile: Profile, run: SeenRun | None = None) -> PersonTables:
        """A device's integers in this run, or in one with other tables."""
        return (run or self.seen).tables(profile, rng=self.draws(0))

    @cached_property
    def victims_tables(self) -> list[PersonTables]:
        """The integers of every victim's device."""
        return [self.tables(self.profile(user)) for user in self.victims]

    @cached_property
    def longest(self) -> int:
        """The position of a victim whose tables are among the longest: chosen without looking at any noise."""
        distances = np.array([trials.distance(self.seen, tables) for tables in self.victims_tables])
        if math.isinf(distances.max()):
            return int(np.argmax(self.problem.rated_counts[self.victims]))
        sizes = np.array([sum(map(len, tables.places)) for tables in self.victims_tables])
        return int(np.argmin(np.where(distances >= NEARLY * distances.max(), sizes, np.inf)))

    @cached_property
    def others(self) -> IntArray:
        """Everybody with ratings who is not attacked."""
        return np.setdiff1d(np.flatnonzero(self.problem.rated_counts > 0), self.victims)

    @cached_property
    def popularity(self) -> FloatArray:
        """Share of the others who rated each item."""
        kept = np.isin(owners(self.problem), self.others)
        counts = np.bincount(self.problem.items[kept], minlength=self.problem.n_items)
        return np.asarray(counts / max(len(self.others), 1))

    @cached_property
    def usual_count(self) -> float:
        """How many items the others rated, the median."""
        return float(np.median(self.problem.rated_counts[self.others]))

    def finding(
        self, name: str, target: str, metric: str, value: float, claim: str, *, rate: float | None = None, **more: Any
    ) -> Finding:
        """Write down what an attack achieved."""
        return Finding(
            protocol=self.label,
            name=name,
            target=target,
            metric=metric,
            value=value,
            claim=claim,
            tpr_at_1pct_fpr=rate,
            **more,
        )


def label_of(settings: Settings) -> str:
    """The column of an audit: protocol and budget."""
    return f"{settings.protocol} ε={settings.options['epsilon']:g}"


def owners(problem: AnyProblem) -> IntArray:
    """Return the person of each rating."""
    return np.repeat(np.arange(problem.n_users), problem.rated_counts)


def without_profiles(problem: AnyProblem, users: IntArray) -> AnyProblem:
    """Return the problem with these people's devices still there, and empty."""
    return without_ratings(problem, np.flatnonzero(np.isin(owners(problem), users)))


def without_ratings(problem: AnyProblem, rows: IntArray) -> AnyProblem:
    """Return the problem without these ratings; everybody's device is still there."""
    counts = np.bincount(np.delete(owners(problem), rows), minlength=problem.n_users)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return replace(problem, starts=starts, items=np.delete(problem.items, rows), values=np.delete(problem.values, rows))
