"""Run the audit's attacks on one device's own reports, to show its person what a server could learn from them.

The attacks need the vectors of the reported items only, not the whole table of item vectors.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import expit, logit

from hushrec.arrays import FloatArray
from hushrec.audit.rank_one import stacked_direction, trace
from hushrec.audit.rating_grid import SHARE_REAL, recover_ratings
from hushrec.audit.rating_levels import RatingLevels
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors, Terms
from hushrec.protocols.gradient.protocols import GradientProtocol
from hushrec.protocols.shown import Reading, ShownReport

STACKED = 10  # number of last reports from which the direction is computed
SURE = 4.0  # a report counts as scaled down if its factor is this many standard errors below 1
REFINED = 20  # iterations of the estimate of a factor


def read_reports(terms: Terms, protocol: GradientProtocol, own: Sequence[ShownReport], given: FloatArray) -> Reading:
    """Return what a server can recover from the reports of one device.

    `own` holds the device's reports in the order of rounds, at least one, each with the item vectors of its items as
    the server announced them (`arrays["item_vectors"]`). `given` holds the values that a rating can take, mapped to the
    scale 1 to 5. In the result, `direction` (the direction of the user vector) comes from the rank-one attack on the
    last ten reports. `beliefs` (the probability that each reported item is rated) and `ratings` come from
    `recover_ratings` on all reports.
    """
    items = np.unique(np.concatenate([one.report.items for one in own]))
    terms = replace(terms, n_items=len(items), reports_per_client=None)
    announcements, reports = [], []
    for one in own:
        positions, vectors = np.searchsorted(items, one.report.items), one.arrays["item_vectors"]
        table = np.zeros((len(items), vectors.shape[1]))
        table[positions] = vectors
        announcements.append(ItemVectors(terms, one.report.round_number, table))
        gradients = one.report.gradients / scaling(terms, one.report, vectors)
        reports.append(GradientReport(one.report.round_number, positions, gradients))
    found = trace(announcements, reports)
    recovered = recover_ratings(found, protocol, terms, levels=RatingLevels.of(given))
    return Reading(
        direction=stacked_direction(found.parts[-STACKED:]),
        items=items,
        beliefs=expit(recovered.log_odds + logit(SHARE_REAL)),
        ratings=recovered.ratings,
    )


def scaling(terms: Terms, report: GradientReport, item_vectors: FloatArray) -> float:
    """Estimate the factor s ≤ 1 by which the device scaled its report down to the joint norm that the server allows.

    The result is 1 unless the estimate is clearly smaller. A report of n gradients with K entries is the matrix

        G = s (η_t N e uᵀ − η_t V Λ + noise),

    where e holds the errors, u is the user vector, V holds the item vectors, Λ is the prior precision, and the noise
    has variance η_t. All singular values of G + s η_t V Λ except the first are due to noise. Their squares add up to
    about s² η_t (n − 1)(K − 1). The function solves this equation for s by iteration from s = 1.
    """
    gradients = report.gradients.astype(np.float64)
    step_size = terms.step_size(report.round_number)
    prior = step_size * item_vectors.astype(np.float64) * terms.item_regularization
    freedom = (len(gradients) - 1) * (gradients.shape[1] - 1)
    if freedom == 0:
        return 1.0
    factor = 1.0
    for _ in range(REFINED):
        rest = np.linalg.svd(gradients + factor * prior, compute_uv=False)[1:]
        factor = min(1.0, float(np.sqrt(rest @ rest / (step_size * freedom))))
    error = 1 / np.sqrt(2 * freedom)
    return factor if 0 < factor < 1 - SURE * error else 1.0
