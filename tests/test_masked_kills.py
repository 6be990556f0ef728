"""kill -9 in every phase of masked rounds, of the server and of devices: what was learned is what a calm run learns."""

import random
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager, nullcontext
from pathlib import Path
from typing import Any

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
    report,
    seed_devices,
    tables_of,
)
from postgresql_kit import running_cluster
from service_kit import OPEN_SOCKETS, ROUND_WAIT, Live, get, keep_record, wait_for

from hushrec import Device, wire
from hushrec.messages import Address, Public
from hushrec.protocols.masked.device_table import stream_number
from hushrec.protocols.masked.encoding import decode_sum, split_table
from hushrec.protocols.masked.learning import learning_of
from hushrec.protocols.masked.secagg import device as secagg
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.server import Stage
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
    drawn = secagg.draw_secrets(rng=stream)
    return [drawn.mask_private, drawn.channel_private, drawn.seed]


def check_stores(folder: Path, numbers: Iterable[int], round_number: int, shares: set[bytes]) -> None:
    """Every table was paid for once, no attempt is open, and no secret of the round lies in any file, nor a share."""
    secrets = {secret for number in range(DEVICES) for secret in secrets_of(number, round_number)} | shares
    for number in numbers:
        with Device(folder / f"device-{number}") as device:
            assert device.budget()["rounds"] == round_number
            assert len(device._session.store.private_state()["attempt"]) == 0
        files = bytes_in(folder / f"device-{number}")
        assert not any(secret in files for secret in secrets)


PIECE = 22  # bytes: a third of a share, which a database may store in two places


@contextmanager
def split_shares() -> Iterator[set[bytes]]:
    """Pieces of all shares that devices of this process make of their secrets for others."""
    found: set[bytes] = set()
    split = secagg.split_secret

    def recording(*given: Any, **named: Any) -> dict[int, bytes]:
        shares = split(*given, **named)
        found.update(share[start : start + PIECE] for share in shares.values() for start in range(0, 66, PIECE))
        return shares

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(secagg, "split_secret", recording)
        yield found


def fetch_public(url: str, ended: int) -> dict[str, np.ndarray]:
    """What is public once so many rounds have ended."""
    found: list[Public] = []

    def is_there() -> bool:
        found.append(wire.decode(get(f"{url}/v1/public").content, Public))
        return found[-1].round_number == ended

    wait_for(is_there)
    return dict(found[-1].by_name())


# The server ------------------------------------------------------------------------------------------------------


def strike_server(zygote: Zygote, folder: Path, rounds: int, databases: Databases | None = None) -> dict[str, int]:
    """Kill the server in every phase of so many rounds, before or while the last device reports; return what it did."""
    (folder / "items.csv").write_text("id,title\n" + "".join(f"item-{n},Film {n}\n" for n in range(N_ITEMS)))
    (folder / "config.toml").write_text(
        f"[terms]\nexpected_devices = {DEVICES}\n[rounds]\nmin_devices = {DEVICES}\nearly_fraction = 1.0\n"
    )
    (folder / "server").mkdir()
    databases = databases or Databases()
    chance, kills, in_vain = random.Random(folder.name), 0, 0
    with (
        closing(ServerProcess(zygote, folder / "server", databases)) as server,
        pytest.MonkeyPatch.context() as patch,
        split_shares() as shares,
    ):
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
            public = fetch_public(server.url, number - 1)
            for _ in PHASES:
                step_once(folder, range(DEVICES - 1))
                kill_around(server, folder, chance.choice([0.0, chance.uniform(0, LATEST_KILL)]))
                kills, in_vain = kills + 1, in_vain + paid_in_vain(folder)
            check_stores(folder, range(DEVICES), number, shares)
            calm.learn(public, number)
            calm.check(fetch_public(server.url, number))
            assert len(shares) == number * DEVICES * (DEVICES - 1) * 2 * 66 // PIECE
            check_server(databases, folder / "server", shares, number)  # while it runs, and the next round is open
        server.stop()
    check_server(databases, folder / "server", shares, rounds)
    return {"kills": kills, "paid_without_a_report": in_vain}


def check_server(databases: Databases, folder: Path, shares: set[bytes], rounds: int) -> None:
    """No file of the database, nor of the server's folder, holds a secret of a device or a share of one."""
    secrets = {secret for n in range(DEVICES) for r in range(rounds) for secret in secrets_of(n, r + 1)}
    for path, files in databases.files(folder).items():
        assert not any(secret in files for secret in secrets | shares), path


def paid_in_vain(folder: Path) -> int:
    """How many tables the ledgers were charged with beyond the stored reports, of which there is one in each round."""
    found = 0
    for number in range(DEVICES):
        with Device(folder / f"device-{number}") as device:
            shown = device._session.store.shown()
            found += device.budget()["rounds"] - (shown[-1].round_number if shown else 0)
    return found


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


