"""Factorization machines: against the sum over subsets, numerical differentiation, biased matrix factorization."""

from itertools import combinations

import numpy as np
import pytest
from parties import SDCF, recorded_draws, small_problem
from scipy.stats import kstest

from hushrec.data import Ratings, Scale, synthetic
from hushrec.data.side import LARGEST_NORM, attribute_names, side_columns
from hushrec.engines.reference import ReferenceEngine
from hushrec.errors import ParameterError
from hushrec.models import make_model
from hushrec.models.fm import FactorizationMachine
from hushrec.protocols.gradient.protocols import Isgld, Plain
from hushrec.simulation.settings import Settings
from hushrec.simulation.training import train
from hushrec.simulation.training_problem import make_problem

PROTOCOLS = {"plain": Plain(), "isgld": Isgld(epsilon=4.0), "sdcf": SDCF}
ORDERS = (2, 3)
K = 3


def make_machine(order: int, n_items: int = 4) -> FactorizationMachine:
    """Two flags and a number per item; some zeros."""
    attributes = np.random.default_rng(1).normal(size=(n_items, 3))
    attributes[attributes < -0.3] = 0
    attributes[0] = 0
    return FactorizationMachine(K, order, attributes)


def public_columns(model: FactorizationMachine, table: np.ndarray, item: int) -> list[tuple[float, np.ndarray]]:
    """(x, row) of the item and of its attributes."""
    assert model.attributes is not None
    side = table[len(model.attributes) : -1]
    return [(1.0, table[item]), *zip(model.attributes[item], side, strict=True)]


def brute_force(model: FactorizationMachine, table: np.ndarray, user: np.ndarray, item: int) -> float:
    """ŷ as it is written: biases, then every subset of two (and three) columns."""
    columns = [(1.0, user), *public_columns(model, table, item)]
    total = table[-1, 0] + sum(x * row[0] for x, row in columns)
    for size in range(2, model.order + 1):
        part = slice(1 + (size - 2) * K, 1 + (size - 1) * K)
        for subset in combinations(columns, size):
            total += np.prod([x * row[part] for x, row in subset], axis=0).sum()
    return float(total)


def numerical_gradient(function, point: np.ndarray) -> np.ndarray:
    """Central differences, in the point's shape."""
    gradient = np.empty(point.size)
    for place in range(point.size):
        step = np.zeros(point.size)
        step[place] = 1e-6
        step = step.reshape(point.shape)
        gradient[place] = (function(point + step) - function(point - step)) / 2e-6
    return gradient.reshape(point.shape)


def half_squared_error(model: FactorizationMachine, table: np.ndarray, user: np.ndarray, item: int) -> float:
    """½ (3.5 − ŷ)²."""
    return 0.5 * (3.5 - brute_force(model, table, user, item)) ** 2


@pytest.mark.parametrize("order", ORDERS)
def test_linear_time_prediction_is_the_sum_over_all_subsets(order, rng):
    """For every item, in all three ways of predicting."""
    model = make_machine(order)
    table, users = rng.normal(size=(4 + model.n_side_rows, model.item_width)), rng.normal(size=(2, model.user_width))
    rows = model.item_rows(table)
    expected = [[brute_force(model, table, user, item) for item in range(4)] for user in users]
    np.testing.assert_allclose(model.predict_all(users, rows), expected, rtol=1e-12)
    np.testing.assert_allclose(model.predict(users[1], rows), expected[1], rtol=1e-12)
    pairs = model.predict_pairs(users, rows, np.array([0, 1, 1]), np.array([3, 0, 2]))
    np.testing.assert_allclose(pairs, [expected[0][3], expected[1][0], expected[1][2]], rtol=1e-12)


