"""Parts of a folder of shards: a range of people, whose ratings are read by the worker that trains on them.

Ratings are split into training and test ratings exactly as those of the file that the shards were made from.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from hushrec.arrays import BoolArray, FloatArray, IntArray, row_starts
from hushrec.data.shards import Shards
from hushrec.data.splits import random_split
from hushrec.scale import Scale
from hushrec.simulation.training_problem import AnyProblem


class HoldOut(NamedTuple):
    """Which ratings are held out for testing, by `kind`: "none", a "fifth" of all ratings, or "one" of each person.

    People with a single rating keep it for training if `kind` is "one".
    """

    kind: str
    n_ratings: int  # of all people
    seed: int  # of the split


@lru_cache(maxsize=1)
def _fifth(n_ratings: int, seed: int) -> BoolArray:
    held = np.zeros(n_ratings, np.bool_)
    held[random_split(n_ratings, seed).test] = True
    return held


@lru_cache(maxsize=1)
def _places(n_ratings: int, seed: int) -> IntArray:
    """Return the position of each rating in a random order of all ratings.

    `leave_one_out` holds out, of each person, the rating that comes first in this order.
    """
    places = np.empty(n_ratings, np.int64)
    places[np.random.default_rng(seed).permutation(n_ratings)] = np.arange(n_ratings)
    return places


@dataclass(frozen=True)
class ShardPart:
    """A range of people in a folder of shards, `first` to `stop` − 1; the part's worker reads their ratings."""

    shards: Shards
    first: int
    stop: int
    places: IntArray  # from an item's number in the shards to its position among the items of the run
    scale: Scale | None  # None for a model that ranks, which ignores values
    hold_out: HoldOut
    without_ratings: AnyProblem | None = None  # everybody's problem, with no ratings in it; None until it is made

    def read(self) -> tuple[IntArray, IntArray, FloatArray, BoolArray]:
        """Return users, items, values, and whether the rating is held out, each with one entry per rating.

        Users count from 0 in this part. Values are on the file's scale, or 1 for a model that ranks.
        """
        own = self.shards.read(self.first, self.stop)
        users = np.repeat(np.arange(self.stop - self.first), np.diff(own.starts))
        values = np.ones(len(users)) if self.scale is None or own.values is None else own.values
        held, items = self._held_out(users, own.rows), self.places[own.items]
        if np.all(self.places[1:] > self.places[:-1]):
            return users, items, values, held  # already sorted
        order = np.lexsort((items, users))
        return users, items[order], values[order], held[order]

    def _held_out(self, users: IntArray, rows: IntArray) -> BoolArray:
        kind, n_ratings, seed = self.hold_out
        if kind == "fifth":
            return _fifth(n_ratings, seed)[rows]
        held = np.zeros(len(rows), np.bool_)
        if kind == "one" and len(rows):
            order = np.lexsort((_places(n_ratings, seed)[rows], users))
            _, first, counts = np.unique(users[order], return_index=True, return_counts=True)
            held[order[first[counts >= 2]]] = True
        return held

    def load(self) -> AnyProblem:
        """Return the training problem of these people, with their training ratings only."""
        assert self.without_ratings is not None
        users, items, values, held = self.read()
        counts = np.bincount(users[~held], minlength=self.stop - self.first)
        unit = values[~held] if self.scale is None else self.scale.to_unit(values[~held])
        return replace(
            self.without_ratings,
            n_users=self.stop - self.first,
            starts=row_starts(counts),
            items=items[~held],
            values=unit,
            first_user=self.first,
        )


class Seen(NamedTuple):
    """Counts and sums of the ratings of one part, or of all parts together; sums are on the file's scale."""

    by_person: IntArray  # number of training ratings
    by_item: IntArray  # number of training ratings
    sums: FloatArray  # of training values, by item
    tested: IntArray  # number of test ratings, by item
    n_cold: int  # people who have test ratings only

    @property
    def mean(self) -> float:
        return float(self.sums.sum() / self.by_item.sum())


def see(part: ShardPart, n_items: int) -> Seen:
    """Read a part, and return its counts and sums."""
    users, items, values, held = part.read()
    n_people = part.stop - part.first
    counts = np.bincount(users[~held], minlength=n_people)
    n_cold = np.count_nonzero((np.bincount(users[held], minlength=n_people) > 0) & (counts == 0))
    by_item, tested = (np.bincount(items[rows], minlength=n_items) for rows in (~held, held))
    sums = np.bincount(items[~held], values[~held], n_items).astype(np.float64)
    return Seen(counts, by_item, sums, tested, int(n_cold))
