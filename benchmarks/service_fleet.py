"""A fleet of real devices against a real server over loopback with TLS, beside the engine on the same split.

    python benchmarks/service_fleet.py [--devices 943] [--rounds 100] [--out benchmarks/records/service-fleet.json]

Every device has its own store, keys and connection, in two processes; the server is one of its own, with SQLite. The
split is that of `hushrec train` (80 % of the file's rows, seed 0), the terms are the engine's defaults with a public
cap.
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

from service_load import cpu_seconds, wait_until_served

from hushrec.cli.fleet import _members
from hushrec.data import load
from hushrec.device.budgets import Budgets
from hushrec.device.fleet import Orders, run_fleet
from hushrec.simulation.training import train

CONFIG = """
[terms]
protocol = "sdcf"
factors = 50
rounds = {rounds}
reports_per_client = {reports_per_client}
expected_devices = {devices}
profile_cap = {cap}
[rounds]
min_devices = {devices}
quorum = 1.0
[limits]
enrolments_per_second = 1000
"""


def main() -> None:
    """Runs the fleet, then the engine, and prints both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--devices", type=int, default=943)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--cap", type=int, default=600)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--port", type=int, default=8472)
    parser.add_argument("--engine", default="cpu")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    ratings = load(options.data)
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        members = _members(ratings, options.devices, 0, place / "stores")
        per_client = sum(len(member.ratings) for member in members) / len(members)
        titles = ratings.titles or ratings.item_ids
        rows = (
            f'{name},"{title.replace(chr(34), "")}"\n' for name, title in zip(ratings.item_ids, titles, strict=True)
        )
        (place / "items.csv").write_text("id,title\n" + "".join(rows))
        terms = {
            "rounds": options.rounds,
            "reports_per_client": per_client,
            "devices": len(members),
            "cap": options.cap,
        }
        (place / "config.toml").write_text(CONFIG.format(**terms))
        command = [
            sys.executable,
            "-m",
            "hushrec",
            "serve",
            "--items",
            "items.csv",
            "--config",
            "config.toml",
            "--open",
        ]
        command += ["--port", str(options.port), "--self-signed"]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)}
        with (place / "log").open("w") as log:
            server = subprocess.Popen(command, cwd=place, stderr=log, env=environment)
            try:
                wait_until_served(options.port, server)
                orders = Orders(
                    server=f"https://127.0.0.1:{options.port}", budgets=Budgets(), ca=place / "certificate.pem"
                )
                started, before = time.perf_counter(), cpu_seconds(server.pid)
                outcome = run_fleet(members, orders, processes=options.processes)
                seconds = time.perf_counter() - started
                used = cpu_seconds(server.pid) - before
            finally:
                server.terminate()
                server.wait(timeout=30)
        times = [float(value) for value in re.findall(r'"seconds": ([0-9.]+)', (place / "log").read_text())]
    record = {
        "command": "python " + " ".join(sys.argv),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; "
        "server and all devices on the same cores",
        "load_average_after": os.getloadavg()[2],
        "transport": "HTTP over TLS, loopback",
        "dataset": options.data,
        "devices": len(members),
        "rounds": options.rounds,
        "profile_cap": options.cap,
        "processes_of_devices": options.processes,
        "reports": outcome.reports,
        "seconds": round(seconds, 1),
        "seconds_per_round": round(sum(times) / len(times), 2),
        "server_cpu_ms_per_report": round(1000 * used / outcome.reports, 2),
        "rmse": outcome.rmse,
        "rmse_trained": outcome.rmse_trained,
    }
    if options.devices == ratings.n_users:
        result = train(
            options.data, engine=options.engine, rounds=options.rounds, profile_cap=options.cap, compare=False
        )
        record["engine_rmse"] = result.metrics["rmse"]
        record["difference"] = outcome.rmse_trained - result.metrics["rmse"] if outcome.held_out else None
    text = json.dumps(record, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
