"""Bounds on item vectors, which devices enforce, and on gradients, which the server enforces.

The bounds stop attacks that use extreme values. If a server sends an item vector of zeros, the reported error equals
the rating. If a device sends huge gradients, they outweigh the gradients of all other devices.
"""

import math

import numpy as np
import numpy.typing as npt

from hushrec.errors import RemoteProtocolError
from hushrec.protocols.gradient.messages import Terms

LARGEST_ITEM_NORM = 100.0
SMALLEST_ITEM_NORM = 0.01
SMALL_SHARE = 0.01  # share of the items whose vectors may be shorter than SMALLEST_ITEM_NORM
LARGEST_GRADIENT = 250.0  # in units of step size × data weight; an error of 100 and a user vector of norm 2.5 reach it

LONGEST_PLAUSIBLE = 2.0  # factor above which `growth_of` returns a number
# Limits on the influence of one device on the item vectors of a network run, chosen with benchmarks/hostile.py.
LEAST_REPORTS = 20  # divisor for the sum of an item's reports if there are fewer reports than this
MOST_STEPS, DEVICES_PER_STEP = 20.0, 25  # the constants 20 and 25 of `report_bound`

Rows = npt.NDArray[np.floating]


def report_bound(terms: Terms, round_number: int, n_devices: int) -> float:
    """Return B, the largest joint norm of a report in this round; the server announces B with the round.

        B² = (η N · min(20, max(1, n / 25)))² + η K z

    η is the step size of the round, N the data weight, n = `n_devices` and K the length of a gradient. z is
    `reports_per_client` or, in protocols without it, the number of items. The first term bounds the gradients without
    noise. The factor 20 is large enough for honest devices; with few devices it is smaller, because one device could
    otherwise outweigh the rest. The second term is the expected squared norm of the noise.
    """
    size, width = terms.step_size(round_number), len(terms.item_regularization)
    steps = min(MOST_STEPS, max(1.0, n_devices / DEVICES_PER_STEP))
    noise = size * width * (terms.reports_per_client or terms.n_items)
    return math.hypot(size * terms.data_weight * steps, math.sqrt(noise))


def row_norms(vectors: Rows) -> Rows:
    """Return the Euclidean norm of each row, `(n_rows,)`."""
    return np.asarray(np.sqrt(np.einsum("ij,ij->i", vectors, vectors)))


def too_short(vectors: Rows, n_items: int) -> bool:
    """Return whether more than 1 % of the first `n_items` rows are near zero, which devices refuse.

    The result is False if any row is longer than `LARGEST_ITEM_NORM`, because devices then refuse the vectors for that
    reason. The rows after the first `n_items` are attributes of model `fm`, which may be near zero.
    """
    norms = row_norms(vectors)
    return bool(norms.max() <= LARGEST_ITEM_NORM and np.mean(norms[:n_items] < SMALLEST_ITEM_NORM) > SMALL_SHARE)


def check_item_vectors(vectors: Rows, n_items: int) -> None:
    """Raise `RemoteProtocolError` for item vectors that devices refuse; the first `n_items` rows are items."""
    largest = row_norms(vectors).max()
    if not largest <= LARGEST_ITEM_NORM:
        raise RemoteProtocolError(
            f"item_vectors must have norms of at most {LARGEST_ITEM_NORM:g}, got {largest:g}. Devices refuse them."
        )
    if too_short(vectors, n_items):
        raise RemoteProtocolError(
            f"at least {1 - SMALL_SHARE:.0%} of item_vectors must have norms of {SMALLEST_ITEM_NORM:g} or more: the"
            " error at a vector near zero would reveal the rating. Devices refuse these."
        )


def check_gradients(round_number: int, largest: float) -> None:
    """Raise `RemoteProtocolError` if `largest` is above `LARGEST_GRADIENT`.

    `largest` is the maximum of |error| · ‖user vector‖ over all gradients of the round. Engines that simulate all
    devices call this function; on a network, the server checks the gradients of each report.
    """
    if not largest <= LARGEST_GRADIENT:
        raise RemoteProtocolError(
            f"|error| · ‖user vector‖ must be at most {LARGEST_GRADIENT:g} for every gradient, got {largest:g} in"
            f" round {round_number}. Lower the step."
        )


def check_finite(round_number: int, *vectors: Rows) -> None:
    """Raise `RemoteProtocolError` if one of these arrays has an entry that is not finite."""
    if not all(np.isfinite(rows).all() for rows in vectors):
        raise RemoteProtocolError(
            f"user and item vectors must be finite, but in round {round_number} some are not. Lower the step."
        )


def growth_of(vectors: Rows) -> float | None:
    """Return how many times longer the item vectors of model `mf` are than initial ones; None if at most 2 times.

    Their length is the root of the mean squared norm of the rows. Initial vectors have a mean squared norm of about
    0.3² · 50 / 3, for any number of factors. With honest devices, the length stays within a few percent of its initial
    value, as measured with 40 devices of ML-100K. It grows with hostile devices, or if the step is too large.
    """
    ratio = float(np.sqrt(np.mean(np.square(row_norms(vectors)))) / (0.3 * math.sqrt(50 / 3)))
    return ratio if ratio > LONGEST_PLAUSIBLE else None
