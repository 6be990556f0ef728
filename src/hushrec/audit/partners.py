"""Pairs: what the size of an unrated item's gradient says of the rated item that it was paired with.

Under `bpr` a reported item that is not rated sends −s u, s = 1 / (1 + exp(c (t − û·v))), where t is the score û·v' of
a *rated* item, drawn afresh from all of them. Its amplitude −b, b = c s, therefore gives away

    t = û·v + ln((c − b) / b) / c        with deviation noise / (b (c − b)),

the score of a random rated item, reported or not; c = ‖u‖ is the one that brings these scores to those of items known
to be rated. The scores of many rounds are draws from a mixture with one part per rated item.
"""

import math

import numpy as np
from scipy.ndimage import gaussian_filter1d
from scipy.sparse import csr_array

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.rank_one import Trace, UploadParts
from hushrec.audit.statistics import BoolArray
from hushrec.protocols.gradient.messages import ItemVectors

SURE = 3.0  # nats for "rated" of an item that counts as known
OUTLIERS = 0.05  # density of a score that no item explains
REACH = 5.0  # deviations within which an item may explain a score
STEPS = 30  # of expectation and maximization
IMPOSSIBLE = -100.0
SEARCH = ((4e-3, np.arange(250)), (5e-4, np.arange(-8, 9)), (6e-5, np.arange(-8, 9)))  # steps of ln c, from the largest


def evidence_of_partners(
    trace: Trace, log_odds: FloatArray, reported: BoolArray, announcements: tuple[ItemVectors, ...]
) -> FloatArray:
    """Nats for "rated" of every item that was never reported, 0 for all others.

    `log_odds` is what signs say of the items that were; `reported`, `(n_items,)`, is true for those.
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


def partner_scores(part: UploadParts, norms: FloatArray) -> tuple[FloatArray, FloatArray]:
    """The score t that every negative amplitude gives away, and its deviation; `(n_norms, n_negative)`.

    Not a number where the norm is too small for the amplitude.
    """
    negative = part.amplitudes < -REACH * part.noise
    size = -part.amplitudes[negative]
    room = np.where(norms > size + REACH * part.noise, norms - size, np.nan)
    return part.scores[negative] + np.log(room / size) / norms, part.noise / (size * room)


def likeliest_norm(part: UploadParts, scores: FloatArray, known: IntArray, share: float) -> float | None:
    """The c under which partners' scores are those of rated items: `share` of them known, the others like any item.

    Searched on a coarse grid with scores as blurred as that is, then on finer ones around the best.
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
        height += np.log(spread / part.noise)  # |dt/db|: amplitudes are what is seen
        norm = float(norms[np.argmax(np.where(np.isnan(height), IMPOSSIBLE, height).sum(axis=1)), 0])
    return norm


def _smooth(scores: FloatArray, edges: FloatArray) -> FloatArray:
    """Density of the scores on the bins between the edges, two bins of which are a deviation."""
    heights = np.histogram(scores, bins=edges, density=True)[0]
    return np.asarray(gaussian_filter1d(heights, 2.0, mode="constant"))


Explained = tuple[FloatArray, IntArray, IntArray]


def _explained(part: UploadParts, scores: FloatArray, known: IntArray, possible: IntArray, share: float) -> Explained:
    """Of every partner's score of one upload: its density under each of the items near it; these; how many they are.

    Items are places in `possible`.
    """
    norm = likeliest_norm(part, scores, known, share)
    if norm is None:
        return np.empty(0), np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64)
    found, deviation = (both[0][~np.isnan(both[0])] for both in partner_scores(part, np.array([[norm]])))
    turned = float(np.std(scores)) * part.noise / part.strength  # the direction is known up to noise as well
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
    """Ln P(scores | one partner in 1 / `chance` is this item) / P(scores | none is), the others as is likeliest."""
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
