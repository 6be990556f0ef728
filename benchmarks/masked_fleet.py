"""A masked run of real devices against a real server over loopback with TLS, beside the engine on the same split.

    HUSHREC_DATA=… python benchmarks/masked_fleet.py [--devices 943] [--out benchmarks/records/masked-fleet.json]

Every device has its own store, keys and connection, in two processes; the server is one of its own, with SQLite. The
split is that of `hushrec train` (80 % of the file's rows, seed 0). The engine runs with the same number of devices, the
same smallest cohort and the same reserve, so that both have the same noise; they differ in its draws.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from service_load import cpu_seconds, wait_until_served

from hushrec.cli.fleet import _members
from hushrec.data import load
from hushrec.device.budgets import Budgets
from hushrec.device.fleet import Orders, run_fleet
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
quorum = 1.0
deadline_seconds = 600
[limits]
enrolments_per_second = 1000
"""


def main() -> None:
    """Run the fleet, then the engine with several seeds, and print both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--items", type=Path, required=True, help="the catalogue, as `hushrec serve --items` takes it")
    parser.add_argument("--devices", type=int, default=943)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--survivors", type=float, default=0.9)
    parser.add_argument("--corrupt", type=float, default=0.02)
    parser.add_argument("--reserve", type=float, default=0.1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--port", type=int, default=8473)
    parser.add_argument("--seeds", type=int, default=5, help="runs of the engine")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ratings = load(options.data)
    terms = {name: getattr(options, name) for name in ("epsilon", "devices", "survivors", "corrupt", "reserve")}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        members = _members(ratings, options.devices, 0, place / "stores")
        (place / "config.toml").write_text(CONFIG.format(**terms))
        record = run_network(options, place, members)
    record |= terms
    record["engine_rmse"] = [
        train(
            options.data,
            epsilon=options.epsilon,
            survivors=options.survivors,
            corrupt=options.corrupt,
            reserve=options.reserve,
            seed=seed,
            compare=False,
        ).metrics["rmse"]
        for seed in range(options.seeds if options.devices == ratings.n_users else 0)
    ]
    if record["engine_rmse"]:
        record["engine_mean"], record["engine_spread"] = np.mean(record["engine_rmse"]), np.std(record["engine_rmse"])
    text = json.dumps(record, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def run_network(options: argparse.Namespace, place: Path, members: list) -> dict:
    """Serve, let all devices take part until the run is over, and return what was measured."""
    command = [sys.executable, "-m", "hushrec", "serve", "--items", str(options.items.resolve())]
    command += ["--config", "config.toml", "--open", "--self-signed", "--port", str(options.port)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)}
    with (place / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=place, stderr=log, env=environment)
        try:
            wait_until_served(options.port, server)
            orders = Orders(f"https://127.0.0.1:{options.port}", Budgets(), ca=place / "certificate.pem")
            started, before = time.perf_counter(), cpu_seconds(server.pid)
            outcome = run_fleet(members, orders, processes=options.processes)
            seconds, used = time.perf_counter() - started, cpu_seconds(server.pid) - before
        finally:
            server.terminate()
            server.wait(timeout=30)
    closed = re.findall(r'"round-closed"', (place / "log").read_text())
    rounds = len(closed)
    per_round = len(members) * rounds
    return {
        "command": "python " + " ".join(sys.argv),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; "
        "server and all devices on the same cores",
        "load_average_after": os.getloadavg()[2],
        "transport": "HTTP over TLS, loopback",
        "dataset": options.data,
        "rounds": rounds,
        "processes_of_devices": options.processes,
        "reports": outcome.reports,
        "minutes": round(seconds / 60, 2),
        "bytes_up_per_device_and_round": round(outcome.bytes_up / per_round),
        "bytes_down_per_device_and_round": round(outcome.bytes_down / per_round),
        "device_cpu_ms_per_round": round(1000 * outcome.cpu_seconds / per_round, 1),
        "server_cpu_ms_per_report": round(1000 * used / outcome.reports, 2),
        "rmse": outcome.rmse,
    }


if __name__ == "__main__":
    main()
