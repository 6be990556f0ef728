"""Scores for guessed ratings: the fraction of exact ratings or, on a continuous scale, of the error removed.

On a continuous scale exact guesses are rare, and the score is

    fraction of error removed = 1 − Σ |guess − r| / Σ |median − r|.

It is 0 for an attacker who always guesses the median of all ratings, and 1 for one who knows every rating.
"""

from dataclasses import dataclass

import numpy as np
from scipy.stats import mode

from hushrec.arrays import FloatArray
from hushrec.audit.findings import ERROR_REMOVED, EXACT
from hushrec.audit.rating_levels import RatingLevels


@dataclass(frozen=True)
class ValueScore:
    """The scoring of guessed ratings on the scale `levels`; `blind` is the guess of an attacker who sees no message."""

    levels: RatingLevels
    blind: float  # the guess for a rating that the attack does not guess

    @staticmethod
    def on(ratings: FloatArray, levels: RatingLevels) -> "ValueScore":
        """Return the scoring whose blind guess is the mode of `ratings` or, on a continuous scale, their median."""
        return ValueScore(levels, float(np.median(ratings) if levels.continuous else mode(ratings).mode))

    @property
    def metric(self) -> str:
        """The name of the metric over all ratings of a person, such as "share_of_ratings_exact"."""
        return ERROR_REMOVED if self.levels.continuous else EXACT

    @property
    def metric_of_reported(self) -> str:
        """The name of the metric over the ratings in reports only, such as "share_exact_of_reported"."""
        return "share_of_error_removed_of_reported" if self.levels.continuous else "share_exact_of_reported"

    def share(self, guess: FloatArray, ratings: FloatArray) -> float:
        """Return the score of guesses of one person's ratings; NaN in `guess` stands for the blind guess."""
        found = np.where(np.isnan(guess), self.blind, self.levels.nearest(guess))
        if not self.levels.continuous:
            return float(np.mean(found == ratings))
        blind = float(np.abs(self.blind - ratings).sum())
        return 1 - float(np.abs(found - ratings).sum()) / blind if blind else 0.0

    def chance(self, ratings: FloatArray) -> float:
        """Return the score of guessing all of one person's ratings blindly."""
        return self.share(np.full(len(ratings), np.nan), ratings)
