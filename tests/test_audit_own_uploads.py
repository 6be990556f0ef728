"""The attacks that a person runs on their own uploads are those of the audit."""

from dataclasses import dataclass

import numpy as np
from audit_kit import watched
from scipy.special import expit, logit

from hushrec.arrays import FloatArray
from hushrec.audit.own_uploads import STACKED, read_uploads
from hushrec.audit.rank_one import stacked_direction
from hushrec.audit.rating_grid import SHARE_REAL
from hushrec.audit.rating_levels import STARS
from hushrec.messages import GradientReport
from hushrec.protocols.gradient.protocols import Sdcf


@dataclass(frozen=True)
class _Upload:
    report: GradientReport
    item_vectors: FloatArray


def test_one_persons_uploads_are_read_as_the_audit_reads_them() -> None:
    """With the reported items' vectors alone, direction, beliefs and ratings are those of the whole observation."""
    _, seen, truth, _ = watched("mf", "sdcf")
    assert isinstance(seen.protocol, Sdcf)
    made = [(told, upload) for told, upload in zip(seen.announcements, seen.uploads[0], strict=True) if upload]
    uploads = [_Upload(upload, told.item_vectors[upload.items]) for told, upload in made]
    reading = read_uploads(seen.terms, seen.protocol, uploads, STARS)
    whole = seen.recovered[0]
    assert np.allclose(reading.direction, stacked_direction(seen.traces[0].parts[-STACKED:]))
    assert np.array_equal(reading.items, np.flatnonzero(seen.selection_counts[0]))
    assert np.allclose(reading.beliefs, expit(whole.log_odds[reading.items] + logit(SHARE_REAL)))
    assert np.array_equal(reading.ratings, whole.ratings[reading.items])
    rated = truth.rated[0][reading.items]
    assert np.mean((reading.beliefs > 0.5) == rated) > 0.95  # the kit's leak is as large as it gets
