"""The rank-one attack: all gradients of one upload are parallel to the sender's user vector.

Without the public prior term, and divided by η_t N, an upload is

    X = e uᵀ + noise of deviation 1 / (√η_t N),

so its first right singular vector is ±u / ‖u‖, and the amplitudes X û are e ‖u‖: errors up to one unknown factor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors

RECENT = 5  # number of last uploads that determine the direction of a trace
ALIKE = 0.85  # mean squared cosine of people's vectors with the public direction


@dataclass(frozen=True, eq=False)
class UploadParts:
    """One upload, decomposed into the direction of the user vector and an amplitude for each item."""

    round_number: int
    items: IntArray = field(repr=False)
    amplitudes: FloatArray = field(repr=False)  # e ‖u‖
    direction: FloatArray = field(repr=False)  # û
    scores: FloatArray = field(repr=False)  # û·v of each item
    item_norms: FloatArray = field(repr=False)
    mean_pull: FloatArray = field(repr=False)  # mean of a v over the items
    noise: float  # deviation of an amplitude

    @property
    def strength(self) -> float:
        """The first singular value; the larger it is, the more exact is the direction."""
        return float(np.sqrt(self.amplitudes @ self.amplitudes)) + 1e-12


@dataclass(frozen=True, eq=False)
class Trace:
    """All uploads of one person, decomposed, with consistent signs of their directions."""

    parts: tuple[UploadParts, ...] = field(repr=False)

    @property
    def direction(self) -> FloatArray | None:
        """The direction û after the last upload: the mean of the last few directions, weighted by their precision.

        One upload would not do: an upload without real errors has a random direction, and would give all later
        directions a random sign.
        """
        if not self.parts:
            return None
        mean = sum(part.direction * (part.strength / part.noise) ** 2 for part in self.parts[-RECENT:])
        return np.asarray(mean / np.linalg.norm(mean))


def trace(announcements: Sequence[ItemVectors], uploads: Sequence[GradientReport | None]) -> Trace:
    """Return the decomposed uploads of one person, in the order of rounds.

    A singular vector has no sign. Initial user vectors are positive, so the sign of the first direction makes its sum
    positive; the sign of each later direction makes its scalar product with the earlier directions positive.
    """
    seen = Trace(())
    for announcement, upload in zip(announcements, uploads, strict=True):
        if upload is not None:
            seen = Trace((*seen.parts, take_apart(announcement, upload, seen.direction)))
    return seen


def take_apart(announcement: ItemVectors, upload: GradientReport, towards: FloatArray | None) -> UploadParts:
    """Return the direction and amplitudes of one upload.

    The sign makes the scalar product of the direction with `towards` positive; without `towards`, its sum.
    """
    vectors = announcement.item_vectors[upload.items].astype(np.float64)
    scaled, noise = without_prior(announcement, upload)
    direction = first_direction(scaled, towards)
    if direction @ (np.ones_like(direction) if towards is None else towards) < 0:
        direction = -direction
    amplitudes = scaled @ direction
    return UploadParts(
        round_number=announcement.round_number,
        items=upload.items,
        amplitudes=amplitudes,
        direction=direction,
        scores=vectors @ direction,
        item_norms=np.sqrt(np.einsum("ij,ij->i", vectors, vectors)),
        mean_pull=amplitudes @ vectors / len(vectors),
        noise=noise,
    )


def without_prior(announcement: ItemVectors, upload: GradientReport) -> tuple[FloatArray, float]:
    """Return X = e uᵀ + noise, with one row per reported item, and the standard deviation of the noise."""
    terms = announcement.terms
    step_size = terms.step_size(announcement.round_number)
    prior = step_size * announcement.item_vectors[upload.items].astype(np.float64) * terms.item_regularization
    scaled = (upload.gradients + prior) / (step_size * terms.data_weight)
    return np.asarray(scaled), float(1 / (np.sqrt(step_size) * terms.data_weight))


def first_direction(rows: FloatArray, start: FloatArray | None = None) -> FloatArray:
    """Return the first right singular vector, by power iteration from `start`, or exactly if that does not converge."""
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


def stacked_direction(parts: Sequence[UploadParts]) -> FloatArray:
    """Return the common direction of several uploads, weighted by the precision of each."""
    rows = np.array([part.direction * part.strength / part.noise for part in parts])
    direction = first_direction(rows, parts[-1].direction)
    return direction if direction @ parts[-1].direction >= 0 else -direction


def likely_direction(table: FloatArray, known: FloatArray) -> FloatArray:
    """Return the direction of the least-squares solution x of table @ x = known, as a unit vector."""
    found = np.linalg.lstsq(table, known, rcond=None)[0]
    return np.asarray(found / (np.linalg.norm(found) + 1e-300))


def pooled_direction(
    announcements: Sequence[ItemVectors], uploads: Sequence[GradientReport | None], public: FloatArray
) -> FloatArray:
    """Return one direction fitted to the gradients of many uploads, for noise that hides the direction of a single one.

    The gradients X = a ûᵀ + τ noise of rounds in which the user vector moves little are almost parallel. If amplitudes
    have variance A², and û is close to the public direction w, the most likely û is the first eigenvector of

        Σ XᵀX / τ² · A² / (A² + τ²) / 2 + κ w wᵀ.

    A² is estimated by the mean square of the uploads minus that of their noise.
    """
    sent = zip(announcements, uploads, strict=True)
    seen = [without_prior(announcement, upload) for announcement, upload in sent if upload is not None]
    width = len(public)
    excess = sum(float((rows**2).sum()) - rows.size * noise**2 for rows, noise in seen)
    power = max(excess / max(sum(len(rows) for rows, _ in seen), 1), 0.0)  # A²
    concentration = (width - 1) / (2 * (1 - ALIKE))  # κ
    evidence = concentration * np.outer(public, public)
    for rows, noise in seen:
        evidence += rows.T @ rows / noise**2 * (power / (power + noise**2) / 2)
    direction = np.linalg.eigh(evidence)[1][:, -1]
    return np.asarray(direction if direction @ public >= 0 else -direction)
