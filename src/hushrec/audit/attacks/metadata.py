"""How much a person rated, and whether two messages come from the same one."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.optimize import linear_sum_assignment

from hushrec.audit.attacks import Attack
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import UploadParts
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
    """Time from the announcement to "finished" in a quiet round, less what an upload's length by chance explains.

    A device computes an error for every rated item, reported or not; how much longer a longer upload takes is told
    by the rounds of each person among themselves.
    """

    name: str = "timing of finish"
    target: str = "metadata"
    claim: str = "none: when a device answers is not covered"

    def applies_to(self, observation: Observation) -> bool:
        return observation.finish_seconds is not None

    def guess(self, observation: Observation) -> FloatArray:
        assert observation.finish_seconds is not None
        seconds = observation.finish_seconds
        lengths = np.array([[0 if one is None else len(one.items) for one in row] for row in observation.uploads])
        length_turns = lengths - lengths.mean(axis=1, keepdims=True)
        turns = seconds - np.median(seconds, axis=1, keepdims=True)
        per_item = float((length_turns * turns).sum() / max(float((length_turns**2).sum()), 1.0))
        by_chance = isinstance(observation.protocol, Sdcf)  # else the length tells what is asked, as the time does
        return np.asarray(np.quantile(seconds - by_chance * max(per_item, 0.0) * lengths, 0.25, axis=1))


METADATA: tuple[Attack, ...] = (CountFromSelections(), CountFromValues())


MOVED = 0.003  # deviation of a direction's numbers from one round to the next
STRANGERS = 0.06  # and from one person to another


@dataclass(frozen=True)
class LinkRounds:
    """Uploads of two consecutive rounds without names: one person sends one direction, and draws on the same bits.

    Scores are in nats for "the same person"; each upload is joined to one of the round before, so that the sum of
    scores is largest.
    """

    name: str = "linkage of rounds"
    target: str = "metadata"
    claim: str = "none: messages carry names; this is what leaving them out would be worth"

    def applies_to(self, observation: Observation) -> bool:
        return observation.n_victims > 1 and all(len(trace.parts) > 1 for trace in observation.traces)

    def scores(self, observation: Observation) -> FloatArray:
        """Rows are victims' last uploads, columns the last but one."""
        later, earlier = ([trace.parts[-back] for trace in observation.traces] for back in (1, 2))
        return np.array([[_same_direction(a, b) + _same_bits(a, b, observation) for b in earlier] for a in later])

    def guess(self, observation: Observation) -> FloatArray:
        return np.asarray(linear_sum_assignment(-self.scores(observation))[1], dtype=np.float64)


def _same_direction(one: UploadParts, other: UploadParts) -> float:
    """Both directions are known up to noise; those of strangers differ by more."""
    turn = 2 - 2 * abs(float(one.direction @ other.direction))
    variance = (one.noise / one.strength) ** 2 + (other.noise / other.strength) ** 2 + MOVED**2
    apart = variance + STRANGERS**2
    return turn / 2 * (1 / apart - 1 / variance) + len(one.direction) / 2 * math.log(apart / variance)


def _same_bits(one: UploadParts, other: UploadParts, observation: Observation) -> float:
    """About half of the permanent bits are ones: the same ones twice share twice as many items as chance."""
    shared = len(np.intersect1d(one.items, other.items, assume_unique=True))
    return shared * math.log(2) - len(one.items) * len(other.items) / observation.terms.n_items
