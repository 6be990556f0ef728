"""Masked runs over HTTP: all phases with real devices and stores, drop-outs, restarts, and what is left behind."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from service_kit import OPEN_SOCKETS, Live, live_server

from hushrec import Device
from hushrec.models.item_columns import item_columns
from hushrec.service.settings import Settings
from hushrec.service.setup import Items

pytestmark = OPEN_SOCKETS

N_ITEMS = 24
PHASES = ("keys", "shares", "table", "consent", "unmask")


def masked_settings(devices: int, **changes: Any) -> Settings:
    """A run of so many devices of which four in five must survive; phases close when everybody has reported."""
    terms = {"protocol": "masked", "expected_devices": devices, "survivors": 0.8, **changes.pop("terms", {})}
    rounds = {"quorum": 1.0, "min_devices": devices, "deadline_seconds": 1.5, **changes.pop("rounds", {})}
    return Settings.model_validate({"open_enrolment": True, "terms": terms, "rounds": rounds, **changes})


def catalogue() -> Items:
    """Films of two kinds."""
    titles = [f"Film {number}" for number in range(N_ITEMS)]
    flags = pl.DataFrame({"kind=even": np.arange(N_ITEMS) % 2 == 0})
    columns = item_columns(N_ITEMS, titles, flags)
    return Items.of([f"item-{n}" for n in range(N_ITEMS)], titles, {"columns": columns})


def new_people(folder: Path, count: int) -> list[Device]:
    """Devices of people who like even or odd films."""
    found = []
    for number in range(count):
        rng = np.random.default_rng(number)
        device = Device.create(folder / f"device-{number}", patience=5)
        films = rng.choice(N_ITEMS, size=10, replace=False)
        device.add_ratings({f"item-{film}": 5.0 if film % 2 == number % 2 else 2.0 for film in films})
        found.append(device)
    return found


@contextmanager
def joined(
    folder: Path, count: int, settings: Settings | None = None, **server: Any
) -> Iterator[tuple[Live, list[Device]]]:
    """A server, and devices that have joined it."""
    with ExitStack() as stack:
        live = stack.enter_context(live_server(folder, settings or masked_settings(count), items=catalogue(), **server))
        devices = new_people(folder, count)
        for device in devices:
            stack.callback(device.close)
            device.join(live.url, ca=live.ca)
        yield live, devices


def take_part(devices: list[Device], until: Any) -> None:
    """Every device in a thread of its own, until something holds."""

    def run(device: Device) -> None:
        while not until() and device.step(wait=1.0) != "run over":
            pass

    threads = [threading.Thread(target=run, args=(device,)) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_a_whole_run_over_tls_learns_and_recommends(tmp_path: Path) -> None:
    """All phases of all rounds; ledgers are charged within their limits, no secret is left, films of one's kind win."""
    with joined(tmp_path, 5, tls=True) as (live, devices):
        take_part(devices, lambda: False)
        assert live.rounds.is_over
        for device in devices:
            statement = device.budget()
            assert 0 < statement["spent"] <= statement["limit"]
            assert statement["tables"] == live.rounds.offer.terms.max_rounds
            assert len(device._session.kept.private_state()["attempt"]) == 0
            assert len(device.recommend(3)) == 3
            assert device.predict().shape == (N_ITEMS,)
