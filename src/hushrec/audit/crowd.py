"""What the last few uploads of many people say at a glance: which items each of them seems to have rated.

Cheaper and coarser than `rating_grid`, because it is done for everybody: people like the victim are a prior for what
the victim rated (`attacks.combined.LikeMinded`), and people whose attributes are known teach how to guess those of
others (`attacks.person`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from hushrec.arrays import FloatArray
from hushrec.audit.rank_one import Trace, trace
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors, Terms
from hushrec.protocols.gradient.protocols import GradientProtocol

TYPICAL_SIZES = 6.0  # a real error is rarely smaller than this many typical fakes, a fake rarely larger
SHARPNESS = 6.0
TASTES = 8  # directions in which crowds differ most

Table = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class Crowd:
    """One row per person, one column per item."""

    rated: Table = field(repr=False)  # how likely the item is rated, 0 where it was not reported
    pulls: Table = field(repr=False)  # mean amplitude where it looks rated: liked more or less than expected

    def likely_for(self, profiles: FloatArray) -> FloatArray:
        """How many times likelier than for anybody each item is for people with these profiles, at least a tenth.

        Profiles are completed by the main directions of the crowd's: what those with the same items have as well.
        """
        mean = self.rated.mean(axis=0)
        centered = (self.rated - mean).astype(np.float64)
        values, vectors = np.linalg.eigh(centered @ centered.T)
        keep = values > 1e-9 * values[-1]
        keep[:-TASTES] = False
        basis = (vectors[:, keep] / np.sqrt(values[keep])).T @ centered
        scale = profiles.sum() / max(len(profiles) * float(mean.sum()), 1e-9)
        more = ((profiles - profiles.mean(axis=0)) @ basis.T) @ basis
        return np.asarray(np.maximum(1 + more / (scale * mean + 0.01), 0.1))


def watch_crowd(
    announcements: Sequence[ItemVectors], crowd: Sequence[Sequence[GradientReport | None]], protocol: GradientProtocol
) -> Crowd:
    """Return two numbers per person and item from all uploads of the crowd: evidence and mean amplitude."""
    terms = announcements[-1].terms
    shape = (len(crowd), terms.n_items)
    rated, pulls = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    for row, uploads in enumerate(crowd):
        seen = trace(announcements[len(announcements) - len(uploads) :], uploads)
        rated[row], pulls[row] = _glance(seen, protocol, terms)
    return Crowd(rated, pulls)


def _glance(seen: Trace, protocol: GradientProtocol, terms: Terms) -> tuple[FloatArray, FloatArray]:
    """Likelihood of being rated and mean amplitude, from the largest amplitude that an item ever showed."""
    total, reports, largest = np.zeros((3, terms.n_items))
    for part in seen.parts:
        total[part.items] += part.amplitudes
        reports[part.items] += 1
        largest[part.items] = np.maximum(largest[part.items], np.abs(part.amplitudes))
    mean = total / np.maximum(reports, 1)
    if terms.model == "bpr":
        rated = (mean > 0).astype(np.float64)  # a rated item is pulled along u, an unrated one against it
    elif seen.parts and protocol.selection is not None:
        typical = 2 * float(np.quantile(np.concatenate([np.abs(part.amplitudes) for part in seen.parts]), 0.25))
        sizes = largest / (TYPICAL_SIZES * (typical + seen.parts[-1].noise))
        rated = expit(SHARPNESS * np.log(sizes + 1e-9))
    else:
        rated = np.ones(terms.n_items)
    rated = np.where(reports > 0, rated, 0.0)
    return rated, rated * mean
