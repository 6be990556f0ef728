"""A server on loopback inside the test's own process, and devices for it."""

import contextlib
import gc
import json
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import numpy as np
import pytest

from hushrec import wire
from hushrec.device.device import Device
from hushrec.messages import Enrolment, Envelope
from hushrec.protocols.gradient.messages import REPORT, GradientReport
from hushrec.service import certificates, serving
from hushrec.service.monitor import Monitor
from hushrec.service.rounds import Rounds
from hushrec.service.settings import Settings
from hushrec.service.setup import Items, prepare_run, stored_number
from hushrec.service.storage import Storage
from hushrec.signing import DeviceKey, Request, device_id_of, header_of

N_ITEMS = 60
RUN_ID = "ab" * 16
PATIENCE = 300.0  # seconds until a test gives up: no machine is so slow, however loaded
ROUND_WAIT = 40.0  # that a device waits for a round which will open

# A server that stops while a device keeps its connection open leaves the socket to the interpreter.
OPEN_SOCKETS = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def small_settings(**changes: Any) -> Settings:
    """Few factors and rounds, open enrolment, generous limits; `changes` name tables or fields."""
    terms = {"protocol": "sdcf", "factors": 4, "rounds": 6, "expected_devices": 50} | changes.pop("terms", {})
    rounds = {"min_devices": 2, "early_fraction": 1.0} | changes.pop("rounds", {})
    limits = {"requests_per_second": 1000, "burst": 1000} | changes.pop("limits", {})
    return Settings.model_validate(
        {"open_enrolment": True, **changes, "terms": terms, "rounds": rounds, "limits": limits}
    )


@dataclass
class Live:
    """A running server."""

    url: str
    rounds: Rounds
    storage: Storage
    monitor: Monitor
    admin_token: str | None
    ca: Path | None
    thread: threading.Thread

    def count(self, name: str, **labels: str) -> int:
        """Return the value of one counter of the metrics, for example `count("reports", kind="stored")`."""
        return int(self.monitor._series.get_sample_value(f"hushrec_{name}_total", labels) or 0)

    def admin(self, method: str, path: str, **arguments: Any) -> Any:
        """Send a request with the admin token; return the reply."""
        headers = {"Authorization": f"Bearer {self.admin_token}"}
        verify: Any = True if self.ca is None else ssl.create_default_context(cafile=self.ca)
        with httpx.Client(base_url=self.url, headers=headers, verify=verify, timeout=PATIENCE) as http:
            return http.request(method, path, **arguments)


def prepare_known_run(storage: Storage, settings: Settings, items: Items) -> str | None:
    """`prepare_run`, but the first run of a database has the id `RUN_ID`."""
    is_first = stored_number(storage) is None
    with patch("secrets.token_hex", return_value=RUN_ID) if is_first else contextlib.nullcontext():
        return prepare_run(storage, settings.terms, items)


@contextlib.contextmanager
def live_server(
    folder: Path,
    settings: Settings | None = None,
    *,
    database: str | None = None,
    tls: bool = False,
    n_items: int = N_ITEMS,
    admin_token: str | None = None,
    port: int = 0,
    titles: list[str] | None = None,
    ids: list[str] | None = None,
    attributes: Any = None,
    items: Items | None = None,
    **clocks: Any,
) -> Iterator[Live]:
    """Run a server until the block ends."""
    settings = small_settings() if settings is None else settings
    ids = [f"item-{n}" for n in range(n_items)] if ids is None else ids
    storage = Storage(database or f"sqlite:///{folder / 'server.sqlite'}")
    items = items or Items(ids, titles or [name.title() for name in ids], attributes)
    token = prepare_known_run(storage, settings, items)
    rounds = Rounds(storage, settings, **clocks)
    authority, *certificate = certificates.self_signed(folder, ["127.0.0.1"]) if tls else (None,)
    server = serving.make_server(rounds, (certificate[0], certificate[1]) if tls else None)
    server.config.timeout_graceful_shutdown = 1
    listening = serving.bind("127.0.0.1", port)
    thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    url = f"{'https' if tls else 'http'}://127.0.0.1:{listening.getsockname()[1]}"
    try:
        yield Live(url, rounds, storage, rounds.monitor, token or admin_token, authority, thread)
    finally:
        server.should_exit = True
        thread.join(timeout=PATIENCE)
        assert not thread.is_alive(), "the server did not stop"
        gc.collect()  # sockets that a device kept open: their warnings belong to this test, which expects them


