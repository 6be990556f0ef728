"""From errors up to a factor to ratings: a rating is one of few levels, the same in every round.

An upload gives e ‖u‖ and û, so for a rated item

    r = a / c + c û·v,        c = ‖u‖ the only unknown,

must be one of the levels that people can give (1, …, 5 stars, say) *and* the same whenever the item is reported. A
wrong c misses the levels, a fake misses them afresh in each round. `recover_ratings` finds the c of every round and
weighs each item as fake against rated at each level; a device whose items are all real needs only two uploads
(`two_upload_norms`). On a continuous scale no level is missed, and the agreement between rounds alone tells c.
"""

import math
from dataclasses import dataclass, field

import numpy as np
from scipy.stats import trim_mean

from hushrec.arrays import FloatArray
from hushrec.audit.error_laws import ErrorLaw, fit_laws
from hushrec.audit.rank_one import Trace, UploadParts
from hushrec.audit.rating_levels import WHOLE_STARS, RatingLevels
from hushrec.protocols.gradient.messages import Terms
from hushrec.protocols.gradient.protocols import GradientProtocol

SHARE_REAL = 0.05  # about h / m
SEARCH_ROUNDS = 20
FLOOR = 0.005  # deviation of a recovered rating that no noise explains: rounding, a coarse c
USUAL_NORM = 2.0  # of a person's vector
BLUR = 0.1  # scale of a noise that hides whole numbers from a search among many
CERTAIN = 50.0  # log odds of an item that only a rating can bring into a report
CANDIDATES = 4  # norms to try when none stands out
SURE = 0.99
OUTLIERS = 0.05  # share of rounds whose c may be wrong


@dataclass(frozen=True, eq=False)
class RecoveredRatings:
    """What one person's uploads show. An item that never was reported has log odds of 0 and no rating."""

    log_odds: FloatArray = field(repr=False)  # (n_items,) evidence that the item is rated, in nats
    ratings: FloatArray = field(repr=False)  # (n_items,) likeliest rating if rated, NaN if never reported
    norms: FloatArray = field(repr=False)  # ‖u‖ per upload


def recover_ratings(
    trace: Trace,
    protocol: GradientProtocol,
    terms: Terms,
    laws: list[ErrorLaw] | None = None,
    levels: RatingLevels = WHOLE_STARS,
) -> RecoveredRatings:
    """Ratings and their existence from all uploads of one person; `laws` as `fit_laws` finds them."""
    if not trace.parts:
        return RecoveredRatings(np.zeros(terms.n_items), np.full(terms.n_items, np.nan), np.empty(0))
    if protocol.selection is None:
        return _recover_unhidden(trace, terms)
    laws = fit_laws(trace.parts, protocol.checked_fake_range()) if laws is None else laws
    nothing = np.zeros((terms.n_items, len(levels)))
    chains = [
        _sweep(trace, laws, levels, nothing, np.full(len(laws), start), trust, widths=(0.06, 61), chained=True)
        for start, trust in _search_norm(trace.parts[-SEARCH_ROUNDS:], laws[-SEARCH_ROUNDS:], levels)
    ]
    first = max(chains, key=lambda chain: chain.log_likelihood)
    last = _sweep(trace, laws, levels, first.evidence, first.norms, first.trust, widths=(0.02, 41), chained=False)
    evidence, norms = last.evidence, last.norms
    seen = np.zeros(terms.n_items, dtype=bool)
    for part in trace.parts:
        seen[part.items] = True
    log_odds = np.logaddexp.reduce(evidence + np.log(levels.shares), axis=1)
    best = levels.values[np.argmax(evidence + np.log(levels.shares), axis=1)]
    return RecoveredRatings(np.where(seen, log_odds, 0.0), np.where(seen, best, np.nan), norms)


def _likely_norm(parts: tuple[UploadParts, ...], laws: list[ErrorLaw], mean_rating: float) -> float:
    """Return where to search for the norm: predictions lie near the mean rating.

    Uploads count by their strength: one without a real error has no direction, and scores of nothing.
    """
    sure = [(part.strength / part.noise) ** 2 for part in parts]
    mean_score = abs(float(np.average([usual(part.scores) for part in parts], weights=sure)))
    if mean_score > 0.05:
        return mean_rating / mean_score
    return abs(float(np.median([law.mean for law in laws]))) / mean_rating + 1e-3


@dataclass(frozen=True, eq=False)
class Sweep:
    """One pass over all uploads: what the items' amplitudes say, the norms found, and how likely it all is."""

    evidence: FloatArray
    norms: FloatArray
    trust: float
    log_likelihood: float


def _search_norm(
    parts: tuple[UploadParts, ...], laws: list[ErrorLaw], levels: RatingLevels
) -> list[tuple[float, float]]:
    """The c that brings most items of these rounds onto levels, and how much it is to be trusted.

    Predictions lie near the mean rating, which bounds the search: c û·v ≈ 3.5 within a factor of 1.8. When the
    best one does not stand out, the next two are given too.
    """
    candidates = _likely_norm(parts, laws, levels.mean) * np.exp(np.arange(-0.6, 0.6, 0.0025))
    total = np.zeros(len(candidates))
    for part, law in zip(parts, laws, strict=True):
        chances = np.broadcast_to(levels.shares, (len(part.items), len(levels)))
        hits, _ = _grid_density(part, levels, candidates, chances)
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


