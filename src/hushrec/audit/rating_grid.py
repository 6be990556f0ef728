"""Recover ratings from amplitudes, using that a rating takes one of few values and is the same in every round.

A report reveals the amplitudes a = e ‖u‖ and the direction û = u / ‖u‖ (see `rank_one`). For a rated item with vector
v, the rating is

    r = a / c + c û·v,        where c = ‖u‖ is the only unknown.

The rating must be one of the levels that people can give (such as 1, …, 5 stars), *and* equal in all reports. With a
wrong c, ratings fall between levels. A fake error gives a different rating in each round. `recover_ratings` finds the c
of every round and compares, for each item, the hypothesis "fake" with "rated" at each level. If all reported items are
rated, two reports suffice (`two_report_norms`). On a continuous scale, c follows from the agreement between rounds.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import trim_mean

from hushrec.arrays import FloatArray
from hushrec.audit.error_laws import ErrorLaw, fit_laws
from hushrec.audit.rank_one import ReportParts, Trace
from hushrec.audit.rating_levels import WHOLE_STARS, RatingLevels
from hushrec.protocols.gradient.messages import Terms
from hushrec.protocols.gradient.protocols import GradientProtocol

SHARE_REAL = 0.05  # prior fraction of rated items, about h / m
SEARCH_ROUNDS = 20  # number of last reports from which the first c is estimated
FLOOR = 0.005  # standard deviation of a recovered rating due to rounding and the spacing of the candidates for c
USUAL_NORM = 2.0  # typical norm of a user vector
BLUR = 0.1  # scale of Laplace noise above which levels do not help to find c
CERTAIN = 50.0  # log odds of an item that would not be reported if it were not rated
CANDIDATES = 4  # number of candidates for c if none stands out
SURE = 0.99  # probability of c above which no other candidate is tried
OUTLIERS = 0.05  # fraction of rounds whose c may be wrong


@dataclass(frozen=True, eq=False)
class RecoveredRatings:
    """The ratings recovered from one person's reports; an item never reported has log odds 0 and rating NaN.

    `norms` has the norm ‖u‖ of the user vector in each report. If all rated items are reported, the last report has
    none.
    """

    log_odds: FloatArray = field(repr=False)  # (n_items,) evidence that the item is rated, in nats
    ratings: FloatArray = field(repr=False)  # (n_items,) likeliest rating if rated, NaN if never reported
    norms: FloatArray = field(repr=False)


def recover_ratings(
    trace: Trace,
    protocol: GradientProtocol,
    terms: Terms,
    laws: list[ErrorLaw] | None = None,
    levels: RatingLevels = WHOLE_STARS,
) -> RecoveredRatings:
    """Return which items one person has rated, and how, from all reports of the person.

    `laws` holds the distributions of errors in each report. By default they are fitted to the reports.
    """
    if not trace.parts:
        return RecoveredRatings(np.zeros(terms.n_items), np.full(terms.n_items, np.nan), np.empty(0))
    if protocol.selection is None:
        return _recover_unhidden(trace, terms)
    laws = fit_laws(trace.parts, protocol.checked_epsilon_g()) if laws is None else laws
    nothing = np.zeros((terms.n_items, len(levels)))
    chains = [
        _run_pass(trace, laws, levels, nothing, np.full(len(laws), start), trust, widths=(0.06, 61), chained=True)
        for start, trust in _search_norm(trace.parts[-SEARCH_ROUNDS:], laws[-SEARCH_ROUNDS:], levels)
    ]
    first = max(chains, key=lambda chain: chain.log_likelihood)
    last = _run_pass(trace, laws, levels, first.evidence, first.norms, first.trust, widths=(0.02, 41), chained=False)
    evidence, norms = last.evidence, last.norms
    seen = np.zeros(terms.n_items, dtype=bool)
    for part in trace.parts:
        seen[part.items] = True
    log_odds = np.logaddexp.reduce(evidence + np.log(levels.shares), axis=1)
    best = levels.values[np.argmax(evidence + np.log(levels.shares), axis=1)]
    return RecoveredRatings(np.where(seen, log_odds, 0.0), np.where(seen, best, np.nan), norms)


def _likely_norm(parts: tuple[ReportParts, ...], laws: list[ErrorLaw], mean_rating: float) -> float:
    """Estimate the norm ‖u‖ of the user vector roughly, so that the mean prediction is `mean_rating`.

    Precise reports have more weight.
    """
    sure = [(part.strength / part.noise) ** 2 for part in parts]
    mean_score = abs(float(np.average([usual(part.scores) for part in parts], weights=sure)))
    if mean_score > 0.05:
        return mean_rating / mean_score
    return abs(float(np.median([law.mean for law in laws]))) / mean_rating + 1e-3


@dataclass(frozen=True, eq=False)
class Pass:
    """The result of one pass over all reports of a person; a pass estimates the norm of the user vector per report."""

    evidence: FloatArray  # log-likelihood ratio of "rated at this level" to "fake errors", (n_items, n_levels)
    norms: FloatArray  # ‖u‖ in each report
    trust: float  # the probability that the norm from which the first pass started is right
    log_likelihood: float  # how well the norms explain all amplitudes; of several passes, the largest is used


def _search_norm(
    parts: tuple[ReportParts, ...], laws: list[ErrorLaw], levels: RatingLevels
) -> list[tuple[float, float]]:
    """Return candidates for the norm ‖u‖ of the user vector, each with its probability, the best first.

    With a good candidate, the recovered ratings of most items are close to `levels`, the ratings that people can give.
    The search covers a factor of 1.8 on both sides of `_likely_norm`. The result has a single candidate if its
    probability exceeds `SURE`, otherwise `CANDIDATES` candidates.
    """
    candidates = _likely_norm(parts, laws, levels.mean) * np.exp(np.arange(-0.6, 0.6, 0.0025))
    total = np.zeros(len(candidates))
    for part, law in zip(parts, laws, strict=True):
        chances = np.broadcast_to(levels.shares, (len(part.items), len(levels)))
        hits = _nearest_density(part, levels, candidates, chances)
        total += np.log(SHARE_REAL * hits + (1 - SHARE_REAL) * law.fake(part.amplitudes, part.noise)).sum(axis=1)
    found = []
    for _ in range(CANDIDATES):
        best = int(np.argmax(total))
        height = total[best]
        total[np.abs(np.log(candidates / candidates[best])) < 0.01] = -np.inf
        found.append((float(candidates[best]), float(1 / (1 + np.exp(2 - (height - total.max()))))))
        if found[0][1] > SURE:
            break
    return found


def _run_pass(
    trace: Trace,
    laws: list[ErrorLaw],
    levels: RatingLevels,
    evidence: FloatArray,
    norms: FloatArray,
    trust: float,
    *,
    widths: tuple[float, int],
    chained: bool,
) -> Pass:
    """Estimate the norm ‖u‖ of the user vector in each report, and add up the evidence about ratings of all reports.

    `evidence` and `trust` are fields of `Pass`. The pass goes from the last report to the first. With `chained`, the
    search for the norm of a report starts from the norm of the following report, and uses the evidence that this pass
    has added up so far. Otherwise it starts from the report's entry of `norms`, and uses the given evidence. `widths`
    is the range of ln ‖u‖ on both sides of the start, and the number of candidates in it.
    """
    width, count = widths
    offsets = np.linspace(-width, width, count)
    fresh = np.zeros_like(evidence)
    found = norms.copy()
    center = norms[-1]
    total = 0.0
    for index in range(len(trace.parts) - 1, -1, -1):
        part, law = trace.parts[index], laws[index]
        center = center if chained else norms[index]
        known = (fresh if chained else evidence)[part.items]
        chances = np.exp(np.clip(known, -30, 30)) * levels.shares * (SHARE_REAL / (1 - SHARE_REAL))
        chances /= 1 + chances.sum(axis=1, keepdims=True)
        fake = law.fake(part.amplitudes, part.noise)
        candidates = center * np.exp(offsets)
        hits = _nearest_density(part, levels, candidates, chances)
        unsure = (1 - chances.sum(axis=1) + OUTLIERS) * fake
        cost = (offsets / 0.02) ** 2 / 2 if chained else 0.0
        height = np.log(hits + unsure).sum(axis=1) - cost
        center = float(candidates[np.argmax(height)])
        total += float(height.max())
        found[index] = center
        exact = _level_density(part, levels, center)
        real = trust * (1 - OUTLIERS) * exact + (1 - trust + OUTLIERS) * law.real(part.amplitudes, part.noise)[:, None]
        fresh[part.items] += np.log(real / fake[:, None])
    return Pass(fresh, found, trust, total)


def _nearest_density(part: ReportParts, levels: RatingLevels, norms: FloatArray, chances: FloatArray) -> FloatArray:
    """Return the prior probability of each item's likeliest level, times the density of its amplitude at this level.

    The result is `(n_norms, n_items)`, for the items of the report, and for candidates `norms` of the norm of the user
    vector. The likeliest level is the one nearest to the rating that follows from amplitude and norm. `chances`,
    `(n_items, n_levels)`, holds the prior probabilities.
    """
    c = norms[:, None]
    ratings = part.amplitudes / c + c * part.scores
    nearest = levels.indices(ratings)
    density = _density(ratings - levels.values[nearest], _spread(part, c, levels.coarseness), c)
    return np.asarray(np.take_along_axis(chances, nearest.T, axis=1).T * density)


def _level_density(part: ReportParts, levels: RatingLevels, norm: float) -> FloatArray:
    """Return the density of each item's amplitude in a report for every level of its rating, `(n_items, n_levels)`."""
    ratings = part.amplitudes / norm + norm * part.scores
    spread = _spread(part, norm, levels.coarseness)
    return _density(ratings[:, None] - levels.values, spread[:, None], norm)


