"""The marking attack: a malicious server gives items special vectors and sees along which ones a user vector moves.

A device learns from *all* its ratings, reported or not: its user vector u becomes u + step × mean(e v), where the mean
is over rated items, e is the error of an item and v its vector. The server gives a few items vectors (marks) that are
orthogonal to u and to each other. The direction of the next report then reveals along which marks u has moved. These
are the marks of the rated items, and u moves along each in proportion to the rating. Permanent bits do not protect
against this attack, because the marked items need not be reported.
"""

import math

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.observation import MaybeReport
from hushrec.audit.rank_one import Trace
from hushrec.audit.rating_levels import RatingLevels
from hushrec.protocols.gradient.messages import ItemVectors, Terms

QUIET = 0.0101  # norm of the vectors that are no marks, just above the smallest norm that devices accept
LOUD = 2.0  # norm of a mark, times step size and data weight; shorter if the mark would be longer than `LONGEST`
LONGEST = 99.0  # largest norm of the marks, below the largest norm that devices accept
SURE = 6.0  # score above which an item counts as rated
FEWEST = 3  # smallest number of rounds (to find u, to mark, to read) and of factors (two directions of u, one mark)


def can_mark(terms: Terms) -> bool:
    """Return whether the run has enough factors and rounds (at least three of each) for the marking attack."""
    return terms.n_factors >= FEWEST and terms.max_rounds >= FEWEST


class MarkingServer:
    """A malicious server that gives a few items special vectors (marks) in every even round.

    In the next round it measures along which marks the user vector has moved: the marks of rated items.
    """

    def __init__(self, terms: Terms, items: IntArray, *, rng: np.random.Generator) -> None:
        self.terms = terms
        self.scores = np.full(terms.n_items, np.nan)  # move of u along each mark, in standard deviations of the noise
        self.pulls = np.full(terms.n_items, np.nan)  # move of u along each mark: a rating times an unknown factor
        self._length = 0.3 * math.sqrt(50 / 3)  # approximate norm of u, whose initial values are uniform
        self._seen = Trace(())
        first = rng.standard_normal(terms.n_factors)
        self._known = [first / np.linalg.norm(first)]  # the last directions of u
        self._groups = np.array_split(items, max(1, -(-len(items) // (terms.n_factors - 2))))
        self._asked: IntArray = np.empty(0, dtype=np.int64)
        self._marks = np.empty((0, terms.n_factors))

    @property
    def n_rounds(self) -> int:
        """The number of rounds that the server needs to mark all items, a few at a time, and read their marks."""
        return 2 * len(self._groups) + 1

    def announce(self, round_number: int) -> ItemVectors:
        """Return the item vectors to publish in a round; in even rounds the next few items get marks."""
        table = np.tile(QUIET * self._known[-1], (self.terms.n_items, 1))
        if round_number % 2 == 0:
            self._asked = self._groups[round_number // 2 - 1]
            self._marks = _across(self._known, len(self._asked))
            step = self.terms.step_size(round_number) * self.terms.data_weight
            table[self._asked] = min(LOUD / step, LONGEST) * self._marks
        return ItemVectors(self.terms, round_number, table)

    def receive(self, announcement: ItemVectors, report: MaybeReport) -> None:
        """Receive a device's report on an announcement of this server, or None if the device sent nothing.

        From the report of an odd round, measure how far the user vector moved along the previous round's marks.
        """
        if report is None or announcement.round_number % 2 == 0:
            return
        self._seen = self._seen.followed_by(announcement, report)
        part = self._seen.parts[-1]
        along, before = self._marks @ part.direction, abs(float(part.direction @ self._known[-1]))
        self.scores[self._asked] = along * part.strength / part.noise
        if len(self._asked):
            self.pulls[self._asked] = along / before * self._length
            self._length /= before
        self._known = [self._known[-1], part.direction]

    def ratings(self, levels: RatingLevels) -> FloatArray:
        """Return the recovered ratings, `(n_items,)`; NaN for items that do not count as rated.

        An item counts as rated if the user vector clearly moved along the item's mark, the special vector that this
        server published for it. The moves give the ratings up to a common factor, which is chosen so that the ratings
        fit `levels`, the values that a rating can take.
        """
        found = np.where(self.scores > SURE, self.pulls, np.nan)
        if np.isnan(found).all():
            return found
        middle = float(np.nanmean(found) / levels.mean)
        if levels.continuous:
            return np.asarray(found / middle)
        candidates = found / (middle * np.exp(np.arange(-0.6, 0.6, 0.002))[:, None])
        misses = np.nanmean(np.abs(candidates - levels.nearest(candidates)), axis=1)
        return np.asarray(candidates[np.argmin(misses)])


def _across(directions: list[FloatArray], count: int) -> FloatArray:
    """Return `count` unit vectors, one per row, that are orthogonal to the given directions and to each other."""
    return np.linalg.svd(np.array(directions), full_matrices=True)[2][len(directions) :][:count]
