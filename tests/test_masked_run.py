"""Masked runs: what devices send, what the server learns, and that the CPU engine's integers are the devices'."""

from typing import Any

import numpy as np
import pytest

from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.engines.cpu.masked_kernels import Given
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.models.gaussian_process import GaussianProcess
from hushrec.models.item_columns import item_columns
from hushrec.protocols.masked.gp import plan as plans
from hushrec.protocols.masked.gp.plan import choose_plan
from hushrec.protocols.masked.gp.server import GpLearner
from hushrec.protocols.masked.gp.table import PublicTable
from hushrec.protocols.masked.learning import learning_of
from hushrec.protocols.masked.noise import discrete_gaussian
from hushrec.protocols.masked.plan import Block, Round
from hushrec.protocols.masked.protocol import Masked
from hushrec.randomness import Purpose, SeededRandomness
from hushrec.simulation.training_problem import AnyProblem, make_problem

N_USERS, N_ITEMS = 40, 25
FEW = 12  # people of a run in which every message is real


def small_problem(
    *, n_users: int = N_USERS, large: bool = False, empty: int | None = None, **options: float
) -> AnyProblem:
    """Forty people who like even or odd items, with a flag that says which is which; one of them may be empty.

    `large` gives them the plan of a large fleet.
    """
    import polars as pl

    rng = np.random.default_rng(1)
    users, items = np.nonzero(rng.random((n_users, N_ITEMS)) < 0.4)
    if empty is not None:
        users, items = users[users != empty], items[users != empty]
    liked = (users % 2) == (items % 2)
    values = np.clip(np.where(liked, 4.5, 2.0) + rng.normal(0, 0.3, len(users)), 1, 5)
    flags = pl.DataFrame({"kind=even": np.arange(N_ITEMS) % 2 == 0})
    titles = [f"Film {number}" for number in range(N_ITEMS)]
    model = GaussianProcess(item_columns(N_ITEMS, titles, flags))
    protocol = Masked(**{"epsilon": 20.0 if large else 8.0, **options})
    with pytest.MonkeyPatch.context() as patch:
        for name in ("LARGE_FLEET", "MEDIUM_FLEET"):
            patch.setattr(plans, name, 0.0 if large else plans.LARGE_FLEET)
        patch.setattr(plans, "FEWEST_FOR_COLUMNS", 0 if large else plans.FEWEST_FOR_COLUMNS)
        return make_problem(
            users, items, values, n_users=n_users, n_items=N_ITEMS, model=model, protocols=[protocol], seed=3
        )


@pytest.mark.parametrize("large", [False, True])
def test_the_cpu_engine_makes_the_integers_of_the_devices(large: bool) -> None:
    """Round by round, from the same table and the same draws: the unmasked sum is the engine's, integer by integer.

    One person has no ratings, and half a budget is enough for everybody.
    """
    problem = small_problem(n_users=FEW, large=large, empty=7, own_epsilon=10.0 if large else 4.0)
    reference, cpu = ReferenceEngine(problem), CpuMaskedEngine(problem)
    priced = problem.terms.priced
    assert (plans.FACTORS in {block.name for block in priced.plan.blocks}) == large
    for number, (one, codes) in enumerate(zip(priced.plan.rounds, priced.codes, strict=True), start=1):
        table = reference.server.side.learner.table()
        reference.run_round()
        expected = device_sum(problem, cpu, number, one, codes, table, np.ones(FEW, dtype=bool))
        np.testing.assert_array_equal(reference.server.side.attempt.sum, expected)
    assert reference.round_number == problem.terms.max_rounds


def device_sum(
    problem: AnyProblem, cpu: CpuMaskedEngine, number: int, one: Round, codes: Any, table: Any, present: Any
) -> np.ndarray:
    """What the engine makes of the draws of these devices: their integers, and their shares of noise."""
    people = [SeededRandomness(problem.seed, user) for user in range(problem.n_users)]
    uniforms = [person.stream(Purpose.TABLE_ROUNDING, number).random(one.size) for person in people]
    given = Given(one.size * np.arange(problem.n_users + 1), np.concatenate(uniforms))
    integers = cpu.sum_integers(one, codes, table, present, given)
    noise = [np.zeros(code.size, np.int64) for code in codes]
    for user in np.flatnonzero(present):
        stream = people[user].stream(Purpose.NOISE_SHARES, number)
        for own, code in zip(noise, codes, strict=True):
            own += discrete_gaussian(code.share_variance).draw(code.size, rng=stream)
    return np.concatenate([a + b for a, b in zip(integers, noise, strict=True)]).astype(np.uint32)


