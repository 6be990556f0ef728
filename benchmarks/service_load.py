"""How many durable reports a second the server takes, how long each waits, and what happens at twice that load.

    python benchmarks/service_load.py [--tls] [--out benchmarks/records/service-load.json]

The server is a process of its own; the load comes from this one, on the same machine: signed requests with reports
of 20 kB (98 items of 50 factors), prepared before the clock starts, over connections that are kept open. First as
fast as the server reports (closed loop), in several turns of which the fastest counts, because others may use the
machine; then at twice that rate whether it reports or not (open loop).
"""

import argparse
import asyncio
import json
import os
import re
import resource
import ssl
import sys
import tempfile
import time
from pathlib import Path

import httpx
import numpy as np
from served import cpu_seconds, load_machine, served

from hushrec import wire
from hushrec.messages import Enrolment, Envelope, Offer
from hushrec.protocols.gradient.messages import REPORT, GradientReport
from hushrec.signing import DeviceKey, Request, device_id_of, header_of

N_ITEMS, WIDTH, N_SELECTED = 1682, 50, 98
CONFIG = """
[terms]
protocol = "sdcf"
factors = 50
rounds = 1000
expected_devices = 1000
[rounds]
min_devices = {devices}
early_fraction = 1.0
[limits]
requests_per_second = 1000
burst = 1000
enrolments_per_second = 10000
"""


