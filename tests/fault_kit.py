"""Real servers that are killed or run out of disk, and devices whose reports are recorded to compare two runs."""

import asyncio
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import sqlalchemy as sa
from service_kit import PATIENCE, held_port, wait_for

from hushrec import wire
from hushrec.arrays import unpack_arrays
from hushrec.messages import Enrolment, Envelope, Offer
from hushrec.protocols.gradient.messages import REPORT, GradientReport
from hushrec.service import schema
from hushrec.signing import DeviceKey, Request, device_id_of, header_of

N_ITEMS, WIDTH = 300, 8
CONFIG = """
[terms]
protocol = "sdcf"
factors = 8
rounds = 1000
expected_devices = 50
[rounds]
min_devices = {n_devices}
[limits]
requests_per_second = 100000
burst = 100000
"""


class Zygote:
    """Starts real processes quickly: see zygote.py."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log.txt"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("zygote.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=environment,
            text=True,
        )

    def ask(self, **order: Any) -> dict[str, int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"log": str(self.log), **order}) + "\n")
        self.process.stdin.flush()
        reply: dict[str, int] = json.loads(self.process.stdout.readline())
        return reply

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(timeout=PATIENCE)
        self.process.stdout.close()


class Databases:
    """Where servers store their runs: here a SQLite file in the folder of each server."""

    def address(self, folder: Path) -> str:
        return f"sqlite:///{folder / 'server.sqlite'}"

    def copy(self, base: Path, folder: Path) -> None:
        """Copy the run of `base` for another server in `folder`."""
        shutil.copytree(base, folder)

    def is_free(self, folder: Path) -> bool:
        """Return whether no process uses the database any more; a killed process holds no file."""
        return True

    def files(self, folder: Path) -> dict[str, bytes]:
        """Return the content of every file of a server's database and folder, by path."""
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    def final_state(self, folder: Path) -> tuple[bytes, list[tuple[int, int]]]:
        """Return the item vectors in the database, and the number of reports of each closed round."""
        engine = sa.create_engine(self.address(folder).replace("postgresql:", "postgresql+psycopg:"))
        with engine.connect() as connection:
            state = connection.execute(sa.select(schema.run.c.state)).scalar_one()
            closed = sa.select(schema.rounds.c.round, schema.rounds.c.reports).order_by(schema.rounds.c.round)
            counts = [(row.round, row.reports) for row in connection.execute(closed)]
        engine.dispose()
        return unpack_arrays(bytes(state))["item_vectors"].tobytes(), counts


class ServerProcess:
    """`hushrec serve` as a process that can be killed and started again on the same port and database.

    A server with a `host` of its own, an address of 127.0.0.0/8, has a state folder of its own as well.
    """

    def __init__(
        self, zygote: Zygote, folder: Path, databases: Databases | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.zygote = zygote
        self.folder = folder
        self.databases = databases or Databases()
        self.host = host
        self._port = ExitStack()
        self.port = self._port.enter_context(held_port(host))
        self.pid = 0
        self.refused = 0  # reports refused with Retry-After
        self.cut_off = 0  # requests or replies that a fault interrupted

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self) -> None:
        files = ["--items", str(self.folder.parent / "items.csv"), "--config", str(self.folder.parent / "config.toml")]
        state = self.folder if self.host == "127.0.0.1" else self.folder / self.host
        options = [*files, "--open", "--host", self.host, "--port", str(self.port)]
        options += ["--database", self.databases.address(self.folder), "--state-dir", str(state)]
        self.pid = self.zygote.ask(serve=options)["pid"]
        wait_for(self.answers)

    def answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex((self.host, self.port)) == 0

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        assert self.zygote.ask(reap=self.pid)["status"] == -signal.SIGKILL

    def fill_disk(self) -> None:
        """Make the operating system refuse every byte that this process writes to a file."""
        self._refused_before = self.refused
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))

    def empty_disk_after_a_refusal(self) -> None:
        """Allow writes again once a report was refused because of them."""
        wait_for(lambda: self.refused > self._refused_before)
        self._empty_disk()

    def empty_disk_after_a_while(self) -> None:
        time.sleep(0.3)
        self._empty_disk()

    def _empty_disk(self) -> None:
        unlimited = resource.RLIM_INFINITY
        resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))

    def stop(self) -> None:
        os.kill(self.pid, signal.SIGTERM)
        self.zygote.ask(reap=self.pid)

    def close(self) -> None:
        """Release the port."""
        self._port.close()


@dataclass(frozen=True)
class Strike:
    """A fault of a server, and how it ends."""

    begin: Callable[[ServerProcess], None]
    end: Callable[[ServerProcess], None]


KILL = Strike(ServerProcess.kill, ServerProcess.start)
FULL_DISK = Strike(ServerProcess.fill_disk, ServerProcess.empty_disk_after_a_while)
FULL_DISK_UNTIL_HEARD = Strike(ServerProcess.fill_disk, ServerProcess.empty_disk_after_a_refusal)


class Recorded:
    """Devices whose reports of every round are made beforehand, so that two runs can be compared bit for bit."""

    def __init__(self, count: int, run_id: str) -> None:
        self.keys = [DeviceKey.generate() for _ in range(count)]
        self.names = [device_id_of(key.public_key) for key in self.keys]
        self.run_id = run_id
        self._nonce = 0

    def body(self, number: int, round_number: int) -> bytes:
        rng = np.random.default_rng([number, round_number])
        items = np.sort(rng.choice(N_ITEMS, 20, replace=False))
        report = GradientReport(round_number, items, 0.001 * rng.normal(size=(20, WIDTH)))
        return wire.encode(Envelope(self.run_id, round_number, 1, REPORT, report))

    def request(self, number: int, method: str, target: str, body: bytes) -> dict[str, Any]:
        self._nonce = max(self._nonce + 1, time.time_ns())
        signed = self.keys[number].sign(
            Request(method, target, body),
            run_id=self.run_id,
            device=self.names[number],
            nonce=self._nonce,
        )
        return {"method": method, "url": target, "content": body, "headers": {"Authorization": header_of(signed)}}

    def enrol(self, http: httpx.Client) -> None:
        for number, key in enumerate(self.keys):
            body = wire.encode(Enrolment(key.public_key))
            assert http.request(**self.request(number, "POST", "/v1/devices", body)).status_code == 201


