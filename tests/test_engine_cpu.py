"""The CPU engine against the reference: the same numbers from the same draws, the same law from its own."""

import dataclasses
from typing import Any

import numba
import numpy as np
import pytest
from parties import recorded_draws
from scipy.stats import chi2, ttest_ind

from hushrec.budget.calibrate import calibrate_selection
from hushrec.data.synthetic import synthetic
from hushrec.engines import make_engine
from hushrec.engines.cpu.engine import CpuEngine
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import ImpossibleBudget, LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.models import make_model
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient.prediction import initial_item_vectors, initial_user_vectors
from hushrec.protocols.gradient.protocols import GradientProtocol, Isgld, Plain, Sdcf
from hushrec.protocols.gradient.server import GradientServer
from hushrec.server import Server
from hushrec.simulation.training_problem import TrainingProblem, make_problem

FALSE_ALARM = 1e-6

PROTOCOLS: dict[str, GradientProtocol] = {
    "plain": Plain(),
    "isgld": Isgld(epsilon=4.0),
    "sdcf": Sdcf(epsilon_i=4.0, epsilon_g=4.0),
    "sdcf without a bound on fakes": Sdcf(epsilon_i=4.0, epsilon_g=0.0),
    "sdcf with a cap": Sdcf(epsilon_i=1.0, epsilon_g=1.0, profile_cap=15),
}


def problem_of(*protocols: GradientProtocol, n_factors: int = 5, seed: int = 3, **settings: object) -> TrainingProblem:
    """Forty people, of whom one rated one item, one nothing and one everything, and fifty items."""
    ratings = synthetic(n_users=40, n_items=50, n_ratings=600, seed=1)
    assert ratings.values is not None
    rows = (ratings.users != 7) & ((ratings.users != 9) | (np.arange(600) == np.argmax(ratings.users == 9)))
    rows &= ratings.users != 11
    return make_problem(
        np.concatenate([ratings.users[rows], np.full(50, 11)]),
        np.concatenate([ratings.items[rows], np.arange(50)]),
        np.concatenate([ratings.values[rows], 1.0 + np.arange(50) % 5]),
        **{
            "n_users": 40,
            "n_items": 50,
            "model": make_model("mf", n_factors),
            "protocols": list(protocols),
            "rounds": 40,
            "step": 0.4,
            "seed": seed,
            **settings,
        },
    )


PAIRED = Sdcf(epsilon_i=4.0, epsilon_g=None)
SIDE = np.random.default_rng(4).normal(size=(50, 3)) * (np.random.default_rng(5).random((50, 3)) < 0.5)

OTHER_MODELS: dict[str, tuple[MatrixFactorization, GradientProtocol]] = {
    "bpr, plain": (make_model("bpr", 5), Plain()),
    "bpr, sdcf": (make_model("bpr", 5), PAIRED),
    "bpr, sdcf with a cap": (make_model("bpr", 17), Sdcf(epsilon_i=1.0, epsilon_g=None, profile_cap=15)),
    "fm without attributes, plain": (make_model("fm", 5), Plain()),
    "fm, isgld": (make_model("fm", 7, attributes=SIDE), Isgld(epsilon=4.0)),
    "fm, sdcf": (make_model("fm", 5, attributes=SIDE), Sdcf(epsilon_i=4.0, epsilon_g=4.0)),
    "fm of order 3, sdcf": (make_model("fm", 8, order=3, attributes=SIDE), Sdcf(epsilon_i=4.0, epsilon_g=0.0)),
}
EVERY_MODEL = {
    "mf, plain": (make_model("mf", 5), Plain()),
    "mf, sdcf": (make_model("mf", 5), PROTOCOLS["sdcf"]),
    **OTHER_MODELS,
}