def _density(misses: FloatArray, spread: FloatArray, norm: FloatArray | float) -> FloatArray:
    """Return the probability density of amplitudes under assumed levels of the ratings.

    `misses` holds the recovered ratings minus the assumed levels, and `spread` the standard deviations of these
    differences. `norm` is the norm of the user vector.
    """
    return np.asarray(np.exp(-((misses / spread) ** 2) / 2) / (spread * norm * np.sqrt(2 * np.pi)))


def _spread(part: ReportParts, norm: FloatArray | float, coarseness: float) -> FloatArray:
    """Return the standard deviation of each rating recovered with this norm, due to noise and the coarse scale."""
    own = (part.noise / norm) ** 2 + (norm * part.noise * part.item_norms / part.strength) ** 2 + FLOOR**2
    return np.asarray(np.sqrt(own + coarseness**2))


def two_report_norms(trace: Trace, terms: Terms) -> tuple[FloatArray, FloatArray]:
    """Return the norm ‖u‖ of the user vector in every report but the last, and a weight for each.

    A more precise norm has a larger weight. All rated items must be reported.

    With errors e, item vectors v, step size η, data weight N and prior precision Λ, the user vector u becomes
    u' = u (1 − η Λ) + η N mean(e v). With û = u / ‖u‖, x = ‖u‖² and amplitudes a = e ‖u‖, u' is parallel to
    x û (1 − η Λ) + η N mean(a v). Least squares gives x, as in the attack on two consecutive reports of [Chai2021]. The
    result is precise if û turns by much more than its error, as in early rounds but not in late ones.
    """
    norms, weights = [], []
    for part, following in zip(trace.parts, trace.parts[1:], strict=False):
        step_size = terms.step_size(part.round_number)
        along = _across(part.direction * (1 - step_size * terms.user_regularization), following.direction)
        pull = _across(step_size * terms.data_weight * part.mean_pull, following.direction)
        turn = float(along @ along)
        norms.append(math.sqrt(max(-float(along @ pull) / (turn + 1e-300), 1e-12)))
        weights.append((turn / (following.noise / following.strength) ** 2) ** 2)
    return np.array(norms), np.array(weights)


