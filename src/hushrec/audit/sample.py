"""A quick estimate of which items many people have rated, from their last few reports.

The estimate is cheaper and coarser than the estimate of `rating_grid`, because it is made for many people. It has two
uses. The items of people similar to a victim are a prior for the victim's items (`attacks.combined.LikeMinded`). People
with known attributes are training data for guessing other people's attributes (`attacks.person`).
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

TYPICAL_SIZES = 6.0  # size that separates most real from most fake errors, in multiples of a typical fake error
SHARPNESS = 6.0  # slope of the logistic function of the logarithm of an error's size
TASTES = 8  # number of principal directions of the sample

Table = npt.NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class SampleEstimates:
    """Estimates about many people, as two tables with one row per person and one column per item."""

    rated: Table = field(repr=False)  # estimated probability that the item is rated; 0 if it was not reported
    pulls: Table = field(repr=False)  # mean amplitude times `rated`: positive if the item is liked more than predicted

    def likely_for(self, profiles: FloatArray) -> FloatArray:
        """Return, for each profile and item, how many times likelier than average the item is rated; at least 0.1.

        A profile is a row of estimated probabilities, like a row of `rated`. The method projects it on the principal
        components of the sample, which adds the items that people with similar profiles have rated.
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


def estimate_sample(
    announcements: Sequence[ItemVectors], sample: Sequence[Sequence[GradientReport | None]], protocol: GradientProtocol
) -> SampleEstimates:
    """Return estimates of which items each person has rated, one row per person in the order of `sample`.

    `sample` holds each person's reports of the last rounds, one per round. `announcements` has one entry for each round
    of the run.
    """
    terms = announcements[-1].terms
    shape = (len(sample), terms.n_items)
    rated, pulls = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=np.float32)
    for row, reports in enumerate(sample):
        seen = trace(announcements[len(announcements) - len(reports) :], reports)
        rated[row], pulls[row] = _estimate(seen, protocol, terms)
    return SampleEstimates(rated, pulls)


def _estimate(seen: Trace, protocol: GradientProtocol, terms: Terms) -> tuple[FloatArray, FloatArray]:
    """Return one person's rows of the tables `rated` and `pulls` of `SampleEstimates`, from the person's reports."""
    total, reports, largest = np.zeros((3, terms.n_items))
    for part in seen.parts:
        total[part.items] += part.amplitudes
        reports[part.items] += 1
        largest[part.items] = np.maximum(largest[part.items], np.abs(part.amplitudes))
    mean = total / np.maximum(reports, 1)
    if terms.model == "bpr":
        rated = (mean > 0).astype(np.float64)  # gradients move a rated item along u, and an unrated item against u
    elif seen.parts and protocol.selection is not None:
        typical = 2 * float(np.quantile(np.concatenate([np.abs(part.amplitudes) for part in seen.parts]), 0.25))
        sizes = largest / (TYPICAL_SIZES * (typical + seen.parts[-1].noise))
        rated = expit(SHARPNESS * np.log(sizes + 1e-9))
    else:
        rated = np.ones(terms.n_items)
    rated = np.where(reports > 0, rated, 0.0)
    return rated, rated * mean
