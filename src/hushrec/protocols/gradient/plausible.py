"""What a device refuses to answer and a server refuses to add up: vectors and gradients of absurd size.

A server that sends item vectors of absurd length reads ratings off the errors: v = 0 makes e = r.
"""

import math

import numpy as np
import numpy.typing as npt

from hushrec.errors import RemoteProtocolError
from hushrec.protocols.gradient.messages import Terms

LARGEST_ITEM_NORM = 100.0
SMALLEST_ITEM_NORM = 0.01
SMALL_SHARE = 0.01  # of the items may be smaller than that
LARGEST_GRADIENT = 250.0  # in units of the round's step: it would take an error of 100 and a user vector of norm 2.5

LONGEST_PLAUSIBLE = 2.0  # of `implausible_length`

# What one device may do to the item vectors of a network run, chosen with benchmarks/hostile.py.
LEAST_REPORTS = 20  # an item that fewer devices reported moves as if so many had
MOST_STEPS, DEVICES_PER_STEP = 20.0, 25  # of `report_bound`

Rows = npt.NDArray[np.floating]


def report_bound(terms: Terms, round_number: int, n_devices: int) -> float:
    """Return the largest norm that all gradients of a report may have together, announced to the devices of a round.

        B_t² = (η_t N · min(20, max(1, n / 25)))² + η_t K z

    for n devices and gradients of K numbers. The first part is for the data: one of few devices is held to less than
    honest ones would send, since it would outweigh the others; 20 is what honest devices reach. The second is the
    usual squared norm of the noise of z gradients.
    """
    size, width = terms.step_size(round_number), len(terms.item_regularization)
    steps = min(MOST_STEPS, max(1.0, n_devices / DEVICES_PER_STEP))
    noise = size * width * (terms.reports_per_client or terms.n_items)
    return math.hypot(size * terms.data_weight * steps, math.sqrt(noise))


def row_norms(vectors: Rows) -> Rows:
    """The Euclidean norm of every row."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", vectors, vectors)))


def plausible_norms(norms: Rows) -> bool:
    """Whether item vectors have lengths that an honest server's have."""
    return bool(norms.max() <= LARGEST_ITEM_NORM and np.mean(norms < SMALLEST_ITEM_NORM) <= SMALL_SHARE)


def too_short(vectors: Rows, n_items: int) -> bool:
    """Return whether a table of finite vectors is refused only because too many items are near zero."""
    norms = np.linalg.norm(vectors, axis=1)
    return bool(norms.max() <= LARGEST_ITEM_NORM) and not plausible_norms(norms[:n_items])


def check_item_vectors(round_number: int, vectors: Rows, n_items: int) -> None:
    """Refuse a table that devices would not accept in this round; its first `n_items` rows are items."""
    norms = np.linalg.norm(vectors, axis=1)
    if not norms.max() <= LARGEST_ITEM_NORM or not plausible_norms(norms[:n_items]):
        raise RemoteProtocolError(
            f"item vectors must have norms from {SMALLEST_ITEM_NORM:g} (but for {SMALL_SHARE:.0%} of them) to"
            f" {LARGEST_ITEM_NORM:g}, which those of round {round_number} have not. Lower the step."
        )


def check_gradients(round_number: int, largest: float) -> None:
    """Refuse gradients that the server would not add up, by the largest |e| ‖u‖ among them."""
    if not largest <= LARGEST_GRADIENT:
        raise RemoteProtocolError(
            f"errors times user vectors must have norms up to {LARGEST_GRADIENT:g}, which those of round"
            f" {round_number} have not. Lower the step, or, with isgld, raise epsilon."
        )


def check_finite(round_number: int, *vectors: Rows) -> None:
    """Refuse vectors that are not finite."""
    if not all(np.isfinite(rows).all() for rows in vectors):
        raise RemoteProtocolError(f"vectors must stay finite; those of round {round_number} did not. Lower the step.")


def implausible_length(vectors: Rows) -> float | None:
    """Return by what factor the item vectors of `mf` have grown, if honest devices cannot make them grow that much.

    Predictions stay on the scale while lengths stay near that of the start, whose mean square is 0.3² · 50 / 3 for any
    number of factors. Runs of 40 devices of ML-100K end within a few percent of its root; twice as long is a sign of
    lies, or of a step that is too large.
    """
    ratio = float(np.sqrt(np.mean(np.square(row_norms(vectors)))) / (0.3 * math.sqrt(50 / 3)))
    return ratio if ratio > LONGEST_PLAUSIBLE else None
