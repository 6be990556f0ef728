"""The model's equations, against numerical differentiation and hand arithmetic."""

import numpy as np
import pytest
from scipy.stats import kstest

from hushrec.errors import ParameterError
from hushrec.models import make_model
from hushrec.models.mf import MatrixFactorization
from hushrec.randomness import Purpose, SeededRandomness

MODEL = MatrixFactorization(4)


def loss(rating: float, u: np.ndarray, v: np.ndarray, user_reg: np.ndarray, item_reg: np.ndarray) -> float:
    """½ e² + ½ u Λ_u uᵀ + ½ v Λ_v vᵀ."""
    error = rating - u @ v
    return float(0.5 * error**2 + 0.5 * np.sum(user_reg * u**2) + 0.5 * np.sum(item_reg * v**2))


def numerical_gradient(function, point: np.ndarray) -> np.ndarray:
    """Central differences."""
    steps = 1e-6 * np.eye(len(point))
    return np.array([(function(point + step) - function(point - step)) / 2e-6 for step in steps])


def test_item_gradient_is_the_negative_derivative_of_the_loss(rng):
    """With data weight 1, the row sent for an item points down the loss with respect to its vector."""
    u, v, user_reg, item_reg = rng.random((4, 4))
    row = MODEL.item_gradients(np.array([3.5 - u @ v]), u, v[None], item_reg, data_weight=1.0)[0]

    numerical = numerical_gradient(lambda point: loss(3.5, u, point, user_reg, item_reg), v)
    np.testing.assert_allclose(row, -numerical, atol=1e-8)


def test_user_gradient_is_the_negative_derivative_of_the_mean_loss(rng):
    """Averaged over the rated items, the prior counts once."""
    u, user_reg, item_reg = rng.random((3, 4))
    vectors, ratings = rng.random((3, 4)), np.array([1.0, 4.0, 2.5])
    gradient = MODEL.user_gradient(ratings - vectors @ u, u, vectors, user_reg, data_weight=1.0)

    def mean_loss(point: np.ndarray) -> float:
        return float(
            np.mean([loss(r, point, v, user_reg, 0 * item_reg) for r, v in zip(ratings, vectors, strict=True)])
        )

    np.testing.assert_allclose(gradient, -numerical_gradient(mean_loss, u), atol=1e-8)


def test_the_data_weight_multiplies_the_data_and_not_the_prior():
    """N e u − v Λ with N = 10, e = 2, u = (1, 0, 0, 0), v = (1, 1, 1, 1), Λ = 0.5: 20 − 0.5 and three times −0.5."""
    u, v, regularization = np.array([1.0, 0, 0, 0]), np.ones((1, 4)), np.full(4, 0.5)
    row = MODEL.item_gradients(np.array([2.0]), u, v, regularization, data_weight=10.0)[0]
    np.testing.assert_array_equal(row, [19.5, -0.5, -0.5, -0.5])


def test_a_step_along_the_gradients_lowers_the_loss(rng):
    """The sign that the paper has wrong: adding these gradients must make the error smaller."""
    u, v = rng.random(4), rng.random(4)
    nothing = np.zeros(4)
    error = np.array([5.0 - u @ v])
    better_v = v + 0.01 * MODEL.item_gradients(error, u, v[None], nothing, data_weight=1.0)[0]
    better_u = u + 0.01 * MODEL.user_gradient(error, u, v[None], nothing, data_weight=1.0)
    assert abs(5.0 - u @ better_v) < abs(error[0])
    assert abs(5.0 - better_u @ v) < abs(error[0])


def test_both_ways_of_predicting_agree(rng):
    """One user against all items, and pairs of users and items, are the same products."""
    users, items = rng.random((3, 4)), rng.random((5, 4))
    pairs = MODEL.predict_pairs(users, items, np.array([0, 2, 2]), np.array([4, 0, 1]))
    np.testing.assert_allclose(pairs, [users[0] @ items[4], users[2] @ items[0], users[2] @ items[1]])
    np.testing.assert_allclose(MODEL.predict(users[2], items)[[0, 1]], pairs[1:])


def test_an_item_moves_by_the_mean_of_its_reports_and_one_without_stays():
    """Sums (6, 0) of 3 reports move by (2, 0); an item with no report keeps its vector."""
    model = MatrixFactorization(2)
    moved = model.move_items(np.ones((2, 2)), np.array([[6.0, 0.0], [0.0, 0.0]]), np.array([3, 0]), np.zeros(2))
    np.testing.assert_array_equal(moved, [[3.0, 1.0], [1.0, 1.0]])


def test_start_vectors_are_uniform_below_their_bound(rng):
    """Uniform on (0, 0.3 √(50/K)); one false alarm in a million seeds."""
    vectors = MatrixFactorization(10).initial_vectors(2000, rng=rng)
    assert kstest(vectors.ravel(), "uniform", args=(0, 0.3 * np.sqrt(5))).pvalue > 1e-6


def test_regularization_is_gamma_of_shape_one_and_rate_one_hundred(rng):
    """Mean 0.01; one false alarm in a million seeds."""
    draws = MatrixFactorization(5000).draw_regularization(rng=rng)
    assert kstest(draws, "expon", args=(0, 0.01)).pvalue > 1e-6


def test_the_same_seed_draws_the_same_start():
    """Streams are keyed, not ordered."""
    one, two = (MODEL.initial_vectors(2, rng=SeededRandomness(5).stream(Purpose.ITEM_VECTORS)) for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_an_unknown_model_or_no_factor_is_refused():
    """Both sentences name the setting and what was given."""
    with pytest.raises(ParameterError, match="n_factors"):
        make_model("mf", 0)
    with pytest.raises(ParameterError, match="model"):
        make_model("svd", 5)
