"""Scores of guessed ratings: the share of exact ratings or, on a continuous scale, the share of error removed.

On a continuous scale exact guesses are rare, and the score is

    share of error removed = 1 − Σ |guess − r| / Σ |median − r|,

which is 0 for an attacker who always guesses the median of all ratings, and 1 for one who knows every rating.
"""

from dataclasses import dataclass

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.findings import ERROR_REMOVED, EXACT
from hushrec.audit.rating_levels import RatingLevels


@dataclass(frozen=True)
class ValueScore:
    """The score of guessed ratings on one scale; `blind` is the guess of a rating about which nothing is known."""

    levels: RatingLevels
    blind: float

    @staticmethod
    def on(ratings: FloatArray, levels: RatingLevels) -> "ValueScore":
        """Return the score for these ratings; the blind guess is their median, or their most common value."""
        return ValueScore(levels, float(np.median(ratings)) if levels.continuous else most_common(ratings))

    @property
    def metric(self) -> str:
        """The name of the metric over all ratings of a person."""
        return ERROR_REMOVED if self.levels.continuous else EXACT

    @property
    def metric_of_reported(self) -> str:
        """The name of the metric over the ratings that were reported."""
        return "share_of_error_removed_of_reported" if self.levels.continuous else "share_exact_of_reported"

    def share(self, guess: FloatArray, ratings: FloatArray) -> float:
        """Return the score of a guess of one person's ratings; NaN in the guess stands for the blind guess."""
        found = np.where(np.isnan(guess), self.blind, self.levels.nearest(guess))
        if not self.levels.continuous:
            return float(np.mean(found == ratings))
        blind = float(np.abs(self.blind - ratings).sum())
        return 1 - float(np.abs(found - ratings).sum()) / blind if blind else 0.0

    def chance(self, ratings: FloatArray) -> float:
        """Return the score of blind guesses of one person's ratings."""
        return self.share(np.full(len(ratings), np.nan), ratings)


def most_common(ratings: FloatArray) -> float:
    """Return the most common value."""
    values, counts = np.unique(ratings, return_counts=True)
    return float(values[np.argmax(counts)])
