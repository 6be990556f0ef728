"""Attacks that recover the values of a person's ratings (target "value")."""

import numpy as np
from scipy.special import softmax

from hushrec.arrays import FloatArray
from hushrec.audit.attacks import Attack, OnRuns
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import Trace, stacked_direction
from hushrec.audit.rating_grid import ratings_of_report, recover_ratings
from hushrec.audit.rating_levels import RatingLevels
from hushrec.protocols.gradient.messages import Terms
from hushrec.protocols.gradient.protocols import GradientProtocol
from hushrec.scale import HIGHEST, LOWEST


class OneReport(OnRuns):
    """An attack that recovers ratings from the last report alone.

    The gradients reveal errors times the norm of the user vector. The attack estimates this norm.
    """

    models = ("mf",)
    name = "one report"
    target = "value"
    claim = "a rating's value stays on the device"

    def guess(self, observation: Observation) -> FloatArray:
        ratings = np.full((observation.n_victims, observation.terms.n_items), np.nan)
        for row, trace in zip(ratings, observation.traces, strict=True):
            if trace.parts:
                last = Trace(trace.parts[-1:])
                row[:] = read_reports(last, observation.protocol, observation.terms, observation.levels)
        return ratings


class AllReports(OnRuns):
    """An attack that recovers ratings under protocols that report every rated item.

    The gradients reveal errors times the norm of the user vector. Two consecutive reports reveal this norm.
    """

    models = ("mf",)
    selects = False
    name = "two consecutive reports"
    target = "value"
    claim = "a rating's value stays on the device"

    def guess(self, observation: Observation) -> FloatArray:
        ratings = np.array([one.ratings for one in observation.recovered])
        epsilon = observation.protocol.rating_epsilon
        return ratings if epsilon is None else likeliest_ratings(ratings, epsilon, observation.levels)


class GridRatings(AllReports):
    """An attack on protocols with random selection: for each item it returns the level that fits all its reports best.

    A level is one of the few values that a rating can take.
    """

    selects = True
    name = "consistent ratings"


class GuessedByTaste(GridRatings):
    """An attack like `GridRatings` that also guesses ratings of items never reported.

    It recovers the user vector from the reports, and guesses the ratings that this vector predicts.
    """

    name = "consistent ratings, the rest by taste"

    def guess(self, observation: Observation) -> FloatArray:
        known = super().guess(observation)
        table = observation.announcements[-1].item_vectors.astype(np.float64)
        for row, trace, found in zip(known, observation.traces, observation.recovered, strict=True):
            if trace.parts:
                taste = table @ stacked_direction(trace.parts[-10:]) * float(np.median(found.norms[-10:]))
                row[:] = np.where(np.isnan(row), taste, row)
        return known


def likeliest_ratings(noisy: FloatArray, epsilon: float, levels: RatingLevels) -> FloatArray:
    """Return the likeliest true rating behind each rating with Laplace noise; `epsilon` is the budget of the noise.

    On a continuous scale (`levels.continuous`), return the posterior mean instead.
    """
    odds = np.log(levels.shares) - epsilon / (HIGHEST - LOWEST) * np.abs(noisy[..., None] - levels.values)
    if levels.continuous:
        return np.asarray(softmax(odds, axis=-1) @ levels.values)
    return np.where(np.isnan(noisy), np.nan, levels.values[np.argmax(odds, axis=-1)])


VALUE: tuple[Attack, ...] = (OneReport(), AllReports(), GridRatings(), GuessedByTaste())


def read_reports(trace: Trace, protocol: GradientProtocol, terms: Terms, levels: RatingLevels) -> FloatArray:
    """Return the ratings that one person's reports reveal, `(n_items,)`; NaN for items that are not reported.

    With random selection, all reports are used. Otherwise the last one suffices, because it holds every rated item.
    """
    if protocol.selection is not None:
        return recover_ratings(trace, protocol, terms, levels=levels).ratings
    part, ratings = trace.parts[-1], np.full(terms.n_items, np.nan)
    epsilon = protocol.rating_epsilon
    if epsilon is None:
        ratings[part.items] = ratings_of_report(part, levels)
    else:
        noisy = ratings_of_report(part, levels, (HIGHEST - LOWEST) / epsilon)
        ratings[part.items] = likeliest_ratings(noisy, epsilon, levels)
    return ratings