@pytest.mark.parametrize("name", PROTOCOLS)
@pytest.mark.parametrize("n_factors", [5, 8, 17])
def test_the_same_draws_give_the_same_numbers(name: str, n_factors: int) -> None:
    """Fed with the reference's draws, every vector and every price agrees to 1e-9, round after round."""
    _assert_same_numbers(problem_of(PROTOCOLS[name], n_factors=n_factors))


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_the_same_draws_give_the_same_numbers_in_every_model(name: str) -> None:
    """The same for pairs and for factorization machines."""
    model, protocol = OTHER_MODELS[name]
    _assert_same_numbers(problem_of(protocol, model=model, step=0.1))


def _assert_same_numbers(problem: TrainingProblem) -> None:
    reference = ReferenceEngine(problem)
    cpu = CpuEngine(problem, dtype=np.float64)
    for _ in range(6):
        with recorded_draws() as drawn:
            reference.run_round()
        cpu.run_round(drawn)

    np.testing.assert_allclose(cpu.predictor().item_vectors, reference.predictor().item_vectors, rtol=0, atol=1e-9)
    np.testing.assert_allclose(cpu.predictor().user_vectors, reference.predictor().user_vectors, rtol=0, atol=1e-9)
    np.testing.assert_allclose(cpu.losses()["value_rho"], reference.losses()["value_rho"], rtol=1e-9)
    assert cpu.bytes_per_client_round() == reference.bytes_per_client_round()
    assert cpu.round_number == reference.round_number


def test_own_draws_learn_like_the_reference() -> None:
    """Over twelve seeds, the training errors of the two engines have the same mean in every round of twenty.

    Welch's test of each round, the false-alarm rate shared among them: one false alarm in a million. It sees what adds
    up over rounds; the law of a single round is tested more sharply below.
    """
    protocol = Sdcf(epsilon_i=4.0, epsilon_g=1.0)
    curves: dict[str, list[list[float]]] = {"cpu": [], "reference": []}
    for seed in range(12):
        problem = problem_of(protocol, seed=seed)
        users = np.repeat(np.arange(problem.n_users), problem.rated_counts)
        for name, found in curves.items():
            engine, curve = make_engine(name, problem), []
            for _ in range(20):
                engine.run_round()
                predicted = engine.predictor().predict(users, problem.items)
                curve.append(float(np.sqrt(np.mean((problem.values - predicted) ** 2))))
            found.append(curve)
    p_values = ttest_ind(*(np.array(found) for found in curves.values()), equal_var=False).pvalue
    assert p_values.min() > FALSE_ALARM / 20


@pytest.mark.parametrize("name", ["mf, sdcf", "bpr, plain", "bpr, sdcf", "fm, sdcf"])
def test_one_round_of_own_draws_has_the_law_of_the_reference(name: str) -> None:
    """From one start, over 60 seeds, all moves of V and U have the same means and mean squares in both engines.

    Welch's test of each number and of both sums of squares, the false-alarm rate shared among them: one false alarm
    in a million.
    """
    model, protocol = EVERY_MODEL[name]
    start = CpuEngine(problem_of(protocol, model=model, step=0.1, seed=0), dtype=np.float64)
    results: dict[str, list[np.ndarray]] = {"cpu": [], "reference": []}
    for seed in range(60):
        problem = problem_of(protocol, model=model, step=0.1, seed=seed)
        cpu, reference = CpuEngine(problem, dtype=np.float64), ReferenceEngine(problem)
        cpu.restore(start.state())
        state = reference.state()
        state |= {
            "server_item_vectors": start.predictor().item_vectors,
            "client_user_vector": start.predictor().user_vectors[problem.active_users],
        }
        reference.restore(state)
        for found, engine in zip(results.values(), (cpu, reference), strict=True):
            engine.run_round()
            items = engine.predictor().item_vectors - start.predictor().item_vectors
            users = (engine.predictor().user_vectors - start.predictor().user_vectors)[problem.active_users]
            squares = [np.sum(items**2), np.sum(users**2)]
            found.append(np.concatenate([items.ravel(), users.ravel(), squares]))
    moved = np.std(results["cpu"], axis=0) > 1e-9
    p_values = ttest_ind(*(np.array(own)[:, moved] for own in results.values()), equal_var=False).pvalue
    assert p_values.min() > FALSE_ALARM / moved.sum()


