"""The accuracy of network runs of `masked` with model `gp`, by number of devices, as measured on MovieLens.

The terms are those that `hushrec serve` offers. The numbers are copied from three records in benchmarks/records, which
benchmarks/masked_fleet_size.py writes: masked-fleet-size-ml-100k-network, masked-fleet-size-ml-1m-network (above 943
devices), and masked-fleet-size-ml-100k-bare-network (a catalogue without attributes). A test compares them with the
records.
"""

from hushrec.protocols.fleet_size import FleetSize, sentence_of

WITHOUT_ATTRIBUTES = "MovieLens 100K without attributes"

# By number of devices: the RMSE at ε = 8 and ε = 1, those of a catalogue of ids and titles, and those of the baselines,
# each person's own mean and the bias model.
_MEASURED: dict[int, tuple[float, ...]] = {
    25: (1.0094, 1.0237, 1.0461, 1.0481, 1.0508, 1.025),
    50: (0.9916, 1.0006, 1.04, 1.0434, 1.0409, 0.9919),
    100: (0.9857, 1.0021, 1.0401, 1.0558, 1.0541, 0.9871),
    200: (0.9374, 0.9764, 0.9788, 1.0297, 1.0296, 0.9426),
    400: (0.9393, 0.9902, 0.9721, 1.0402, 1.0451, 0.9519),
    943: (0.9131, 0.9654, 0.9359, 1.0095, 1.0451, 0.941),
}
_MEASURED_ON_1M: dict[int, tuple[float, ...]] = {
    1000: (0.8873, 0.9474, 1.0227, 0.9086),
    2000: (0.8782, 0.9237, 1.0292, 0.9063),
    4000: (0.8605, 0.906, 1.038, 0.9094),
    6040: (0.8531, 0.8946, 1.0348, 0.908),
}


def _sizes(rows: dict[int, tuple[float, ...]], column: int, data: str) -> tuple[FleetSize, ...]:
    return tuple(FleetSize(devices, row[column], row[-2], row[-1], data) for devices, row in rows.items())


MEASURED = {  # by ε
    epsilon: _sizes(_MEASURED, column, "MovieLens 100K") + _sizes(_MEASURED_ON_1M, column, "MovieLens 1M")
    for column, epsilon in enumerate((8.0, 1.0))
}
BARE = {  # by ε, for a catalogue of ids and titles
    epsilon: _sizes(_MEASURED, 2 + column, WITHOUT_ATTRIBUTES) for column, epsilon in enumerate((8.0, 1.0))
}


def measured_at(epsilon: float, *, knows_attributes: bool = True) -> tuple[FleetSize, ...]:
    """Return the test RMSEs of `masked` and of two baselines on MovieLens, one entry for each number of devices.

    Entries are sorted by number of devices. Runs were measured at a few values of ε. The result is for the largest of
    these that is at most `epsilon`, or for the smallest if all are larger. `knows_attributes` says whether the
    catalogue has attributes of the items.
    """
    measured = MEASURED if knows_attributes else BARE
    return measured[max((known for known in measured if known <= epsilon), default=min(measured))]


def fleet_sentence(epsilon: float, n_devices: float, *, knows_attributes: bool = True) -> str:
    """Return sentences about the accuracy of `masked` to expect with `n_devices` devices at `epsilon`.

    `knows_attributes` says whether the catalogue has attributes of the items. If `epsilon` is below the smallest ε that
    was measured, the last sentence says at which ε the error was measured, and that the error at `epsilon` will
    be larger.
    """
    text, least = sentence_of(measured_at(epsilon, knows_attributes=knows_attributes), n_devices), min(MEASURED)
    return text if epsilon >= least else f"{text} The error was measured at ε = {least:g}; expect a larger one here."