async def send_until_acknowledged(
    http: httpx.AsyncClient, server: ServerProcess, recorded: Recorded, number: int, round_number: int
) -> None:
    """Send the recorded bytes until the server has stored them, or the round has ended with them."""
    body = recorded.body(number, round_number)
    while True:
        try:
            reply = await http.request(**recorded.request(number, "POST", "/v1/reports", body))
        except httpx.TransportError as error:
            server.cut_off += not isinstance(error, httpx.ConnectError)
            await asyncio.sleep(0.02)
            continue
        if reply.status_code == 200:
            return
        problem = reply.json()
        if problem["type"].endswith("phase-closed"):
            assert int(problem["last_report"].split(".")[0]) >= round_number, "an answer was lost"
            return  # acknowledged in a reply that was cut off: the round has it
        assert reply.status_code in (503, 429), problem
        server.refused += 1
        await asyncio.sleep(0.02)


async def strike_after(seconds: float, strike: Strike, server: ServerProcess) -> None:
    """Begin a fault after a delay, and end it."""
    await asyncio.sleep(seconds)
    await asyncio.to_thread(strike.begin, server)
    await asyncio.to_thread(strike.end, server)


async def play_recorded(
    server: ServerProcess, recorded: Recorded, rounds: int, moments: list[float], strike: Strike
) -> int:
    """Let all devices report in all rounds; the fault of round n begins after `moments[n]` seconds, if set.

    At zero it begins before the first report is sent.
    """
    n_strikes = 0
    limits = httpx.Limits(max_connections=len(recorded.keys))
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits) as http:
        for round_number in range(1, rounds + 1):
            moment = moments[round_number - 1] if moments else -1.0
            n_strikes += moment >= 0
            tasks = []
            if moment == 0:
                strike.begin(server)
                tasks.append(asyncio.create_task(asyncio.to_thread(strike.end, server)))
            elif moment > 0:
                tasks.append(asyncio.create_task(strike_after(moment, strike, server)))
            tasks += [
                asyncio.create_task(send_until_acknowledged(http, server, recorded, number, round_number))
                for number in range(len(recorded.keys))
            ]
            await asyncio.gather(*tasks)
            await wait_for_round(http, round_number + 1)
    return n_strikes


async def wait_for_round(http: httpx.AsyncClient, round_number: int) -> None:
    """Return when that round is open."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                text = (await http.get("/metrics")).text
                if f"hushrec_round {round_number}.0\n" in text and "hushrec_round_open 1.0\n" in text:
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.01)


def set_up_recorded(
    zygote: Zygote, folder: Path, n_devices: int, databases: Databases | None = None
) -> tuple[Path, Recorded]:
    """Return a database with enrolled devices and an open round, which is copied for each run."""
    (folder / "items.csv").write_text("id,title\n" + "".join(f"{n},Item {n}\n" for n in range(N_ITEMS)))
    (folder / "config.toml").write_text(CONFIG.format(n_devices=n_devices))
    base = folder / "base"
    base.mkdir()
    server = ServerProcess(zygote, base, databases)
    server.start()
    with httpx.Client(base_url=server.url, timeout=PATIENCE) as http:
        recorded = Recorded(n_devices, wire.decode(http.get("/v1/run").content, Offer).run_id)
        recorded.enrol(http)
        wait_for(lambda: "hushrec_round_open 1.0" in http.get("/metrics").text)
    server.stop()
    server.close()
    return base, recorded


def strike_and_compare(
    zygote: Zygote,
    folder: Path,
    strike: Strike,
    *,
    n_devices: int,
    rounds: int,
    latest: float,
    share: float = 1.0,
    databases: Databases | None = None,
) -> dict[str, int]:
    """Run the same recorded reports twice, once with faults of the server at random moments; both must end equal."""
    databases = databases or Databases()
    base, recorded = set_up_recorded(zygote, folder, n_devices, databases)
    rng = random.Random(rounds)
    moments = [rng.uniform(0, latest) if rng.random() < share else -1.0 for _ in range(rounds)]
    states, n_strikes, refused, cut_off = {}, 0, 0, 0
    for name, plan in (("calm", []), ("struck", moments)):
        place = folder / name
        wait_for(lambda: databases.is_free(base))
        databases.copy(base, place)
        server = ServerProcess(zygote, place, databases)
        server.start()
        n_strikes = asyncio.run(play_recorded(server, recorded, rounds, plan, strike))
        server.kill()
        server.close()
        states[name] = databases.final_state(place)
        refused, cut_off = refused + server.refused, cut_off + server.cut_off
    assert states["calm"][0] == states["struck"][0]  # every bit of the item vectors
    expected = [(number, n_devices) for number in range(1, rounds + 1)]
    assert states["calm"][1] == states["struck"][1] == expected  # none lost, none counted twice
    done = {"rounds": rounds, "strikes": n_strikes, "devices": n_devices, "reports": rounds * n_devices}
    shown = {"acknowledged_lost": 0, "counted_twice": 0, "vectors_equal_bit_for_bit": True}  # as asserted above
    return done | {"told_to_come_back": refused, "cut_off": cut_off} | shown
