"""The ratings that people can give: public, because everybody sees the form, and what turns errors into ratings.

A rating that comes out between two of them was read wrongly, so that a scale of few levels gives away the one factor
that an attacker does not know. A scale of very many is treated as continuous: an exact hit means nothing there, and
what counts is how far off an attacker is.
"""

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.scale import HIGHEST, LOWEST

STARS = np.arange(LOWEST, HIGHEST + 1)
SHARES = np.array([0.06, 0.11, 0.27, 0.34, 0.22])  # how people rate films, by stars: outside knowledge
MOST_LEVELS = 25
FINE = 21  # levels that stand for a continuous scale


@dataclass(frozen=True, eq=False)
class RatingLevels:
    """Ratings on the scale 1 to 5, rising, and how often people give each."""

    values: FloatArray = field(repr=False)
    shares: FloatArray = field(repr=False)
    continuous: bool = False

    @staticmethod
    def of(ratings: FloatArray) -> "RatingLevels":
        """Return the levels that these ratings show; a single one shows nothing, and stars are assumed."""
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
        """Say what kind of scale this is, and what is measured on it."""
        if self.continuous:
            return f"ratings of more than {MOST_LEVELS} values, taken as continuous: the error removed is measured"
        return f"ratings of {len(self)} values: exact hits are measured"

    @property
    def mean(self) -> float:
        """What people give on average."""
        return float(self.values @ self.shares)

    @property
    def deviation(self) -> float:
        """How much what people give varies."""
        return float(np.sqrt((self.values - self.mean) ** 2 @ self.shares))

    @property
    def coarseness(self) -> float:
        """How far a true rating is from its level, as a standard deviation: 0 but for a continuous scale."""
        return float(self.values[1] - self.values[0]) / np.sqrt(12) if self.continuous else 0.0

    def places(self, ratings: FloatArray) -> IntArray:
        """Return the place of the level nearest to each rating."""
        if self._step is None:
            return np.asarray(np.searchsorted((self.values[1:] + self.values[:-1]) / 2, ratings), dtype=np.int64)
        places = np.rint((ratings - self.values[0]) / self._step)
        return np.asarray(np.clip(places, 0, len(self) - 1), dtype=np.int64)

    @property
    def reach(self) -> float:
        """Half the smallest distance between two levels: a guess nearer than this to a rating is a hit."""
        return float(np.diff(self.values).min()) / 2

    def nearest(self, ratings: FloatArray) -> FloatArray:
        """Return the level nearest to each rating; of a continuous scale, the rating brought within it."""
        if self.continuous:
            return np.clip(ratings, LOWEST, HIGHEST)
        with np.errstate(invalid="ignore"):
            return np.where(np.isnan(ratings), np.nan, self.values[self.places(np.nan_to_num(ratings))])

    @cached_property
    def _step(self) -> float | None:
        """The distance between levels, where it is the same between all."""
        steps = np.diff(self.values)
        return float(steps[0]) if np.allclose(steps, steps[0]) else None


WHOLE_STARS = RatingLevels(STARS, SHARES)
