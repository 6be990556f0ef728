"""Evidence from the pairs of model `bpr`: the gradient of an unrated item reveals the score of its rated partner.

Under `bpr`, the gradient of an unrated item with vector v is −s u, where s = 1 / (1 + exp(c (t − û·v))), c = ‖u‖, and û
= u / c. Here t is the score û·v' of the item's partner, a *rated* item that is drawn at random in each round. The
gradient's amplitude along û is −b with b = c s, and reveals

    t = û·v + ln((c − b) / b) / c        with standard deviation τ / (b (c − b)),

where τ is the standard deviation of the amplitude's noise. This t is the score of a random rated item, whether or not
that item was ever reported. The norm c is chosen so that these scores agree best with the scores of items known to be
rated. The scores of many rounds are then modelled as draws from a mixture with one component per rated item.
"""

import math

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.sparse import csr_array

from hushrec.arrays import BoolArray, FloatArray, IntArray
from hushrec.audit.rank_one import ReportParts, Trace
from hushrec.protocols.gradient.messages import ItemVectors

SURE = 3.0  # evidence, in nats, above which an item counts as known to be rated
OUTLIERS = 0.05  # density of scores that no item explains
REACH = 5.0  # number of deviations within which an item can explain a score
STEPS = 30  # number of iterations of expectation maximization
IMPOSSIBLE = -100.0  # log density of an amplitude that a norm cannot explain
SEARCH = ((4e-3, np.arange(250)), (5e-4, np.arange(-8, 9)), (6e-5, np.arange(-8, 9)))  # grids of ln c: step, multiples


def evidence_of_partners(
    trace: Trace, log_odds: FloatArray, reported: BoolArray, announcements: tuple[ItemVectors, ...]
) -> FloatArray:
    """Return the log-likelihood ratio that each item is rated, from the scores of partners; 0 for reported items.

    Model `bpr` learns from pairs of a rated and an unrated item; the rated item is the partner. `log_odds` is the
    evidence from the reported gradients themselves that each item is rated, and `reported` says which items were
    reported. Both arrays and the result have the shape `(n_items,)`.
    """
    evidence = np.zeros(len(log_odds))
    known, unknown = np.flatnonzero(log_odds > SURE), np.flatnonzero(~reported)
    if len(known) == 0 or len(unknown) == 0:
        return evidence
    share = 1 - len(unknown) / len(log_odds)
    first = announcements[0].round_number
    possible = np.concatenate([known, unknown])
    explained = []
    for part in trace.parts:
        scores = announcements[part.round_number - first].item_vectors.astype(np.float64) @ part.direction
        explained.append(_explained(part, scores, known, possible, share))
    evidence[possible] = _mixture(explained, len(possible), share / len(known))
    evidence[known] = 0.0
    return evidence


