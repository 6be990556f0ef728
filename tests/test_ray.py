"""Engine `ray`: the bits of `cpu`, a worker that dies in a round, and nobody outside this machine is spoken to."""

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ray = pytest.importorskip("ray", reason="engine ray needs ray: pip install 'hushrec[ray]'")

from sockets import Watch  # noqa: E402
from test_sharded import RATINGS, assert_same_bits, finished, problem_of  # noqa: E402

from hushrec.data.shards import write_shards  # noqa: E402
from hushrec.engines import make_engine  # noqa: E402
from hushrec.engines.ray.cluster import cluster  # noqa: E402
from hushrec.engines.ray.crew import RayCrew  # noqa: E402
from hushrec.errors import ParameterError  # noqa: E402
from hushrec.experiment_records import read_records  # noqa: E402
from hushrec.experiments.running import prepare, run_experiment  # noqa: E402
from hushrec.simulation.sharded import train_shards  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # the warnings are Ray's


def left_to_soak(value: object) -> Any:
    """Leave a case to `make soak`: workers compile its kernels for a minute."""
    return pytest.param(value, marks=pytest.mark.soak)


@pytest.fixture(scope="module")
def watch() -> Iterator[Watch]:
    """A cluster of two workers, watched from before its start."""
    with Watch() as watch, cluster(workers=2):
        yield watch


@pytest.mark.parametrize("name", ["masked gp", left_to_soak("masked audience"), "sdcf mf", left_to_soak("sdcf fm")])
def test_two_workers_give_the_bits_of_cpu(watch: Watch, name: str) -> None:
    """Through `make_engine`, as `--engine ray` does."""
    problem = problem_of(name)
    found = finished(make_engine("ray", problem))
    assert isinstance(found.crew, RayCrew)  # type: ignore[attr-defined]
    assert_same_bits(found, finished(make_engine("cpu", problem)))


# Workers cannot import tests: what they are asked here travels by value.
process_of = lambda worker: os.getpid()  # noqa: E731
wait_a_moment = lambda worker: time.sleep(1)  # noqa: E731  what it is asked next waits behind


@pytest.mark.parametrize("name", [left_to_soak("masked gp"), "sdcf mf"])
def test_a_worker_that_is_killed_in_a_round_changes_no_bit(watch: Watch, name: str) -> None:
    """What it was asked and had not done is done by the process that takes its place, from the same ratings."""
    problem = problem_of(name)
    engine: Any = make_engine("ray", problem)
    engine.run_round()
    victim = engine.crew.get(engine.crew.ask(0, process_of))
    ask, asked = engine.crew.ask, []

    def ask_and_kill(part: int, *arguments: Any, **options: Any) -> Any:
        """Keep the first worker busy, let both be asked for their part of the round, and kill the first."""
        if not asked:
            ask(part, wait_a_moment)
        result = ask(part, *arguments, **options)
        asked.append(part)
        if len(asked) == 2:
            os.kill(victim, signal.SIGKILL)
        return result

    engine.crew.ask = ask_and_kill
    engine.run_round()
    engine.crew.ask = ask
    assert engine.crew.get(engine.crew.ask(0, process_of)) != victim
    assert_same_bits(finished(engine), finished(make_engine("cpu", problem)))


def test_nobody_outside_this_machine_is_spoken_to(watch: Watch) -> None:
    """From the start of the cluster on, every connection and every open port is on the loopback address."""
    assert watch.seen, "the watch must see the sockets of Ray's processes"
    assert watch.outside() == set()


@pytest.mark.soak
def test_workers_read_their_own_shards(watch: Watch, tmp_path: Path) -> None:
    """What the server published last and the metrics are those of one machine."""
    write_shards(RATINGS, tmp_path / "shards", ratings_per_shard=300)
    found, expected = (train_shards(tmp_path / "shards", engine=engine) for engine in ("ray", "cpu"))
    for name, array in expected[1].items():
        np.testing.assert_array_equal(found[1][name], array, err_msg=name)
    assert found[0]["metrics"] == pytest.approx(expected[0]["metrics"], rel=1e-12)


EXPERIMENT = """
name = "small"
title = "Two steps"
[data]
set = "synthetic:users=60,items=50,ratings=900"
[splits]
count = 2
[run]
model = "mf"
factors = 3
rounds = 2
[[curves]]
protocol = "plain"
step = [0.05, 0.1]
"""


@pytest.mark.soak
def test_a_grid_runs_on_the_cluster(watch: Watch, tmp_path: Path) -> None:
    """`hushrec experiment FILE --engine ray`: the numbers of one machine, in the order of the plans."""
    (tmp_path / "small.toml").write_text(EXPERIMENT)
    prepared = prepare(tmp_path / "small.toml")
    found, expected = (
        read_records(run_experiment(prepared, tmp_path / str(cluster), cluster=cluster)) for cluster in (True, False)
    )
    assert [record["metrics"] for record in found] == [record["metrics"] for record in expected]
    assert len(found) == 4


def test_a_program_has_one_cluster(watch: Watch) -> None:
    """A second one is refused, and so are workers of somebody else's cluster, or none at all."""
    for options, name in (({}, "cluster"), ({"workers": 0}, "workers"), ({"address": "x:1", "workers": 2}, "workers")):
        with pytest.raises(ParameterError, match=name), cluster(**options):
            pass