def test_the_default_engine_by_name() -> None:
    """`make_engine` knows cpu and reference, and nothing else."""
    problem = problem_of(Plain())
    assert isinstance(make_engine("cpu", problem), CpuEngine)
    with pytest.raises(ParameterError, match="engine of protocol plain"):
        make_engine("abacus", problem)


@pytest.mark.parametrize("name", EVERY_MODEL)
def test_a_recorded_report_is_what_was_summed(name: str) -> None:
    """With everybody recorded, the server that receives the reports moves its table to the engine's."""
    model, protocol = EVERY_MODEL[name]
    problem = problem_of(protocol, model=model, step=0.1)
    engine = CpuEngine(problem, record_users=problem.active_users.tolist(), dtype=np.float64)
    side = GradientServer(problem.terms, model, initial_item_vectors(problem))
    server = Server(side, problem.active_users.tolist())
    for round_number in (1, 2):
        engine.run_round()
        server.start_round()
        for user, report in engine.recorded[-1].items():
            server.receive(user, server.address, report)
        server.close_phase()
        np.testing.assert_allclose(engine.predictor().item_vectors, side.item_vectors, rtol=0, atol=1e-9)
        assert engine.round_number == round_number


@pytest.mark.parametrize("name", ["mf, plain", "mf, sdcf", "bpr, sdcf", "fm, sdcf"])
def test_threads_do_not_change_a_bit(name: str) -> None:
    """One thread or two: the same bits."""
    model, protocol = EVERY_MODEL[name]
    results = []
    try:
        for n_threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
            numba.set_num_threads(n_threads)
            engine = CpuEngine(problem_of(protocol, model=model, step=0.1))
            for _ in range(5):
                engine.run_round()
            results.append(engine.state())
    finally:
        numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    for key, array in results[0].items():
        np.testing.assert_array_equal(array, results[1][key])


@pytest.mark.parametrize("name", ["mf, sdcf", "bpr, sdcf", "fm, sdcf"])
@pytest.mark.parametrize("epoch_rounds", [None, 4])
def test_a_restored_engine_continues_bit_for_bit(name: str, epoch_rounds: int | None) -> None:
    """Ten rounds at once, or six and then four in another engine: the same bits, permanent epochs included."""
    model, protocol = EVERY_MODEL[name]
    problem = problem_of(protocol, model=model, step=0.1, epoch_rounds=epoch_rounds)
    whole, first, second = (CpuEngine(problem) for _ in range(3))
    for _ in range(10):
        whole.run_round()
    for _ in range(6):
        first.run_round()
    second.restore(first.state())
    for _ in range(4):
        second.run_round()

    for key, array in whole.state().items():
        np.testing.assert_array_equal(array, second.state()[key])


def test_a_state_of_another_problem_is_refused() -> None:
    """Shapes and types must fit."""
    state = CpuEngine(problem_of(Plain(), n_factors=20)).state()
    with pytest.raises(ParameterError, match="state must"):
        CpuEngine(problem_of(Plain())).restore(state)
    with pytest.raises(ParameterError, match="state must"):
        CpuEngine(problem_of(Plain()), dtype=np.float64).restore(CpuEngine(problem_of(Plain())).state())


def test_selected_items_are_as_frequent_as_the_budget_says() -> None:
    """Over 40 rounds and both kinds of selection, rated items come up q* of the time, others p*; false alarms 1e-6."""
    for reports_per_client in (12.0, 0.5):  # dense, by joint comparisons; sparse, by gaps
        problem = problem_of(PROTOCOLS["sdcf"], reports_per_client=reports_per_client, epoch_rounds=1)
        users = [user for user in problem.active_users.tolist() if problem.rated_counts[user] > 1]
        engine = CpuEngine(problem, record_users=users)
        for _ in range(40):
            engine.run_round()
        surplus, variance, _ = selection_surplus(problem, engine, users, 4.0)
        assert np.all(np.abs(surplus) < largest_surplus(variance, FALSE_ALARM / 8))


