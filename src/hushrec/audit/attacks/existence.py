"""Which items did this person rate?"""

from dataclasses import dataclass, field

import numpy as np
from scipy.special import logit

from hushrec.audit.attacks import Attack
from hushrec.audit.observation import Observation
from hushrec.audit.selection import likeliest_count, log_ratio, probabilities_for
from hushrec.protocols import Sdcf
from hushrec.randomness import FloatArray

TYPICAL_SIZES = 8.0  # an error this many times the median one is likelier real than fake


@dataclass(frozen=True)
class Popularity:
    """No message at all: popular items are rated by more people. What every other attack must beat."""

    name: str = "popularity"
    target: str = "existence"
    claim: str = "none: known without any message"

    def applies_to(self, observation: Observation) -> bool:
        return True

    def guess(self, observation: Observation) -> FloatArray:
        return np.tile(popularity_odds(observation), (observation.n_victims, 1))


def popularity_odds(observation: Observation) -> FloatArray:
    """Ln odds that somebody rated each item, from other people; never infinite."""
    return np.asarray(logit(np.clip(observation.popularity, 1e-4, 1 - 1e-4)))


@dataclass(frozen=True)
class SelectionAverage:
    """How often an item was reported, as a likelihood ratio over all rounds."""

    name: str = "selection average"
    target: str = "existence"
    claim: str = "selections of all rounds cost at most epsilon_p, profile level"

    def applies_to(self, observation: Observation) -> bool:
        return True

    def guess(self, observation: Observation) -> FloatArray:
        counts, protocol = observation.selection_counts, observation.protocol
        if not isinstance(protocol, Sdcf):
            return counts.astype(np.float64)
        rows = []
        for row in counts:
            h = likeliest_count(row, observation.n_rounds, protocol, observation.terms)
            found = probabilities_for(h, protocol, observation.terms)
            assert found is not None
            chances = found.prob_randomize, found.prob_send_zero, found.prob_send_one
            rows.append(log_ratio(row, observation.n_rounds, *chances))
        return np.array(rows)


@dataclass(frozen=True)
class ErrorSize:
    """A fake error lies within [−α, α]: the largest amplitude that an item ever showed, in its round's typical size."""

    name: str = "error size"
    target: str = "existence"
    claim: str = "Theorem 3: fakes pass for real errors"

    def applies_to(self, observation: Observation) -> bool:
        return isinstance(observation.protocol, Sdcf) and observation.terms.model == "mf"

    def guess(self, observation: Observation) -> FloatArray:
        scores = np.zeros((observation.n_victims, observation.terms.n_items))
        for row, trace in zip(scores, observation.traces, strict=True):
            for part in trace.parts:
                size = np.log1p(np.abs(part.amplitudes) / (np.median(np.abs(part.amplitudes)) + part.noise))
                row[part.items] = np.maximum(row[part.items], size)
        return np.where(observation.selection_counts > 0, scores, np.log1p(TYPICAL_SIZES))


@dataclass(frozen=True)
class ErrorLikelihood:
    """Full against truncated normal, fitted to the victim's own uploads, summed over rounds."""

    name: str = "error likelihood"
    target: str = "existence"
    claim: str = "Theorem 3: fakes pass for real errors"

    def applies_to(self, observation: Observation) -> bool:
        return isinstance(observation.protocol, Sdcf) and observation.terms.model == "mf"

    def guess(self, observation: Observation) -> FloatArray:
        scores = np.zeros((observation.n_victims, observation.terms.n_items))
        for row, trace, laws in zip(scores, observation.traces, observation.laws, strict=True):
            for part, law in zip(trace.parts, laws or [], strict=True):
                row[part.items] += law.log_ratio(part.amplitudes, part.noise)
        return scores


@dataclass(frozen=True)
class ConsistentRatings:
    """A real error leads to the same whole rating in every round, a fake to a new number each time."""

    name: str = "consistent ratings"
    target: str = "existence"
    claim: str = "Theorem 3: fakes pass for real errors, over all rounds"

    def applies_to(self, observation: Observation) -> bool:
        return isinstance(observation.protocol, Sdcf) and observation.terms.model == "mf"

    def guess(self, observation: Observation) -> FloatArray:
        return np.array([one.log_odds for one in observation.recovered])


@dataclass(frozen=True)
class OppositeDirections:
    """One-class: a rated item's gradient points along u, an unrated one's against it."""

    name: str = "opposite directions"
    target: str = "existence"
    claim: str = "SD-BPRMF hides which items are rated"
    last_only: bool = False

    def applies_to(self, observation: Observation) -> bool:
        return observation.terms.model == "bpr"

    def guess(self, observation: Observation) -> FloatArray:
        scores = np.zeros((observation.n_victims, observation.terms.n_items))
        for row, trace in zip(scores, observation.traces, strict=True):
            for part in trace.parts[-1:] if self.last_only else trace.parts:
                row[part.items] += np.tanh(part.amplitudes / (3 * part.noise))
        return scores


@dataclass(frozen=True)
class WithPopularity:
    """Another attack's evidence, in nats, on top of what is known without any message."""

    base: Attack
    target: str = "existence"
    name: str = field(default="", init=False)
    claim: str = field(default="", init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", f"{self.base.name} + popularity")
        object.__setattr__(self, "claim", self.base.claim)

    def applies_to(self, observation: Observation) -> bool:
        return self.base.applies_to(observation)

    def guess(self, observation: Observation) -> FloatArray:
        return self.base.guess(observation) + popularity_odds(observation)


@dataclass(frozen=True)
class Everything:
    """Selections, values over all rounds, and popularity: the sum of their evidence."""

    name: str = "selections + ratings + popularity"
    target: str = "existence"
    claim: str = "the paper's existence privacy"

    def applies_to(self, observation: Observation) -> bool:
        return ConsistentRatings().applies_to(observation)

    def guess(self, observation: Observation) -> FloatArray:
        evidence = SelectionAverage().guess(observation) + ConsistentRatings().guess(observation)
        return evidence + popularity_odds(observation)


EXISTENCE: tuple[Attack, ...] = (
    Popularity(),
    SelectionAverage(),
    WithPopularity(SelectionAverage()),
    ErrorSize(),
    WithPopularity(ErrorSize()),
    ErrorLikelihood(),
    WithPopularity(ErrorLikelihood()),
    ConsistentRatings(),
    WithPopularity(ConsistentRatings()),
    Everything(),
    OppositeDirections("opposite directions, one upload", last_only=True),
    OppositeDirections(),
    WithPopularity(OppositeDirections()),
)
