"""Ratings that were never reported, from the steps of the person's own vector.

A device learns from all its ratings, and the next upload shows where its vector went. With c = ‖u‖ known from ratings
that were recovered, the step between two uploads is known up to noise, and

    h (u' − u (1 − η Λ)) / (η N) − Σ e v over the ratings known  =  Σ x_j (r_j − u·v_j) v_j + noise,

summed over the items never reported, x_j = 1 where one is rated. That is one equation per factor and round for
hundreds of unknowns: x is given the law of popularity, and the evidence for each is that of a Gaussian model, the
others kept unknown. Early rounds tell most, because their steps are long beside the noise.
"""

from dataclasses import dataclass, field

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.rank_one import Trace, UploadParts
from hushrec.audit.rating_grid import RecoveredRatings
from hushrec.audit.rating_levels import WHOLE_STARS, RatingLevels
from hushrec.protocols.gradient.messages import ItemVectors

EARLY_ROUNDS = 4
SURE = 4.0  # log odds of a rating that counts as known
NORMS = np.linspace(0.5, 5.0, 2251)[:, None]  # c to choose from
COARSE = 0.005  # what the grid of c leaves of an amplitude
NORM_ERROR = 0.0005


@dataclass(frozen=True, eq=False)
class Equations:
    """The equations of one step of the user vector: y = A x + the part of known ratings + noise."""

    left: FloatArray = field(repr=False)  # y, (n_factors,)
    pulls: FloatArray = field(repr=False)  # A, (n_factors, n_unknown): each item's pull if it has a mean rating
    spreads: FloatArray = field(repr=False)  # and how that varies with the rating
    noise: FloatArray = field(repr=False)  # covariance, (n_factors, n_factors)


def evidence_of_steps(
    trace: Trace,
    found: RecoveredRatings,
    announcements: tuple[ItemVectors, ...],
    chances: FloatArray,
    levels: RatingLevels = WHOLE_STARS,
) -> FloatArray:
    """Nats for "rated" of every item that was never reported, 0 for all others; `chances` are those of popularity."""
    scores = np.zeros(len(chances))
    unknown = np.flatnonzero(np.isnan(found.ratings))
    steps = zip(trace.parts[:EARLY_ROUNDS], trace.parts[1:], strict=False)
    every = [_equations(before, after, found, announcements, unknown, levels) for before, after in steps]
    usable = [one for one in every if one is not None]
    if usable and len(unknown):
        scores[unknown] = _evidence(usable, chances[unknown])
    return scores


def _evidence(steps: list[Equations], chances: FloatArray) -> FloatArray:
    """Ln P(y | x_j = 1) / P(y | x_j = 0), less where the equations as a whole fit badly."""
    pulls, spreads = (np.concatenate([getattr(one, name) for one in steps]) for name in ("pulls", "spreads"))
    variance = chances * (1 - chances)
    covariance = (pulls * variance) @ pulls.T + (spreads * chances) @ spreads.T
    width = len(steps[0].left)
    for place, one in enumerate(steps):
        block = slice(place * width, (place + 1) * width)
        covariance[block, block] += one.noise
    residual = np.concatenate([one.left for one in steps]) - pulls @ chances
    solved = np.linalg.solve(covariance, np.column_stack([residual, pulls]))
    misfit = max(float(residual @ solved[:, 0]) / len(residual), 1.0)
    information = np.einsum("ij,ij->j", pulls, solved[:, 1:])
    others = 1 - np.minimum(information * variance, 0.99)  # the item's own share of the variance taken out
    return np.asarray((pulls.T @ solved[:, 0] + (chances - 0.5) * information) / (others * misfit))


def _equations(
    before: UploadParts,
    after: UploadParts,
    found: RecoveredRatings,
    announcements: tuple[ItemVectors, ...],
    unknown: IntArray,
    levels: RatingLevels,
) -> Equations | None:
    """Return the equations of two consecutive uploads; None where a round is missing or a norm is not known."""
    here, there = norm_of(before, found), norm_of(after, found)
    if after.round_number != before.round_number + 1 or here is None or there is None:
        return None
    announcement = announcements[before.round_number - announcements[0].round_number]
    terms, table = announcement.terms, announcement.item_vectors.astype(np.float64)
    step_size = terms.step_size(before.round_number)
    known = np.flatnonzero(found.log_odds > SURE)
    count = len(known) * len(table) / max(len(table) - len(unknown), 1)  # h: known ones are as common as reports
    vector = here * before.direction
    step = there * after.direction - vector * (1 - step_size * terms.user_regularization)
    scores = table @ vector
    noise = np.eye(len(vector)) * step_size / count
    for norm, part in ((here, before), (there, after)):
        noise += np.eye(len(vector)) * (norm * part.noise / part.strength) ** 2
        noise += np.outer(part.direction, part.direction) * (norm * NORM_ERROR) ** 2
    scale = count / (step_size * terms.data_weight)
    return Equations(
        scale * step - (found.ratings[known] - scores[known]) @ table[known],
        ((levels.mean - scores[unknown])[:, None] * table[unknown]).T,
        levels.deviation * table[unknown].T,
        scale**2 * noise,
    )


def norm_of(part: UploadParts, found: RecoveredRatings) -> float | None:
    """C of one upload from its known ratings, a = c r − c² û·v; None where there are none, or they do not agree."""
    known = np.flatnonzero(found.log_odds[part.items] > SURE)
    if len(known) == 0:
        return None
    amplitudes, scores, ratings = part.amplitudes[known], part.scores[known], found.ratings[part.items[known]]
    coarse = max(part.noise, COARSE)
    misses = np.minimum(((amplitudes - NORMS * ratings + NORMS**2 * scores) / coarse) ** 2, 25).sum(axis=1)
    norm = float(NORMS[np.argmin(misses), 0])
    for _ in range(2):  # from the nearest of the grid by least squares, over those that agree
        miss, slope = amplitudes - norm * ratings + norm**2 * scores, ratings - 2 * norm * scores
        agree = np.abs(miss) < 5 * coarse
        norm += float(slope[agree] @ miss[agree] / max(float(slope[agree] @ slope[agree]), 1e-12))
    misses = np.minimum(((amplitudes - norm * ratings + norm**2 * scores) / part.noise) ** 2, 25)
    return norm if misses.sum() < 6 * (len(known) + 1) else None
