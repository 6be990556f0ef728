"""The context of the attacks on one run of `masked`: the recorded run, its victims, and its privacy claims."""

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray, IntArray, row_starts
from hushrec.audit.devices import Clock, People
from hushrec.audit.findings import Subject
from hushrec.audit.masked import readings, trials
from hushrec.audit.masked.sums import PersonTables, Profile, SeenRun
from hushrec.audit.observed_run import item_popularity
from hushrec.models import find_model
from hushrec.simulation.settings import Settings
from hushrec.simulation.training_problem import AnyProblem

NEARLY = 0.97  # fraction of the largest norm of a victim's tables that `Watched.most_visible` accepts


@dataclass(frozen=True, eq=False)
class Watched:
    """One recorded run with one budget, its victims, and values that several attacks use.

    An attack uses `seen`, the public tables and sums of the run. Of the ratings in `problem`, it uses only those that
    its attacker is assumed to know, such as everybody else's. Guesses are scored with all ratings.
    """

    settings: Settings
    problem: AnyProblem = field(repr=False)
    seen: SeenRun = field(repr=False)
    victims: IntArray = field(repr=False)
    people: People | None = field(default=None, repr=False)  # known attributes of everybody; None: do not attack them
    clock: Clock | None = field(default=None, repr=False)  # returns the time in seconds; None: do not attack by timing

    @property
    def label(self) -> str:
        """The name of this run in an audit: its protocol and budget, such as "masked ε=8"."""
        return label_of(self.settings)

    @cached_property
    def budget(self) -> dict[str, Any]:
        """The privacy budget of the run, as `PricedPlan.statement` returns it.

        "epsilon" is ε for a whole profile, "item_level" is ε for one rating or profile that is replaced, and "delta" is
        the δ of both. "mu" is the parameter μ of Gaussian privacy for a whole profile.
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
        """Return random generator number `part`; each attack has its own generator, so that attacks are independent."""
        return np.random.default_rng([self.settings.seed, 9, part])

    def tables(self, profile: Profile, run: SeenRun | None = None) -> PersonTables:
        """Return the tables of a device with this profile, without noise, in all rounds of `run` (default: `seen`)."""
        return (run or self.seen).tables(profile, rng=self.draws(0))

    @cached_property
    def victims_tables(self) -> list[PersonTables]:
        return [self.tables(self.problem.profile(user)) for user in self.victims]

    @cached_property
    def left(self) -> list[readings.Left]:
        """For each victim, the result of subtracting the tables of all other people from every block's sum."""
        rng = self.draws(1)
        return [readings.left_of(self.seen, tables, rng=rng) for tables in self.victims_tables]

    @cached_property
    def most_visible(self) -> int:
        """The index in `victims` of the person for attacks on a single profile, chosen without looking at any noise.

        The candidates are the victims who are easiest to detect: the norm of their tables, in standard deviations of
        the noise, is at least `NEARLY` times the largest such norm. For speed, the candidate whose tables have the
        fewest non-zero entries is chosen. In a run without noise, it is the victim with the most ratings.
        """
        distances = np.array([trials.mu_between(self.seen, tables) for tables in self.victims_tables])
        if math.isinf(distances.max()):
            return int(np.argmax(self.problem.rated_counts[self.victims]))
        sizes = np.array([sum(own.nnz for own in tables) for tables in self.victims_tables])
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
    """Return the name of a run in an audit: its protocol and budget, such as "masked ε=8"."""
    return f"{settings.protocol} ε={settings.options['epsilon']:g}"


def without_profiles(problem: AnyProblem, users: IntArray) -> AnyProblem:
    """Return the problem without the ratings of these users; their devices still take part."""
    return without_ratings(problem, np.flatnonzero(np.isin(problem.rating_users, users)))


def without_ratings(problem: AnyProblem, rows: IntArray) -> AnyProblem:
    """Return the problem without the ratings at these positions; all devices still take part."""
    starts = row_starts(np.bincount(np.delete(problem.rating_users, rows), minlength=problem.n_users))
    return replace(problem, starts=starts, items=np.delete(problem.items, rows), values=np.delete(problem.values, rows))
