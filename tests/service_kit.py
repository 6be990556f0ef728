"""A server on loopback inside the test's own process, and devices for it."""

import contextlib
import gc
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hushrec.device.device import Device
from hushrec.service import serving
from hushrec.service.app import make_app
from hushrec.service.monitor import Monitor
from hushrec.service.rounds import Rounds
from hushrec.service.settings import Settings
from hushrec.service.setup import prepare_run
from hushrec.service.storage import Storage

N_ITEMS = 60

# A server that stops while a device keeps its connection open leaves the socket to the interpreter.
OPEN_SOCKETS = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def small_settings(**changes: Any) -> Settings:
    """Few factors and rounds, open enrolment, generous limits; `changes` name tables or fields."""
    terms = {"factors": 4, "rounds": 6, "expected_devices": 50} | changes.pop("terms", {})
    rounds = {"min_devices": 2} | changes.pop("rounds", {})
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

    def admin(self, method: str, path: str, **arguments: Any) -> Any:
        """A call of the admin's."""
        import httpx

        headers = {"Authorization": f"Bearer {self.admin_token}"}
        verify: Any = True if self.ca is None else __import__("ssl").create_default_context(cafile=self.ca)
        with httpx.Client(base_url=self.url, headers=headers, verify=verify) as http:
            return http.request(method, path, **arguments)


@contextlib.contextmanager
def live_server(
    folder: Path,
    settings: Settings | None = None,
    *,
    database: str | None = None,
    tls: bool = False,
    n_items: int = N_ITEMS,
    admin_token: str | None = None,
    **clocks: Any,
) -> Iterator[Live]:
    """Serves until the block ends."""
    settings = small_settings() if settings is None else settings
    ids = [f"item-{n}" for n in range(n_items)]
    storage = Storage(database or f"sqlite:///{folder / 'server.sqlite'}")
    token = prepare_run(storage, settings.terms, ids, [name.title() for name in ids])
    monitor = Monitor()
    rounds = Rounds(storage, settings, monitor, **clocks)
    certificate = serving.self_signed(folder, "127.0.0.1") if tls else (None, None)
    server = serving.make_server(
        make_app(storage, rounds, monitor, settings.limits),
        host="127.0.0.1",
        port=0,
        certificate=certificate[0],
        key=certificate[1],
        head_seconds=settings.limits.body_seconds,
    )
    server.config.timeout_graceful_shutdown = 1
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        time.sleep(0.005)
    port = server.servers[0].sockets[0].getsockname()[1]
    url = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    try:
        yield Live(url, rounds, storage, monitor, token or admin_token, certificate[0])
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        assert not thread.is_alive(), "the server did not stop"
        gc.collect()  # sockets that a device kept open: their warnings belong to this test, which expects them


def new_device(folder: Path, *, seed: int = 0, n_ratings: int = 12, **budgets: Any) -> Device:
    """A device that rated a few items of the kit's catalogue."""
    rng = np.random.default_rng(seed)
    device = Device.create(folder, **budgets)
    items = rng.choice(N_ITEMS, size=n_ratings, replace=False)
    device.add_ratings({f"item-{item}": float(rng.integers(1, 6)) for item in items})
    return device


def play(devices: list[Device], *, seconds: float = 60) -> list[int]:
    """All devices answer until the run is over; returns how many rounds each answered."""
    answered, over = [0] * len(devices), [False] * len(devices)
    until = time.monotonic() + seconds
    while not all(over):
        assert time.monotonic() < until, "the run did not end in time"
        for n, device in enumerate(devices):
            if not over[n]:
                outcome = device.step(wait=0.05)
                answered[n] += outcome == "answered"
                over[n] = outcome == "run over"
    return answered
