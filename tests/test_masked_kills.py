"""kill -9 in every phase of masked rounds, of the server and of devices: what was learned is what a calm run learns."""

import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext
from pathlib import Path

import numpy as np
import pytest
from fault_kit import Databases, ServerProcess, Zygote
from masked_kit import (
    N_ITEMS,
    PHASES,
    SEED,
    bytes_in,
    engine_sum,
    joined,
    masked_settings,
    new_people,
    problem_of,
    problem_of_terms,
    public_of,
    report,
    seed_devices,
    survivors_of,
    tables_of,
    wait_for_phase,
)
from postgresql_kit import running_cluster
from service_kit import OPEN_SOCKETS, ROUND_WAIT, get, keep_record, wait_for

from hushrec import Device, wire
from hushrec.messages import Address, Public
from hushrec.protocols.masked.encoding import decode_sum, split_table
from hushrec.protocols.masked.learning import learning_of
from hushrec.protocols.masked.secagg.device import draw_secrets
from hushrec.protocols.masked.upload import stream_number
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.simulation.training_problem import AnyProblem

pytestmark = OPEN_SOCKETS

DEVICES = 3
LATEST_KILL = 0.04  # seconds after a report was begun


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Starts what is killed; each test ends the processes that it started."""
    made = Zygote(tmp_path_factory.mktemp("zygote"))
    yield made
    made.close()


class Calm:
    """What a run without any fault learns from the draws of the same devices."""

    def __init__(self, problem: AnyProblem) -> None:
        self._problem, priced = problem, problem.terms.priced
        self._learner = learning_of(problem.model).make_learner(priced.plan, priced.cohort.devices)

    def learn(self, public: dict[str, np.ndarray], number: int) -> None:
        """One more round of all devices, from the table that they had."""
        priced, everybody = self._problem.terms.priced, list(range(self._problem.n_users))
        blocks, codes = priced.plan.rounds[number - 1].blocks, priced.codes[number - 1]
        parts = split_table(codes, engine_sum(self._problem, public, everybody, number))
        sums = {b.name: decode_sum(c, p, len(everybody)) for b, c, p in zip(blocks, codes, parts, strict=True)}
        self._learner.learn(sums, len(everybody))

    def check(self, public: dict[str, np.ndarray]) -> None:
        """What is public is what was learned, bit for bit as the wire has it."""
        for name, array in vars(self._learner.table()).items():
            np.testing.assert_array_equal(public[name], array.astype(np.float32), err_msg=name)


def secrets_of(number: int, round_number: int) -> list[bytes]:
    """What a seeded device draws for the first attempt of a round."""
    stream = SeededRandomness(SEED, number).stream(Purpose.MASK_KEYS, stream_number(round_number, 1))
    drawn = draw_secrets(rng=stream)
    return [drawn.mask_private, drawn.channel_private, drawn.seed]


def check_stores(folder: Path, devices: int, round_number: int) -> None:
    """Every table was paid for once, no attempt is open, and no secret of the round lies in any file."""
    secrets = [secret for number in range(devices) for secret in secrets_of(number, round_number)]
    for number in range(devices):
        with Device(folder / f"device-{number}") as device:
            assert device.budget()["rounds"] == round_number
            assert len(device._session.kept.private_state()["attempt"]) == 0
        files = bytes_in(folder / f"device-{number}")
        assert not any(secret in files for secret in secrets)


# The server ------------------------------------------------------------------------------------------------------


def strike_server(zygote: Zygote, folder: Path, rounds: int, databases: Databases | None = None) -> int:
    """Kill the server in every phase of so many rounds, before or while the last device reports; return how often."""
    (folder / "items.csv").write_text("id,title\n" + "".join(f"item-{n},Film {n}\n" for n in range(N_ITEMS)))
    (folder / "config.toml").write_text(
        f"[terms]\nexpected_devices = {DEVICES}\n[rounds]\nmin_devices = {DEVICES}\nquorum = 1.0\n"
    )
    (folder / "server").mkdir()
    chance, kills = random.Random(rounds), 0
    with closing(ServerProcess(zygote, folder / "server", databases)) as server, pytest.MonkeyPatch.context() as patch:
        server.start()
        people = new_people(folder, DEVICES)
        seed_devices(patch, people)
        for device in people:
            device.join(server.url)
        problem = problem_of_terms(people[0].offer.terms, people)
        for device in people:
            device.close()
        calm = Calm(problem)
        for number in range(1, rounds + 1):
            public = fetch_public(server, number - 1)
            for _ in PHASES:
                step_once(folder, range(DEVICES - 1))
                kill_around(server, folder, chance.choice([0.0, chance.uniform(0, LATEST_KILL)]))
                kills += 1
            check_stores(folder, DEVICES, number)
            calm.learn(public, number)
            calm.check(fetch_public(server, number))
        server.stop()
    files = bytes_in(folder / "server")
    assert not any(secret in files for n in range(DEVICES) for r in range(rounds) for secret in secrets_of(n, r + 1))
    return kills


def kill_around(server: ServerProcess, folder: Path, moment: float) -> None:
    """The last device reports, while the server dies after so many seconds and another takes its place."""
    with ThreadPoolExecutor(1) as pool:
        begun = pool.submit(step_once, folder, [DEVICES - 1]) if moment else None
        time.sleep(moment)
        server.kill()
        server.start()
        (begun or pool.submit(step_once, folder, [DEVICES - 1])).result()


def step_once(folder: Path, numbers: range | list[int]) -> None:
    """Each device reports in a process' life of its own."""
    for number in numbers:
        with Device(folder / f"device-{number}") as device:
            assert device.step(wait=ROUND_WAIT) == "reported"


