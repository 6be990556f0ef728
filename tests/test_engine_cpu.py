"""The CPU engine against the reference: the same numbers from the same draws, the same law from its own."""

import math

import numba
import numpy as np
import pytest
from scipy.stats import ttest_ind

from hushrec.data.synthetic import synthetic
from hushrec.engines import make_engine
from hushrec.engines.cpu import CpuEngine
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import ParameterError
from hushrec.models import Model, make_model
from hushrec.problem import Problem, make_problem
from hushrec.protocols import DeviceProtocol, Isgld, Plain, Sdcf
from hushrec.server import Server

FALSE_ALARM = 1e-6

PROTOCOLS: dict[str, DeviceProtocol] = {
    "plain": Plain(),
    "isgld": Isgld(epsilon=4.0),
    "sdcf": Sdcf(epsilon_i=4.0, epsilon_g=4.0),
    "sdcf without a bound on fakes": Sdcf(epsilon_i=4.0, epsilon_g=0.0),
    "sdcf with a cap": Sdcf(epsilon_i=1.0, epsilon_g=1.0, profile_cap=15),
}


def problem_of(*protocols: DeviceProtocol, n_factors: int = 5, seed: int = 3, **settings: object) -> Problem:
    """Forty people, of whom one rated one item and one rated nothing, and fifty items."""
    ratings = synthetic(n_users=40, n_items=50, n_ratings=600, seed=1)
    assert ratings.values is not None
    rows = (ratings.users != 7) & ((ratings.users != 9) | (np.arange(600) == np.argmax(ratings.users == 9)))
    return make_problem(
        ratings.users[rows],
        ratings.items[rows],
        ratings.values[rows],
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

OTHER_MODELS: dict[str, tuple[Model, DeviceProtocol]] = {
    "bpr, plain": (make_model("bpr", 5), Plain()),
    "bpr, sdcf": (make_model("bpr", 5), PAIRED),
    "bpr, sdcf with a cap": (make_model("bpr", 17), Sdcf(epsilon_i=1.0, epsilon_g=None, profile_cap=15)),
    "fm without attributes, plain": (make_model("fm", 5), Plain()),
    "fm, isgld": (make_model("fm", 7, attributes=SIDE), Isgld(epsilon=4.0)),
    "fm, sdcf": (make_model("fm", 5, attributes=SIDE), Sdcf(epsilon_i=4.0, epsilon_g=4.0)),
    "fm of order 3, sdcf": (make_model("fm", 8, order=3, attributes=SIDE), Sdcf(epsilon_i=4.0, epsilon_g=0.0)),
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


def _assert_same_numbers(problem: Problem) -> None:
    reference = ReferenceEngine(problem, record_draws=True)
    cpu = CpuEngine(problem, dtype=np.float64)
    assert reference.recorded_draws is not None
    for _ in range(6):
        reference.run_round()
        cpu.run_round(reference.recorded_draws[-1])

    np.testing.assert_allclose(cpu.item_vectors, reference.item_vectors, rtol=0, atol=1e-9)
    np.testing.assert_allclose(cpu.user_vectors, reference.user_vectors, rtol=0, atol=1e-9)
    np.testing.assert_allclose(cpu.value_rho(), reference.value_rho(), rtol=1e-9)
    assert cpu.bytes_per_client_round() == reference.bytes_per_client_round()
    assert cpu.round_number == reference.round_number


def test_own_draws_learn_like_the_reference() -> None:
    """Over eight seeds, training errors of the two engines have the same mean to six standard errors."""
    protocol = Sdcf(epsilon_i=4.0, epsilon_g=1.0)
    errors: dict[str, list[float]] = {"cpu": [], "reference": []}
    for seed in range(8):
        problem = problem_of(protocol, seed=seed)
        users = np.repeat(np.arange(problem.n_users), problem.rated_counts)
        for name, found in errors.items():
            engine = make_engine(name, problem)
            for _ in range(20):
                engine.run_round()
            predicted = problem.model.predict_pairs(engine.user_vectors, engine.item_vectors, users, problem.items)
            found.append(float(np.sqrt(np.mean((problem.values - predicted) ** 2))))

    spread = math.hypot(*(np.std(found, ddof=1) / math.sqrt(len(found)) for found in errors.values()))
    assert abs(np.mean(errors["cpu"]) - np.mean(errors["reference"])) < 6 * spread


@pytest.mark.parametrize("name", ["bpr, plain", "bpr, sdcf", "fm, sdcf"])
def test_one_round_of_own_draws_has_the_law_of_the_reference(name: str) -> None:
    """From one start, over 60 seeds, every number of V and U has the same mean after a round in both engines.

    Welch's test of each number, the false-alarm rate shared among them: one false alarm in a million.
    """
    model, protocol = OTHER_MODELS[name]
    start = CpuEngine(problem_of(protocol, model=model, step=0.1, seed=0), dtype=np.float64)
    results: dict[str, list[np.ndarray]] = {"cpu": [], "reference": []}
    for seed in range(60):
        problem = problem_of(protocol, model=model, step=0.1, seed=seed)
        cpu, reference = CpuEngine(problem, dtype=np.float64), ReferenceEngine(problem)
        cpu.restore(start.state())
        state = reference.state()
        state |= {"item_vectors": start.item_vectors, "client_user_vector": start.user_vectors[problem.active_users]}
        reference.restore(state)
        for engine in (cpu, reference):
            engine.run_round()
            users = engine.user_vectors[problem.active_users]
            results[engine.name].append(np.concatenate([engine.item_vectors.ravel(), users.ravel()]))
    moved = np.std(results["cpu"], axis=0) > 1e-9
    p_values = ttest_ind(*(np.array(found)[:, moved] for found in results.values()), equal_var=False).pvalue
    assert p_values.min() > FALSE_ALARM / moved.sum()


def test_the_default_engine_by_name() -> None:
    """`make_engine` knows cpu and reference, and nothing else."""
    problem = problem_of(Plain())
    assert make_engine("cpu", problem).name == "cpu"
    with pytest.raises(ParameterError, match="engine must be cpu, gpu or reference, got abacus"):
        make_engine("abacus", problem)


@pytest.mark.parametrize("name", OTHER_MODELS)
def test_a_recorded_report_is_what_was_summed(name: str) -> None:
    """With everybody recorded, the server that receives the reports moves its table to the engine's."""
    model, protocol = OTHER_MODELS[name]
    problem = problem_of(protocol, model=model, step=0.1)
    engine = CpuEngine(problem, record_users=problem.active_users.tolist(), dtype=np.float64)
    server = Server(problem.terms, model, problem.initial_item_vectors(), problem.active_users.tolist())
    for round_number in (1, 2):
        engine.run_round()
        server.start_round()
        for user, report in engine.recorded[-1].items():
            server.receive(user, report)
        server.deadline_passed()
        np.testing.assert_allclose(engine.item_vectors, server.publish(), rtol=0, atol=1e-9)
        assert engine.round_number == round_number


@pytest.mark.parametrize("name", ["plain", "sdcf"])
def test_threads_do_not_change_a_bit(name: str) -> None:
    """One thread or two: the same bits."""
    results = []
    for n_threads in (1, min(2, numba.config.NUMBA_NUM_THREADS)):
        numba.set_num_threads(n_threads)
        engine = CpuEngine(problem_of(PROTOCOLS[name]))
        for _ in range(5):
            engine.run_round()
        results.append(engine.state())
    numba.set_num_threads(numba.config.NUMBA_NUM_THREADS)
    for key, array in results[0].items():
        np.testing.assert_array_equal(array, results[1][key])


@pytest.mark.parametrize("epoch_rounds", [None, 4])
def test_a_restored_engine_continues_bit_for_bit(epoch_rounds: int | None) -> None:
    """Ten rounds at once, or six and then four in another engine: the same bits, permanent epochs included."""
    problem = problem_of(PROTOCOLS["sdcf"], epoch_rounds=epoch_rounds)
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
    with pytest.raises(ParameterError, match="state is of another problem"):
        CpuEngine(problem_of(Plain())).restore(state)
    with pytest.raises(ParameterError, match="vectors of another type"):
        CpuEngine(problem_of(Plain()), dtype=np.float64).restore(CpuEngine(problem_of(Plain())).state())
