"""How much of a person's ratings a guess reads: the share of exact hits, or on a continuous scale of the error removed.

On a scale of few levels chance already hits often, and that is said beside. On a continuous scale nothing is hit; there

    share of error removed = 1 − Σ |guess − r| / Σ |median − r|,

0 for somebody who guesses the median of all ratings every time, 1 for somebody who knows every rating.
"""

from dataclasses import dataclass

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.findings import ERROR_REMOVED, EXACT
from hushrec.audit.rating_levels import RatingLevels


@dataclass(frozen=True)
class ValueScore:
    """Scores guesses of ratings on one scale; `blind` is what is guessed of a rating of which nothing is known."""

    levels: RatingLevels
    blind: float

    @staticmethod
    def on(ratings: FloatArray, levels: RatingLevels) -> "ValueScore":
        """Return the score for these ratings: blind guesses are their median, or the commonest of them."""
        return ValueScore(levels, float(np.median(ratings)) if levels.continuous else most_common(ratings))

    @property
    def metric(self) -> str:
        """What is measured of all of a person's ratings."""
        return ERROR_REMOVED if self.levels.continuous else EXACT

    @property
    def metric_of_reported(self) -> str:
        """What is measured of the ratings that were reported."""
        return "share_of_error_removed_of_reported" if self.levels.continuous else "share_exact_of_reported"

    def share(self, guess: FloatArray, ratings: FloatArray) -> float:
        """Return how much of one person's ratings a guess reads; NaN where it knows nothing."""
        found = np.where(np.isnan(guess), self.blind, self.levels.nearest(guess))
        if not self.levels.continuous:
            return float(np.mean(found == ratings))
        blind = float(np.abs(self.blind - ratings).sum())
        return 1 - float(np.abs(found - ratings).sum()) / blind if blind else 0.0

    def chance(self, ratings: FloatArray) -> float:
        """Return what blind guesses read of one person's ratings."""
        return self.share(np.full(len(ratings), np.nan), ratings)


def most_common(ratings: FloatArray) -> float:
    """The value that occurs most."""
    values, counts = np.unique(ratings, return_counts=True)
    return float(values[np.argmax(counts)])
