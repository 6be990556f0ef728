"""Measured accuracy by number of devices, and the sentence that tells operators and participants what to expect."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FleetSize:
    """The measured test RMSE of a run with `devices` devices, and of two baselines for the same people."""

    devices: int
    rmse: float
    own_mean: float  # RMSE if each person's mean rating is the prediction, which needs no server
    bias: float  # RMSE of the bias model, trained on all ratings in one place
    data: str = "MovieLens 100K"


def smallest_that_pays(measured: Sequence[FleetSize]) -> int:
    """Return the smallest number of devices from which on all runs in `measured` beat the baseline `own_mean`.

    The largest run in `measured` must beat this baseline.
    """
    lost = [size.devices for size in measured if size.rmse >= size.own_mean]
    return min(size.devices for size in measured if size.devices > max(lost, default=0))


def sentence_of(measured: Sequence[FleetSize], n_devices: float) -> str:
    """Return sentences about the accuracy to expect with `n_devices` devices; `measured` is sorted by `devices`."""
    pays_from = smallest_that_pays(measured)
    size = ([measured[0]] + [size for size in measured if size.devices <= n_devices])[-1]  # the largest up to n_devices
    is_better = size.rmse < size.own_mean
    found = (
        f"With {size.devices:,} devices of {size.data}, such a run predicts ratings with an error (RMSE) of"
        f" {size.rmse:.3f}, {'more' if is_better else 'less'} accurate than each person's own mean"
        f" ({size.own_mean:.3f}), which needs no server"
    )
    if n_devices >= pays_from:
        about = "at most" if pays_from == measured[0].devices else "about"
        return f"{found}; it beats that mean from {about} {pays_from} devices on."
    few = f"{'1 device is' if n_devices == 1 else f'{n_devices:,.0f} devices are'} too few"
    worse = [f"{other.devices:,}" for other in measured if other.rmse >= other.own_mean]
    if not worse:
        return f"{few} for a known accuracy: such runs were measured from {pays_from} devices on. {found}."
    if is_better:
        worse = [", ".join(worse[:-1]), worse[-1]] if worse[:-1] else worse
        found += f"; but with {' and '.join(worse)} devices, it is less accurate"
    return f"{few}: all measured runs beat each person's own mean only from {pays_from} devices on. {found}."