def new_device(folder: Path, *, seed: int = 0, n_ratings: int = 12, **budgets: Any) -> Device:
    """Return a device that has rated a few items of the kit's catalogue."""
    rng = np.random.default_rng(seed)
    device = Device.create(folder, **budgets)
    items = rng.choice(N_ITEMS, size=n_ratings, replace=False)
    device.add_ratings({f"item-{item}": float(rng.integers(1, 6)) for item in items})
    return device


def play(devices: list[Device], *, seconds: float = 5 * PATIENCE) -> list[int]:
    """Let all devices report until the run is over; return in how many rounds each has reported."""
    answered, over = [0] * len(devices), [False] * len(devices)
    until = time.monotonic() + seconds
    while not all(over):
        assert time.monotonic() < until, "the run did not end in time"
        for n, device in enumerate(devices):
            if not over[n]:
                outcome = device.step(wait=0.05)
                answered[n] += outcome == "reported"
                over[n] = outcome == "run over"
    return answered


class RawDevice:
    """A key without a store: sends any request that a test makes, with any signature."""

    def __init__(self, live: Live, *, enrol: bool = True) -> None:
        self.live = live
        self.key = DeviceKey.generate()
        self.name = device_id_of(self.key.public_key)
        self.http = httpx.Client(base_url=live.url, timeout=PATIENCE)
        self._nonce = 0
        self.run_id = live.rounds.offer.run_id
        if enrol:
            assert self.send("POST", "/v1/devices", wire.encode(Enrolment(self.key.public_key))).status_code == 201

    def sign(self, request: Request, **changes: Any) -> str:
        self._nonce = max(self._nonce + 1, time.time_ns())
        fields = {"run_id": self.run_id, "device": self.name, "nonce": self._nonce} | changes
        return header_of(self.key.sign(request, **fields))

    def send(self, method: str, target: str, body: bytes = b"", **changes: Any) -> httpx.Response:
        """Send a request with its valid signature, unless `changes` say otherwise."""
        header = changes.pop("header", None) or self.sign(Request(method, target, body), **changes)
        return self.http.request(method, target, content=body or None, headers={"Authorization": header})

    def report(self, body: bytes, **changes: Any) -> httpx.Response:
        return self.send("POST", "/v1/reports", body, **changes)

    def __enter__(self) -> "RawDevice":
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()


def get(url: str, **arguments: Any) -> httpx.Response:
    """Send a GET request without a signature; return the reply."""
    return httpx.get(url, timeout=PATIENCE, **arguments)


def put_server(device: Device, address: str) -> None:
    """Change the address of a device's server in its store, as if the server had moved."""
    with device._store.change():
        device._store.put_json("server", {"address": address, "ca": None})


@contextlib.contextmanager
def held_port(host: str = "127.0.0.1") -> Iterator[int]:
    """Yield a port for servers that are restarted: it stays bound, so that no other process takes it."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((host, 0))
        yield int(held.getsockname()[1])


def make_body(
    round_number: int = 1,
    *,
    items: tuple[int, ...] = (1, 5, 9),
    size: float = 0.001,
    width: int = 4,
    **changes: Any,
) -> bytes:
    """Return a well-formed report; `changes` name fields of its envelope."""
    gradients = np.full((len(items), width), float(size))
    report = GradientReport(round_number, np.array(items), gradients)
    place = {"run_id": RUN_ID, "round_number": round_number, "attempt": 1, "phase": REPORT} | changes
    return wire.encode(Envelope(**place, message=report))


def begin_reports(live: Live, header: str, count: int) -> list[socket.socket]:
    """Send the heads of so many reports with this Authorization, and no body."""
    head = f"POST /v1/reports HTTP/1.1\r\nHost: x\r\nAuthorization: {header}\r\nContent-Length: 99\r\n\r\n"
    sockets = [socket.create_connection(("127.0.0.1", int(live.url.rpartition(":")[2]))) for _ in range(count)]
    for connection in sockets:
        connection.sendall(head.encode())
    return sockets


def wait_for(condition: Callable[[], bool], *, seconds: float = PATIENCE) -> None:
    """Return when the condition holds."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "what the test waits for did not happen"
        time.sleep(0.005)


def keep_record(name: str, done: Mapping[str, Any]) -> None:
    """Write the results of a long test into the folder HUSHREC_SOAK_RECORDS, if that is set."""
    folder = os.environ.get("HUSHREC_SOAK_RECORDS")
    if folder:
        (Path(folder) / f"{name}.json").write_text(json.dumps({"command": "make soak", **done}, indent=1) + "\n")
