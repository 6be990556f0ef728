"""Accuracy that a masked run measures itself: same integers everywhere, right without noise, off where it is noise."""

import numpy as np
import pytest
from test_masked_run import FEW, N_ITEMS, device_sum, small_problem

from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import ParameterError
from hushrec.models import gp
from hushrec.models.gaussian_process import GaussianProcess
from hushrec.models.item_columns import item_columns
from hushrec.protocols.configured import Fleet
from hushrec.protocols.masked import evaluation
from hushrec.protocols.masked.encoding import DecodedSum
from hushrec.protocols.masked.evaluation import HELD_OUT, Measured, is_held_out, is_readable, measured
from hushrec.protocols.masked.plan import EVALUATION
from hushrec.protocols.masked.protocol import Masked


def test_the_cpu_engine_makes_the_evaluation_blocks_of_the_devices() -> None:
    """Integer by integer in every round, with held-out ratings and one device that has none."""
    problem = small_problem(n_users=FEW, empty=7, evaluation=0.3)
    reference, cpu = ReferenceEngine(problem), CpuMaskedEngine(problem)
    priced = problem.terms.priced
    assert [one.blocks[-1].name == EVALUATION for one in priced.plan.rounds] == [False] + [True] * 5
    for number, (one, codes) in enumerate(zip(priced.plan.rounds, priced.codes, strict=True), start=1):
        table = reference.server.side.learner.table()
        reference.run_round()
        expected = device_sum(problem, cpu, number, one, codes, table, np.ones(FEW, dtype=bool))
        np.testing.assert_array_equal(reference.server.side.attempt.sum, expected)
    assert len(reference.server.side.learner.measured) == 5


def test_without_noise_the_rounds_measure_the_errors_on_held_out_ratings(monkeypatch: pytest.MonkeyPatch) -> None:
    """After every round: the errors of each person's own fit to their other ratings, computed here one by one.

    The clip is so large that it changes nobody's block.
    """
    monkeypatch.setattr(evaluation, "CLIP", 100.0)
    problem = small_problem(epsilon=np.inf, evaluation=0.1)
    engine = CpuMaskedEngine(problem)
    errors, bias_errors = [], []
    for _ in range(problem.terms.max_rounds):
        errors.append([])
        bias_errors.append([])
        table = engine.learner.table()
        for user in range(problem.n_users):
            own = slice(problem.starts[user], problem.starts[user + 1])
            items, values = problem.items[own], problem.values[own]
            held = is_held_out(user, items, N_ITEMS)
            residuals = values - table.offsets[items]
            fit = gp.taste_posterior(table.rows[items[~held]], residuals[~held], 1 / table.variances[items[~held]])
            errors[-1] += list(residuals[held] - table.rows[items[held]] @ fit[0])
            bias_errors[-1] += list(residuals[held] - residuals[~held].sum() / (len(residuals[~held]) + 3.2))
        engine.run_round()
    assert len(errors[0]) > 10
    found = engine.learner.measured
    assert [row.round_number for row in found] == list(range(1, problem.terms.max_rounds))
    for row, own, bias in zip(found, errors[1:], bias_errors[1:], strict=True):
        assert row.rmse == pytest.approx(np.sqrt(np.mean(np.square(own))), rel=2e-3)
        assert row.bias_rmse == pytest.approx(np.sqrt(np.mean(np.square(bias))), rel=2e-3)


def test_held_out_ratings_are_in_no_other_block() -> None:
    """Counts of the first round are those of the other ratings alone."""
    problem = small_problem(epsilon=np.inf, evaluation=0.1)
    engine = CpuMaskedEngine(problem)
    priced, everybody = problem.terms.priced, np.ones(problem.n_users, dtype=bool)
    counts = engine.sum_integers(priced.plan.rounds[0], priced.codes[0], engine.learner.table(), everybody)[0]
    expected = np.zeros(N_ITEMS)
    for user in range(problem.n_users):
        items = problem.items[problem.starts[user] : problem.starts[user + 1]]
        expected[items[~is_held_out(user, items, N_ITEMS)]] += 1
    np.testing.assert_allclose(counts * priced.codes[0][0].grid, expected, atol=0.1)


