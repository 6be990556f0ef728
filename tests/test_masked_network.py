"""Whole masked runs over HTTP beside engine `reference` with the same draws: the same table and the same accuracy."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from masked_kit import SEED, joined, masked_settings, problem_of, public_of, seed_devices, take_part
from service_kit import OPEN_SOCKETS, keep_record, live_server
from test_masked_run import device_sum

from hushrec import Device
from hushrec.data import load
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.engines.reference import ReferenceEngine
from hushrec.models.gaussian_process import GaussianProcess
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked import device_side
from hushrec.protocols.masked.encoding import decode_sum, split_table
from hushrec.protocols.masked.evaluation import is_held_out
from hushrec.service.setup import Items
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings
from hushrec.simulation.training_problem import AnyProblem

pytestmark = OPEN_SOCKETS
PEOPLE = 943  # everybody of ML-100K


def run_engine(problem: AnyProblem) -> ReferenceEngine:
    """All rounds, every device with the draws of its number."""
    engine = ReferenceEngine(problem)
    for _ in range(problem.terms.max_rounds):
        engine.run_round()
    return engine


def run_without_masks(problem: AnyProblem) -> CpuMaskedEngine:
    """All rounds of engine `cpu`, with the draws of each device: masks cancel exactly, and are left out."""
    engine, present = CpuMaskedEngine(problem), np.ones(problem.n_users, dtype=np.bool_)
    for number, one in enumerate(problem.terms.priced.plan.rounds, start=1):
        codes = problem.terms.priced.codes[number - 1]
        total = device_sum(problem, engine, number, one, codes, engine.learner.table(), present)
        decoded = [decode_sum(code, own, PEOPLE) for code, own in zip(codes, split_table(codes, total), strict=True)]
        engine.learner.learn(dict(zip((block.name for block in one.blocks), decoded, strict=True)), PEOPLE)
    return engine


def check_equal(public: Arrays, expected: Arrays) -> None:
    """What the server has published is what the engine learned, bit for bit as the wire has it."""
    for name, array in expected.items():
        np.testing.assert_array_equal(public[name], np.asarray(array, dtype=np.float32), err_msg=name)


@pytest.mark.parametrize("evaluation", [0.0, 0.1])
def test_a_whole_run_over_http_learns_and_predicts_what_the_engine_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evaluation: float
) -> None:
    """Five devices, all rounds of the plan with noise: one table bit for bit, and everybody's predictions.

    Which ratings are held out to measure the accuracy follows from a device's name; here from its number.
    """
    settings = masked_settings(5, terms={"survivors": 1.0, "evaluation": evaluation})
    with joined(tmp_path, 5, settings) as (live, devices):
        seed_devices(monkeypatch, devices)
        numbers = {device._session.name: number for number, device in enumerate(devices)}
        monkeypatch.setattr(
            device_side, "is_held_out", lambda name, *given: is_held_out(numbers.get(name, name), *given)
        )
        problem = problem_of(live, devices, evaluation=evaluation)
        take_part(devices, lambda: False)
        engine = run_engine(problem)
        check_equal(public_of(live), engine.server.side.public)
        predictor, items = engine.predictor(), np.arange(problem.n_items)
        for user, device in enumerate(devices):
            expected = predictor.predict(np.full(len(items), user), items)
            np.testing.assert_allclose(device.predict(), expected, rtol=1e-6)


@pytest.mark.soak
@pytest.mark.data
def test_people_over_tls_have_the_engines_rmse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """People of ML-100K as devices, the whole plan at ε = 8 over TLS: the engine's table, and its test RMSE.

    The terms are those of `benchmarks/masked_fleet.py`.
    """
    terms = {"epsilon": 8.0, "survivors": 0.9, "corrupt": 0.02, "reserve": 0.1, "evaluation": 0.02}
    ratings = load("ml-100k")
    chosen = ratings.rows(np.flatnonzero(ratings.users < PEOPLE))
    settings = Settings(model="gp", protocol="masked", seed=SEED, **terms)
    task = settings.make_task(replace(chosen, user_ids=ratings.user_ids[:PEOPLE]))
    problem = task_problem(task, settings)
    known = problem.model.columns
    columns = replace(known, taste=known.taste.astype(np.float32).astype(np.float64))  # as the catalogue is sent
    problem = replace(problem, model=GaussianProcess(columns))
    ids = task.ratings.item_ids
    items = Items.of(ids, task.ratings.titles or ids, {"columns": columns})
    server = masked_settings(PEOPLE, terms=terms, rounds={"min_devices": PEOPLE, "deadline_seconds": 3600.0})
    with ExitStack() as stack:
        live = stack.enter_context(live_server(tmp_path, server, items=items, tls=True))
        assert live.rounds.offer.terms == problem.terms
        assert problem.terms.rules.neighbours < PEOPLE - 1
        devices = [stack.enter_context(Device.create(tmp_path / f"device-{n}", patience=900)) for n in range(PEOPLE)]
        seed_devices(monkeypatch, devices)
        for user, device in enumerate(devices):
            own = slice(problem.starts[user], problem.starts[user + 1])
            rated = zip(problem.items[own], problem.values[own], strict=True)
            device.add_ratings({ids[item]: value for item, value in rated})
            device.join(live.url, ca=live.ca)
        numbers = {device._session.name: number for number, device in enumerate(devices)}
        monkeypatch.setattr(
            device_side, "is_held_out", lambda name, *given: is_held_out(numbers.get(name, name), *given)
        )
        take_part(devices, lambda: False, wait=30.0)
        engine = run_without_masks(problem)
        check_equal(public_of(live), engine.public())
        predicted = np.array([device.predict() for device in devices])
    test = task.split.test
    errors = predicted[task.ratings.users[test], task.ratings.items[test]] - task.values[test]
    found, expected = float(np.sqrt(np.mean(errors**2))), task.metrics(engine.predictor())["rmse"]
    assert found == pytest.approx(expected, abs=1e-6)
    done = {"dataset": "ml-100k", "devices": PEOPLE, "rounds": problem.terms.max_rounds, **terms, "seed": SEED}
    done |= {"rmse": found, "engine_rmse": expected, "largest_difference": abs(found - expected)}
    baselines = {name: own["rmse"] for name, own in task.baselines().items() if "rmse" in own}
    keep_record("masked-network-rmse", done | {"baselines": baselines, "table_equal_bit_for_bit": True})