class Sender:
    """A device reduced to its key."""

    def __init__(self, key: DeviceKey) -> None:
        self.key = key
        self.name = device_id_of(key.public_key)

    def request(self, method: str, target: str, body: bytes, run_id: str) -> bytes:
        """The whole HTTP request as bytes, signed."""
        request = Request(method, target, body)
        credentials = self.key.sign(request, run_id=run_id, device=self.name, nonce=time.time_ns())
        head = (
            f"{method} {target} HTTP/1.1\r\nHost: server\r\nAuthorization: {header_of(credentials)}\r\n"
            f"Content-Type: {wire.MEDIA_TYPE}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


class GradientSender(Sender):
    """A device of `sdcf`, with a report that it sends in every round."""

    def __init__(self, rng: np.random.Generator) -> None:
        super().__init__(DeviceKey.generate())
        self._items = np.sort(rng.choice(N_ITEMS, N_SELECTED, replace=False))
        self._gradients = rng.normal(size=(N_SELECTED, WIDTH)) * 1e-4

    def report(self, round_number: int, run_id: str) -> bytes:
        report = GradientReport(round_number, self._items, self._gradients)
        body = wire.encode(Envelope(run_id, round_number, 1, REPORT, report))
        return self.request("POST", "/v1/reports", body, run_id)


def gradient_senders(count: int) -> list[Sender]:
    """So many devices of `sdcf`."""
    rng = np.random.default_rng(0)
    return [GradientSender(rng) for _ in range(count)]


class Connection:
    """A kept-open connection that speaks just enough HTTP."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, request: bytes) -> int:
        """The status of the reply."""
        status, _ = await self.exchange(request)
        return status

    async def exchange(self, request: bytes) -> tuple[int, bytes]:
        """The status of the reply, and its body."""
        self._writer.write(request)
        await self._writer.drain()
        return await self._reply()

    async def get(self, target: str) -> str:
        """The text of a page."""
        self._writer.write(f"GET {target} HTTP/1.1\r\nHost: server\r\n\r\n".encode())
        _, body = await self._reply()
        return body.decode()

    async def _reply(self) -> tuple[int, bytes]:
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        length = re.search(rb"content-length: *(\d+)", head)
        return int(head[9:12]), await self._reader.readexactly(int(length[1]) if length else 0)

    def close(self) -> None:
        self._writer.close()


class Load:
    """Senders, connections, and what was measured."""

    def __init__(self, port: int, context: ssl.SSLContext | None, senders: list[Sender], run_id: str) -> None:
        self.port, self.context, self.senders, self.run_id = port, context, senders, run_id
        self.idle: asyncio.Queue[Connection] = asyncio.Queue()
        self.latencies: list[float] = []
        self.statuses: dict[int, int] = {}

    async def connect(self, count: int) -> None:
        for _ in range(count):
            self.idle.put_nowait(Connection(*await asyncio.open_connection("127.0.0.1", self.port, ssl=self.context)))

    async def wait_for_round(self, above: int) -> int:
        """The number of the open round."""
        while True:
            connection = await self.idle.get()
            text = await connection.get("/metrics")
            self.idle.put_nowait(connection)
            values = dict(line.split() for line in text.splitlines() if line.startswith("hushrec_round"))
            if float(values["hushrec_round_open"]) and float(values["hushrec_round"]) > above:
                return int(float(values["hushrec_round"]))
            await asyncio.sleep(0.02)

    async def send(self, request: bytes, since: float | None = None) -> int:
        connection = await self.idle.get()
        started = time.perf_counter() if since is None else since
        try:
            status = await connection.send(request)
        finally:
            self.idle.put_nowait(connection)
        self.statuses[status] = self.statuses.get(status, 0) + 1
        if status == 200:
            self.latencies.append(time.perf_counter() - started)
        return status

    def _report(self, sender: Sender, number: int) -> bytes:
        assert isinstance(sender, GradientSender)
        return sender.report(number, self.run_id)

    async def closed_loop(self, rounds: int, first: int) -> tuple[float, int]:
        """Every sender reports every round as soon as a connection is free; seconds of sending, and the last round."""
        seconds, number = 0.0, first
        for _ in range(rounds):
            number = await self.wait_for_round(number)
            requests = [self._report(sender, number) for sender in self.senders]
            started = time.perf_counter()
            statuses = await asyncio.gather(*(self.send(request) for request in requests))
            seconds += time.perf_counter() - started
            assert set(statuses) == {200}, statuses
        return seconds, number

    async def open_loop(self, per_second: float, rounds: int, first: int) -> tuple[float, int, int]:
        """Requests leave at a fixed rate; those refused are sent again afterwards, so that the round can close."""
        seconds, refused, number = 0.0, 0, first
        for _ in range(rounds):
            number = await self.wait_for_round(number)
            requests = [self._report(sender, number) for sender in self.senders]
            started = time.perf_counter()
            tasks = []
            for n, request in enumerate(requests):
                due = started + n / per_second
                if (delay := due - time.perf_counter()) > 0:
                    await asyncio.sleep(delay)
                tasks.append(asyncio.create_task(self.send(request, since=due)))
            statuses = await asyncio.gather(*tasks)
            seconds += time.perf_counter() - started
            left = [sender for sender, status in zip(self.senders, statuses, strict=True) if status != 200]
            refused += len(left)
            while left:
                again = await asyncio.gather(*(self.send(self._report(s, number)) for s in left[:64]))
                left = [s for s, status in zip(left[:64], again, strict=True) if status != 200] + left[64:]
        return seconds, refused, number

    def close(self) -> None:
        """End all connections."""
        while not self.idle.empty():
            self.idle.get_nowait().close()

    def percentiles(self) -> dict[str, float]:
        names = ("p50", "p90", "p99", "p100")
        values = np.percentile(self.latencies, [50, 90, 99, 100]) * 1000
        return {f"{name}_ms": round(float(value), 1) for name, value in zip(names, values, strict=True)}


def read_offer(port: int, context: ssl.SSLContext | None = None) -> Offer:
    """What the server offers."""
    base = f"http{'' if context is None else 's'}://127.0.0.1:{port}"
    with httpx.Client(base_url=base, verify=context or True) as http:
        return wire.decode(http.get("/v1/run").content, Offer)


async def enrolled(load: Load) -> None:
    """Let all senders join."""
    for sender in load.senders:
        body = wire.encode(Enrolment(sender.key.public_key))
        assert await load.send(sender.request("POST", "/v1/devices", body, load.run_id)) == 201


async def measure(
    port: int, ca: Path | None, n_devices: int, rounds: int, turns: int, pid: int, connections: int
) -> dict[str, object]:
    """Enrols devices, then loads the server in both ways."""
    context = None if ca is None else ssl.create_default_context(cafile=ca)
    load = Load(port, context, gradient_senders(n_devices), read_offer(port, context).run_id)
    await load.connect(connections)
    await enrolled(load)
    _, number = await load.closed_loop(1, 0)  # warm
    reports = n_devices * rounds
    found = []
    for _ in range(turns):
        load.latencies.clear()
        before = cpu_seconds(pid)
        seconds, number = await load.closed_loop(rounds, number)
        used = cpu_seconds(pid) - before
        found.append(
            {
                "reports": reports,
                "reports_per_second": round(reports / seconds, 1),
                "connections": connections,
                "server_cpu_ms_per_report": round(1000 * used / reports, 3),
                **load.percentiles(),
            }
        )
    rates = [float(turn["reports_per_second"]) for turn in found]
    rate = max(rates)
    closed = found[rates.index(rate)] | {"reports_per_second_of_each_turn": rates}
    load.latencies.clear()
    load.statuses.clear()
    await load.connect(4 * connections)
    seconds, refused, number = await load.open_loop(2 * rate, rounds, number)
    doubled = {
        "offered_per_second": round(2 * rate, 1),
        "reports": reports,
        "durable_per_second": round((reports - refused) / seconds, 1),
        "told_to_come_back": refused,
        "statuses": load.statuses,
        "acknowledged_in_the_end": reports,
        **load.percentiles(),
    }
    load.close()
    return {"closed_loop": closed, "twice_the_load": doubled}


def main() -> None:
    """Starts the server, loads it, prints and keeps the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--devices", type=int, default=943)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--port", type=int, default=8471)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--database", help="default: SQLite in a temporary folder")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load_before = round(os.getloadavg()[0], 2)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        flush = flush_milliseconds(place / "flushed")
        (place / "items.csv").write_text("id,title\n" + "".join(f"{n},Item {n}\n" for n in range(N_ITEMS)))
        extra = [
            "--database",
            options.database or "sqlite:///server.sqlite",
            *(["--self-signed"] if options.tls else []),
        ]
        config = CONFIG.format(devices=options.devices)
        with served(place, config, place / "items.csv", options.port, *extra) as server:
            ca = place / "certificate.pem" if options.tls else None
            found = asyncio.run(
                measure(
                    options.port, ca, options.devices, options.rounds, options.turns, server.pid, options.connections
                )
            )
    example = GradientReport(1, np.arange(N_SELECTED), np.ones((N_SELECTED, WIDTH)))
    record = {
        "command": "python " + " ".join(sys.argv),
        "machine": f"{load_machine()}; the load generator runs on the same cores",
        "load_average_before": load_before,
        "flush_to_disk_ms": flush,
        "tls": options.tls,
        "database": "sqlite, WAL, synchronous=FULL" if options.database is None else options.database.split(":")[0],
        "report_bytes": len(wire.encode(Envelope("0" * 32, 1, 1, REPORT, example))),
        "devices": options.devices,
        **found,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


def flush_milliseconds(path: Path) -> float:
    """What this disk takes to say that 20 kB are durable: the median of fifty times."""
    seconds = []
    with path.open("wb") as file:
        for _ in range(50):
            file.write(bytes(20_000))
            file.flush()
            started = time.perf_counter()
            os.fsync(file.fileno())
            seconds.append(time.perf_counter() - started)
    return round(1000 * float(np.median(seconds)), 2)


if __name__ == "__main__":
    main()
