"""Attacks that recover the values of a person's ratings (target "value")."""

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from hushrec.arrays import FloatArray
from hushrec.audit.attacks import Attack
from hushrec.audit.observation import Observation
from hushrec.audit.rank_one import Trace, stacked_direction
from hushrec.audit.rating_grid import ratings_of_report, recover_ratings
from hushrec.audit.rating_levels import RatingLevels
from hushrec.protocols.gradient.messages import Terms
from hushrec.protocols.gradient.protocols import GradientProtocol
from hushrec.scale import HIGHEST, LOWEST


@dataclass(frozen=True)
class OneReport:
    """An attack that recovers ratings from the last report alone.

    The rank-one attack recovers the errors times the norm of the user vector. The most likely norm then gives the
    ratings.
    """

    name: str = "one upload"
    target: str = "value"
    claim: str = "a rating's value stays on the device"

    def applies_to(self, observation: Observation) -> bool:
        return observation.terms.model == "mf"

    def guess(self, observation: Observation) -> FloatArray:
        ratings = np.full((observation.n_victims, observation.terms.n_items), np.nan)
        for row, trace in zip(ratings, observation.traces, strict=True):
            if trace.parts:
                last = Trace(trace.parts[-1:])
                row[:] = read_last_report(last, observation.protocol, observation.terms, observation.levels)
        return ratings


@dataclass(frozen=True)
class AllReports:
    """An attack that recovers ratings from all reports of a protocol that reports every rated item.

    It computes the norm of the user vector, ‖u‖, from pairs of consecutive reports.
    """

    name: str = "two consecutive uploads"
    target: str = "value"
    claim: str = "a rating's value stays on the device"

    def applies_to(self, observation: Observation) -> bool:
        return observation.terms.model == "mf" and observation.protocol.selection is None

    def guess(self, observation: Observation) -> FloatArray:
        ratings = np.array([one.ratings for one in observation.recovered])
        epsilon = observation.protocol.rating_epsilon
        return ratings if epsilon is None else likeliest_ratings(ratings, epsilon, observation.levels)


@dataclass(frozen=True)
class GridRatings(AllReports):
    """An attack on all reports of a protocol with random selection, by `rating_grid`.

    The ratings that it recovers must be possible on the rating scale, and must be the same in all rounds.
    """

    name: str = "consistent ratings"

    def applies_to(self, observation: Observation) -> bool:
        return observation.terms.model == "mf" and observation.protocol.selection is not None


@dataclass(frozen=True)
class GuessedByTaste(GridRatings):
    """`GridRatings` that also guesses ratings of items never reported, as the recovered user vector predicts them."""

    name: str = "consistent ratings, the rest by taste"

    def guess(self, observation: Observation) -> FloatArray:
        known = super().guess(observation)
        table = observation.announcements[-1].item_vectors.astype(np.float64)
        for row, trace, found in zip(known, observation.traces, observation.recovered, strict=True):
            if trace.parts:
                taste = table @ stacked_direction(trace.parts[-10:]) * float(np.median(found.norms[-10:]))
                row[:] = np.where(np.isnan(row), taste, row)
        return known


def likeliest_ratings(noisy: FloatArray, epsilon: float, levels: RatingLevels) -> FloatArray:
    """Return the most likely true rating behind each rating with Laplace noise for the budget `epsilon`.

    `levels` says which ratings are possible and how common each is. On a continuous scale, return the posterior mean.
    """
    odds = np.log(levels.shares) - epsilon / (HIGHEST - LOWEST) * np.abs(noisy[..., None] - levels.values)
    if levels.continuous:
        return np.asarray(softmax(odds, axis=-1) @ levels.values)
    return np.where(np.isnan(noisy), np.nan, levels.values[np.argmax(odds, axis=-1)])


VALUE: tuple[Attack, ...] = (OneReport(), AllReports(), GridRatings(), GuessedByTaste())


def read_last_report(trace: Trace, protocol: GradientProtocol, terms: Terms, levels: RatingLevels) -> FloatArray:
    """Return the ratings that an attack recovers, `(n_items,)`; NaN for items without a guess.

    Under a protocol with random selection all reports of the trace are used, otherwise only the last one.
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
