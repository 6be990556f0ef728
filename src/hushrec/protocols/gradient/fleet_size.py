"""From how many devices on a network run of `sdcf` with its default terms pays, as measured on ML-100K.

The numbers are those of benchmarks/records/fleet-size-ml-100k.json, made by benchmarks/fleet_size.py; a test holds them
to it.
"""

from hushrec.protocols.fleet_size import FleetSize, nearest_below, sentence_of, smallest_that_pays

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
    return smallest_that_pays(MEASURED)


def expected(n_devices: float) -> FleetSize:
    """The largest measured fleet that is no larger than this one; the smallest of all for fewer devices."""
    return nearest_below(MEASURED, n_devices)


def fleet_sentence(n_devices: float) -> str:
    """One sentence about a run with so many devices, for operators and for people who think about taking part."""
    return sentence_of(MEASURED, n_devices)
