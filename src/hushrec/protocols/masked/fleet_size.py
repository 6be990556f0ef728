"""From how many devices on a run of `masked` with model `gp` pays, as measured on MovieLens.

The numbers are those of benchmarks/records/masked-fleet-size-ml-100k.json, and of -ml-1m.json for fleets above
943 devices, made by benchmarks/masked_fleet_size.py; a test holds them to it.
"""

from hushrec.protocols.fleet_size import FleetSize, sentence_of

ONE_MILLION = "MovieLens 1M"

MEASURED: dict[float, tuple[FleetSize, ...]] = {  # by ε
    8.0: (
        FleetSize(25, 1.0142, 1.0508, 1.025),
        FleetSize(50, 0.9954, 1.0409, 0.9919),
        FleetSize(100, 0.9822, 1.0541, 0.9871),
        FleetSize(200, 0.9311, 1.0296, 0.9426),
        FleetSize(400, 0.949, 1.0626, 0.9689),
        FleetSize(943, 0.9088, 1.0466, 0.9419),
        FleetSize(1000, 0.8809, 1.0227, 0.9086, ONE_MILLION),
        FleetSize(2000, 0.8697, 1.0292, 0.9063, ONE_MILLION),
        FleetSize(4000, 0.8558, 1.038, 0.9094, ONE_MILLION),
        FleetSize(6040, 0.8491, 1.0348, 0.908, ONE_MILLION),
    ),
    1.0: (
        FleetSize(25, 1.0196, 1.0508, 1.025),
        FleetSize(50, 1.0048, 1.0409, 0.9919),
        FleetSize(100, 1.0037, 1.0541, 0.9871),
        FleetSize(200, 0.9763, 1.0296, 0.9426),
        FleetSize(400, 1.006, 1.0626, 0.9689),
        FleetSize(943, 0.957, 1.0466, 0.9419),
        FleetSize(1000, 0.9399, 1.0227, 0.9086, ONE_MILLION),
        FleetSize(2000, 0.9152, 1.0292, 0.9063, ONE_MILLION),
        FleetSize(4000, 0.8966, 1.038, 0.9094, ONE_MILLION),
        FleetSize(6040, 0.8864, 1.0348, 0.908, ONE_MILLION),
    ),
}


def measured_at(epsilon: float) -> tuple[FleetSize, ...]:
    """Return the sizes that were measured at the largest budget that is no larger; at the smallest below that."""
    return MEASURED[max((known for known in MEASURED if known <= epsilon), default=min(MEASURED))]


def fleet_sentence(epsilon: float, n_devices: float) -> str:
    """Return one sentence about a run with so many devices at the budget ε, for operators and for people."""
    return sentence_of(measured_at(epsilon), n_devices)
