"""Evidence about items that were never reported, from how the user vector moves between rounds.

A device learns from all its ratings, and consecutive reports reveal the direction of its user vector before (u) and
after (u') a step. Recovered ratings give the norms of both vectors, so the step is known up to noise. Let h be the
number of ratings, η the step size, N the data weight, Λ the prior precision, and e = r − u·v the error of rating r of
an item with vector v. Then

    h (u' − u (1 − η Λ)) / (η N) − Σ e v over the known ratings  =  Σ x_j (r_j − u·v_j) v_j + noise.

The sum on the right is over the items that were never reported, and x_j is 1 if item j is rated and 0 otherwise. Each
round gives one equation per factor, for hundreds of unknown x_j. The prior probability of x_j = 1 is the popularity of
item j. A Gaussian model gives the evidence for each x_j while all other x stay unknown. Only the first rounds are used,
because their steps are large compared with the noise.
"""

import numpy as np
from scipy.linalg import block_diag

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.rank_one import ReportParts, Trace
from hushrec.audit.rating_grid import RecoveredRatings
from hushrec.audit.rating_levels import WHOLE_STARS, RatingLevels
from hushrec.protocols.gradient.messages import ItemVectors

EARLY_ROUNDS = 4  # number of first steps to use
SURE = 4.0  # log odds above which a rating counts as known
NORMS = np.linspace(0.5, 5.0, 2251)[:, None]  # candidates for the norm c of the user vector
COARSE = 0.005  # error of an amplitude because of the spacing of the candidates
NORM_ERROR = 0.0005  # relative error of a norm


# The equations y = A x + noise of one step of the user vector, where x_j is 1 if item j is rated, else 0. The arrays
# are y, from which known ratings have been subtracted; A, if all unknown ratings are the mean rating; the standard
# deviation of the entries of A over the possible ratings; and the covariance of the noise.
Equations = tuple[FloatArray, FloatArray, FloatArray, FloatArray]


def evidence_of_steps(
    trace: Trace,
    found: RecoveredRatings,
    announcements: tuple[ItemVectors, ...],
    chances: FloatArray,
    levels: RatingLevels = WHOLE_STARS,
) -> FloatArray:
    """Return ln(P(steps | rated) / P(steps | not rated)) of each item, `(n_items,)`; 0 for reported items.

    A step is the change of the user vector between two reports. `found` holds the ratings recovered from the reports,
    and `chances` the prior probability that each item is rated, such as its popularity.
    """
    scores = np.zeros(len(chances))
    unknown = np.flatnonzero(np.isnan(found.ratings))
    steps = zip(trace.parts[:EARLY_ROUNDS], trace.parts[1:], strict=False)
    every = [_equations(before, after, found, announcements, unknown, levels) for before, after in steps]
    usable = [one for one in every if one is not None]
    if usable and len(unknown):
        scores[unknown] = _evidence(usable, chances[unknown])
    return scores


def _evidence(steps: list[Equations], chances: FloatArray) -> FloatArray:
    """Return ln(P(y | x_j = 1) / P(y | x_j = 0)) of each item j that was never reported.

    `steps` holds equations y = A x + noise, where x_j is 1 if item j is rated and 0 otherwise. `chances` holds the
    prior probability of x_j = 1. If the residuals of the equations are larger than their covariance predicts, the
    result is divided by the mean ratio of squared residual to variance.
    """
    left, pulls, spreads = (np.concatenate(column) for column in list(zip(*steps, strict=True))[:3])
    variance = chances * (1 - chances)
    covariance = (pulls * variance) @ pulls.T + (spreads * chances) @ spreads.T
    covariance += block_diag(*(noise for *_, noise in steps))
    residual = left - pulls @ chances
    solved = np.linalg.solve(covariance, np.column_stack([residual, pulls]))
    misfit = max(float(residual @ solved[:, 0]) / len(residual), 1.0)
    information = np.einsum("ij,ij->j", pulls, solved[:, 1:])
    others = 1 - np.minimum(information * variance, 0.99)  # without the item's own share of the variance
    return np.asarray((pulls.T @ solved[:, 0] + (chances - 0.5) * information) / (others * misfit))


def _equations(
    before: ReportParts,
    after: ReportParts,
    found: RecoveredRatings,
    announcements: tuple[ItemVectors, ...],
    unknown: IntArray,
    levels: RatingLevels,
) -> Equations | None:
    """Return the equations y = A x + noise that the step of the user vector between two reports gives.

    `unknown` holds the items that were never reported. x has one entry per unknown item: 1 if the item is rated, 0
    otherwise. Return None if the reports are not of consecutive rounds, or if `norm_of` returns None for a report.
    """
    here, there = norm_of(before, found), norm_of(after, found)
    if after.round_number != before.round_number + 1 or here is None or there is None:
        return None
    announcement = announcements[before.round_number - announcements[0].round_number]
    terms, table = announcement.terms, announcement.item_vectors.astype(np.float64)
    step_size = terms.step_size(before.round_number)
    known = np.flatnonzero(found.log_odds > SURE)
    n_reported = len(table) - len(unknown)
    count = len(known) * len(table) / max(n_reported, 1)  # h, if rated items are reported as often as all items
    vector = here * before.direction
    step = there * after.direction - vector * (1 - step_size * terms.user_regularization)
    scores = table @ vector
    noise = np.eye(len(vector)) * step_size / count
    for norm, part in ((here, before), (there, after)):
        noise += np.eye(len(vector)) * (norm * part.noise / part.strength) ** 2
        noise += np.outer(part.direction, part.direction) * (norm * NORM_ERROR) ** 2
    scale = count / (step_size * terms.data_weight)
    return (
        scale * step - (found.ratings[known] - scores[known]) @ table[known],
        ((levels.mean - scores[unknown])[:, None] * table[unknown]).T,
        levels.deviation * table[unknown].T,
        scale**2 * noise,
    )


def norm_of(part: ReportParts, found: RecoveredRatings) -> float | None:
    """Return the norm c of the user vector in one report, computed from the items whose ratings are known.

    A known rating r satisfies a = c r − c² û·v, where a is the item's amplitude (error times c) and û·v its score.
    Return None if the report has no item with a known rating, or if the known ratings contradict each other.
    """
    known = np.flatnonzero(found.log_odds[part.items] > SURE)
    if len(known) == 0:
        return None
    amplitudes, scores, ratings = part.amplitudes[known], part.scores[known], found.ratings[part.items[known]]
    coarse = max(part.noise, COARSE)
    misses = np.minimum(((amplitudes - NORMS * ratings + NORMS**2 * scores) / coarse) ** 2, 25).sum(axis=1)
    norm = float(NORMS[np.argmin(misses), 0])
    for _ in range(2):  # refine the best candidate by least squares, over the ratings that agree with it
        miss, slope = amplitudes - norm * ratings + norm**2 * scores, ratings - 2 * norm * scores
        agree = np.abs(miss) < 5 * coarse
        norm += float(slope[agree] @ miss[agree] / max(float(slope[agree] @ slope[agree]), 1e-12))
    misses = np.minimum(((amplitudes - norm * ratings + norm**2 * scores) / part.noise) ** 2, 25)
    return norm if misses.sum() < 6 * (len(known) + 1) else None
