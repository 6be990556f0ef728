"""The audit's attacks on a few uploads of one device, as its server could run them: for the person who made them.

Needs no table of all items: the vectors of the reported ones are enough.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from scipy.special import expit, logit

from hushrec.arrays import FloatArray, IntArray
from hushrec.audit.rank_one import stacked_direction, trace
from hushrec.audit.rating_grid import SHARE_REAL, recover_ratings
from hushrec.audit.rating_levels import RatingLevels
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors, Terms
from hushrec.protocols.gradient.protocols import GradientProtocol

STACKED = 10  # uploads that together give the direction
SURE = 4.0  # standard errors below 1 from which a report counts as scaled down
REFINED = 20  # times that a scaling is estimated anew


class Upload(Protocol):
    """A report, and the vectors of its items as the server had announced them."""

    @property
    def report(self) -> GradientReport: ...

    @property
    def item_vectors(self) -> FloatArray: ...


@dataclass(frozen=True, eq=False)
class Reading:
    """What a server can tell from the uploads."""

    direction: FloatArray = field(repr=False)  # of the user vector, length 1
    items: IntArray = field(repr=False)  # all that were reported, rising
    beliefs: FloatArray = field(repr=False)  # that each of them is rated
    ratings: FloatArray = field(repr=False)  # likeliest rating of each, if it is rated


def read_uploads(terms: Terms, protocol: GradientProtocol, uploads: Sequence[Upload], given: FloatArray) -> Reading:
    """Return the direction, by the rank-one attack on the last ten uploads, and ratings, by `ConsistentRatings` on all.

    `given` are the ratings that people can give, on the scale 1 to 5.
    """
    items = np.unique(np.concatenate([upload.report.items for upload in uploads]))
    terms = replace(terms, n_items=len(items), reports_per_client=None)
    announcements, reports = [], []
    for upload in uploads:
        places = np.searchsorted(items, upload.report.items)
        table = np.zeros((len(items), upload.item_vectors.shape[1]))
        table[places] = upload.item_vectors
        announcements.append(ItemVectors(terms, upload.report.round_number, table))
        gradients = upload.report.gradients / scaling(terms, upload)
        reports.append(GradientReport(upload.report.round_number, places, gradients))
    found = trace(announcements, reports)
    recovered = recover_ratings(found, protocol, terms, levels=RatingLevels.of(given))
    return Reading(
        direction=stacked_direction(found.parts[-STACKED:]),
        items=items,
        beliefs=expit(recovered.log_odds + logit(SHARE_REAL)),
        ratings=recovered.ratings,
    )


def scaling(terms: Terms, upload: Upload) -> float:
    """Return the factor s that the device scaled its report with, to keep within the announced norm; 1 if with none.

    The noise of a report of n gradients of K numbers has variance η_t s². The report is

        G = s (η_t N e uᵀ − η_t V Λ + noise),

    so that what is left of G + s η_t V Λ besides its first singular value is noise of (n − 1)(K − 1) degrees of
    freedom: ‖rest‖² = s² η_t (n − 1)(K − 1), solved for s from above.
    """
    gradients = upload.report.gradients.astype(np.float64)
    step_size = terms.step_size(upload.report.round_number)
    prior = step_size * upload.item_vectors.astype(np.float64) * terms.item_regularization
    freedom = (len(gradients) - 1) * (gradients.shape[1] - 1)
    if freedom == 0:
        return 1.0
    factor = 1.0
    for _ in range(REFINED):
        rest = np.linalg.svd(gradients + factor * prior, compute_uv=False)[1:]
        factor = min(1.0, float(np.sqrt(rest @ rest / (step_size * freedom))))
    error = 1 / np.sqrt(2 * freedom)
    return factor if 0 < factor < 1 - SURE * error else 1.0
