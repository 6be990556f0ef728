"""The levels of a rating scale: the values that a rating can take, which help an attacker to recover ratings.

An attacker knows the errors of one person up to a common factor. With a wrong factor, recovered ratings fall between
the levels, so a scale with few levels reveals the factor. A scale with more than `MOST_LEVELS` levels is treated as
continuous. Attacks on it are scored by their error, because exact hits are rare.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.scale import HIGHEST, LOWEST

STARS = np.arange(LOWEST, HIGHEST + 1)
SHARES = np.array([0.06, 0.11, 0.27, 0.34, 0.22])  # shares of 1 to 5 stars in ratings of films: public knowledge
MOST_LEVELS = 25  # a scale with more levels is treated as continuous
FINE = 21  # number of levels that approximate a continuous scale


@dataclass(frozen=True, eq=False)
class RatingLevels:
    """The values that a rating can take (levels), and the expected frequency of each, which is public knowledge."""

    values: FloatArray = field(repr=False)  # on the scale 1 to 5, increasing
    shares: FloatArray = field(repr=False)  # expected fraction of ratings at each level; the sum is 1
    continuous: bool = False  # whether ratings can lie between the levels

    @staticmethod
    def of(ratings: FloatArray) -> "RatingLevels":
        """Return the levels that occur in these ratings, which are on the scale 1 to 5.

        If fewer than two values occur, return whole stars. If more than `MOST_LEVELS` do, return a continuous scale,
        which `FINE` equally spaced levels approximate.
        """
        values = np.unique(ratings)
        if len(values) < 2:
            return WHOLE_STARS
        continuous = len(values) > MOST_LEVELS
        values = np.linspace(LOWEST, HIGHEST, FINE) if continuous else values
        shares = np.interp(values, STARS, SHARES)
        return RatingLevels(values, shares / shares.sum(), continuous)

    def __len__(self) -> int:
        return len(self.values)

    def in_words(self) -> str:
        """Return a phrase that says how many levels the scale has and how attacks on it are scored."""
        if self.continuous:
            return f"ratings of more than {MOST_LEVELS} values, taken as continuous: the error removed is measured"
        return f"ratings of {len(self)} values: exact hits are measured"

    @property
    def mean(self) -> float:
        """The mean rating that people are expected to give."""
        return float(self.values @ self.shares)

    @property
    def deviation(self) -> float:
        """The standard deviation of the ratings that people are expected to give."""
        return float(np.sqrt((self.values - self.mean) ** 2 @ self.shares))

    @property
    def coarseness(self) -> float:
        """The standard deviation of the error of rounding a rating to a level; 0 if every rating is a level.

        A continuous scale is approximated by equally spaced levels, and its ratings can lie between them.
        """
        return float(self.values[1] - self.values[0]) / np.sqrt(12) if self.continuous else 0.0

    def indices(self, ratings: FloatArray) -> IntArray:
        """Return the index of the level (possible rating) that is nearest to each number."""
        if self._step is None:
            return np.asarray(np.searchsorted((self.values[1:] + self.values[:-1]) / 2, ratings), dtype=np.int64)
        indices = np.rint((ratings - self.values[0]) / self._step)
        return np.asarray(np.clip(indices, 0, len(self) - 1), dtype=np.int64)

    @property
    def reach(self) -> float:
        """Half the smallest distance between two levels; a guess closer than this to a rating counts as exact."""
        return float(np.diff(self.values).min()) / 2

    def nearest(self, ratings: FloatArray) -> FloatArray:
        """Return the level nearest to each rating; on a continuous scale, the rating clipped to the scale 1 to 5."""
        if self.continuous:
            return np.clip(ratings, LOWEST, HIGHEST)
        with np.errstate(invalid="ignore"):
            return np.where(np.isnan(ratings), np.nan, self.values[self.indices(np.nan_to_num(ratings))])

    @cached_property
    def _step(self) -> float | None:
        """The distance between neighbouring levels, or None if it is not constant."""
        steps = np.diff(self.values)
        return float(steps[0]) if np.allclose(steps, steps[0]) else None


WHOLE_STARS = RatingLevels(STARS, SHARES)
