"""The constants of `hushrec capacity`: fitted at three sizes, checked at two others.

    python benchmarks/capacity.py [--protocol sdcf]

Processor time of one masked round, of a device and of the server per report (benchmarks/secagg.py), as
a + b · (numbers of the table) + c · (devices of the cohort); a device draws 100 neighbours. With `--protocol sdcf`, of
one round of a real device with its store over HTTPS, model `mf` with 50 factors, as a + b · items: fitted at two sizes,
checked at two others.
"""

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import secagg
from measure import write_record
from served import served

from hushrec import Device

COLUMNS, NEIGHBOURS, SERVER_COHORT = 8, 100, 100
TURNS, SERVER_TURNS = 12, 2
FIT = ((1_000, 300), (1_000, 1_500), (40_000, 300))  # items, devices; tables within the cache and beyond it
CHECK = ((5_000, 1_000), (20_000, 600))
SDCF_FIT, SDCF_CHECK = (30_000, 120_000), (60_000, 160_000)  # items: tables beyond the cache, as in docs/scale.md
RATED, SDCF_FACTORS, SDCF_ROUNDS, PORT = 100, 50, 15, 8486
SDCF_CONFIG = f"""
[terms]
protocol = "sdcf"
factors = {SDCF_FACTORS}
rounds = {SDCF_ROUNDS}
reports_per_client = {RATED}
expected_devices = 1000
[rounds]
min_devices = 1
"""


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


def measure_sdcf(items: int) -> dict[str, float]:
    """Return the milliseconds of a real device in its fastest round; the first, which draws permanent bits, apart."""
    with tempfile.TemporaryDirectory() as folder:
        place, spent = Path(folder), []
        (place / "items.csv").write_text("id,title\n" + "".join(f"{item},Item {item}\n" for item in range(items)))
        rated = np.random.default_rng(0).choice(items, RATED, replace=False)
        with (
            served(place, SDCF_CONFIG, place / "items.csv", PORT, "--self-signed"),
            Device.create(place / "device") as device,
        ):
            device.add_ratings({str(item): 1.0 + item % 5 for item in rated})
            device.join(f"https://127.0.0.1:{PORT}", ca=place / "certificate.pem")
            for _ in range(SDCF_ROUNDS):
                started = time.process_time()
                assert device.step(wait=40) == "reported"
                spent.append(1000 * (time.process_time() - started))
    found = {"items": items, "device_ms": min(spent[1:])}
    print(found, flush=True)
    return found


def fit(points: list[dict[str, float]], name: str, sizes: tuple[str, ...]) -> list[float]:
    """Return the least-squares constants: 1, then one for each size, none below 0."""
    rows = np.array([[1.0, *(point[size] for size in sizes)] for point in points])
    found = np.linalg.lstsq(rows, np.array([point[name] for point in points]), rcond=None)[0]
    return [max(float(constant), 0.0) for constant in found]


def check(points: list[dict[str, float]], name: str, sizes: tuple[str, ...], constants: list[float]) -> None:
    """Add to every point what the constants predict for it, and the error."""
    first, *slopes = constants
    for point in points:
        predicted = first + sum(slope * point[size] for slope, size in zip(slopes, sizes, strict=True))
        point[f"{name}_predicted"] = predicted
        point[f"{name}_error"] = predicted / point[name] - 1


def masked() -> None:
    """Fit a masked round, then predict what was not used for it."""
    points, others = ([measure(*size) for size in sizes] for sizes in (FIT, CHECK))
    constants: dict[str, Any] = {
        "device_ms": fit(points, "device_ms", ("numbers", "cohort")),
        "server_ms": fit(points, "server_ms", ("numbers",)),
    }
    check(others, "device_ms", ("numbers", "cohort"), constants["device_ms"])
    check(others, "server_ms", ("numbers",), constants["server_ms"])
    write_record("capacity", {"neighbours": NEIGHBOURS, "constants": constants, "fit": points, "check": others})


def sdcf() -> None:
    """Fit a device's round of `sdcf`, then predict what was not used for it."""
    points, others = ([measure_sdcf(size) for size in sizes] for sizes in (SDCF_FIT, SDCF_CHECK))
    constants = {"device_ms": fit(points, "device_ms", ("items",))}
    check(others, "device_ms", ("items",), constants["device_ms"])
    about = {"factors": SDCF_FACTORS, "rated": RATED, "rounds": SDCF_ROUNDS}
    write_record("capacity-sdcf", about | {"constants": constants, "fit": points, "check": others})


def main() -> None:
    """One protocol."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--protocol", choices=["masked", "sdcf"], default="masked")
    {"masked": masked, "sdcf": sdcf}[parser.parse_args().protocol]()


if __name__ == "__main__":
    main()
