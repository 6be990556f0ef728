"""Metrics and baselines, worked by hand."""

import numpy as np
import pytest

from hushrec.evaluate import mae, rating_metrics, rmse
from hushrec.models.baselines import fit_biases, rating_baselines


def test_rmse_and_mae_by_hand():
    """Errors 1, −2, 2: mean square 3, mean size 5/3."""
    predicted, actual = np.array([2.0, 1.0, 5.0]), np.array([1.0, 3.0, 3.0])
    assert rmse(predicted, actual) == pytest.approx(np.sqrt(3))
    assert mae(predicted, actual) == pytest.approx(5 / 3)
    assert set(rating_metrics(predicted, actual)) == {"rmse", "mae"}


def test_arrays_that_do_not_match_are_refused():
    """An empty or uneven pair of arrays has no error to speak of."""
    with pytest.raises(ValueError, match="one shape and not empty"):
        rmse(np.empty(0), np.empty(0))
    with pytest.raises(ValueError, match="one shape and not empty"):
        mae(np.ones(2), np.ones(3))


def test_means_by_hand_and_the_global_mean_for_the_unknown():
    """Ratings 1, 3 of user 0 and 5 of user 1; user 2 and item 2 are not in training."""
    users, items, values = np.array([0, 0, 1]), np.array([0, 1, 1]), np.array([1.0, 3.0, 5.0])
    baselines = rating_baselines(users, items, values, 3, 3)
    asked = np.array([0, 1, 2]), np.array([0, 1, 2])
    np.testing.assert_allclose(baselines["global_mean"](*asked), [3, 3, 3])
    np.testing.assert_allclose(baselines["user_mean"](*asked), [2, 5, 3])
    np.testing.assert_allclose(baselines["item_mean"](*asked), [1, 4, 3])
    assert baselines["bias"](*asked)[2] == pytest.approx(3)


def test_biases_solve_the_normal_equations(rng):
    """The gradient of the regularized squared error vanishes at the fit, against a dense solve."""
    users, items = np.nonzero(rng.random((6, 5)) < 0.6)
    residuals = rng.normal(size=len(users))
    user_bias, item_bias = fit_biases(users, items, residuals, 6, 5, penalty=2.0)

    design = np.zeros((len(users), 11))
    design[np.arange(len(users)), users] = 1
    design[np.arange(len(users)), 6 + items] = 1
    dense = np.linalg.solve(design.T @ design + 2.0 * np.eye(11), design.T @ residuals)
    np.testing.assert_allclose(np.concatenate([user_bias, item_bias]), dense, atol=1e-8)


def test_biases_recover_planted_ones(rng):
    """With many ratings and little noise, the bias model finds who is generous and what is liked."""
    user_truth, item_truth = rng.normal(0, 0.5, 200), rng.normal(0, 0.5, 100)
    users, items = np.nonzero(rng.random((200, 100)) < 0.8)
    values = 3 + user_truth[users] + item_truth[items] + rng.normal(0, 0.1, len(users))
    predict = rating_baselines(users, items, values, 200, 100)["bias"]
    assert rmse(predict(users, items), values) < 0.12
