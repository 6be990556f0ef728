"""The rank-one attack: all gradients of one report are parallel to the sender's user vector u.

Without the public prior term, and divided by η_t N, a report is a matrix with one row per item,

    X = e uᵀ + noise with standard deviation 1 / (√η_t N),

where e holds the errors. Its first right singular vector is û = ±u / ‖u‖, the *direction*. The *amplitudes* X û are e
‖u‖: the errors up to one unknown factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors

RECENT = 5  # number of last reports that determine the direction of a trace
ALIKE = 0.85  # mean squared cosine of people's vectors with the public direction


@dataclass(frozen=True, eq=False)
class ReportParts:
    """One report, decomposed into the direction û of the user vector and one amplitude (error times ‖u‖) per item."""

    round_number: int
    items: IntArray = field(repr=False)
    amplitudes: FloatArray = field(repr=False)  # e ‖u‖
    direction: FloatArray = field(repr=False)  # û
    scores: FloatArray = field(repr=False)  # û·v of each item vector v
    item_norms: FloatArray = field(repr=False)  # ‖v‖
    mean_pull: FloatArray = field(repr=False)  # mean of amplitude times v over the items
    noise: float  # standard deviation of an amplitude's noise

    @property
    def strength(self) -> float:
        """The norm of all amplitudes (errors times ‖u‖); a larger value means a more precise direction."""
        return float(np.sqrt(self.amplitudes @ self.amplitudes)) + 1e-12


@dataclass(frozen=True, eq=False)
class Trace:
    """All reports of one person, each decomposed into a direction and one amplitude per item, with consistent signs.

    The direction is the unit vector along the user vector. An amplitude is the error of an item times the norm of the
    user vector, plus noise.
    """

    parts: tuple[ReportParts, ...] = field(repr=False)

    @property
    def direction(self) -> FloatArray | None:
        """The direction of the user vector after the last report, as a unit vector; None without reports.

        It is the mean of the last few reports' directions, weighted by their precision. A single report would not
        suffice: its direction is random if its errors are small compared with the noise. All later signs would then be
        random too, because the sign of each direction is chosen to agree with this mean.
        """
        if not self.parts:
            return None
        mean = sum(part.direction * (part.strength / part.noise) ** 2 for part in self.parts[-RECENT:])
        return np.asarray(mean / np.linalg.norm(mean))

    def followed_by(self, announcement: ItemVectors, report: GradientReport | None) -> "Trace":
        """Return the trace with one more report on an announcement; None is an empty report, which changes nothing."""
        return self if report is None else Trace((*self.parts, take_apart(announcement, report, self.direction)))


def trace(announcements: Sequence[ItemVectors], reports: Sequence[GradientReport | None]) -> Trace:
    """Return one person's reports in the order of rounds, without the empty ones, each decomposed by `take_apart`.

    The direction of the user vector in a report is a singular vector, whose sign is arbitrary. User vectors start with
    positive entries, so the sign of the first direction is chosen to make the sum of its entries positive. The sign of
    each later direction is chosen to make its scalar product with the mean of the last few directions positive.
    """
    seen = Trace(())
    for announcement, report in zip(announcements, reports, strict=True):
        seen = seen.followed_by(announcement, report)
    return seen


def take_apart(announcement: ItemVectors, report: GradientReport, towards: FloatArray | None) -> ReportParts:
    """Return the decomposition of one report into the direction û of the user vector and one amplitude per item.

    An amplitude is the error of an item times the norm of the user vector, plus noise. The sign of û is chosen so that
    its scalar product with `towards` is positive or, if `towards` is None, so that its entries have a positive sum.
    """
    vectors = announcement.item_vectors[report.items].astype(np.float64)
    scaled, noise = without_prior(announcement, report)
    direction = first_direction(scaled, towards)
    if direction @ (np.ones_like(direction) if towards is None else towards) < 0:
        direction = -direction
    amplitudes = scaled @ direction
    return ReportParts(
        round_number=announcement.round_number,
        items=report.items,
        amplitudes=amplitudes,
        direction=direction,
        scores=vectors @ direction,
        item_norms=np.sqrt(np.einsum("ij,ij->i", vectors, vectors)),
        mean_pull=amplitudes @ vectors / len(vectors),
        noise=noise,
    )


def without_prior(announcement: ItemVectors, report: GradientReport) -> tuple[FloatArray, float]:
    """Return a report without its public prior term, divided by η_t N (step size times data weight).

    The first result is X = e uᵀ + noise, with one row per reported item, where e holds the errors and u is the user
    vector. The second is the standard deviation of the noise.
    """
    terms = announcement.terms
    step_size = terms.step_size(announcement.round_number)
    prior = step_size * announcement.item_vectors[report.items].astype(np.float64) * terms.item_regularization
    scaled = (report.gradients + prior) / (step_size * terms.data_weight)
    return np.asarray(scaled), float(1 / (np.sqrt(step_size) * terms.data_weight))


def first_direction(rows: FloatArray, start: FloatArray | None = None) -> FloatArray:
    """Return the first right singular vector of `rows`, by power iteration from `start` (default: the longest row)."""
    direction = rows[np.argmax(np.einsum("ij,ij->i", rows, rows))] if start is None else start
    direction = direction / (np.linalg.norm(direction) + 1e-300)
    for _ in range(30):
        following = (rows @ direction) @ rows
        following /= np.linalg.norm(following) + 1e-300
        settled = abs(following @ direction) > 1 - 1e-13
        direction = following
        if settled:
            return np.asarray(direction)
    _, vectors = np.linalg.eigh(rows.T @ rows)
    return np.asarray(vectors[:, -1])


def stacked_direction(parts: Sequence[ReportParts]) -> FloatArray:
    """Return one unit vector that combines the directions of several reports, each weighted by its precision."""
    rows = np.array([part.direction * part.strength / part.noise for part in parts])
    direction = first_direction(rows, parts[-1].direction)
    return direction if direction @ parts[-1].direction >= 0 else -direction


def likely_direction(table: FloatArray, scores: FloatArray) -> FloatArray:
    """Return the least-squares solution x of `table @ x = scores`, scaled to a unit vector."""
    found = np.linalg.lstsq(table, scores, rcond=None)[0]
    return np.asarray(found / (np.linalg.norm(found) + 1e-300))


def pooled_direction(
    announcements: Sequence[ItemVectors], reports: Sequence[GradientReport | None], public: FloatArray
) -> FloatArray:
    """Return one direction fitted to the gradients of many reports, for use if noise hides it in each single report.

    While the user vector moves little, the gradients X = a ûᵀ + noise of all rounds are almost parallel. Let the
    amplitudes a have variance A², the noise variance τ², and let û be close to the direction w = `public`. The most
    likely û is then the first eigenvector of

        Σ XᵀX / τ² · A² / (A² + τ²) / 2 + κ w wᵀ.

    A² is estimated by the mean square of the reports minus the mean square of their noise. κ is the precision with
    which w predicts û.
    """
    sent = zip(announcements, reports, strict=True)
    seen = [without_prior(announcement, report) for announcement, report in sent if report is not None]
    width = len(public)
    excess = sum(float((rows**2).sum()) - rows.size * noise**2 for rows, noise in seen)
    power = max(excess / max(sum(len(rows) for rows, _ in seen), 1), 0.0)  # A²
    concentration = (width - 1) / (2 * (1 - ALIKE))  # κ
    evidence = concentration * np.outer(public, public)
    for rows, noise in seen:
        evidence += rows.T @ rows / noise**2 * (power / (power + noise**2) / 2)
    direction = np.linalg.eigh(evidence)[1][:, -1]
    return np.asarray(direction if direction @ public >= 0 else -direction)
