"""Metrics and baselines, worked by hand."""

import numpy as np
import pytest

from hushrec.evaluate import list_metrics, mae, rating_metrics, rmse, shrink
from hushrec.models.baselines import BIAS_PENALTY, fit_biases, rating_baselines


def test_rmse_and_mae_by_hand():
    """Errors 1, −2, 2: mean square 3, mean size 5/3."""
    predicted, actual = np.array([2.0, 1.0, 5.0]), np.array([1.0, 3.0, 3.0])
    assert rmse(predicted, actual) == pytest.approx(np.sqrt(3))
    assert mae(predicted, actual) == pytest.approx(5 / 3)
    assert set(rating_metrics(predicted, actual)) == {"rmse", "mae"}


def test_arrays_that_do_not_match_are_refused():
    """An empty or uneven pair of arrays has no error to speak of."""
    with pytest.raises(ValueError, match="predicted and actual"):
        rmse(np.empty(0), np.empty(0))
    with pytest.raises(ValueError, match="predicted and actual"):
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
    user_bias, item_bias = fit_biases(users, items, residuals, 6, 5)

    design = np.zeros((len(users), 11))
    design[np.arange(len(users)), users] = 1
    design[np.arange(len(users)), 6 + items] = 1
    dense = np.linalg.solve(design.T @ design + BIAS_PENALTY * np.eye(11), design.T @ residuals)
    np.testing.assert_allclose(np.concatenate([user_bias, item_bias]), dense, atol=1e-8)


def test_biases_recover_planted_ones(rng):
    """With many ratings and little noise, the bias model finds who is generous and what is liked."""
    user_truth, item_truth = rng.normal(0, 0.5, 200), rng.normal(0, 0.5, 100)
    users, items = np.nonzero(rng.random((200, 100)) < 0.8)
    values = 3 + user_truth[users] + item_truth[items] + rng.normal(0, 0.1, len(users))
    predict = rating_baselines(users, items, values, 200, 100)["bias"]
    assert rmse(predict(users, items), values) < 0.12


def lists(scores: list[list[float]], liked: list[list[int]], rated: list[list[int]], k: int) -> dict[str, float]:
    """The quality of the lists that a table of scores makes."""

    def rows(entries: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
        starts = np.concatenate([[0], np.cumsum([len(row) for row in entries])]).astype(np.int64)
        return starts, np.array([item for row in entries for item in row], dtype=np.int64)

    table = np.array(scores, dtype=np.float64)
    return list_metrics(lambda users: table[users], *rows(liked), *rows(rated), k)


def test_quality_of_lists_by_hand():
    """Two of three likes among the first two of person 0; person 1 likes nothing and does not count."""
    found = lists([[9, 8, 7, 6, 5], [1, 2, 3, 4, 5]], [[2, 3, 1], []], [[0], []], k=2)
    assert found == pytest.approx({"precision_at_2": 1.0, "recall_at_2": 2 / 3, "ndcg_at_2": 1.0})
    found = lists([[9, 8, 7, 6, 5]], [[3]], [[0]], k=3)
    assert found == pytest.approx({"precision_at_3": 1 / 3, "recall_at_3": 1.0, "ndcg_at_3": 0.5})


def test_lists_of_equal_scores_are_worth_what_chance_is_worth():
    """Ten unrated items, all tied, one liked, lists of three."""
    found = lists([[0] * 12], [[4]], [[0, 11]], k=3)
    assert found["precision_at_3"] == pytest.approx(0.1)
    assert found["recall_at_3"] == pytest.approx(0.3)
    assert found["ndcg_at_3"] == pytest.approx((1 + 1 / np.log2(3) + 0.5) / 10)


def test_nobody_who_likes_anything_has_no_lists_to_measure():
    """No number rather than one that means nothing; and fewer items than a list is long are no error."""
    assert lists([[1, 2]], [[]], [[]], k=10) == {}
    assert lists([[1, 2]], [[0]], [[1]], k=10)["recall_at_10"] == 1.0


def test_lists_agree_with_sorting_one_person_at_a_time(rng):
    """Against the definition with a sort and loops, over several blocks of users; without ties."""
    n_users, n_items, k = 40, 30, 5
    scores = rng.permuted(np.tile(np.arange(n_items, dtype=np.float64), (n_users, 1)), axis=1)
    liked, rated, expected = [], [], []
    for user in range(n_users):
        order = rng.permutation(n_items)
        liked.append(order[: rng.integers(1, 12)].tolist())
        rated.append(order[12 : 12 + rng.integers(0, 10)].tolist())
        best = [item for item in np.argsort(-scores[user]) if item not in rated[-1]][:k]
        gains = [1 / np.log2(place + 2) for place, item in enumerate(best) if item in liked[-1]]
        ideal = sum(1 / np.log2(place + 2) for place in range(min(k, len(liked[-1]))))
        expected.append((len(gains) / k, len(gains) / len(liked[-1]), sum(gains) / ideal))
    found = lists(scores.tolist(), liked, rated, k)
    assert list(found.values()) == pytest.approx(np.mean(expected, axis=0).tolist())


def test_a_prediction_without_support_is_its_center():
    """Half way at as many ratings as the strength; unchanged in the limit of many."""
    found = shrink(np.array([[5.0, 5.0, 5.0]]), np.array([3.0]), np.array([0.0, 20.0, 1e12]), 20.0)
    assert found == pytest.approx(np.array([[3.0, 4.0, 5.0]]))
