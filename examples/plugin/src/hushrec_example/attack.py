"""An attack that guesses which items a person has rated, from their popularity and from the person's reports."""

from dataclasses import dataclass

from hushrec.arrays import FloatArray
from hushrec.audit.observation import Observation


@dataclass(frozen=True)
class TwicePopular:
    """Scores an item by the number of reports that name it, plus twice the log odds that anybody has rated it."""

    name: str = "twice popular"
    target: str = "existence"
    claim: str = "none: an example"

    def applies_to(self, observation: Observation) -> bool:
        return True

    def guess(self, observation: Observation) -> FloatArray:
        return observation.selection_counts + 2 * observation.popularity_odds


TWICE_POPULAR = TwicePopular()
