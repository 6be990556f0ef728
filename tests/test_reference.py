"""The engine of real clients: it learns, it is reproducible, and it restores bit for bit."""

import numpy as np
import pytest
from parties import SDCF, small_problem, statement_of

from hushrec.engines import make_engine
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import ImpossibleBudget, ParameterError
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient.prediction import initial_user_vectors
from hushrec.protocols.gradient.protocols import Isgld, Plain, Sdcf
from hushrec.simulation.training_problem import make_problem

PROTOCOLS = {"plain": Plain(), "isgld": Isgld(epsilon=4.0), "sdcf": SDCF}


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_a_run_is_a_function_of_its_seed(protocol):
    """The same seed, the same bits; another seed, others."""
    engines = [ReferenceEngine(small_problem(protocol, seed=seed)) for seed in (1, 1, 2)]
    for engine in engines:
        for _ in range(3):
            engine.run_round()
    first, same, other = (engine.predictor().item_vectors for engine in engines)
    np.testing.assert_array_equal(first, same)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_a_restored_run_continues_bit_for_bit(protocol):
    """Three rounds, a restart, two more: as five without a break; budgets too."""
    whole, before = (ReferenceEngine(small_problem(protocol)) for _ in range(2))
    for _ in range(5):
        whole.run_round()
    for _ in range(3):
        before.run_round()
    after = ReferenceEngine(small_problem(protocol))
    after.restore(before.state())
    for _ in range(2):
        after.run_round()
    np.testing.assert_array_equal(after.predictor().item_vectors, whole.predictor().item_vectors)
    np.testing.assert_array_equal(after.predictor().user_vectors, whole.predictor().user_vectors)
    np.testing.assert_array_equal(after.losses()["value_rho"], whole.losses()["value_rho"])
    assert after.bytes_per_client_round() == whole.bytes_per_client_round()


def test_the_order_of_clients_changes_nothing():
    """Streams are keyed by user, and sums are formed in the order of names."""
    forward, backward = (ReferenceEngine(small_problem()) for _ in range(2))
    backward.clients = dict(reversed(backward.clients.items()))
    for engine in (forward, backward):
        engine.run_round()
    np.testing.assert_array_equal(forward.predictor().item_vectors, backward.predictor().item_vectors)


def test_clients_with_different_budgets_share_a_round():
    """Each is charged by its own budget."""
    levels = [Sdcf(epsilon_i=4.0 if user % 2 else 0.5, epsilon_g=1.0) for user in range(30)]
    engine = ReferenceEngine(small_problem(*levels))
    engine.run_round()
    assert statement_of(engine.clients[1])["spent"] == 4.0
    assert statement_of(engine.clients[2])["spent"] == 0.5


def test_permanent_epochs_are_paid_by_simulated_people():
    """Two announced epochs in five rounds: two draws, 2 ε_P."""
    engine = ReferenceEngine(small_problem(SDCF, epoch_rounds=3))
    for _ in range(5):
        engine.run_round()
    assert statement_of(engine.clients[1])["committed"] == 16


def test_a_user_without_ratings_takes_no_part():
    """They are predicted from their start."""
    problem = small_problem()
    engine = ReferenceEngine(problem)
    engine.run_round()
    assert 0 not in engine.clients
    np.testing.assert_array_equal(engine.predictor().user_vectors[0], initial_user_vectors(problem)[0])


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_the_missing_squares_of_a_checkerboard_are_found(protocol):
    """Users like the squares of their own colour: held-out likes end up above held-out dislikes."""
    rng = np.random.default_rng(5)
    n_users, n_items = 60, 40
    likes = (np.arange(n_users)[:, None] + np.arange(n_items)) % 2 == 0
    train = rng.random((n_users, n_items)) < 0.5
    users, items = np.nonzero(train)
    problem = make_problem(
        users,
        items,
        np.where(likes[users, items], 5.0, 1.0),
        n_users=n_users,
        n_items=n_items,
        model=MatrixFactorization(4),
        protocols=[protocol],
        rounds=150,
        step=0.4,
    )
    engine = ReferenceEngine(problem)
    for _ in range(150):
        engine.run_round()
    predicted = engine.predictor().user_vectors @ engine.predictor().item_vectors.T
    liked, disliked = predicted[~train & likes], predicted[~train & ~likes]
    assert (liked[:, None] > disliked).mean() > {"plain": 0.99, "isgld": 0.95, "sdcf": 0.9}[protocol.name]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"step": 0.0}, "step .*must be positive and finite"),
        ({"reports_per_client": 20.0}, "reports_per_client must be above 0 and below"),
        ({"protocols": [SDCF, SDCF]}, "protocols must hold one entry"),
    ],
)
def test_impossible_problems_are_refused(changes, sentence):
    """Before anything is trained."""
    protocols = changes.pop("protocols", [SDCF])
    with pytest.raises(ParameterError, match=sentence):
        small_problem(*protocols, **changes)


