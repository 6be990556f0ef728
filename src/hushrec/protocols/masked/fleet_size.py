"""From how many devices on a run of `masked` with model `gp` pays, as measured on MovieLens.

The numbers are those of benchmarks/records/masked-fleet-size-ml-100k.json, and of -ml-1m.json for fleets above
943 devices; those of a catalogue without attributes are in -ml-100k-bare.json. benchmarks/masked_fleet_size.py makes
them; a test holds them to it.
"""

from hushrec.protocols.fleet_size import FleetSize, sentence_of

ONE_MILLION = "MovieLens 1M"
WITHOUT_ATTRIBUTES = "MovieLens 100K without attributes"

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


BARE: dict[float, tuple[FleetSize, ...]] = {  # by ε, for a catalogue of ids and titles
    8.0: (
        FleetSize(25, 1.0556, 1.0508, 1.025, WITHOUT_ATTRIBUTES),
        FleetSize(50, 1.0378, 1.0409, 0.9919, WITHOUT_ATTRIBUTES),
        FleetSize(100, 1.0356, 1.0541, 0.9871, WITHOUT_ATTRIBUTES),
        FleetSize(200, 0.9692, 1.0296, 0.9426, WITHOUT_ATTRIBUTES),
        FleetSize(400, 0.9802, 1.0626, 0.9689, WITHOUT_ATTRIBUTES),
        FleetSize(943, 0.9305, 1.0466, 0.9419, WITHOUT_ATTRIBUTES),
    ),
    1.0: (
        FleetSize(25, 1.0775, 1.0508, 1.025, WITHOUT_ATTRIBUTES),
        FleetSize(50, 1.0529, 1.0409, 0.9919, WITHOUT_ATTRIBUTES),
        FleetSize(100, 1.0545, 1.0541, 0.9871, WITHOUT_ATTRIBUTES),
        FleetSize(200, 1.0345, 1.0296, 0.9426, WITHOUT_ATTRIBUTES),
        FleetSize(400, 1.0534, 1.0626, 0.9689, WITHOUT_ATTRIBUTES),
        FleetSize(943, 0.9992, 1.0466, 0.9419, WITHOUT_ATTRIBUTES),
    ),
}


def measured_at(epsilon: float, *, knows_attributes: bool = True) -> tuple[FleetSize, ...]:
    """Return the sizes that were measured at the largest budget that is no larger; at the smallest below that."""
    measured = MEASURED if knows_attributes else BARE
    return measured[max((known for known in measured if known <= epsilon), default=min(measured))]


def fleet_sentence(epsilon: float, n_devices: float, *, knows_attributes: bool = True) -> str:
    """Return one sentence about a run with so many devices at the budget ε, for operators and for people."""
    return sentence_of(measured_at(epsilon, knows_attributes=knows_attributes), n_devices)
