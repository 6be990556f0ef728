"""How many durable masked tables of 100 kB a second the server takes, beside reports of `sdcf` in the same minutes.

    python benchmarks/masked_load.py [--out benchmarks/records/masked-load.json]

Two servers, each a process of its own, get turns of load from this process on the same machine: reports of `sdcf` of
20 kB, and tables of 25,000 integers. Senders of tables are devices reduced to their keys. They go through all phases
before: keys are signed, shares are random bytes of the right lengths, which a server cannot tell from sealed ones.
Only the tables are timed. Nobody consents afterwards, so that each turn is an attempt of the first round.
"""

import argparse
import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from served import cpu_seconds, load_machine, served
from service_load import CONFIG as SDCF_CONFIG
from service_load import Load, Sender, enrolled, flush_milliseconds, gradient_senders, read_offer

from hushrec import wire
from hushrec.messages import Envelope
from hushrec.protocols.masked.messages import COMMITMENTS_BYTES, SEALED_BYTES, Announcement, MaskedTable, SealedShares
from hushrec.protocols.masked.secagg.device import draw_secrets, make_keys
from hushrec.protocols.masked.secagg.roster import PublicKeys, device_name, masks_text, partners_digest
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.randomness import SystemStream
from hushrec.signing import DeviceKey

TABLE_BYTES = 100_000
CONFIG = """
[terms]
expected_devices = {devices}
survivors = 0.9
corrupt = 0.0
[rounds]
min_devices = {devices}
early_fraction = 1.0
deadline_seconds = 600
[limits]
requests_per_second = 1000
burst = 1000
enrolments_per_second = 10000
"""

CONFIGS = {"sdcf": SDCF_CONFIG, "masked": CONFIG}


class TableSender(Sender):
    """A device reduced to its key: signed keys, random shares, a random table."""

    def __init__(self, number: int) -> None:
        super().__init__(DeviceKey.generate())
        self._rng = np.random.default_rng(number)
        self._identity = Ed25519PrivateKey.from_private_bytes(self.key.to_bytes())

    def keys(self, announcement: Announcement) -> PublicKeys:
        return make_keys(draw_secrets(rng=SystemStream()), announcement.digest, device_name(self.name), self._identity)

    def shares(self, others: np.ndarray) -> SealedShares:
        sealed, commitments = self._rng.bytes(SEALED_BYTES), self._rng.bytes(COMMITMENTS_BYTES)
        return SealedShares(others, (sealed,) * len(others), (commitments,) * len(others))

    def table(self, size: int, context: bytes) -> MaskedTable:
        numbers = self._rng.integers(0, 2**32, size, dtype=np.uint32)
        return MaskedTable(numbers, self._identity.sign(masks_text(context)))


class TableLoad(Load):
    """Attempt after attempt of the first round: two phases of preparation, and one that is timed."""

    def __init__(self, *where: Any, terms: MaskedTerms, admin: str) -> None:
        super().__init__(*where)
        self._terms, self._admin = terms, admin
        self.senders.sort(key=lambda sender: sender.name)  # as in the roster

    async def ask(self) -> Envelope:
        """Return what the open phase asks of the first device, as soon as it asks something."""
        while True:
            connection = await self.idle.get()
            request = self.senders[0].request("GET", "/v1/inbox?after=0&wait=30", b"", self.run_id)
            status, body = await connection.exchange(request)
            self.idle.put_nowait(connection)
            if status == 200:
                return wire.decode(body, Envelope)

    async def turn(self) -> float:
        """Return the seconds that the tables of all devices took."""
        count, neighbours = len(self.senders), self._terms.rules.neighbours
        for phase in ("keys", "shares", "table"):
            while (asked := await self.ask()).address.phase != phase:
                await asyncio.sleep(0.02)
            messages: list[Any]
            if phase == "keys":
                messages = [sender.keys(asked.message) for sender in self._devices()]
            elif phase == "shares":
                roster, ring = asked.message, np.arange(count)
                others = [np.sort(np.roll(ring, -place)[1 : neighbours + 1]) for place in range(count)]
                messages = [sender.shares(drawn) for sender, drawn in zip(self._devices(), others, strict=True)]
            else:
                context, size = partners_digest(roster, range(count)), self._terms.table_size(1)
                messages = [sender.table(size, context) for sender in self._devices()]
            requests = [
                sender.request(
                    "POST", "/v1/reports", wire.encode(Envelope.to(self.run_id, asked.address, message)), self.run_id
                )
                for sender, message in zip(self._devices(), messages, strict=True)
            ]
            del messages
            self.latencies.clear()
            started = time.perf_counter()
            statuses = await asyncio.gather(*(self.send(request) for request in requests))
            seconds = time.perf_counter() - started
            assert set(statuses) == {200}, statuses
        assert (await self.ask()).address.phase == "consent"
        self._close_phase()
        return seconds

    def _devices(self) -> Iterator[TableSender]:
        for sender in self.senders:
            assert isinstance(sender, TableSender)
            yield sender

    def _close_phase(self) -> None:
        """End the attempt: nobody has consented."""
        headers = {"Authorization": f"Bearer {self._admin}"}
        reply = httpx.post(f"http://127.0.0.1:{self.port}/v1/admin/close", headers=headers, timeout=60)
        assert reply.status_code == 200, reply.text