def fetch_public(server: ServerProcess, ended: int) -> dict[str, np.ndarray]:
    """What is public once so many rounds have ended."""
    found: list[Public] = []

    def is_there() -> bool:
        found.append(wire.decode(get(f"{server.url}/v1/public").content, Public))
        return found[-1].round_number == ended

    wait_for(is_there)
    return dict(found[-1].by_name())


def test_a_server_killed_in_every_phase_learns_what_a_calm_one_does(zygote: Zygote, tmp_path: Path) -> None:
    """One round: no report is lost or counted twice, ledgers are charged once, and no secret stays."""
    assert strike_server(zygote, tmp_path, rounds=1) == 5


# Devices ---------------------------------------------------------------------------------------------------------


def strike_devices(
    zygote: Zygote, folder: Path, moments: list[list[int]], database: str | None = None
) -> dict[str, int]:
    """Kill device 0 in every phase before the k-th thing that it does to its disk or its server, for all k given.

    `moments` has a list for each round: the kills of each of its phases. Device 0 is killed until a life gets through.
    """
    settings = masked_settings(DEVICES, terms={"survivors": 1.0})
    kills = lives = 0
    with joined(folder, DEVICES, settings, database=database) as (live, devices), pytest.MonkeyPatch.context() as patch:
        seed_devices(patch, devices)
        problem = problem_of(live, devices)
        store = folder / "device-0"
        devices[0].close()
        for number, kept in enumerate(moments, start=1):
            public = public_of(live)
            for phase in PHASES:
                report(live, devices[1:], phase, number)
                wait_for_phase(live, Address(number, 1, phase))
                for moment in kept:
                    order = {"step": str(store), "times": 1, "kill_at": moment, "seed": [SEED, 0]}
                    status = zygote.ask(**order)["status"]  # type: ignore[arg-type]
                    lives += 1
                    if status == 0:
                        break  # it got through, and the phase is over
                    assert status == -signal.SIGKILL
                    kills += 1
                finish_phase(store, Address(number, 1, phase), live)
            wait_for(lambda ended=number: live.rounds.server.side.learner.round_number == ended)  # type: ignore[misc]
            assert survivors_of(live, devices) == list(range(DEVICES))
            sums = live.rounds.server.side.attempt.sum
            np.testing.assert_array_equal(sums, engine_sum(problem, public, list(range(DEVICES)), number))
            with Device(store) as device:
                assert device.budget()["rounds"] == number
                assert len(device._session.kept.private_state()["attempt"]) == 0
            files = bytes_in(store)
            assert not any(secret in files for secret in secrets_of(0, number))
        assert tables_of(devices[1:]) == [len(moments)] * (DEVICES - 1)
    return {"kills": kills, "lives": lives}


def finish_phase(store: Path, place: Address, live) -> None:  # type: ignore[no-untyped-def]
    """One more life of the device, which sends what was stored, or reports if nothing was; never in another phase."""
    with Device(store) as device:
        seeded = SeededRandomness(SEED, 0)
        device._session.client()._randomness = seeded
        if device._store.get("outbox") is not None:
            device._driver().run(device._session._send_outbox())
        elif live.rounds.is_open and live.rounds.server.address == place and not live.rounds._is_closing:
            name = device._session.name
            if name not in live.rounds.server.reported:
                assert device.step(wait=ROUND_WAIT) == "reported"


def test_a_device_killed_in_every_phase_reports_once_and_pays_once(zygote: Zygote, tmp_path: Path) -> None:
    """One round, a kill in each phase in the middle of what is stored: the sum is the engine's."""
    assert strike_devices(zygote, tmp_path, [[14]])["kills"] == 5


# The long forms --------------------------------------------------------------------------------------------------


SHOWN = {"sums_equal_to_the_engines": True, "reports_lost": 0, "counted_twice": 0, "secrets_left": 0}  # as asserted


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_fifty_kills_of_a_masked_server(zygote: Zygote, tmp_path: Path, kind: str) -> None:
    """Five runs of two rounds with a kill in each phase, before or while the last device reports."""
    kills = 0
    with running_cluster() if kind == "postgresql" else nullcontext() as cluster:
        for number in range(5):
            (tmp_path / f"run_{number}").mkdir()
            databases = None if cluster is None else cluster.databases(f"masked_{number}")
            kills += strike_server(zygote, tmp_path / f"run_{number}", rounds=2, databases=databases)
    assert kills == 50
    keep_record(f"masked-kill-{kind}", {"database": kind, "kills": kills, "devices": DEVICES, "rounds": 10, **SHOWN})


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_fifty_kills_of_a_masked_device(zygote: Zygote, tmp_path: Path, kind: str) -> None:
    """Five rounds in which a device dies in each phase before several things that it does, each round before others."""
    moments = [list(range(first, 60, 20)) for first in range(1, 20, 4)]
    with running_cluster() if kind == "postgresql" else nullcontext() as cluster:
        struck = strike_devices(zygote, tmp_path, moments, None if cluster is None else cluster.new_database())
    assert struck["kills"] >= 50
    done = {"database": kind, **struck, "devices": DEVICES, "rounds": len(moments), **SHOWN}
    keep_record(f"masked-kill-device-{kind}", done | {"paid_without_a_report": 0})
