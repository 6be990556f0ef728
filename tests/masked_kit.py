"""Masked runs over HTTP: a small run, its people, and devices that report phase by phase."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from service_kit import ROUND_WAIT, Live, live_server, wait_for
from test_masked_run import device_sum

from hushrec import Device, wire
from hushrec.client import Client
from hushrec.device.session import Session
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.messages import Address, Public
from hushrec.models.gaussian_process import GaussianProcess
from hushrec.models.item_columns import ItemColumns, item_columns
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked.cohorts import Attempt
from hushrec.protocols.masked.device_table import stream_number
from hushrec.protocols.masked.protocol import Masked
from hushrec.protocols.masked.terms import MaskedTerms
from hushrec.randomness import SeededRandomness
from hushrec.service.settings import Settings
from hushrec.service.setup import Items
from hushrec.simulation.training_problem import AnyProblem, make_problem

N_ITEMS = 24
PHASES = ("keys", "shares", "table", "consent", "unmask")


def masked_settings(devices: int, **changes: Any) -> Settings:
    """A run of so many devices of which four in five must survive; phases close when everybody has reported."""
    terms = {"protocol": "masked", "expected_devices": devices, "survivors": 0.8, **changes.pop("terms", {})}
    rounds = {"early_fraction": 1.0, "min_devices": devices, "deadline_seconds": 60, **changes.pop("rounds", {})}
    return Settings.model_validate({"open_enrolment": True, "terms": terms, "rounds": rounds, **changes})


TITLES = [f"Film {number}" for number in range(N_ITEMS)]


def film_columns() -> ItemColumns:
    """What is known of films of two kinds."""
    return item_columns(N_ITEMS, TITLES, pl.DataFrame({"kind=even": np.arange(N_ITEMS) % 2 == 0}))


def catalogue() -> Items:
    """Films of two kinds."""
    return Items.of([f"item-{n}" for n in range(N_ITEMS)], TITLES, {"columns": film_columns()})


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


def take_part(devices: list[Device], until: Any, wait: float = 1.0) -> None:
    """Every device in a thread of its own, until something holds; a request waits so many seconds for a message.

    If one of them fails, all stop, and its error is raised.
    """
    errors: list[Exception] = []

    def run(device: Device) -> None:
        try:
            while not errors and not until() and device.step(wait=wait) != "run over":
                pass
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(device,), daemon=True) for device in devices]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def report(live: Live, devices: list[Device], phase: str, round_number: int = 1, attempt: int = 1) -> None:
    """Let these devices report in a phase, when it is open."""
    wait_for_phase(live, Address(round_number, attempt, phase))
    assert [device.step(wait=ROUND_WAIT) for device in devices] == ["reported"] * len(devices)


def wait_for_phase(live: Live, place: Address) -> None:
    """The phase is open, and takes reports."""
    wait_for(lambda: live.rounds.is_open and live.rounds.server.address == place and not live.rounds._is_closing)


def play_round(live: Live, devices: list[Device], round_number: int = 1, attempt: int = 1) -> None:
    """Let these devices report in all phases."""
    for phase in PHASES:
        report(live, devices, phase, round_number, attempt)


def close_phase(live: Live) -> None:
    """The deadline passes."""
    assert live.admin("POST", "/v1/admin/close").status_code == 200


def tables_of(devices: list[Device]) -> list[int]:
    """How many tables each ledger was charged with."""
    return [device.budget()["rounds"] for device in devices]


def bytes_in(store: Path) -> bytes:
    """Everything that lies in a store's folder."""
    return b"".join(path.read_bytes() for path in store.iterdir())


# Beside the engine -----------------------------------------------------------------------------------------------

SEED = 3


def seed_devices(patch: pytest.MonkeyPatch, devices: list[Device]) -> None:
    """Let each device draw what the simulated device of its number draws."""
    numbers = {device._store.folder: number for number, device in enumerate(devices)}
    make_client = Session.make_client

    def make_seeded(session: Session, *given: Any) -> Client:
        client = make_client(session, *given)
        client._randomness = SeededRandomness(SEED, numbers[session.store.folder])
        return client

    patch.setattr(Session, "make_client", make_seeded)
    for device in devices:
        device._session.forget_client()


def problem_of(live: Live, devices: list[Device], **options: float) -> AnyProblem:
    """The same people and terms, as an engine takes them."""
    return problem_of_terms(live.rounds.offer.terms, devices, film_columns(), **options)


def problem_of_terms(
    terms: MaskedTerms, devices: list[Device], columns: ItemColumns | None = None, **options: float
) -> AnyProblem:
    """These people under these terms; nothing but titles is known of films where no columns are given."""
    rated = [device._store.rated_items(N_ITEMS) for device in devices]
    users = np.repeat(np.arange(len(devices)), [len(one) for one in rated])
    items = np.concatenate([np.array(sorted(one)) for one in rated])
    values = np.array([one[item] for one in rated for item in sorted(one)])
    cohort = terms.priced.cohort
    fixed = {"survivors": cohort.survivors, "corrupt": cohort.corrupt, "reserve": terms.priced.reserve}
    protocol = Masked(8.0, **fixed, **options)
    model = GaussianProcess(item_columns(N_ITEMS, TITLES, None) if columns is None else columns)
    sizes = {"n_users": len(devices), "n_items": N_ITEMS}
    problem = make_problem(users, items, values, model=model, protocols=[protocol], seed=SEED, **sizes)
    assert problem.terms == terms
    return problem


def survivors_of(attempt: Attempt, devices: list[Device]) -> list[int]:
    """Whose tables are in the sum of an attempt, by number."""
    names = attempt.survivors
    return [number for number, device in enumerate(devices) if bytes.fromhex(str(device._session.name)) in names]


def public_of(live: Live) -> Arrays:
    """What is public now, as devices get it."""
    return wire.decode(live.rounds.published(), Public).by_name()


def engine_sum(
    problem: AnyProblem, public: Arrays, survivors: list[int], round_number: int, attempt: int = 1
) -> np.ndarray:
    """What the CPU engine makes of the draws of these devices in one attempt of a round, noise included."""
    cpu = CpuMaskedEngine(problem)
    priced, present = problem.terms.priced, np.isin(np.arange(problem.n_users), survivors)
    one, codes = priced.plan.rounds[round_number - 1], priced.codes[round_number - 1]
    table = cpu.learning.table_from(public)
    return device_sum(problem, cpu, stream_number(round_number, attempt), one, codes, table, present)
