"""A masked run of real devices against a real server over loopback with TLS, beside the engine on the same split.

    HUSHREC_DATA=… python benchmarks/masked_fleet.py [--devices 943] [--out benchmarks/records/masked-fleet.json]

Every device has its own store, keys and connection, in two processes; the server is one of its own, with SQLite. The
split is that of `hushrec train` (80 % of the file's rows, seed 0). The engine runs with the same number of devices, the
same smallest cohort, the same reserve and the same share for evaluation, so that both have the same noise; they differ
in its draws. Which ratings a device holds out for evaluation follows from its name: the engine's devices get other
names with every seed, as devices of the network have in every run. `--network RECORD` keeps the network's figures of an
earlier record, and runs the engine alone.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from served import fleet_options, run_network

from hushrec.cli.fleet import _members
from hushrec.data import load
from hushrec.protocols.masked import evaluation
from hushrec.simulation.training import train

CONFIG = """
[terms]
epsilon = {epsilon}
expected_devices = {devices}
survivors = {survivors}
corrupt = {corrupt}
reserve = {reserve}
[rounds]
min_devices = {devices}
early_fraction = 1.0
deadline_seconds = 600
[limits]
enrolments_per_second = 1000
"""


def engine_rmse(options: argparse.Namespace, seed: int) -> float:
    """The engine's test RMSE with one draw of noise, and of names."""

    def under_another_name(device: int, *given: Any) -> Any:
        return evaluation.is_held_out(device + seed * 2**32, *given)

    with mock.patch("hushrec.engines.cpu.masked.is_held_out", under_another_name):
        found = train(
            options.data,
            epsilon=options.epsilon,
            survivors=options.survivors,
            corrupt=options.corrupt,
            reserve=options.reserve,
            evaluation=evaluation.NETWORK_SHARE,
            seed=seed,
            compare=False,
        )
    return float(found.metrics["rmse"])


def main() -> None:
    """Run the fleet, then the engine with several seeds, and print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    fleet_options(parser, 8473)
    parser.add_argument("--items", type=Path, help="the catalogue, as `hushrec serve --items` takes it")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--survivors", type=float, default=0.9)
    parser.add_argument("--corrupt", type=float, default=0.02)
    parser.add_argument("--reserve", type=float, default=0.1)
    parser.add_argument("--seeds", type=int, default=200, help="runs of the engine")
    parser.add_argument("--network", type=Path, help="a record whose figures of the network are kept")
    options = parser.parse_args()
    ratings = load(options.data)
    terms = {name: getattr(options, name) for name in ("epsilon", "devices", "survivors", "corrupt", "reserve")}
    if options.network:
        record = json.loads(options.network.read_text())
    else:
        with tempfile.TemporaryDirectory() as folder:
            place = Path(folder)
            members = _members(ratings, options.devices, 0, place / "stores")
            record, _ = run_network(options, place, CONFIG.format(**terms), options.items, members)
    items = f" --items {options.items.name}" if options.items else ""
    out = f" --out benchmarks/records/{options.out.name}" if options.out else ""
    record["command"] = f"python benchmarks/masked_fleet.py{items} --seeds {options.seeds}{out}"
    record |= terms
    seeds = range(options.seeds if options.devices == ratings.n_users else 0)
    record["engine_rmse"] = [engine_rmse(options, seed) for seed in seeds]
    if record["engine_rmse"]:
        found = np.array(record["engine_rmse"])
        record["engine_runs"], record["engine_mean"], record["engine_spread"] = (
            len(found),
            found.mean(),
            found.std(ddof=1),
        )
        record["engine_runs_below"] = int(np.sum(found < record["rmse"]))
        # The difference in standard deviations of a difference between one run and the mean of the others.
        record["difference_in_deviations"] = (record["rmse"] - found.mean()) / (
            found.std(ddof=1) * (1 + 1 / len(found)) ** 0.5
        )
    text = json.dumps(record, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
