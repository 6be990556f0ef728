"""How much a person rated, and whether two messages come from the same one."""

from dataclasses import dataclass

import numpy as np

from hushrec.audit.attacks import Attack
from hushrec.audit.observation import Observation
from hushrec.audit.selection import likeliest_count
from hushrec.protocols import Sdcf
from hushrec.randomness import FloatArray


@dataclass(frozen=True)
class CountFromSelections:
    """The number of ratings under which the selections are likeliest; without them, of items that come every time."""

    name: str = "count from selections"
    target: str = "metadata"
    claim: str = "none for h; with a profile cap, the number of ratings is covered by epsilon_p"

    def applies_to(self, observation: Observation) -> bool:
        return True

    def guess(self, observation: Observation) -> FloatArray:
        counts, protocol = observation.selection_counts, observation.protocol
        if not isinstance(protocol, Sdcf):
            return np.asarray((counts == observation.n_rounds).sum(axis=1), dtype=np.float64)
        found = [likeliest_count(row, observation.n_rounds, protocol, observation.terms) for row in counts]
        return np.array(found, dtype=np.float64)


@dataclass(frozen=True)
class CountFromValues:
    """The share of reported items whose values give them away as rated."""

    name: str = "count from values"
    target: str = "metadata"
    claim: str = "none: gradient values are not covered"

    def applies_to(self, observation: Observation) -> bool:
        return isinstance(observation.protocol, Sdcf) and observation.terms.model == "mf"

    def guess(self, observation: Observation) -> FloatArray:
        return np.array([float(np.count_nonzero(one.log_odds > 3)) for one in observation.recovered])


@dataclass(frozen=True)
class FinishTiming:
    """Median time from the announcement to "finished": a device computes an error for every rated item."""

    name: str = "timing of finish"
    target: str = "metadata"
    claim: str = "none: when a device answers is not covered"

    def applies_to(self, observation: Observation) -> bool:
        return observation.finish_seconds is not None

    def guess(self, observation: Observation) -> FloatArray:
        assert observation.finish_seconds is not None
        return np.asarray(np.median(observation.finish_seconds, axis=1))


METADATA: tuple[Attack, ...] = (CountFromSelections(), CountFromValues(), FinishTiming())


@dataclass(frozen=True)
class LinkRounds:
    """Uploads of two consecutive rounds without names: the same person sends the same direction.

    The guess is, for every victim's last upload, the position of the last but one that is nearest in angle.
    """

    name: str = "linkage of rounds"
    target: str = "metadata"
    claim: str = "none: messages carry names; this is what leaving them out would be worth"

    def applies_to(self, observation: Observation) -> bool:
        return observation.n_victims > 1 and all(len(trace.parts) > 1 for trace in observation.traces)

    def guess(self, observation: Observation) -> FloatArray:
        earlier = np.array([trace.parts[-2].direction for trace in observation.traces])
        later = np.array([trace.parts[-1].direction for trace in observation.traces])
        return np.asarray(np.argmax(np.abs(later @ earlier.T), axis=1), dtype=np.float64)
