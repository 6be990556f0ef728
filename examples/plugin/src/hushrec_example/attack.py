"""An attack on which items a person rated: popular items twice over, and any report of an item on top."""

from dataclasses import dataclass

from hushrec.arrays import FloatArray
from hushrec.audit.observation import Observation


@dataclass(frozen=True)
class TwicePopular:
    """Adds the number of reports of an item to the log odds that anybody rated it."""

    name: str = "twice popular"
    target: str = "existence"
    claim: str = "none: an example"

    def applies_to(self, observation: Observation) -> bool:
        return True

    def guess(self, observation: Observation) -> FloatArray:
        return observation.selection_counts + 2 * observation.popularity_odds


TWICE_POPULAR = TwicePopular()
