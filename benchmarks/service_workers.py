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
import statistics
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

import httpx
from served import cpu_seconds, load_machine, served
from service_load import CONFIG, N_ITEMS, Load, enrolled, flush_milliseconds, gradient_senders, read_offer

sys.path.append(str(Path(__file__).parents[1] / "tests"))  # a PostgreSQL server of its own

from postgresql_kit import running_cluster

SERVERS = {"sqlite, 1 worker": 1, "postgresql, 1 worker": 1, "postgresql, 2 workers": 2, "postgresql, 4 workers": 4}


class Loaded:
    """A server under load, and what was measured."""

    def __init__(self, pid: int, port: int, devices: int) -> None:
        self.pid, self.number = pid, 0
        httpx.get(f"http://127.0.0.1:{port}/healthz", timeout=120).raise_for_status()  # workers take a while to start
        self.load = Load(port, None, gradient_senders(devices), read_offer(port).run_id)
        self.rates, self.milliseconds = list[float](), list[float]()

    async def prepare(self, connections: int) -> None:
        """Let all devices join, and report once."""
        await self.load.connect(connections)
        await enrolled(self.load)
        _, self.number = await self.load.closed_loop(1, 0)
        self.load.latencies.clear()

    async def turn(self, rounds: int) -> None:
        """Report in so many rounds."""
        before, reports = self._cpu_seconds(), rounds * len(self.load.senders)
        seconds, self.number = await self.load.closed_loop(rounds, self.number)
        self.rates.append(round(reports / seconds, 1))
        self.milliseconds.append(round(1000 * (self._cpu_seconds() - before) / reports, 3))

    def _cpu_seconds(self) -> float:
        """Processor time of the server and its workers; PostgreSQL's is not in it."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        return sum(map(cpu_seconds, [self.pid, *map(int, children)]))

    def result(self) -> dict[str, object]:
        return {
            "reports_per_second": statistics.median(self.rates),
            "reports_per_second_of_each_turn": self.rates,
            "workers_cpu_ms_per_report": statistics.median(self.milliseconds),
            **self.load.percentiles(),
        }


async def measure(servers: list[Loaded], connections: int, rounds: int, turns: int) -> None:
    """Load one server after the other, `turns` times."""
    for server in servers:
        await server.prepare(connections)
    for _ in range(turns):
        for server in servers:
            await server.turn(rounds)
    for server in servers:
        server.load.close()


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
        items = folder / "items.csv"
        items.write_text("id,title\n" + "".join(f"{n},Item {n}\n" for n in range(N_ITEMS)))
        servers = []
        for port, (name, workers) in enumerate(SERVERS.items(), options.port):
            (folder / str(port)).mkdir()
            database = "sqlite:///server.sqlite" if name.startswith("sqlite") else cluster.new_database()
            extra = ("--database", database, "--workers", str(workers))
            config = CONFIG.format(devices=options.devices)
            process = stack.enter_context(served(folder / str(port), config, items, port, *extra))
            servers.append(Loaded(process.pid, port, options.devices))
        asyncio.run(measure(servers, options.connections, options.rounds, options.turns))
        found = {name: server.result() for name, server in zip(SERVERS, servers, strict=True)}
    first = statistics.median(servers[0].rates)
    record = {
        "command": "python " + " ".join(sys.argv),
        "machine": f"{load_machine()}; the load generator and PostgreSQL run on the same cores",
        "load_average_before": load_before,
        "load_average_after": round(os.getloadavg()[0], 2),
        "flush_to_disk_ms": flush,
        "devices": options.devices,
        "servers": found,
        "against_sqlite": {
            name: round(statistics.median(server.rates) / first, 3)
            for name, server in zip(SERVERS, servers, strict=True)
        },
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