def _across(vector: FloatArray, direction: FloatArray) -> FloatArray:
    return np.asarray(vector - (vector @ direction) * direction)


def _recover_unhidden(trace: Trace, terms: Terms) -> RecoveredRatings:
    """Return the recovered ratings under a protocol without selection, in which every reported item is rated.

    The rating of an item is the weighted median over rounds of a / c + c û·v, where c is the norm of the user vector
    from `two_report_norms`, û its direction, a the amplitude of the item (error times c), and v the item vector.
    """
    norms, weights = two_report_norms(trace, terms)
    log_odds, ratings = np.zeros(terms.n_items), np.full(terms.n_items, np.nan)
    log_odds[trace.parts[0].items] = CERTAIN
    if len(norms):
        rows = [part.amplitudes / c + c * part.scores for part, c in zip(trace.parts, norms, strict=False)]
        ratings[trace.parts[0].items] = weighted_median(np.array(rows), weights)
    return RecoveredRatings(log_odds, ratings, norms)


def ratings_of_report(part: ReportParts, levels: RatingLevels, noise: float = 0.0) -> FloatArray:
    """Return the ratings recovered from one report whose items are all rated, in the order of `part.items`.

    `noise` is the scale of the Laplace noise that the device added to its ratings. The result is not rounded to levels.

    The unknown norm c = ‖u‖ of the user vector must give the mean rating r̄ that people are expected to give: mean(a) /
    c + c mean(û·v) = r̄, where a are the amplitudes (errors times c), û is the direction of the user vector, and v are
    the item vectors. This equation has two roots. On a continuous scale, or if the Laplace noise hides the levels, c is
    the root closer to the typical norm `USUAL_NORM`. Otherwise c is the value within a factor of 1.8 of either root
    that brings the ratings closest to `levels`.
    """
    mean_rating = levels.mean
    mean_amplitude, mean_score = usual(part.amplitudes), usual(part.scores)
    root = mean_rating + math.sqrt(max(mean_rating**2 - 4 * mean_amplitude * mean_score, 0.0))
    roots = np.abs([2 * mean_amplitude / root, root / (2 * mean_score + 1e-300)]) + 1e-12
    if noise < BLUR and not levels.continuous:
        candidates = np.outer(roots, np.exp(np.arange(-0.6, 0.6, 0.0005))).reshape(-1, 1)
    else:
        candidates = roots[[np.argmin(np.abs(np.log(roots / USUAL_NORM)))], None]
    ratings = part.amplitudes / candidates + candidates * part.scores
    misses = np.minimum(np.abs(ratings - levels.nearest(ratings)), 1).mean(axis=1)
    return np.asarray(ratings[np.argmin(misses)])


def usual(values: FloatArray) -> float:
    """Return the mean without the lowest and the highest tenth of the values, so that outliers have no effect."""
    return float(trim_mean(values, 0.1))


def weighted_median(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Return the weighted median of each column; `weights` has one weight per row."""
    order = np.argsort(rows, axis=0)
    below = np.cumsum(weights[order], axis=0) / weights.sum()
    first = np.argmax(below >= 0.5, axis=0)
    return np.asarray(np.take_along_axis(rows, np.take_along_axis(order, first[None], axis=0), axis=0)[0])
