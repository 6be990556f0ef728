"""What clients and server would refuse in a round: vectors and gradients of absurd size, as an engine checks them."""

import numpy as np
import numpy.typing as npt

from hushrec.client import LARGEST_ITEM_NORM, SMALL_SHARE, SMALLEST_ITEM_NORM, plausible_norms
from hushrec.errors import RemoteProtocolError
from hushrec.server import LARGEST_GRADIENT

Rows = npt.NDArray[np.floating]


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