@pytest.mark.parametrize("order", ORDERS)
def test_the_users_gradient_is_the_negative_derivative_of_the_mean_loss(order, rng):
    """Bias and vectors of every order, over two rated items."""
    model = make_machine(order)
    table, user = rng.normal(size=(4 + model.n_side_rows, model.item_width)), rng.normal(size=model.user_width)
    items = np.array([1, 3])
    rows = model.item_rows(table)[items]
    errors = model.errors(np.full(2, 3.5), model.predict(user, rows))
    gradient = model.user_gradient(errors, user, rows, np.zeros(model.user_width), data_weight=1.0)
    numerical = numerical_gradient(
        lambda point: float(np.mean([half_squared_error(model, table, point, item) for item in items])), user
    )
    np.testing.assert_allclose(gradient, -numerical, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("item", [0, 1, 2])
def test_one_report_moves_every_public_column_down_its_gradient(order, item, rng):
    """From the item's row e (1, u², u³) alone: the item, its attributes and w₀; columns that it lacks stay."""
    model = make_machine(order)
    table, user = rng.normal(size=(4 + model.n_side_rows, model.item_width)), rng.normal(size=model.user_width)
    table[-1, 1:] = 0
    nothing = np.zeros(model.item_width)
    error = 3.5 - model.predict(user, model.item_rows(table)[[item]])
    sums, counts = np.zeros((4, model.item_width)), np.zeros(4, dtype=np.int64)
    sums[item] = model.item_gradients(error, user, table[[item]], nothing, data_weight=1.0)[0]
    counts[item] = 1
    moved = model.move_items(table, sums, counts, nothing) - table
    numerical = numerical_gradient(lambda point: half_squared_error(model, point, user, item), table)
    np.testing.assert_allclose(moved, -numerical, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("order", ORDERS)
def test_a_column_moves_by_the_mean_over_the_reports_that_touch_it(order, rng):
    """Several people report several items: the server's sums give what adding up the single moves gives."""
    model, prior = make_machine(order), 0.01 * rng.random(make_machine(order).item_width)
    assert model.attributes is not None
    table, nothing = rng.normal(size=(4 + model.n_side_rows, model.item_width)), np.zeros(model.item_width)
    table[-1, 1:] = 0
    sums, counts = np.zeros((4, model.item_width)), np.zeros(4, dtype=np.int64)
    total, touched = np.zeros_like(table), np.zeros(len(table))
    for item in [0, 1, 1, 3, 3, 3]:
        direction = rng.normal(size=model.item_width)
        sums[item] += direction - prior * table[item]
        counts[item] += 1
        alone, once = np.zeros_like(sums), np.zeros_like(counts)
        alone[item], once[item] = direction, 1
        total += model.move_items(table, alone, once, nothing) - table
        touched += np.concatenate([np.arange(4) == item, model.attributes[item] != 0, [True]])
    mean = total / np.maximum(touched, 1)[:, None]
    mean[:-1] -= np.where(touched[:-1, None] > 0, prior * table[:-1], 0)  # w₀ has no prior
    np.testing.assert_allclose(model.move_items(table, sums, counts, prior), table + mean, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)
def test_without_attributes_it_is_biased_matrix_factorization(protocol):
    """Five rounds of r̂ = w₀ + b_u + b_i + u · v, written with plain loops from the same draws: equal to 1e-9."""
    problem = small_problem(protocol, model=FactorizationMachine(K))
    engine = ReferenceEngine(problem)
    clients = dict(engine.clients)
    values = {user: client._values.copy() for user, client in clients.items()}
    table, users = engine.predictor().item_vectors, engine.predictor().user_vectors
    constant, item_bias, item_vectors = 0.0, np.zeros(problem.n_items), table[:-1, 1:].copy()
    user_bias, user_vectors = users[:, 0].copy(), users[:, 1:].copy()
    terms = problem.terms
    for round_number in range(1, 6):
        with recorded_draws() as drawn:
            engine.run_round()
        eta = terms.step_size(round_number)
        bias_sums, vector_sums = np.zeros(problem.n_items), np.zeros_like(item_vectors)
        counts, all_errors = np.zeros(problem.n_items), []
        new_user_bias, new_user_vectors = user_bias.copy(), user_vectors.copy()
        for user, draws in drawn.items():
            rated = clients[user]._items
            errors = {}
            for item, value in zip(rated, values[user], strict=True):
                predicted = constant + user_bias[user] + item_bias[item] + user_vectors[user] @ item_vectors[item]
                errors[item] = value - predicted
            fakes = iter(draws.fake_errors)
            for item, noise in zip(draws.selected, draws.gradient_noise, strict=True):
                scaled = terms.data_weight * (errors[item] if item in errors else next(fakes))
                bias_sums[item] += eta * (scaled - terms.item_regularization[0] * item_bias[item]) + noise[0]
                pull = scaled * user_vectors[user] - terms.item_regularization[1:] * item_vectors[item]
                vector_sums[item] += eta * pull + noise[1:]
                all_errors.append(eta * scaled + noise[0])
                counts[item] += 1
            mean_error = terms.data_weight * np.mean(list(errors.values()))
            mean_pull = terms.data_weight * np.mean([e * item_vectors[item] for item, e in errors.items()], axis=0)
            new_user_bias[user] += eta * (mean_error - terms.user_regularization[0] * user_bias[user])
            new_user_vectors[user] += eta * (mean_pull - terms.user_regularization[1:] * user_vectors[user])
            new_user_bias[user] += draws.user_noise[0]
            new_user_vectors[user] += draws.user_noise[1:]
        some = counts > 0
        item_bias[some] += bias_sums[some] / counts[some]
        item_vectors[some] += vector_sums[some] / counts[some, None]
        constant += float(np.mean(all_errors))
        user_bias, user_vectors = new_user_bias, new_user_vectors
    np.testing.assert_allclose(engine.predictor().item_vectors[:-1, 0], item_bias, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(engine.predictor().item_vectors[:-1, 1:], item_vectors, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(engine.predictor().item_vectors[-1, 0], constant, rtol=1e-9)
    np.testing.assert_allclose(engine.predictor().user_vectors[:, 0], user_bias, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(engine.predictor().user_vectors[:, 1:], user_vectors, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("order", "name", "cold"), [(2, "plain", True), (3, "plain", True), (2, "sdcf", False), (3, "sdcf", False)]
)
def test_the_missing_squares_of_a_checkerboard_are_found_by_their_colour(order, name, cold):
    """Users like their own colour, and colour is an attribute: `plain` finds it for items that nobody ever rated."""
    rng = np.random.default_rng(5)
    n_users, n_items, rounds = 40, 30, 80
    likes = (np.arange(n_users)[:, None] + np.arange(n_items)) % 2 == 0
    shown = np.arange(n_items) < (n_items // 2 if cold else n_items)
    train = (rng.random((n_users, n_items)) < 0.6) & shown
    tested = ~train & ~shown if cold else ~train
    users, items = np.nonzero(train)
    colours = np.stack([np.arange(n_items) % 2 == 0, np.arange(n_items) % 2 == 1], axis=1).astype(np.float64)
    problem = make_problem(
        users,
        items,
        np.where(likes[users, items], 5.0, 1.0),
        n_users=n_users,
        n_items=n_items,
        model=FactorizationMachine(4, order, colours),
        protocols=[PROTOCOLS[name]],
        rounds=rounds,
        step=0.15,
    )
    engine = ReferenceEngine(problem)
    for _ in range(rounds):
        engine.run_round()
    model = problem.model
    predicted = model.predict_all(engine.predictor().user_vectors, model.item_rows(engine.predictor().item_vectors))
    wins = [
        (row[test & own][:, None] > row[test & ~own]).mean()
        for row, test, own in zip(predicted, tested, likes, strict=True)
        if (test & own).any() and (test & ~own).any()
    ]
    assert np.mean(wins) > 0.95


@pytest.mark.parametrize("order", ORDERS)
def test_a_restored_run_continues_bit_for_bit(order):
    """The public table with its attributes and w₀ is all that the server keeps."""
    model = make_machine(order, n_items=20)
    whole, before, after = (ReferenceEngine(small_problem(SDCF, model=model, step=0.1)) for _ in range(3))
    for _ in range(4):
        whole.run_round()
    for _ in range(2):
        before.run_round()
    after.restore(before.state())
    for _ in range(2):
        after.run_round()
    np.testing.assert_array_equal(after.predictor().item_vectors, whole.predictor().item_vectors)
    np.testing.assert_array_equal(after.predictor().user_vectors, whole.predictor().user_vectors)


def test_the_start_has_no_biases_and_attributes_that_add_nothing(rng):
    """Vectors uniform as in `mf`; one false alarm in a million seeds."""
    model = FactorizationMachine(10, 3, np.ones((500, 2)))
    table = model.initial_items(500, rng=rng)
    assert table.shape == (503, 21)
    assert not table[:, 0].any()
    assert not table[500:].any()
    assert kstest(table[:500, 1:].ravel(), "uniform", args=(0, 0.3 * np.sqrt(5))).pvalue > 1e-6
    assert model.draw_regularization(rng=rng).shape == (21,)


@pytest.mark.parametrize(
    ("settings", "parameter"),
    [
        ({"order": 4}, "order"),
        ({"order": 3}, "order"),
        ({"attributes": np.array([[np.nan]])}, "attributes"),
    ],
)
def test_impossible_machines_are_refused(settings, parameter):
    """When they are built."""
    with pytest.raises(ParameterError, match=f"^{parameter} must"):
        FactorizationMachine(K, **settings)


def test_attributes_belong_to_this_model_and_to_its_items(rng):
    """One row per item; other models have no use for them."""
    with pytest.raises(ParameterError, match="attributes"):
        make_machine(2).initial_items(5, rng=rng)
    with pytest.raises(ParameterError, match="order and attributes"):
        make_model("mf", 3, order=2)


@pytest.mark.parametrize("option", [{"order": 3}, {"attributes": "none"}])
def test_options_of_this_model_are_refused_by_others(option):
    """Rather than ignored."""
    with pytest.raises(ParameterError, match=next(iter(option))):
        Settings(model="mf", **option)


def test_side_columns_share_one_norm():
    """Alone, the genres of a film have all of it and the furthest year too; together, no film has more."""
    ratings = synthetic(20, 30, 300)
    columns = side_columns(ratings)
    assert columns is not None
    assert attribute_names(ratings) == ["genre", "year"] or attribute_names(ratings) == ["year", "genre"]
    assert np.linalg.norm(columns, axis=1).max() <= LARGEST_NORM + 1e-12
    genres, years = side_columns(ratings, "genre"), side_columns(ratings, "year")
    assert genres is not None
    assert years is not None
    np.testing.assert_allclose(np.linalg.norm(genres, axis=1), LARGEST_NORM)
    assert np.abs(years).max() == LARGEST_NORM
    assert years.mean() == pytest.approx(0, abs=1e-12)
    assert side_columns(ratings, "none") is None


def test_unknown_attributes_are_refused():
    """With the names there are; without an items file there are none."""
    with pytest.raises(ParameterError, match="attributes"):
        side_columns(synthetic(20, 30, 300), "colour")
    bare = Ratings("bare", ["a"], ["x"], np.array([0]), np.array([0]), np.array([3.0]), Scale(1, 5))
    assert side_columns(bare) is None
    with pytest.raises(ParameterError, match="attributes"):
        side_columns(bare, "genre")


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_keeps_what_recommending_needs(order, tmp_path):
    """Order and attributes go into the folder and come back."""
    from hushrec.simulation.results import load

    result = train(
        synthetic(30, 40, 600), model="fm", order=order, rounds=2, factors=3, compare=False, out=tmp_path / "run"
    )
    assert result.record["order"] == order
    assert result.record["attributes"] > 1
    assert set(result.metrics) >= {"rmse", "mae"}
    assert load(tmp_path / "run").recommend("7", 3) == result.recommend("7", 3)