async def measure(options: argparse.Namespace, place: Path, pids: dict[str, int]) -> dict[str, Any]:
    """Load both servers in turns, and return rates, latencies and the server's processor time."""
    sdcf_port, masked_port = options.port, options.port + 1
    gradients = Load(sdcf_port, None, gradient_senders(options.devices), read_offer(sdcf_port).run_id)
    offer = read_offer(masked_port)
    senders: list[Sender] = [TableSender(number) for number in range(options.devices)]
    admin = (place / "masked" / "admin-token").read_text()
    tables = TableLoad(masked_port, None, senders, offer.run_id, terms=offer.terms, admin=admin)
    for load in (gradients, tables):
        await load.connect(options.connections)
        await enrolled(load)
    _, number = await gradients.closed_loop(1, 0)  # warm
    await tables.turn()
    found: dict[str, list[dict[str, float]]] = {"sdcf": [], "masked": []}
    for _ in range(options.turns):
        gradients.latencies.clear()
        before = cpu_seconds(pids["sdcf"])
        seconds, number = await gradients.closed_loop(1, number)
        found["sdcf"].append(described(gradients, seconds, cpu_seconds(pids["sdcf"]) - before))
        before = cpu_seconds(pids["masked"])
        seconds = await tables.turn()
        found["masked"].append(described(tables, seconds, cpu_seconds(pids["masked"]) - before))
    for load in (gradients, tables):
        load.close()
    best = {name: max(turns, key=lambda turn: turn["reports_per_second"]) for name, turns in found.items()}
    ratios = [
        masked["reports_per_second"] / sdcf["reports_per_second"]
        for masked, sdcf in zip(found["masked"], found["sdcf"], strict=True)
    ]
    return {
        "table_bytes": 4 * offer.terms.table_size(1),
        "best_turn": best,
        "ratio_to_sdcf": {"median": round(float(np.median(ratios)), 3), "of_each_turn": [round(r, 3) for r in ratios]},
        "reports_per_second_of_each_turn": {n: [t["reports_per_second"] for t in turns] for n, turns in found.items()},
    }


def described(load: Load, seconds: float, used: float) -> dict[str, float]:
    """What one turn has shown; the processor time of masked turns includes keys and shares."""
    count = len(load.senders)
    return {
        "reports_per_second": round(count / seconds, 1),
        "server_cpu_ms_per_device": round(1000 * used / count, 3),
        **load.percentiles(),
    }


def main() -> None:
    """Start both servers, load them, print and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, default=3000)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--port", type=int, default=8475)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    load_before = round(os.getloadavg()[0], 2)
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        flush = flush_milliseconds(place / "flushed")
        for name, count in (("sdcf", 1682), ("masked", TABLE_BYTES // 4)):
            (place / name).mkdir()
            (place / name / "items.csv").write_text("id,title\n" + "".join(f"{n},Item {n}\n" for n in range(count)))
        configs = {
            "sdcf": SDCF_CONFIG.format(devices=options.devices),
            "masked": CONFIG.format(devices=options.devices),
        }
        with (
            served(place / "sdcf", configs["sdcf"], place / "sdcf" / "items.csv", options.port) as sdcf,
            served(place / "masked", configs["masked"], place / "masked" / "items.csv", options.port + 1) as masked,
        ):
            found = asyncio.run(measure(options, place, {"sdcf": sdcf.pid, "masked": masked.pid}))
    record = {
        "command": "python " + " ".join(sys.argv),
        "machine": f"{load_machine()}; the load generator runs on the same cores",
        "load_average_before": load_before,
        "flush_to_disk_ms": flush,
        "database": "sqlite, WAL, synchronous=FULL",
        "devices": options.devices,
        "connections": options.connections,
        **found,
    }
    text = json.dumps(record, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
