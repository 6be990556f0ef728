"""`hushrec.grid` and `hushrec.compare`: settings beside each other, and whether two differ."""

import math

import numpy as np
import polars as pl
import pytest

import hushrec
from hushrec.comparison import _tested
from hushrec.data import Ratings, k_fold, load, random_split
from hushrec.errors import ParameterError

MF = {"protocol": "plain", "model": "mf", "rounds": 3, "engine": "reference"}


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    """Forty users by thirty items."""
    return load("synthetic:users=40,items=30,ratings=700,seed=1")


@pytest.fixture(scope="module")
def table(ratings: Ratings) -> pl.DataFrame:
    """Two widths on two folds, and the baselines."""
    found: pl.DataFrame = hushrec.grid(ratings, {"factors": [2, 4]}, splits=k_fold(700, 2, seed=0), **MF)
    return found


def test_a_grid_is_one_tidy_frame_with_the_baselines(table: pl.DataFrame) -> None:
    """A row per setting and split, and per non-personal model and split; budget and unit in words."""
    assert table.columns[:3] == ["factors", "split", "label"]
    assert table.filter(pl.col("factors").is_not_null()).select("factors", "split").rows() == [
        (2, 0), (4, 0), (2, 1), (4, 1),
    ]  # fmt: skip
    assert set(table.filter(pl.col("factors").is_null())["label"]) == {
        "global_mean", "user_mean", "item_mean", "bias", "popularity",
    }  # fmt: skip
    assert {"rmse", "mae", "auc", "precision_at_10", "recall_at_10", "ndcg_at_10", "protects", "seconds"} <= set(
        table.columns
    )
    assert table.filter(pl.col("label") == "bias")["protects"].unique().to_list() == ["not personal"]


def test_a_row_is_what_fit_and_measure_give(ratings: Ratings, table: pl.DataFrame) -> None:
    """The same numbers by hand."""
    split = k_fold(700, 2, seed=0)[1]
    by_hand = hushrec.Recommender(factors=4, **MF).fit(ratings.rows(split.train)).measure(ratings.rows(split.test))
    row = table.filter((pl.col("factors") == 4) & (pl.col("split") == 1)).to_dicts()[0]
    assert {name: row[name] for name in by_hand} == pytest.approx(by_hand)


def test_a_grid_of_nothing_is_refused(ratings: Ratings) -> None:
    """No value, no split, or a setting that is none."""
    with pytest.raises(ParameterError, match="settings"):
        hushrec.grid(ratings, {"factors": []}, **MF)
    with pytest.raises(ParameterError, match="splits"):
        hushrec.grid(ratings, {"factors": [2]}, splits=[], **MF)
    for one in (2, "24"):
        with pytest.raises(ParameterError, match="factors"):
            hushrec.grid(ratings, {"factors": one}, **MF)
    with pytest.raises(ParameterError, match="rouns"):
        hushrec.grid(ratings, {"rouns": [2]}, **MF)
    with pytest.raises(ParameterError, match="settings must map names"):
        hushrec.grid(ratings, [{"factors": 2}], **MF)  # type: ignore[arg-type]


def test_a_grid_doubts_a_guessed_scale_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not with every training of the grid."""
    rows = [(f"u{n % 8}", f"i{n // 8}", 3 + n % 2) for n in range(80)]
    hushrec.grid(rows, {"factors": [1, 2]}, **MF)
    assert sum("--scale" in record.message for record in caplog.records) == 1


def test_a_permutation_test_by_hand() -> None:
    """Three people, all worse under the first: of the eight patterns of signs two are as extreme, so p → 2/8."""
    sums, counts = np.array([[2.0, 3.0, 5.0], [1.0, 1.0, 1.0]]), np.ones(3)
    found = _tested(sums, counts, True, 20_000, np.random.default_rng(0))
    assert found.p_value == pytest.approx(0.25, abs=0.015)  # five standard deviations
    assert found.difference == pytest.approx(math.sqrt(10 / 3) - 1)
    assert found.low <= found.difference <= found.high
    assert found.people == 3


def test_two_that_are_alike_are_not_told_apart_and_two_that_differ_are(ratings: Ratings) -> None:
    """The same model twice: p = 1. Against one that learned nothing but noise: p is small, and the sign is right."""
    split = random_split(700, 0)
    train, test = ratings.rows(split.train), ratings.rows(split.test)
    good = hushrec.Recommender(epsilon=math.inf).fit(train)
    poor = hushrec.Recommender(**{**MF, "rounds": 1}, factors=2, no_fallback=True).fit(train)
    same = hushrec.compare(good, good, test, resamples=200)
    assert (same.difference, same.p_value) == (0, 1)
    found = hushrec.compare(good, poor, test, resamples=2000)
    assert found.p_value < 0.01
    assert found.low <= found.difference <= found.high < 0
    assert found.first == pytest.approx(good.measure(test)["rmse"])
    assert f"{found.people} people" in str(found)


def test_rankings_are_compared_by_auc(ratings: Ratings) -> None:
    """And not with models that predict ratings."""
    split = random_split(700, 0)
    train, test = ratings.rows(split.train), ratings.rows(split.test)
    settings = {"model": "bpr", "protocol": "plain", "factors": 2, "engine": "reference"}
    one, two = (hushrec.Recommender(rounds=rounds, **settings).fit(train) for rounds in (1, 8))
    found = hushrec.compare(one, two, test, resamples=200)
    assert (found.metric, found.first) == ("auc", pytest.approx(one.measure(test)["auc"]))
    rating = hushrec.Recommender(factors=2, **MF).fit(train)
    with pytest.raises(ParameterError, match="rank"):
        hushrec.compare(one, rating, test)
    with pytest.raises(ParameterError, match="values"):
        rating.measure([("1", "2")])
