"""The accuracy of network runs of `sdcf` with default terms, by number of devices, as measured on ML-100K.

The numbers are copied from benchmarks/records/fleet-size-ml-100k.json, which benchmarks/fleet_size.py writes. A test
compares them with that record.
"""

from hushrec.protocols.fleet_size import FleetSize

MEASURED = (
    FleetSize(25, 1.0901, 1.0672, 1.0267),
    FleetSize(50, 1.0508, 1.0495, 0.9925),
    FleetSize(100, 1.0107, 1.0456, 0.9757),
    FleetSize(200, 0.9754, 1.033, 0.9476),
    FleetSize(400, 0.9723, 1.0445, 0.9517),
    FleetSize(943, 0.953, 1.0428, 0.9371),
)
