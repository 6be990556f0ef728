"""Attacks that recover how many items a person has rated (target "metadata")."""

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.audit.attacks import Attack, OnRuns
from hushrec.audit.observation import Observation
from hushrec.audit.selection import likeliest_count


class CountFromSelections(OnRuns):
    """An attack that guesses the number of ratings from how often each item is reported.

    With random selection, the guess is the number of ratings under which these frequencies are most likely. Otherwise
    it is the number of items that are reported in every round.
    """

    name = "count from selections"
    target = "metadata"
    claim = "none; with a profile cap, the number of ratings is covered by epsilon_p"

    def guess(self, observation: Observation) -> FloatArray:
        counts, selection = observation.selection_counts, observation.protocol.selection
        if selection is None:
            return np.asarray((counts == observation.n_rounds).sum(axis=1), dtype=np.float64)
        found = [likeliest_count(row, observation.n_rounds, selection, observation.terms) for row in counts]
        return np.array(found, dtype=np.float64)


class CountFromValues(OnRuns):
    """An attack that counts the items that gradient values reveal as rated (log odds above 3)."""

    models = ("mf",)
    selects = True
    name = "count from values"
    target = "metadata"
    claim = "none: gradient values are not covered"

    def guess(self, observation: Observation) -> FloatArray:
        return np.array([float(np.count_nonzero(one.log_odds > 3)) for one in observation.recovered])


class FinishTiming:
    """An attack that uses the time a device needs for a report, which increases with the number of ratings.

    The guess is a time in seconds, which is only compared between people: the lower quartile of a device's times over
    the rounds. A device computes an error for every rated item, reported or not. If the reported items are selected at
    random, the attack first subtracts the time that these items cost. It estimates the cost per item from differences
    between rounds.
    """

    name = "timing of finish"
    target = "metadata"
    claim = "none: when a device reports is not covered"

    def applies_to(self, observation: Observation) -> bool:
        return observation.finish_seconds is not None

    def guess(self, observation: Observation) -> FloatArray:
        assert observation.finish_seconds is not None
        seconds = observation.finish_seconds
        lengths = np.array([[0 if one is None else len(one.items) for one in row] for row in observation.reports])
        length_turns = lengths - lengths.mean(axis=1, keepdims=True)
        turns = seconds - np.median(seconds, axis=1, keepdims=True)
        per_item = float((length_turns * turns).sum() / max(float((length_turns**2).sum()), 1.0))
        by_chance = observation.protocol.selection is not None  # otherwise the length is the number of ratings itself
        return np.asarray(np.quantile(seconds - by_chance * max(per_item, 0.0) * lengths, 0.25, axis=1))


METADATA: tuple[Attack, ...] = (CountFromSelections(), CountFromValues())
