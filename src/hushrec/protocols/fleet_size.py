"""From how many devices on a run pays, in one sentence, from measured sizes."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class FleetSize:
    """Test RMSE measured with so many devices, beside baselines without a server and with all ratings in one place."""

    devices: int
    rmse: float
    own_mean: float  # each person's own mean
    bias: float  # the bias model of the same people
    data: str = "MovieLens 100K"


def smallest_that_pays(measured: Sequence[FleetSize]) -> int:
    """Return the smallest measured number of devices from which on a run beats each person's own mean."""
    lost = [size.devices for size in measured if size.rmse >= size.own_mean]
    return min(size.devices for size in measured if size.devices > max(lost, default=0))


def nearest_below(measured: Sequence[FleetSize], n_devices: float) -> FleetSize:
    """Return the largest measured fleet that is no larger than this one; the smallest of all for fewer devices."""
    return max((size for size in measured if size.devices <= n_devices), key=_devices, default=measured[0])


def sentence_of(measured: Sequence[FleetSize], n_devices: float) -> str:
    """Return one sentence about a run with so many devices, for operators and for people who think about joining."""
    size, pays_from = nearest_below(measured, n_devices), smallest_that_pays(measured)
    verdict = "more" if size.rmse < size.own_mean else "less"
    found = (
        f"With {size.devices:,} devices of {size.data} such a run predicts ratings with an error (RMSE) of"
        f" {size.rmse:.3f}, {verdict} exact than each person's own mean ({size.own_mean:.3f}), which needs no server"
    )
    if n_devices < pays_from:
        few = "1 device is" if n_devices == 1 else f"{n_devices:,.0f} devices are"
        return f"{few} too few: such a run is known to pay from {pays_from} devices on. {found}."
    return f"{found}; it pays from {'at most' if pays_from == measured[0].devices else 'about'} {pays_from} devices on."


def _devices(size: FleetSize) -> int:
    return size.devices