def test_both_engines_learn_alike_without_noise() -> None:
    """With ε = ∞ the engines differ by stochastic rounding alone: predictions are close."""
    problem = small_problem(n_users=FEW, epsilon=np.inf)
    engines = [ReferenceEngine(problem), CpuMaskedEngine(problem)]
    for engine in engines:
        for _ in range(problem.terms.max_rounds):
            engine.run_round()
    users, items = np.repeat(np.arange(FEW), N_ITEMS), np.tile(np.arange(N_ITEMS), FEW)
    first, second = (engine.predictor().predict(users, items) for engine in engines)
    np.testing.assert_allclose(first, second, atol=0.2)
    liked = users % 2 == items % 2
    assert first[liked].mean() > first[~liked].mean() + 1.5


def test_a_device_explains_items_by_those_of_their_kind_that_its_person_likes() -> None:
    """From its own ratings and the public table alone: the nearest liked films are of the same kind, never disliked."""
    engine = ReferenceEngine(small_problem(n_users=FEW, epsilon=np.inf))
    for _ in range(engine.problem.terms.max_rounds):
        engine.run_round()
    client, public = engine.clients[0], engine.server.side.public
    starts, items, values = engine.problem.starts, engine.problem.items, engine.problem.values
    own = dict(zip(items[: starts[1]].tolist(), values[: starts[1]].tolist(), strict=True))
    unrated = np.setdiff1d(np.arange(N_ITEMS), list(own))
    reasons = client.reasons(public, unrated, 2)
    assert {place for found in reasons for place in found.tolist()} <= {n for n in own if n % 2 == 0}
    assert all(len(found) == 2 for item, found in zip(unrated, reasons, strict=True) if item % 2 == 0)
    alike = engine.predictor().likeness(int(unrated[0]))
    np.testing.assert_array_equal(reasons[0], sorted(reasons[0], key=lambda place: -alike[place]))
    client._items, client._values = client._items[:0], client._values[:0]
    assert [len(found) for found in client.reasons(public, unrated, 2)] == [0] * len(unrated)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums are integers: one thread or many, the table is the same."""
    import numba

    tables = []
    for threads in (1, 3):
        monkeypatch.setattr(numba, "get_num_threads", lambda threads=threads: threads)
        engine = CpuMaskedEngine(small_problem())
        for _ in range(2):
            engine.run_round()
        tables.append(engine.learner.table().rows)
    np.testing.assert_array_equal(*tables)


def test_a_restored_run_goes_on_bit_for_bit() -> None:
    """State holds all that the rounds to come depend on."""
    problem = small_problem()
    whole, first, second = (CpuMaskedEngine(problem) for _ in range(3))
    for _ in range(4):
        whole.run_round()
    for _ in range(2):
        first.run_round()
    second.restore(first.state())
    for _ in range(2):
        second.run_round()
    np.testing.assert_array_equal(whole.learner.table().offsets, second.learner.table().offsets)


def test_an_empty_profile_sends_exact_zeros() -> None:
    """In every block of every plan, at the positions of a profile that rated every item."""
    engine = CpuMaskedEngine(small_problem(large=True))
    nothing, whole = (np.empty(0, np.int64), np.empty(0)), (np.arange(N_ITEMS), np.full(N_ITEMS, 3.0))
    for one in engine.problem.terms.priced.plan.rounds:
        table = engine.learner.table()
        entries, others = (engine.learning.entries(one.blocks, table, *profile) for profile in (nothing, whole))
        assert [own.values.shape for own in entries] == [own.values.shape for own in others]
        assert not any(own.values.any() for own in entries)
        engine.run_round()


@pytest.mark.parametrize(("large", "repeats"), [(False, 1), (True, 1), (True, 2)])
def test_a_table_with_columns_of_zeros_is_refused_in_every_round(large: bool, repeats: int) -> None:
    """They would change no prediction, and make a device with ratings compute for seconds."""
    engine = CpuMaskedEngine(small_problem(large=large, evaluation=0.1, repeats=repeats))
    plan = engine.problem.terms.priced.plan
    for number in range(1, len(plan.rounds) + 1):
        table = engine.learner.table()
        engine.learning.check_fits(plan.groups_until(number), table)
        for more in (-1, 1, 600):
            length = table.rows.shape[1] + more
            other = {"rows": np.zeros((N_ITEMS, length)), "directions": np.zeros((length, table.directions.shape[1]))}
            padded = engine.learning.table_from(vars(table) | other)
            with pytest.raises(RemoteProtocolError, match="rows"):
                engine.learning.check_fits(plan.groups_until(number), padded)
        engine.run_round()


@pytest.mark.parametrize(
    ("items", "values"), [([3, 3], [1, 2]), ([5, 3], [1, 2]), ([25], [3]), ([-1], [3]), ([1], [5.5]), ([1], [np.nan])]
)
def test_a_device_refuses_a_profile_that_its_price_does_not_cover(items: list[int], values: list[float]) -> None:
    """An item twice, an unknown one, a rating off the scale: the sensitivity argument needs a map of the catalogue."""
    problem = small_problem()
    learner = GpLearner(problem.model.columns, problem.terms.priced.plan, N_USERS)
    first = problem.terms.priced.plan.rounds[0].blocks
    with pytest.raises(ParameterError, match="profile"):
        learning_of(problem.model).entries(first, learner.table(), np.array(items), np.array(values, float))


@pytest.mark.parametrize(
    ("name", "value"), [("offsets", np.nan), ("rows", np.inf), ("variances", 0.0), ("weights", -1.0), ("rows", 1e9)]
)
def test_a_device_refuses_a_table_that_formulas_could_fail_on(name: str, value: float) -> None:
    """Entries must be finite and bounded, variances positive, weights not negative."""
    problem = small_problem()
    table = GpLearner(problem.model.columns, problem.terms.priced.plan, N_USERS).table()
    arrays = {key: np.array(entry) for key, entry in vars(table).items()}
    arrays[name].flat[0] = value
    with pytest.raises(RemoteProtocolError, match=name):
        PublicTable(**arrays)


def test_counts_of_a_device_are_ones_at_its_items() -> None:
    """Worked by hand: the block is clipped afterwards, not here."""
    problem = small_problem()
    table = GpLearner(problem.model.columns, problem.terms.priced.plan, N_USERS).table()
    block = Block(plans.COUNTS, (N_ITEMS,), 4.0, 1.0)
    (own,) = learning_of(problem.model).entries([block], table, np.array([2, 9]), np.array([1.0, 5.0]))
    assert own.values.tolist() == [1, 1]
    assert own.positions is not None
    assert own.positions.tolist() == [2, 9]


def test_absent_devices_are_left_out_and_too_many_end_the_run() -> None:
    """Noise is sized for the smallest cohort: a round with fewer is refused."""
    engine = CpuMaskedEngine(small_problem(dropout=0.2))
    assert engine.priced.cohort.smallest < 0.8 * N_USERS
    engine.run_round()
    with pytest.raises(ParameterError, match="survivors"):
        CpuMaskedEngine(small_problem(dropout=0.5, survivors=1.0)).run_round()


def test_the_plan_follows_public_numbers_alone() -> None:
    """Few devices or a small budget: counts, biases, prior. Many: audience and factors besides."""
    small, large, vast = (choose_plan(devices, 3706, 20, mu) for devices, mu in ((6040, 0.24), (6040, 1.5), (10**6, 9)))
    assert {block.name.split()[0] for block in small.blocks} == {plans.COUNTS, plans.BIAS, plans.PRIOR}
    assert {block.name.split()[0] for block in large.blocks} > {plans.AUDIENCE, plans.FACTORS}
    widths = [[block.shape[1] for block in plan.blocks if block.name == plans.FACTORS] for plan in (large, vast)]
    assert widths[0][0] < widths[1][0]


def test_blocks_of_a_plan_fit_what_devices_and_server_make_of_them() -> None:
    """Sizes in the plan are those of the entries, whatever the number of columns."""
    problem = small_problem(large=True)
    engine = CpuMaskedEngine(problem)
    own = slice(problem.starts[0], problem.starts[1])
    for one in engine.priced.plan.rounds:
        assert isinstance(one, Round)
        entries = engine.learning.entries(one.blocks, engine.learner.table(), problem.items[own], problem.values[own])
        for block, entry in zip(one.blocks, entries, strict=True):
            assert len(entry.values) <= block.size
            if entry.positions is None:
                assert len(entry.values) == block.size
        engine.run_round()