def _sweep(
    trace: Trace,
    laws: list[ErrorLaw],
    levels: RatingLevels,
    evidence: FloatArray,
    norms: FloatArray,
    trust: float,
    *,
    widths: tuple[float, int],
    chained: bool,
) -> Sweep:
    """From the last upload to the first: the c of each near the one found before, then what its items say.

    `evidence` (n_items, n_levels) is ln P(amplitudes | rated r) / P(amplitudes | fake). Chained, each c starts from the
    later round's and counts only what this sweep has seen; otherwise c starts from its last value and the evidence
    of all other rounds is used.
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
        hits, _ = _grid_density(part, levels, candidates, chances)
        unsure = (1 - chances.sum(axis=1) + OUTLIERS) * fake
        cost = (offsets / 0.02) ** 2 / 2 if chained else 0.0
        height = np.log(hits + unsure).sum(axis=1) - cost
        center = float(candidates[np.argmax(height)])
        total += float(height.max())
        found[index] = center
        _, exact = _grid_density(part, levels, np.array([center]), chances)
        real = trust * (1 - OUTLIERS) * exact + (1 - trust + OUTLIERS) * law.real(part.amplitudes, part.noise)[:, None]
        fresh[part.items] += np.log(real / fake[:, None])
    return Sweep(fresh, found, trust, total)


def _grid_density(
    part: UploadParts, levels: RatingLevels, norms: FloatArray, chances: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Density of each amplitude if its item is rated: by the nearest level, for every candidate norm.

    First `(n_norms, n_items)`, weighed by the chance of that level; then `(n_items, n_levels)`, the first norm's.
    """
    c = norms[:, None]
    ratings = part.amplitudes / c + c * part.scores
    spread = _spread(part, c, levels.coarseness)
    places = levels.places(ratings)
    weights = np.take_along_axis(chances, places.T, axis=1).T
    density = np.exp(-(((ratings - levels.values[places]) / spread) ** 2) / 2) / (spread * c * np.sqrt(2 * np.pi))
    distance = (ratings[0][:, None] - levels.values) / spread[0][:, None]
    each = np.exp(-(distance**2) / 2) / (spread[0][:, None] * norms[0] * np.sqrt(2 * np.pi))
    return weights * density, each


def _spread(part: UploadParts, c: FloatArray, coarseness: float) -> FloatArray:
    """Deviation of a recovered rating: noise of its amplitude, and of the direction that scores it."""
    own = (part.noise / c) ** 2 + (c * part.noise * part.item_norms / part.strength) ** 2 + FLOOR**2
    return np.asarray(np.sqrt(own + coarseness**2))


def two_upload_norms(trace: Trace, terms: Terms) -> tuple[FloatArray, FloatArray]:
    """‖u‖ of every upload but the last from it and the next, when all rated items are reported; and how sure each is.

    The device moved by u' = u (1 − η Λ) + η N mean(e v). With x = ‖u‖², u' is along x û (1 − η Λ) + η N mean(a v):
    the x that makes it so is a least-squares solution, as in the attack on two consecutive uploads of [Chai2021]. It is
    as sure as the turn of û is large beside the error of û: in early rounds, and in late ones not at all.
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
    """Every reported item is rated, and its rating is the median over rounds of a / c + c û·v."""
    norms, weights = two_upload_norms(trace, terms)
    log_odds, ratings = np.zeros(terms.n_items), np.full(terms.n_items, np.nan)
    log_odds[trace.parts[0].items] = CERTAIN
    if len(norms):
        rows = [part.amplitudes / c + c * part.scores for part, c in zip(trace.parts, norms, strict=False)]
        ratings[trace.parts[0].items] = weighted_median(np.array(rows), weights)
    return RecoveredRatings(log_odds, ratings, norms)


def ratings_of_upload(part: UploadParts, levels: RatingLevels = WHOLE_STARS, noise: float = 0.0) -> FloatArray:
    """Ratings from one upload whose items are all rated, with Laplace noise of this scale where devices add some.

    The mean of people's ratings gives c, as mean(a) / c + c mean(û·v) = r̄ has it: two roots, of which the likelier
    length counts. Where there are levels that noise does not blur, c is the one within a factor of 1.8 of either that
    brings ratings nearest to them.
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
    """Mean without the tenth at either end: a server may have made one row loud."""
    return float(trim_mean(values, 0.1))


def weighted_median(rows: FloatArray, weights: FloatArray) -> FloatArray:
    """Median over rows, column by column; rows count by their weight."""
    order = np.argsort(rows, axis=0)
    below = np.cumsum(weights[order], axis=0) / weights.sum()
    first = np.argmax(below >= 0.5, axis=0)
    return np.asarray(np.take_along_axis(rows, np.take_along_axis(order, first[None], axis=0), axis=0)[0])