def partner_scores(part: ReportParts, norms: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the score of the rated partner of each unrated item in one report, and its standard deviation.

    Model `bpr` learns from pairs of a rated and an unrated item. An item counts as unrated if its amplitude, the
    component of its gradient along the user vector, is clearly negative. `norms`, `(n_norms, 1)`, holds candidates for
    the norm of the user vector. Both results have the shape `(n_norms, n_unrated)`, and are NaN if the norm is too
    small to explain the amplitude.
    """
    negative = part.amplitudes < -REACH * part.noise
    size = -part.amplitudes[negative]
    room = np.where(norms > size + REACH * part.noise, norms - size, np.nan)
    return part.scores[negative] + np.log(room / size) / norms, part.noise / (size * room)


def likeliest_norm(part: ReportParts, scores: FloatArray, known: IntArray, share: float) -> float | None:
    """Return the norm of the user vector under which the scores of partners are most likely; None if noise hides them.

    The partners are the rated items in the pairs of model `bpr`. `scores` holds the scores of all items, and `known`
    the items that are known to be rated. A partner's score is modelled as the score of a random known item with
    probability `share`, otherwise as the score of a random item. The search uses a coarse grid of norms and a smooth
    density first, then finer ones.
    """
    largest = float(np.abs(part.amplitudes).max())
    deviation = partner_scores(part, 1.5 * np.array([[largest]]))[1]
    if not np.isfinite(deviation).any():
        return None
    norm = largest
    for step, offsets in SEARCH:
        width = max(float(np.nanmedian(deviation)), step / largest, 1e-4 * float(np.ptp(scores)))
        edges = np.arange(scores.min() - 9 * width, scores.max() + 9 * width, width / 2)
        density = share * _smooth(scores[known], edges) + (1 - share) * _smooth(scores, edges) + OUTLIERS
        norms = norm * np.exp(step * offsets)[:, None]
        found, spread = partner_scores(part, norms)
        height = np.interp(found, (edges[1:] + edges[:-1]) / 2, np.log(density))
        height += np.log(spread / part.noise)  # |dt/db|, because the likelihood is that of the amplitudes
        norm = float(norms[np.argmax(np.where(np.isnan(height), IMPOSSIBLE, height).sum(axis=1)), 0])
    return norm


def _smooth(scores: FloatArray, edges: FloatArray) -> FloatArray:
    """Return the density of the scores in each bin between `edges`, smoothed by a Gaussian of deviation two bins."""
    heights = np.histogram(scores, bins=edges, density=True)[0]
    return np.asarray(gaussian_filter1d(heights, 2.0, mode="constant"))


Explained = tuple[FloatArray, IntArray, IntArray]  # candidates for the partners in one report: see `_explained`


def _explained(part: ReportParts, scores: FloatArray, known: IntArray, possible: IntArray, share: float) -> Explained:
    """Return which items of `possible` may be the partner (rated item of the pair) of each unrated item in one report.

    A candidate is an item of `possible` whose score is close to the partner's estimated score. The first two arrays
    list the candidates of the first unrated item, then the candidates of the second, and so on. They hold the density
    of the partner's estimated score if the candidate is the partner, and the candidate's index in `possible`. The third
    array has the number of candidates of each unrated item. Unrated items whose partner's score cannot be estimated are
    left out. All three arrays are empty if noise hides the norm of the user vector. The other arguments are those of
    `likeliest_norm`.
    """
    norm = likeliest_norm(part, scores, known, share)
    if norm is None:
        return np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    found, deviation = (both[0][~np.isnan(both[0])] for both in partner_scores(part, np.array([[norm]])))
    turned = float(np.std(scores)) * part.noise / part.strength  # the error of the direction adds to that of a score
    deviation = np.hypot(deviation, turned)
    order = np.argsort(scores[possible])
    rising = scores[possible][order]
    low, high = np.searchsorted(rising, [found - REACH * deviation, found + REACH * deviation])
    counts = high - low
    near = np.arange(counts.sum()) + np.repeat(low - np.cumsum(counts) + counts, counts)
    spread = np.repeat(deviation, counts)
    distance = (rising[near] - np.repeat(found, counts)) / spread
    return np.exp(-(distance**2) / 2) / (spread * math.sqrt(2 * math.pi)), order[near], counts


def _mixture(explained: list[Explained], n_items: int, chance: float) -> FloatArray:
    """Return, for each of `n_items` possible partners, the log-likelihood ratio that the item is rated.

    If the item is rated, each partner in the reports is this item with probability `chance`. Otherwise none is.
    `explained` has the candidates of each report, as `_explained` returns them.
    """
    densities, places, counts = (np.concatenate(column) for column in zip(*explained, strict=True))
    table = csr_array((densities, places, np.append(0, np.cumsum(counts))), shape=(len(counts), n_items))
    weights = np.full(n_items, 1 / n_items)
    for _ in range(STEPS):
        weights = weights * (table.T @ (1 / (table @ weights + OUTLIERS)))
        weights /= max(weights.sum(), 1e-300)
    whole = np.repeat(table @ weights, counts)
    others = np.maximum(whole - weights[places] * densities, 0) / (1 - weights[places] + 1e-9) + OUTLIERS
    gained = np.log1p(chance * (densities / others - 1)) - math.log1p(-chance)
    return np.asarray(np.bincount(places, gained, n_items) + len(counts) * math.log1p(-chance))