def test_a_device_chooses_by_its_name_and_leaves_something_to_learn_from() -> None:
    """The same in every round, other items on other devices, a twentieth of all; a single rating stays in the run."""
    items = np.arange(20_000)
    first, again, other = (is_held_out(name, items, 20_000) for name in ("ab" * 16, "ab" * 16, "ba" * 16))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert first.mean() == pytest.approx(HELD_OUT, abs=5 * np.sqrt(HELD_OUT / 20_000))
    alone = np.flatnonzero(first)[:1]
    assert not is_held_out("ab" * 16, alone, 20_000).any()


def test_the_standard_error_is_that_of_the_noise() -> None:
    """Over 4,000 draws of noise RMSEs spread as each of them says; a count that is lost in noise says nothing."""
    rng, sums = np.random.default_rng(5), np.array([-300.0, 120.0, 1_000.0])
    found = [measured(DecodedSum(sums + rng.normal(0, 20, 3), 400.0, 0.0), 3) for _ in range(4_000)]
    for name, error in (("rmse", "rmse_error"), ("bias_rmse", "bias_error")):
        spread = np.std([getattr(row, name) for row in found])
        assert spread == pytest.approx(np.mean([getattr(row, error) for row in found]), rel=0.05)
    assert np.isnan(measured(DecodedSum(np.array([5.0, 5.0, 50.0]), 400.0, 0.0), 3).rmse)


def test_the_operators_page_is_told_what_was_measured_and_a_restart_keeps_it() -> None:
    """Rounds of which nothing can be said have no numbers."""
    side = ReferenceEngine(small_problem(n_users=FEW, evaluation=0.3)).server.side
    side.learner.measured = [Measured(1, 0.9, 0.01, 0.95, 0.02), Measured(2, *[np.nan] * 4)]
    assert side.accuracy == [
        {"round_number": 1, "rmse": 0.9, "rmse_error": 0.01, "bias_rmse": 0.95, "bias_error": 0.02},
        {"round_number": 2, "rmse": None, "rmse_error": None, "bias_rmse": None, "bias_error": None},
    ]
    told = side.accuracy
    kept = side.state
    side.learner.measured = []
    side.restore(kept)
    assert side.accuracy == told


@pytest.mark.parametrize(("devices", "share", "is_said"), [(12, 0.1, True), (12, 0.0, False), (943, 0.1, False)])
def test_an_operator_hears_that_noise_will_hide_the_accuracy(devices: int, share: float, is_said: bool) -> None:
    """With twelve devices nothing can be said; without evaluation nothing is measured."""
    model = GaussianProcess(item_columns(1682, ["Film"] * 1682, None))
    for repeats in (1, 4):
        protocol = Masked(epsilon=8.0, evaluation=share, survivors=0.8, repeats=repeats)
        fleet = Fleet(1682, 84 * devices, np.full(devices, 84), [protocol], model, 0)
        notices = protocol.notices(protocol.make_terms(fleet, {}))
        assert [f"with {devices} devices, noise will probably hide" in notice for notice in notices] == [True] * is_said


def test_evaluation_is_part_of_the_budget_and_off_unless_asked_for() -> None:
    """The plan of `train` has none; with it, the whole run costs the same μ²."""
    plain, priced = (small_problem(evaluation=share).terms.priced for share in (0.0, 0.1))
    assert not plain.plan.holds_out
    assert priced.accountant().epsilon(priced.delta) <= priced.epsilon
    shares = [block.share for block in priced.plan.blocks if block.name == EVALUATION]
    assert sum(shares) == pytest.approx(0.1)
    with pytest.raises(ParameterError, match="evaluation"):
        Masked(epsilon=8.0, evaluation=0.9)


@pytest.mark.parametrize(("devices", "is_on"), [(25, False), (200, False), (943, True), (10_000, True)])
def test_network_runs_measure_themselves_where_the_noise_leaves_something(devices: int, is_on: bool) -> None:
    """A rule of public numbers; an operator may say otherwise, and a model without ratings has no such block."""
    assert is_readable(devices, devices, 1.5) == is_on
    options = {"epsilon": 8.0, "evaluation": None}
    assert (Masked.network_options(options, 1682, devices)["evaluation"] > 0) == is_on
    assert Masked.network_options({"epsilon": 8.0, "evaluation": 0.0}, 1682, devices)["evaluation"] == 0
    assert "evaluation" not in Masked.network_options({"epsilon": 8.0}, 1682, devices)
