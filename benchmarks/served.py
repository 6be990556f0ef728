"""A real server as a process of its own, and a fleet of real devices against it: what network benchmarks share."""

import argparse
import contextlib
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hushrec.device.budgets import Budgets
from hushrec.device.fleet import Member, Orders, Outcome, run_fleet


@contextlib.contextmanager
def served(place: Path, config: str, items: Path, port: int, *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `hushrec serve` with this config in the folder `place` until the block ends; its log is `place`/log."""
    (place / "config.toml").write_text(config)
    command = [sys.executable, "-m", "hushrec", "serve", "--items", str(items.resolve()), "--config", "config.toml"]
    command += ["--open", "--port", str(port), *options]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)}
    with (place / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=place, stderr=log, env=environment)
        try:
            wait_until_served(port, server)
            yield server
        finally:
            server.terminate()
            server.wait(timeout=30)


def wait_until_served(port: int, server: subprocess.Popen[bytes]) -> None:
    """Return when the port answers."""
    until = time.monotonic() + 120
    while time.monotonic() < until:
        assert server.poll() is None, "the server ended"
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError("the server did not start")


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def load_machine() -> str:
    """Name the machine on which server and load share the cores."""
    return f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"


def fleet_options(parser: argparse.ArgumentParser, port: int) -> None:
    """Add what every run of a fleet is told."""
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--devices", type=int, default=943)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--port", type=int, default=port)
    parser.add_argument("--out", type=Path)


def run_network(
    options: argparse.Namespace, place: Path, config: str, items: Path, members: list[Member]
) -> tuple[dict[str, Any], Outcome]:
    """Serve over TLS, let all devices take part until the run is over, and return what was measured."""
    with served(place, config, items, options.port, "--self-signed") as server:
        orders = Orders(f"https://127.0.0.1:{options.port}", Budgets(), ca=place / "certificate.pem")
        started, before = time.perf_counter(), cpu_seconds(server.pid)
        outcome = run_fleet(members, orders, processes=options.processes)
        seconds, used = time.perf_counter() - started, cpu_seconds(server.pid) - before
    rounds = len(re.findall(r'"round-closed"', (place / "log").read_text()))
    per_round = len(members) * rounds
    return {
        "command": "python " + " ".join(sys.argv),
        "machine": f"{load_machine()}; server and all devices on the same cores",
        "load_average_after": os.getloadavg()[2],
        "transport": "HTTP over TLS, loopback",
        "dataset": options.data,
        "devices": len(members),
        "rounds": rounds,
        "processes_of_devices": options.processes,
        "reports": outcome.reports,
        "minutes": round(seconds / 60, 2),
        "seconds_per_round": round(seconds / rounds, 2),
        "bytes_up_per_device_and_round": round(outcome.bytes_up / per_round),
        "bytes_down_per_device_and_round": round(outcome.bytes_down / per_round),
        "device_cpu_ms_per_round": round(1000 * outcome.cpu_seconds / per_round, 1),
        "server_cpu_ms_per_report": round(1000 * used / outcome.reports, 2),
        "rmse": outcome.rmse,
        "rmse_trained": outcome.rmse_trained,
    }, outcome
