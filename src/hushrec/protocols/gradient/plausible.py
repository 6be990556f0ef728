"""Bounds on item vectors, which devices enforce, and on gradients, which the server enforces.

They stop attacks by extreme values: a server that sends the item vector v = 0 makes the error equal the rating, e = r,
and a device that sends huge gradients outweighs all others.
"""

import math

import numpy as np
import numpy.typing as npt

from hushrec.errors import RemoteProtocolError
from hushrec.protocols.gradient.messages import Terms

LARGEST_ITEM_NORM = 100.0
SMALLEST_ITEM_NORM = 0.01
SMALL_SHARE = 0.01  # share of the items whose vectors may be shorter than SMALLEST_ITEM_NORM
LARGEST_GRADIENT = 250.0  # in units of the round's step; reached by an error of 100 and a user vector of norm 2.5

LONGEST_PLAUSIBLE = 2.0  # factor above which `implausible_length` reports

# Limits on the influence of one device on the item vectors of a network run, chosen with benchmarks/hostile.py.
LEAST_REPORTS = 20  # divisor for the sum of an item's reports if there are fewer reports than this
MOST_STEPS, DEVICES_PER_STEP = 20.0, 25  # the constants 20 and 25 of `report_bound`

Rows = npt.NDArray[np.floating]


def report_bound(terms: Terms, round_number: int, n_devices: int) -> float:
    """Return the largest joint norm of a report's gradients, which the server announces with the round.

        B_t² = (η_t N · min(20, max(1, n / 25)))² + η_t K z

    for n devices and gradients of K numbers. The first term bounds the data: honest devices reach 20, and with few
    devices the bound is lower, because one of them could otherwise outweigh the others. The second term is the expected
    squared norm of the noise of z gradients.
    """
    size, width = terms.step_size(round_number), len(terms.item_regularization)
    steps = min(MOST_STEPS, max(1.0, n_devices / DEVICES_PER_STEP))
    noise = size * width * (terms.reports_per_client or terms.n_items)
    return math.hypot(size * terms.data_weight * steps, math.sqrt(noise))


def row_norms(vectors: Rows) -> Rows:
    """Return the Euclidean norm of every row."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", vectors, vectors)))


def plausible_norms(norms: Rows) -> bool:
    """Return whether the norms of item vectors are in the range of an honest run."""
    return bool(norms.max() <= LARGEST_ITEM_NORM and np.mean(norms < SMALLEST_ITEM_NORM) <= SMALL_SHARE)


def too_short(vectors: Rows, n_items: int) -> bool:
    """Return whether devices refuse these finite vectors only because too many of the items' are near zero."""
    norms = np.linalg.norm(vectors, axis=1)
    return bool(norms.max() <= LARGEST_ITEM_NORM) and not plausible_norms(norms[:n_items])


def check_item_vectors(round_number: int, vectors: Rows, n_items: int) -> None:
    """Raise `RemoteProtocolError` for item vectors that devices would refuse; the first `n_items` rows are items."""
    norms = np.linalg.norm(vectors, axis=1)
    if not norms.max() <= LARGEST_ITEM_NORM or not plausible_norms(norms[:n_items]):
        raise RemoteProtocolError(
            f"item vectors must have norms of at most {LARGEST_ITEM_NORM:g}, and {1 - SMALL_SHARE:.0%} of them norms of"
            f" at least {SMALLEST_ITEM_NORM:g}; those of round {round_number} do not. Lower the step."
        )


def check_gradients(round_number: int, largest: float) -> None:
    """Raise `RemoteProtocolError` if the server would refuse a gradient; `largest` is the largest |e| ‖u‖ of all."""
    if not largest <= LARGEST_GRADIENT:
        raise RemoteProtocolError(
            f"errors times user vectors must have norms of at most {LARGEST_GRADIENT:g}; those of round {round_number}"
            " do not. Lower the step or, with isgld, raise epsilon."
        )


def check_finite(round_number: int, *vectors: Rows) -> None:
    """Raise `RemoteProtocolError` if a vector is not finite."""
    if not all(np.isfinite(rows).all() for rows in vectors):
        raise RemoteProtocolError(f"vectors must be finite; those of round {round_number} are not. Lower the step.")


def implausible_length(vectors: Rows) -> float | None:
    """Return the factor by which the item vectors of `mf` have grown if honest devices cannot explain it, else None.

    The initial vectors have mean squared norm 0.3² · 50 / 3 for any number of factors, and in honest runs norms stay
    close to that: 40 devices of ML-100K end within a few percent. Twice the initial norm indicates dishonest devices or
    a step that is too large.
    """
    ratio = float(np.sqrt(np.mean(np.square(row_norms(vectors)))) / (0.3 * math.sqrt(50 / 3)))
    return ratio if ratio > LONGEST_PLAUSIBLE else None
