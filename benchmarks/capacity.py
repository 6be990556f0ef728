"""The constants of `hushrec capacity`: fitted at three sizes, checked at two others.

    python benchmarks/capacity.py

Processor time of one masked round, of a device and of the server per report (benchmarks/secagg.py), as
a + b · (numbers of the table) + c · (devices of the cohort); a device draws 100 neighbours.
"""

import argparse
from typing import Any

import numpy as np
import secagg
from measure import write_record

COLUMNS, NEIGHBOURS, SERVER_COHORT = 8, 100, 100
TURNS, SERVER_TURNS = 12, 2
FIT = ((1_000, 300), (1_000, 1_500), (40_000, 300))  # items, devices; tables within the cache and beyond it
CHECK = ((5_000, 1_000), (20_000, 600))


def measure(items: int, devices: int) -> dict[str, float]:
    """Return the size, and the milliseconds of a device and of the server per report."""
    options = argparse.Namespace(
        items=items, devices=devices, columns=COLUMNS, neighbours=NEIGHBOURS, cohort=SERVER_COHORT
    )
    world = secagg.prepare(options)
    device = secagg.fastest(lambda: secagg.device_round(options, world), TURNS)
    device.pop("masks shared")
    server = secagg.fastest(lambda: secagg.server_round(options), SERVER_TURNS)
    found = {
        "numbers": items * COLUMNS,
        "cohort": devices,
        "device_ms": sum(device.values()),
        "server_ms": sum(server.values()),
    }
    print(found, flush=True)
    return found


def fit(points: list[dict[str, float]], name: str, sizes: tuple[str, ...]) -> list[float]:
    """Return the least-squares constants: 1, then one for each size, none below 0."""
    rows = np.array([[1.0, *(point[size] for size in sizes)] for point in points])
    found = np.linalg.lstsq(rows, np.array([point[name] for point in points]), rcond=None)[0]
    return [max(float(constant), 0.0) for constant in found]


def main() -> None:
    """Fit, then predict what was not used for it."""
    points, others = ([measure(*size) for size in sizes] for sizes in (FIT, CHECK))
    constants: dict[str, Any] = {
        "device_ms": fit(points, "device_ms", ("numbers", "cohort")),
        "server_ms": fit(points, "server_ms", ("numbers",)),
    }
    for point in others:
        for name, sizes in (("device_ms", ("numbers", "cohort")), ("server_ms", ("numbers",))):
            first, *slopes = constants[name]
            predicted = first + sum(slope * point[size] for slope, size in zip(slopes, sizes, strict=True))
            point[f"{name}_predicted"] = predicted
            point[f"{name}_error"] = predicted / point[name] - 1
    write_record("capacity", {"neighbours": NEIGHBOURS, "constants": constants, "fit": points, "check": others})


if __name__ == "__main__":
    main()