def test_a_server_killed_in_every_phase_learns_what_a_calm_one_does(zygote: Zygote, tmp_path: Path) -> None:
    """One round: no report is lost or counted twice, ledgers are charged once, and no secret stays."""
    assert strike_server(zygote, tmp_path, rounds=1) == {"kills": 5, "paid_without_a_report": 0}


# Devices ---------------------------------------------------------------------------------------------------------


def strike_devices(
    zygote: Zygote, folder: Path, moments: list[list[int]], database: str | None = None
) -> dict[str, int]:
    """Kill device 0 in every phase before the k-th thing that it does to its disk or its server, for all k given.

    `moments` has a list for each round: the kills of each of its phases. Device 0 is killed until a life gets through,
    and is never alive in a phase in which the others have not reported.
    """
    settings = masked_settings(DEVICES, terms={"survivors": 1.0})
    kills, lives = Counter[str](), 0
    with (
        joined(folder, DEVICES, settings, database=database) as (live, devices),
        pytest.MonkeyPatch.context() as patch,
        split_shares() as shares,
    ):
        seed_devices(patch, devices)
        calm = Calm(problem_of(live, devices))
        devices[0].close()
        for number, kept in enumerate(moments, start=1):
            public = fetch_public(live.url, number - 1)
            for phase in PHASES:
                report(live, devices[1:], phase, number)
                for moment in [*kept, 0]:  # the last life is left alone
                    times = steps_left(folder / "device-0", Address(number, 1, phase), live)
                    if times is None:
                        break
                    order = {"step": str(folder / "device-0"), "times": times, "kill_at": moment, "seed": [SEED, 0]}
                    status = zygote.ask(**order)["status"]  # type: ignore[arg-type]
                    assert status in ([0, -signal.SIGKILL] if moment else [0])
                    kills[phase] += status != 0
                    lives += 1
            calm.learn(public, number)
            calm.check(fetch_public(live.url, number))
            assert len(shares) == number * (DEVICES - 1) ** 2 * 2 * 66 // PIECE  # those of the others, device 0's too
            check_stores(folder, [0], number, shares)
        assert tables_of(devices[1:]) == [len(moments)] * (DEVICES - 1)
    return {"kills": kills.total(), "lives": lives, **kills}


def steps_left(store: Path, place: Address, live: Live) -> int | None:
    """0: a report is stored and must be sent; 1: the phase waits for one; None: the phase has it."""
    with Device(store) as device:
        if device._store.get("outbox") is not None:
            return 0
        name, server = device._session.name, live.rounds.server
    is_waiting = server.stage is Stage.OPEN and server.address == place and name not in server.reported
    return 1 if is_waiting else None


def test_a_device_killed_in_every_phase_reports_once_and_pays_once(zygote: Zygote, tmp_path: Path) -> None:
    """One round, a kill in each phase in the middle of what is stored: the sum is the engine's."""
    assert strike_devices(zygote, tmp_path, [[14]])["kills"] == 5


# The long forms --------------------------------------------------------------------------------------------------


SHOWN = {"learned_equal_bit_for_bit": True, "reports_lost": 0, "counted_twice": 0, "secrets_left": 0}  # as asserted


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_fifty_kills_of_a_masked_server_in_each_phase(zygote: Zygote, tmp_path: Path, kind: str) -> None:
    """Ten runs of five rounds with a kill in each phase, before or while the last device reports."""
    struck: Counter[str] = Counter()
    with running_cluster() if kind == "postgresql" else nullcontext() as cluster:
        for number in range(10):
            (tmp_path / f"run_{number}").mkdir()
            databases = None if cluster is None else cluster.databases(f"masked_{number}")
            struck.update(strike_server(zygote, tmp_path / f"run_{number}", rounds=5, databases=databases))
    assert struck == {"kills": 250, "paid_without_a_report": 0}
    keep_record(f"masked-kill-{kind}", {"database": kind, **struck, "devices": DEVICES, "rounds": 50, **SHOWN})


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_fifty_kills_of_a_masked_device_in_each_phase(zygote: Zygote, tmp_path: Path, kind: str) -> None:
    """Five rounds; in each phase a device dies seven times before its report is stored, and then until it is sent.

    A life that makes and sends a report does about 25 things, one that sends what is stored does nine.
    """
    moments = [[2 + n, 5, 8 + n, 10, 12 + n, 14, 17, 20 + n, 3, 5, 7, 9] for n in range(5)]
    with running_cluster() if kind == "postgresql" else nullcontext() as cluster:
        struck = strike_devices(zygote, tmp_path, moments, None if cluster is None else cluster.new_database())
    fewest = min(count for name, count in struck.items() if name in PHASES)
    assert fewest >= 50
    done = {"database": kind, **struck, "devices": DEVICES, "rounds": len(moments), **SHOWN}
    keep_record(f"masked-kill-device-{kind}", done | {"paid_without_a_report": 0})
