"""The context of the attacks on one run of `masked`: the recorded run, its victims, and its privacy claims."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.devices import Clock, People
from hushrec.audit.findings import Subject
from hushrec.audit.masked import readings, trials
from hushrec.audit.masked.sums import PersonTables, Profile, SeenRun
from hushrec.audit.observed_run import item_popularity
from hushrec.models import find_model
from hushrec.simulation.settings import Settings
from hushrec.simulation.training_problem import AnyProblem

NEARLY = 0.97  # fraction of the largest distance, from which a victim counts as one of the longest


@dataclass(frozen=True, eq=False)
class Watched:
    """One recorded run with one budget, its victims, and values that several attacks use.

    `problem` holds the true ratings, which only the scoring of attacks may use. An attack uses `seen`, the public
    tables and sums of the run, and the knowledge that its docstring names.
    """

    settings: Settings
    problem: AnyProblem = field(repr=False)
    seen: SeenRun = field(repr=False)
    victims: IntArray = field(repr=False)
    people: People | None = field(default=None, repr=False)  # known attributes of everybody; None: do not attack them
    clock: Clock | None = field(default=None, repr=False)  # returns the time in seconds; None: do not attack by timing

    @property
    def label(self) -> str:
        """The protocol and budget as the name of this run in an audit, such as "masked ε=8"."""
        return label_of(self.settings)

    @cached_property
    def budget(self) -> dict[str, Any]:
        """The privacy budget of the run, as `PricedPlan.statement` returns it.

        "epsilon" is ε for a whole profile, "item_level" is ε for one rating or profile that is replaced, "delta" is
        the δ of both, and "mu" is the same budget as Gaussian privacy.
        """
        statement: dict[str, Any] = self.problem.terms.priced.statement()
        return statement

    @property
    def profile_claim(self) -> str:
        return f"whole profile: ε = {self.budget['epsilon']:g}"

    @property
    def rating_claim(self) -> str:
        return f"one rating: ε = {self.budget['item_level']:.3g}"

    @property
    def predicts_values(self) -> bool:
        """Whether the model predicts ratings, not only a ranking."""
        return find_model(self.settings.model).predicts != "ranking"

    def draws(self, part: int) -> np.random.Generator:
        """Return random generator number `part`; each attack has its own, so that attacks do not affect each other."""
        return np.random.default_rng([self.settings.seed, 9, part])

    def tables(self, profile: Profile, run: SeenRun | None = None) -> PersonTables:
        """Return the tables of a device with this profile, without noise, in all rounds of `run` (default: `seen`)."""
        return (run or self.seen).tables(profile, rng=self.draws(0))

    @cached_property
    def victims_tables(self) -> list[PersonTables]:
        return [self.tables(self.problem.profile(user)) for user in self.victims]

    @cached_property
    def left(self) -> list[readings.Left]:
        """For each victim, what remains of every block's sum after the tables of all other people are subtracted."""
        rng = self.draws(1)
        return [readings.left_of(self.seen, tables, rng=rng) for tables in self.victims_tables]

    @cached_property
    def longest(self) -> int:
        """The index in `victims` of the person for attacks on a single profile, chosen without looking at any noise.

        The candidates are the victims who are easiest to detect: the norm of their tables, in standard deviations of
        the noise, is at least `NEARLY` times the largest. Of these, it is the one with the fewest non-zero entries,
        for speed. In a run without noise, it is the victim with the most ratings.
        """
        distances = np.array([trials.distance(self.seen, tables) for tables in self.victims_tables])
        if math.isinf(distances.max()):
            return int(np.argmax(self.problem.rated_counts[self.victims]))
        sizes = np.array([sum(map(len, tables.positions)) for tables in self.victims_tables])
        return int(np.argmin(np.where(distances >= NEARLY * distances.max(), sizes, np.inf)))

    @cached_property
    def others(self) -> IntArray:
        """The people with ratings who are not victims."""
        return np.setdiff1d(np.flatnonzero(self.problem.rated_counts > 0), self.victims)

    @cached_property
    def popularity(self) -> FloatArray:
        """The fraction of the people other than victims who rated each item, `(n_items,)`."""
        return item_popularity(self.problem, self.others)

    @cached_property
    def usual_count(self) -> float:
        """The median number of ratings of the people who are not victims."""
        return float(np.median(self.problem.rated_counts[self.others]))

    def subject(self, name: str, target: str, claim: str) -> Subject:
        return Subject(self.label, name, target, claim)


def label_of(settings: Settings) -> str:
    """Return the protocol and budget as the name of a run in an audit, such as "masked ε=8"."""
    return f"{settings.protocol} ε={settings.options['epsilon']:g}"


def owners(problem: AnyProblem) -> IntArray:
    """Return the user of each rating, in the order of `problem.items`."""
    return np.repeat(np.arange(problem.n_users), problem.rated_counts)


def without_profiles(problem: AnyProblem, users: IntArray) -> AnyProblem:
    """Return the problem without the ratings of these users; their devices still take part."""
    return without_ratings(problem, np.flatnonzero(np.isin(owners(problem), users)))


def without_ratings(problem: AnyProblem, rows: IntArray) -> AnyProblem:
    """Return the problem without the ratings at these positions; all devices still take part."""
    counts = np.bincount(np.delete(owners(problem), rows), minlength=problem.n_users)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return replace(problem, starts=starts, items=np.delete(problem.items, rows), values=np.delete(problem.values, rows))
