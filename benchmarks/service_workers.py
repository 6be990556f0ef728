"""Durable reports a second of one worker on SQLite, and of one, two and four on PostgreSQL, in turns of one run.

    python benchmarks/service_workers.py [--out benchmarks/records/service-workers.json]

As `service_load.py`: signed requests with reports of 20 kB, prepared before the clock starts, as fast as the server
takes them (closed loop). The load generator, the workers and PostgreSQL share the machine's cores, so that more workers
than cores cannot be faster; what is measured is what sharing a database costs. All servers run from the start to the
end and are loaded one after the other, several times over, so that whatever else the machine does slows all of them
down; the median turn counts.
"""

import argparse
import asyncio
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
from service_load import (
    CONFIG,
    N_ITEMS,
    N_SELECTED,
    WIDTH,
    Load,
    Sender,
    cpu_seconds,
    flush_milliseconds,
    wait_until_served,
)

from hushrec import wire
from hushrec.messages import Enrolment, Offer
from hushrec.signing import DeviceKey

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # a PostgreSQL server of its own

from postgresql_kit import Cluster, running_cluster

SERVERS = {"sqlite, 1 worker": 1, "postgresql, 1 worker": 1, "postgresql, 2 workers": 2, "postgresql, 4 workers": 4}


class Served:
    """A server under load: its processes, its devices, and what was measured."""

    def __init__(self, name: str, process: subprocess.Popen[bytes], port: int, devices: int, cluster: Cluster) -> None:
        self.name, self.process, self.cluster = name, process, cluster
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
            run_id = wire.decode(http.get("/v1/run").content, Offer).run_id
        rng = np.random.default_rng(0)
        self.senders = [
            Sender(
                DeviceKey.generate(),
                np.sort(rng.choice(N_ITEMS, N_SELECTED, replace=False)),
                rng.normal(size=(N_SELECTED, WIDTH)) * 1e-4,
            )
            for _ in range(devices)
        ]
        self.load = Load(port, None, self.senders, run_id)
        self.number, self.rates, self.milliseconds = 0, list[float](), list[float]()

    async def prepare(self, connections: int) -> None:
        await self.load.connect(connections)
        for sender in self.senders:
            body = wire.encode(Enrolment(sender.key.public_key))
            assert await self.load.send(sender.request("POST", "/v1/devices", body, self.load.run_id)) == 201
        _, self.number = await self.load.closed_loop(1, 0)  # warm
        self.load.latencies.clear()

    async def turn(self, rounds: int) -> None:
        before = self._cpu_seconds()
        seconds, self.number = await self.load.closed_loop(rounds, self.number)
        reports = rounds * len(self.senders)
        self.rates.append(round(reports / seconds, 1))
        self.milliseconds.append(round(1000 * (self._cpu_seconds() - before) / reports, 3))

    def _cpu_seconds(self) -> float:
        """Processor time of the server and its workers; PostgreSQL's is not in it."""
        pid = self.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        return sum(map(cpu_seconds, [pid, *map(int, children)]))

    def result(self) -> dict[str, object]:
        return {
            "reports_per_second": statistics.median(self.rates),
            "reports_per_second_of_each_turn": self.rates,
            "workers_cpu_ms_per_report": statistics.median(self.milliseconds),
            **self.load.percentiles(),
        }


async def measure(servers: list[Served], connections: int, rounds: int, turns: int) -> None:
    """Load one server after the other, `turns` times."""
    for server in servers:
        await server.prepare(connections)
    for _ in range(turns):
        for server in servers:
            await server.turn(rounds)


def start(name: str, folder: Path, port: int, cluster: Cluster) -> subprocess.Popen[bytes]:
    """Start one of `SERVERS`."""
    place = folder / str(port)
    place.mkdir()
    database = "sqlite:///server.sqlite" if name.startswith("sqlite") else cluster.new_database()
    command = [sys.executable, "-m", "hushrec", "serve", "--items", "../items.csv", "--config", "../config.toml"]
    command += ["--open", "--port", str(port), "--database", database, "--workers", str(SERVERS[name])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p)}
    with (place / "log").open("w") as log:
        server = subprocess.Popen(command, cwd=place, stderr=log, env=environment)
    wait_until_served(port, server)
    return server


def main() -> None:
    """Start the servers, load them, print and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--port", type=int, default=8481)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load_before = round(os.getloadavg()[0], 2)
    with ExitStack() as stack:
        cluster = stack.enter_context(running_cluster())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        flush = flush_milliseconds(folder / "flushed")
        (folder / "items.csv").write_text("id,title\n" + "".join(f"{n},Item {n}\n" for n in range(N_ITEMS)))
        (folder / "config.toml").write_text(CONFIG.format(devices=options.devices))
        servers = []
        for place, name in enumerate(SERVERS):
            process = start(name, folder, options.port + place, cluster)
            stack.callback(process.wait, timeout=60)
            stack.callback(process.terminate)
            servers.append(Served(name, process, options.port + place, options.devices, cluster))
        asyncio.run(measure(servers, options.connections, options.rounds, options.turns))
        found = {server.name: server.result() for server in servers}
    first = next(iter(found.values()))["reports_per_second"]
    record = {
        "command": "python " + " ".join(sys.argv),
        "machine": f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}; "
        "the load generator and PostgreSQL run on the same cores",
        "load_average_before": load_before,
        "load_average_after": round(os.getloadavg()[0], 2),
        "flush_to_disk_ms": flush,
        "devices": options.devices,
        "servers": found,
        "against_sqlite": {name: round(values["reports_per_second"] / first, 3) for name, values in found.items()},  # type: ignore[operator]
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
