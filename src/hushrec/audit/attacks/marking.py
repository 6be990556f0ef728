"""A server that marks items, and reads off a person's vector which of them it was pulled along.

A device learns from *all* its ratings, reported or not: u' = u + η N mean(e v). A server that gives a few items rows
at right angles to u, and to each other, finds in the direction of the next upload which of those rows u moved along:
those of the rated items, each as far as it was rated high. The permanent bits do not help, because nothing of those
items needs to be sent.
"""

import math

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.observation import Upload
from hushrec.audit.rank_one import Trace, take_apart
from hushrec.audit.rating_levels import RatingLevels
from hushrec.protocols.gradient.messages import ItemVectors, Terms

QUIET = 0.0101  # norm of the rows that are not to move anything, just long enough for a device
LOUD = 2.0  # times the step, of the rows that mark
LONGEST = 99.0
SURE = 6.0
FEWEST = 3  # rounds: look, mark, read; and factors: two directions that u may have moved along, and one mark


def can_mark(terms: Terms) -> bool:
    """Return whether a direction is free for a mark, and a round to read it in."""
    return terms.n_factors >= FEWEST and terms.max_rounds >= FEWEST


class MarkingServer:
    """A server that marks a block of items in every even round and reads the mark in the next one."""

    def __init__(self, terms: Terms, items: IntArray, *, rng: np.random.Generator) -> None:
        self.terms = terms
        self.scores = np.full(terms.n_items, np.nan)  # deviations above "unrated", of the items asked for
        self.pulls = np.full(terms.n_items, np.nan)  # what u moved along each mark: a rating times one unknown factor
        self._length = 0.3 * math.sqrt(50 / 3)  # of u, about: start values are uniform
        self._seen = Trace(())
        self._known = [_unit(rng.standard_normal(terms.n_factors))]  # directions that u may have moved along
        self._blocks = np.array_split(items, max(1, -(-len(items) // (terms.n_factors - 2))))
        self._asked: IntArray = np.empty(0, dtype=np.int64)
        self._marks = np.empty((0, terms.n_factors))

    @property
    def n_rounds(self) -> int:
        """Rounds until every block is read."""
        return 2 * len(self._blocks) + 1

    def announce(self, round_number: int) -> ItemVectors:
        """Return the item vectors of a round.

        Even rounds mark the next block, odd ones show what was learned from it.
        """
        table = np.tile(QUIET * self._known[-1], (self.terms.n_items, 1))
        if round_number % 2 == 0:
            self._asked = self._blocks[round_number // 2 - 1]
            self._marks = _across(self._known, len(self._asked))
            table[self._asked] = min(LOUD / self._step(round_number), LONGEST) * self._marks
        return ItemVectors(self.terms, round_number, table)

    def receive(self, announcement: ItemVectors, upload: Upload) -> None:
        """In odd rounds, find the vector's direction and the marks that it moved along."""
        if upload is None or announcement.round_number % 2 == 0:
            return
        part = take_apart(announcement, upload, self._seen.direction)
        self._seen = Trace((*self._seen.parts, part))
        along, before = self._marks @ part.direction, abs(float(part.direction @ self._known[-1]))
        self.scores[self._asked] = along * part.strength / part.noise
        if len(self._asked):
            self.pulls[self._asked] = along / before * self._length
            self._length /= before
        self._known = [self._known[-1], part.direction]

    def ratings(self, levels: RatingLevels) -> FloatArray:
        """Return the ratings of items that seem rated, scaled onto the levels by one factor; NaN for all others."""
        found = np.where(self.scores > SURE, self.pulls, np.nan)
        if np.isnan(found).all():
            return found
        middle = float(np.nanmean(found) / levels.mean)
        if levels.continuous:
            return np.asarray(found / middle)
        candidates = found / (middle * np.exp(np.arange(-0.6, 0.6, 0.002))[:, None])
        misses = np.nanmean(np.abs(candidates - levels.nearest(candidates)), axis=1)
        return np.asarray(candidates[np.argmin(misses)])

    def _step(self, round_number: int) -> float:
        return self.terms.step_size(round_number) * self.terms.data_weight


def _across(directions: list[FloatArray], count: int) -> FloatArray:
    """Return `count` unit vectors orthogonal to the given ones and to each other, one per row."""
    return np.linalg.svd(np.array(directions), full_matrices=True)[2][len(directions) :][:count]


def _unit(vector: FloatArray) -> FloatArray:
    return np.asarray(vector / np.linalg.norm(vector))
