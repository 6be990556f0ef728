"""From how many devices on a network run of `sdcf` with its default terms pays, as measured on ML-100K.

The numbers are those of benchmarks/records/fleet-size-ml-100k.json, made by benchmarks/fleet_size.py; a test holds them
to it.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class FleetSize:
    """Test RMSE of so many devices, beside what needs no server and what needs everybody's ratings."""

    devices: int
    rmse: float
    own_mean: float  # each person's own mean
    bias: float  # the bias model of the same people


MEASURED = (
    FleetSize(25, 1.0901, 1.0672, 1.0267),
    FleetSize(50, 1.0508, 1.0495, 0.9925),
    FleetSize(100, 1.0107, 1.0456, 0.9757),
    FleetSize(200, 0.9754, 1.033, 0.9476),
    FleetSize(400, 0.9723, 1.0445, 0.9517),
    FleetSize(943, 0.953, 1.0428, 0.9371),
)


def pays_from() -> int:
    """The smallest measured number of devices from which on a run beats each person's own mean."""
    lost = [size.devices for size in MEASURED if size.rmse >= size.own_mean]
    return min(size.devices for size in MEASURED if size.devices > max(lost, default=0))


def expected(n_devices: float) -> FleetSize:
    """The largest measured fleet that is no larger than this one; the smallest of all for fewer devices."""
    return max((size for size in MEASURED if size.devices <= n_devices), key=_devices, default=MEASURED[0])


def fleet_sentence(n_devices: float) -> str:
    """One sentence about a run with so many devices, for operators and for people who think about taking part."""
    size = expected(n_devices)
    verdict = "more" if size.rmse < size.own_mean else "less"
    return (
        f"With {size.devices} devices of MovieLens 100K such a run predicts ratings with an error (RMSE) of"
        f" {size.rmse:.3f}, {verdict} exact than each person's own mean ({size.own_mean:.3f}), which needs no server;"
        f" it pays from about {pays_from()} devices on."
    )


def _devices(size: FleetSize) -> int:
    return size.devices
