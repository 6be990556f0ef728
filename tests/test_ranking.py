"""Ranking metrics on arrays, and the one-class task around them."""

import numpy as np
import pytest
from command import run
from hypothesis import given
from hypothesis import strategies as st

from hushrec.data import Ratings, Scale
from hushrec.errors import DataError, ParameterError
from hushrec.evaluate import ranking_metrics
from hushrec.simulation.settings import Settings
from hushrec.simulation.tasks import ranking_task, rating_task, without_values
from hushrec.simulation.training import train


def rank(scores: np.ndarray, held_out: list[int], rated: list[list[int]], k: int = 10) -> dict[str, float]:
    """The metrics of a score table, one row per user."""
    starts = np.concatenate([[0], np.cumsum([len(row) for row in rated])]).astype(np.int64)
    items = np.array([item for row in rated for item in row], dtype=np.int64)
    users = np.arange(len(held_out))
    return ranking_metrics(lambda block: scores[block].copy(), users, np.array(held_out), starts, items, k)


def test_metrics_by_hand():
    """Scores 9 8 7 6 5, item 0 rated, item 2 held out: one of three others is above, rank 1."""
    metrics = rank(np.array([[9.0, 8.0, 7.0, 6.0, 5.0]]), [2], [[0]], k=2)
    assert metrics == pytest.approx(
        {"auc": 2 / 3, "hr_at_2": 1.0, "ndcg_at_2": 1 / np.log2(3), "recall_at_2": 1.0}, abs=1e-15
    )
    assert rank(np.array([[9.0, 8.0, 7.0, 6.0, 5.0]]), [2], [[0]], k=1)["hr_at_1"] == 0


def test_equal_scores_are_worth_what_chance_is_worth():
    """Ten unrated items, all tied: AUC 1/2, HR@3 3/10, NDCG@3 the mean of the three discounts over ten places."""
    metrics = rank(np.zeros((1, 12)), [4], [[0, 11]], k=3)
    assert metrics["auc"] == 0.5
    assert metrics["hr_at_3"] == pytest.approx(0.3)
    assert metrics["ndcg_at_3"] == pytest.approx((1 + 1 / np.log2(3) + 0.5) / 10)


@given(st.integers(1, 6), st.integers(2, 30), st.integers(1, 12), st.integers(0, 2**32 - 1))
def test_blocks_agree_with_sorting_one_user_at_a_time(n_users, n_items, k, seed):
    """Against the definition, written with a sort and loops; scores without ties."""
    rng = np.random.default_rng(seed)
    scores = rng.permuted(np.tile(np.arange(n_items, dtype=np.float64), (n_users, 1)), axis=1)
    held_out, rated, expected = [], [], []
    for user in range(n_users):
        order = rng.permutation(n_items)
        held_out.append(int(order[0]))
        rated.append(sorted(order[1 : 1 + rng.integers(0, n_items - 1)].tolist()))
        unrated = [item for item in range(n_items) if item not in rated[-1]]
        place = sorted(unrated, key=lambda item: -scores[user, item]).index(held_out[-1])
        beaten = sum(scores[user, held_out[-1]] > scores[user, item] for item in unrated if item != held_out[-1])
        expected.append((beaten / (len(unrated) - 1), place < k, (place < k) / np.log2(place + 2)))
    metrics = rank(scores, held_out, rated, k)
    for name, value in zip(("auc", f"hr_at_{k}", f"ndcg_at_{k}"), np.mean(expected, axis=0), strict=True):
        assert metrics[name] == pytest.approx(value)
    assert metrics[f"recall_at_{k}"] == metrics[f"hr_at_{k}"]


def test_nobody_to_rank_for_is_refused():
    """With the sentence that says what is needed."""
    with pytest.raises(ValueError, match="k must be"):
        rank(np.zeros((0, 3)), [], [])


def small_ratings(values: bool = True) -> Ratings:
    """Twelve people, eight items, ratings 1 to 5."""
    rng = np.random.default_rng(2)
    users, items = np.nonzero(rng.random((12, 8)) < 0.6)
    stars = rng.integers(1, 6, len(users)).astype(np.float64) if values else None
    ids = [str(number) for number in range(12)]
    return Ratings("small", ids, ids[:8], users, items, stars, Scale(1, 5) if values else None)


def test_a_rating_counts_as_an_action_from_the_threshold_up():
    """The lists of users and items stay, so that an item below the threshold is an unrated one."""
    ratings = small_ratings()
    assert ratings.values is not None
    liked = without_values(ratings, 4)
    assert liked.n_ratings == np.count_nonzero(ratings.values >= 4)
    assert (liked.n_users, liked.n_items, liked.values) == (12, 8, None)
    assert without_values(ratings).n_ratings == ratings.n_ratings


@pytest.mark.parametrize(
    ("ratings", "at_least", "error", "sentence"),
    [
        (small_ratings(False), 4, ParameterError, "at_least"),
        (small_ratings(), 6, ParameterError, "at_least .* 6"),
        (
            Ratings("few", ["a"], ["x", "y"], np.array([0]), np.array([1]), None, None),
            None,
            DataError,
            "ratings must",
        ),
    ],
)
def test_impossible_one_class_data_is_refused(ratings, at_least, error, sentence):
    """Before anything is trained."""
    with pytest.raises(error, match=sentence):
        ranking_task(ratings, 0, at_least)


def test_a_model_of_values_refuses_data_without():
    """And names the model that can use it."""
    with pytest.raises(ParameterError, match="--model audience"):
        rating_task(small_ratings(False), 0)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"model": "bpr", "epsilon_g": 4.0}, "epsilon_g must not be given"),
        ({"model": "bpr", "protocol": "isgld"}, "protocol of model bpr must be plain or sdcf, got isgld"),
        ({"model": "mf", "at_least": 4.0}, "at_least must not be given"),
        ({"model": "svd"}, "model must be one of mf, bpr.*, got svd"),
    ],
)
def test_an_option_that_the_model_does_not_use_is_refused(settings, sentence):
    """Rather than ignored."""
    with pytest.raises(ParameterError, match=sentence):
        Settings(**settings)


def test_a_ranking_run_has_its_metrics_baselines_and_budget(tmp_path):
    """The record of a run, and recommendations from its folder."""
    result = train(small_ratings(), model="bpr", rounds=3, factors=2, out=tmp_path / "run")
    names = {"auc", "hr_at_10", "ndcg_at_10", "recall_at_10"}
    record = result.record
    assert set(record["metrics"]) == names
    assert {name: set(entry) for name, entry in record["baselines"].items()} == {"popularity": names, "random": names}
    assert record["baselines"]["random"]["auc"] == 0.5
    assert set(record["curve"][0]) == {"round", "auc"}
    assert set(record["comparisons"]) == {"plain"}
    assert record["data"]["scale"] is None
    assert any("opposite directions" in what for what in record["budget"]["not_covered"])
    assert not any("epsilon_g" in what for what in record["budget"]["not_covered"])
    first, second = result.recommend("3", 2)
    assert first.score >= second.score
    assert first.predicted is None
    shown = run("recommend", tmp_path / "run", "--user", "3", "-n", "2", "--as-measured").out
    assert "score" in shown
    assert "predicted" not in shown
    assert f"{first.score:.2f}" in shown