def test_reports_per_client_belongs_to_selection():
    """`plain` sends its rated items; an empty training part has nothing to learn from."""
    with pytest.raises(ParameterError, match="reports_per_client"):
        small_problem(Plain(), reports_per_client=3.0)
    empty = np.empty(0, dtype=np.int64)
    with pytest.raises(ParameterError, match="ratings must"):
        make_problem(
            empty, empty, np.empty(0), n_users=1, n_items=2, model=MatrixFactorization(1), protocols=[Plain()],
            rounds=1, step=0.1,
        )  # fmt: skip


def test_an_unknown_engine_is_refused():
    """With the names there are."""
    with pytest.raises(ParameterError, match=r"engine of protocol .* must be"):
        make_engine("abacus", small_problem())


def test_an_impossible_budget_is_refused_before_the_first_round_with_a_number_for_all():
    """The smallest ε_P that the sentence names works for everybody."""
    with pytest.raises(ImpossibleBudget) as refusal:
        small_problem(Sdcf(epsilon_i=4.0, epsilon_g=1.0, epsilon_p=4.1))
    smallest = refusal.value.smallest_epsilon_p
    assert small_problem(Sdcf(epsilon_i=4.0, epsilon_g=1.0, epsilon_p=smallest * (1 + 1e-9))).n_users == 30


def test_a_cap_as_long_as_the_catalogue_is_refused_by_name():
    """And protocols cannot be mixed."""
    with pytest.raises(ParameterError, match="profile_cap"):
        small_problem(Sdcf(epsilon_i=4.0, epsilon_g=1.0, profile_cap=20))
    with pytest.raises(ParameterError, match="must use protocol sdcf"):
        small_problem(*[SDCF, *[Plain()] * 29])


def test_somebody_who_rated_everything_does_not_stop_the_run():
    """They stay out, as those without ratings do."""
    users, items = np.divmod(np.arange(40), 4)
    keep = (users == 0) | (items != users % 4)
    problem = make_problem(
        users[keep], items[keep], np.full(keep.sum(), 3.0), n_users=10, n_items=4, model=MatrixFactorization(2),
        protocols=[SDCF], rounds=1, step=0.1,
    )  # fmt: skip
    ReferenceEngine(problem).run_round()
    assert 0 not in problem.active_users
    assert len(problem.active_users) == 9


def test_a_statement_of_mixed_budgets_names_the_largest_spent_and_what_some_lack():
    """A cap covers the run only if everybody has one."""
    levels = [
        Sdcf(epsilon_i=1.0, epsilon_g=1.0, epsilon_p=8.0, profile_cap=10)
        if user % 2
        else Sdcf(epsilon_i=4.0, epsilon_g=1.0, epsilon_p=7.9)
        for user in range(30)
    ]
    engine = ReferenceEngine(small_problem(*levels))
    engine.run_round()
    statement = engine.problem.budget(1, engine.losses())
    assert statement["epsilon"] == 4.0
    assert statement["profile_cap"] is None
    assert any("how many" in what for what in statement["not_covered"])