def test_recording_some_users_changes_the_law_of_no_sum() -> None:
    """The noise of an item has variance η / c, whether none, some or all of its reports are recorded."""
    problem = problem_of(Plain(), n_factors=8)
    active = problem.active_users.tolist()
    step_size = problem.terms.step_size(1)
    counts = np.bincount(problem.items, minlength=50)
    quiet = quiet_round(problem)
    for recorded in ([], active[::2], active):
        deviations = []
        for seed in range(20):
            engine = CpuEngine(dataclasses.replace(problem, seed=seed), record_users=recorded, dtype=np.float64)
            engine.restore(CpuEngine(problem, dtype=np.float64).state())
            engine.run_round()
            deviations.append(
                (engine.predictor().item_vectors - quiet) * np.sqrt(np.maximum(counts, 1) / step_size)[:, None]
            )
        sample = np.concatenate(deviations)[np.tile(counts > 0, 20)].ravel()
        low, high = chi2.interval(1 - FALSE_ALARM / 3, len(sample))
        assert low < float(np.sum(sample**2)) < high


def quiet_round(problem: TrainingProblem) -> np.ndarray:
    """Item vectors after one round of `plain` without any noise, computed by hand."""
    users = np.repeat(np.arange(problem.n_users), problem.rated_counts)
    start_users, start_items = (
        initial_user_vectors(problem),
        initial_item_vectors(problem),
    )
    errors = problem.values - np.einsum("rk,rk->r", start_users[users], start_items[problem.items])
    sums, counts = np.zeros_like(start_items), np.bincount(problem.items, minlength=problem.n_items)
    np.add.at(sums, problem.items, errors[:, None] * start_users[users])
    terms = problem.terms
    moves = terms.data_weight * sums / np.maximum(counts, 1)[:, None] - start_items * terms.item_regularization
    return start_items + terms.step_size(1) * moves * (counts > 0)[:, None]


def test_every_user_may_have_budgets_of_their_own() -> None:
    """With ε_I of 200 and of 0.1 side by side, each half sends rated and other items as its own budget says.

    Permanent bits are drawn anew in each of 20 rounds, so that all draws are independent; false alarms 1e-6.
    """
    budgets = (0.1, 200.0)
    problem = problem_of(*(Sdcf(epsilon_i=budgets[user % 2], epsilon_g=4.0) for user in range(40)), epoch_rounds=1)
    users = [user for user in problem.active_users.tolist() if problem.rated_counts[user] > 1]
    engine = CpuEngine(problem, record_users=users)
    for _ in range(20):
        engine.run_round()
    chances = []
    for half, epsilon_i in enumerate(budgets):
        own = [user for user in users if user % 2 == half]
        surplus, variance, rated_chances = selection_surplus(problem, engine, own, epsilon_i)
        assert np.all(np.abs(surplus) < largest_surplus(variance, FALSE_ALARM / 8))
        chances.append(np.mean(rated_chances))
    assert chances[1] > 2 * chances[0]  # the two laws are far apart


def largest_surplus(variance: np.ndarray, chance: float) -> np.ndarray:
    """What a sum of independent coins with this variance, less its mean, exceeds at most with this chance.

    Bernstein's inequality: P(S ≥ t) ≤ exp(−t² / 2(σ² + t/3)), solved for t.
    """
    log = -np.log(chance)
    return log / 3 + np.sqrt(log**2 / 9 + 2 * variance * log)


