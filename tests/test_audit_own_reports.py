"""The attacks that a person runs on their own reports are those of the audit."""

import numpy as np
import pytest
from audit_kit import watched
from offline_kit import make_small_offer
from scipy.special import expit, logit

from hushrec.audit.own_reports import STACKED, SURE, read_reports, scaling
from hushrec.audit.rank_one import stacked_direction
from hushrec.audit.rating_grid import SHARE_REAL
from hushrec.audit.rating_levels import STARS
from hushrec.protocols.gradient.messages import GradientReport
from hushrec.protocols.gradient.protocols import Sdcf
from hushrec.protocols.shown import ShownReport


def test_one_persons_reports_are_read_as_the_audit_reads_them() -> None:
    """With the reported items' vectors alone, direction, beliefs and ratings are those of the whole observation."""
    _, seen, truth, _ = watched("mf", "sdcf")
    assert isinstance(seen.protocol, Sdcf)
    made = [(told, report) for told, report in zip(seen.announcements, seen.reports[0], strict=True) if report]
    shown = [
        ShownReport(told.round_number, report, {"item_vectors": told.item_vectors[report.items]}, 0)
        for told, report in made
    ]
    reading = read_reports(seen.terms, seen.protocol, shown, STARS)
    whole = seen.recovered[0]
    assert np.allclose(reading.direction, stacked_direction(seen.traces[0].parts[-STACKED:]))
    assert np.array_equal(reading.items, np.flatnonzero(seen.selection_counts[0]))
    assert np.allclose(reading.beliefs, expit(whole.log_odds[reading.items] + logit(SHARE_REAL)))
    assert np.array_equal(reading.ratings, whole.ratings[reading.items])
    rated = truth.rated[0][reading.items]
    assert np.mean((reading.beliefs > 0.5) == rated) > 0.95  # the kit's leak is as large as it gets


@pytest.mark.parametrize("factor", [0.03, 0.3, 0.8, 1.0])
def test_the_noise_of_a_report_tells_how_far_it_was_scaled_down(rng: np.random.Generator, factor: float) -> None:
    """Within six standard errors (one false alarm in 500 million); a report that was not scaled is left as it is."""
    terms = make_small_offer(300, factors=20).terms
    step_size, rows = terms.step_size(3), rng.normal(0.3, 0.1, (60, 20))
    values = np.outer(rng.normal(0, 1, 60), rng.normal(0.3, 0.1, 20))
    noise = rng.normal(0, np.sqrt(step_size), values.shape)
    whole = step_size * (terms.data_weight * values - rows * terms.item_regularization) + noise
    report = GradientReport(3, np.arange(60), factor * whole)
    error = 1 / np.sqrt(2 * 59 * 19)
    assert scaling(terms, report, rows) == pytest.approx(factor, rel=6 * error if factor < 1 else 0)
    assert 1 - SURE * error > 0.8


def test_a_report_of_one_item_says_nothing_about_its_scaling() -> None:
    """There is no noise beside the one direction, and nothing is divided."""
    terms = make_small_offer(300, factors=20).terms
    report = GradientReport(1, np.array([4]), np.full((1, 20), 0.01))
    assert scaling(terms, report, np.ones((1, 20))) == 1.0
