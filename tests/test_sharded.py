"""Engines that cut people into parts: bit for bit what engine `cpu` computes, however many parts there are."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run

from hushrec.data.synthetic import synthetic
from hushrec.engines import Engine, make_engine
from hushrec.engines.sharded import sharded_engine
from hushrec.errors import LocalProtocolError, ParameterError
from hushrec.simulation.out_of_core import DiskCrew
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings
from hushrec.simulation.training_problem import AnyProblem

RATINGS = synthetic(n_users=60, n_items=50, n_ratings=900, seed=1)

RUNS: dict[str, dict[str, Any]] = {
    "masked gp": {"protocol": "masked", "model": "gp"},
    "masked audience": {"protocol": "masked", "model": "audience"},
    "masked with absent devices": {"protocol": "masked", "model": "gp", "dropout": 0.2},
    "plain mf": {"protocol": "plain", "model": "mf", "rounds": 3},
    "isgld mf": {"protocol": "isgld", "model": "mf", "rounds": 3},
    "sdcf mf": {"protocol": "sdcf", "model": "mf", "rounds": 4, "epoch_rounds": 2},
    "sdcf bpr": {"protocol": "sdcf", "model": "bpr", "rounds": 3},
    "sdcf fm": {"protocol": "sdcf", "model": "fm", "rounds": 3},
}


def problem_of(name: str) -> AnyProblem:
    """The training part of the small data set, under the settings of that name."""
    settings = Settings(**{"factors": 5, "step": 0.05, **RUNS[name]} if "masked" not in name else RUNS[name])
    return task_problem(settings.make_task(RATINGS), settings)


def finished(engine: Engine) -> Engine:
    """Run all rounds."""
    while engine.round_number < engine.problem.terms.max_rounds:
        engine.run_round()
    return engine


def assert_same_bits(found: Engine, expected: Engine) -> None:
    """Every array of the state, ratings sent and prices included, is the same."""
    wanted = expected.state()
    assert found.state().keys() == wanted.keys()
    for name, array in found.state().items():
        np.testing.assert_array_equal(array, wanted[name], err_msg=name, strict=True)
    assert found.bytes_per_client_round() == expected.bytes_per_client_round()


def crew_of(problem: AnyProblem, n_parts: int, scratch: Path) -> DiskCrew:
    """A crew in this process that divides the problem into so many parts."""
    return DiskCrew(scratch, -(-int(problem.starts[-1]) // n_parts))


@pytest.mark.parametrize("name", RUNS)
def test_any_number_of_parts_gives_the_bits_of_cpu(name: str, tmp_path: Path) -> None:
    """Two parts, and more parts than a run has blocks of users."""
    problem = problem_of(name)
    expected = finished(make_engine("cpu", problem))
    for n_parts in (2, 11):
        assert_same_bits(finished(sharded_engine(problem, crew_of(problem, n_parts, tmp_path))), expected)


def test_a_restored_run_goes_on_bit_for_bit(tmp_path: Path) -> None:
    """A state of engine `cpu` is one of the parts' too, in the middle of a permanent epoch."""
    problem = problem_of("sdcf mf")
    expected = make_engine("cpu", problem)
    expected.run_round()
    resumed = sharded_engine(problem, crew_of(problem, 3, tmp_path))
    resumed.restore(expected.state())
    assert_same_bits(finished(resumed), finished(expected))
    with pytest.raises(LocalProtocolError):
        resumed.run_round()
    with pytest.raises(ParameterError):
        resumed.restore(make_engine("cpu", problem_of("sdcf fm")).state())


def test_predictions_and_prices_are_those_of_cpu(tmp_path: Path) -> None:
    """What the driver gathers at the end: predictions of a part's users, and what their values cost."""
    problem = problem_of("sdcf mf")
    found = finished(sharded_engine(problem, crew_of(problem, 3, tmp_path)))
    expected = finished(make_engine("cpu", problem))
    users = np.arange(problem.n_users)
    np.testing.assert_array_equal(found.predictor().scores(users), expected.predictor().scores(users))
    np.testing.assert_array_equal(found.losses()["value_rho"], expected.losses()["value_rho"])


def test_without_ray_its_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """In Python and on the command line."""
    for name in [name for name in sys.modules if name.startswith("hushrec.engines.ray.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ParameterError, match="pip install ray"):
        make_engine("ray", problem_of("plain mf"))
    outcome = run("train", "synthetic", "--engine", "ray")
    assert outcome.code == 1
    assert "hushrec[ray]" in outcome.err


def test_options_of_a_cluster_need_its_engine(tmp_path: Path) -> None:
    """Of a training, and of an experiment, whose runs name their engines in the file."""
    outcome = run("train", "synthetic", "--workers", 2)
    assert (outcome.code, "--engine ray" in outcome.err) == (1, True)
    outcome = run("experiment", tmp_path / "any.toml", "--engine", "cpu")
    assert (outcome.code, "engine" in outcome.err) == (1, True)