def selection_surplus(
    problem: TrainingProblem, engine: CpuEngine, users: list[int], epsilon_i: float
) -> tuple[np.ndarray, np.ndarray, list[float]]:
    """How many rated and other items too many were sent, the variance of that, and the chances of rated ones."""
    variance, surplus, rated_chances = np.zeros(2), np.zeros(2), []
    z = problem.terms.reports_per_client
    assert z is not None
    for user in users:
        rated = problem.items[problem.starts[user] : problem.starts[user + 1]]
        law = calibrate_selection(len(rated), problem.n_items, z, epsilon_i, 2 * epsilon_i)
        numbers = np.array([len(rated), problem.n_items - len(rated)])
        chances = np.array([law.prob_send_rated, law.prob_send_unrated])
        rated_chances.append(float(law.prob_send_rated))
        for reports in engine.recorded:
            sent = reports[user].items if user in reports else np.empty(0, np.int64)
            hits = np.isin(sent, rated).sum()
            surplus += np.array([hits, len(sent) - hits]) - numbers * chances
            variance += numbers * chances * (1 - chances)
    return surplus, variance, rated_chances


def test_what_clients_and_server_would_refuse_is_refused() -> None:
    """Vectors and gradients of absurd size, a round too many, an impossible budget, a user who is not there."""
    missing = CpuEngine(problem_of(Plain()))
    users = missing.state()["user_vectors"].copy()
    users[3, 0] = np.nan
    missing.restore({**missing.state(), "user_vectors": users})
    with pytest.raises(RemoteProtocolError, match=r"gradient.*round 1"):
        missing.run_round()
    with pytest.raises(RemoteProtocolError, match="vectors"):
        CpuEngine(problem_of(Plain(), step=1e39)).run_round()
    wild = CpuEngine(problem_of(Plain(), step=1e4))
    wild.restore({**wild.state(), "user_vectors": wild.state()["user_vectors"] * 50})
    with pytest.raises(RemoteProtocolError, match=r"gradient.*round 1"):
        wild.run_round()
    large = CpuEngine(problem_of(Plain()))
    state = large.state()
    large.restore({**state, "item_vectors": state["item_vectors"] * 1000})
    with pytest.raises(RemoteProtocolError, match="item_vectors"):
        large.run_round()
    single = CpuEngine(problem_of(Plain(), rounds=1))
    single.run_round()
    with pytest.raises(LocalProtocolError, match="rounds"):
        single.run_round()
    with pytest.raises(ImpossibleBudget):
        CpuEngine(problem_of(Sdcf(epsilon_i=4.0, epsilon_g=4.0, epsilon_p=4.0)))
    with pytest.raises(ParameterError, match="record_users"):
        CpuEngine(problem_of(Plain()), record_users=[7])
    with pytest.raises(ParameterError, match="draws"):
        CpuEngine(problem_of(Plain())).run_round({})


def test_an_interrupted_round_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C between the users' answers and the items' move leaves the engine where it was."""
    engine = CpuEngine(problem_of(PROTOCOLS["sdcf"]))
    engine.run_round()
    before = {name: array.copy() for name, array in engine.state().items()}

    def interrupt(*arguments: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(engine._items, "move", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.run_round()
    for name, array in engine.state().items():
        np.testing.assert_array_equal(array, before[name])


def test_the_first_run_says_that_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """One remark however many kernels are compiled, and none once they are in the cache."""
    said: list[str] = []
    engine = CpuEngine(problem_of(Plain()), remark=said.append)
    report = engine._report

    def compile_two(*arguments: Any) -> Any:
        for kernel in (lambda x: x + 1, lambda x: x + 2):
            numba.njit(kernel)(1)
        return report(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "_report", compile_two)
        engine.run_round()
        engine.run_round()
    assert len(said) == 1
    assert "compiling" in said[0]

    CpuEngine(problem_of(Plain())).run_round()
    silent = CpuEngine(problem_of(Plain()), remark=said.append)
    silent.run_round()
    assert len(said) == 1
