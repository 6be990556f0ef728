"""Model `gp` on scales of few levels: likes and dislikes, and three steps."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from masked_kit import catalogue, masked_settings

import hushrec
from hushrec.data.shards import write_shards
from hushrec.errors import ParameterError
from hushrec.offers import make_run_model
from hushrec.protocols.masked.gp.constants import residual_variance
from hushrec.protocols.masked.learning import learning_of
from hushrec.scale import MOST_STARS, Scale
from hushrec.service.setup import make_run
from hushrec.simulation.sharded import train_shards
from hushrec.simulation.training import train


def likes(people: int = 400, items: int = 120, mean: int = 25) -> pl.DataFrame:
    """Likes (1) and dislikes (0) of people with a level and tastes of their own."""
    rng = np.random.default_rng(6)
    users = np.repeat(np.arange(people), mean)
    rated = np.concatenate([rng.choice(items, mean, replace=False) for _ in range(people)])
    taste, hidden = rng.normal(size=(people, 4)), rng.normal(size=(items, 4))
    opinions = 0.4 * rng.normal(size=people)[users] + 0.4 * rng.normal(size=items)[rated] + rng.normal(size=len(users))
    opinions += 0.3 * (taste[users] * hidden[rated]).sum(axis=1)
    return pl.DataFrame({"user": users, "item": rated, "rating": (opinions > 0).astype(int)})


@pytest.mark.parametrize(("levels", "variance"), [(2, 3.2), (3, 1.6), (4, 3.2 / 3), (5, 0.8), (9, 0.8), (10, 0.8)])
def test_the_residual_variance_grows_with_the_distance_of_neighbouring_levels(levels: int, variance: float) -> None:
    """On the scale 1 to 5 neighbouring levels are 4/(levels − 1) apart; the constant is for a distance of at most 1."""
    assert residual_variance(levels) == pytest.approx(variance)
    assert residual_variance(max(levels, 5)) == 0.8  # exactly, so that results on MovieLens stay the same


@pytest.mark.parametrize(
    ("scale", "values", "levels"),
    [
        ((0, 1), [0, 1, 1], 2),
        ((0, 1), [0, 0.5, 1], MOST_STARS),
        ((-1, 1), [-1, 1], 3),
        ((1, 5), [1, 3.0, 5], 5),
        ((0.5, 5), [4.5], 10),
        ((0, 100), [68, 84], MOST_STARS),
        ((1, 2), [], 2),
    ],
)
def test_a_scale_has_its_whole_steps_as_levels_unless_a_rating_lies_between_them(
    scale: tuple[float, float], values: list[float], levels: int
) -> None:
    """A rating between two steps shows that the scale is continuous."""
    assert Scale(*scale).levels(values) == levels


def test_likes_and_dislikes_are_predicted_better_with_two_levels_than_with_five() -> None:
    """Without noise, and at ε = 8; with two levels the larger budget is not worse."""
    data = hushrec.data.load(likes())
    found = {
        (epsilon, levels): hushrec.train(data, epsilon=epsilon, rating_levels=levels).metrics["rmse"]
        for epsilon in (8.0, np.inf)
        for levels in (None, 2, 5)
    }
    for epsilon in (8.0, np.inf):
        assert found[epsilon, None] == found[epsilon, 2]  # the default is that of the scale
        assert found[epsilon, 2] < found[epsilon, 5] - 0.005
    assert found[np.inf, 2] < found[8.0, 2] + 0.001


def test_five_levels_and_more_give_the_same_bits() -> None:
    """The rule concerns scales of fewer levels only."""
    data = hushrec.data.load("synthetic:users=40,items=30,ratings=600")
    found = [hushrec.train(data, rating_levels=levels).metrics for levels in (None, 5, 9)]
    assert found[0] == found[1] == found[2]


def test_server_and_devices_take_the_number_of_levels_from_the_offer() -> None:
    """Both compute with the variance of two levels: items that join the run later, and the accuracy by round."""
    offer, server = make_run(masked_settings(4, terms={"rating_levels": 2}).terms, catalogue())
    assert offer.options["rating_levels"] == 2
    items = catalogue()
    device = learning_of(make_run_model(offer.model, offer.options, items.attributes, items.titles))
    learner = server.side.learner
    assert learner.noise == residual_variance(2)
    table = device.table_from(vars(learner.table()))
    np.testing.assert_allclose(table.variances, residual_variance(2))
    assert device.entry_arrays(table).shape[5] == residual_variance(2) / 0.25
    longer = type(device)(device.columns.first(20))
    shorter = {name: array[:20] if len(array) == 24 else array for name, array in vars(learner.table()).items()}
    assert longer.with_new_items(shorter) is shorter
    assert np.all(device.with_new_items(shorter)["variances"][20:] >= residual_variance(2))


def test_a_run_of_few_levels_is_the_same_on_shards(tmp_path: Path) -> None:
    """Shards keep the number of levels, which their reader cannot count."""
    data = hushrec.data.load(likes(60, 30, 10))
    write_shards(data, tmp_path / "two", ratings_per_shard=200)
    assert train_shards(tmp_path / "two")[0]["metrics"]["rmse"] == pytest.approx(train(data).metrics["rmse"], abs=1e-9)
    between = hushrec.data.load(likes(60, 30, 10).with_columns(pl.col("rating") * 0.7))
    write_shards(between, tmp_path / "many", ratings_per_shard=200)
    assert train_shards(tmp_path / "many")[0]["metrics"]["rmse"] == pytest.approx(
        train(between).metrics["rmse"], abs=1e-9
    )


def test_a_number_of_levels_that_ratings_make_is_said_to_reveal_them(tmp_path: Path) -> None:
    """On a scale of two whole steps; not where the number is given, where the scale has more, or for a ranking."""
    data = hushrec.data.load(likes(60, 30, 10), scale="0,1")
    write_shards(data, tmp_path / "shards", ratings_per_shard=200)
    records = [train(data).record, train_shards(tmp_path / "shards")[0], train(data, rating_levels=2).record]
    records += [train(data, model="audience").record, train(hushrec.data.load("synthetic:users=40,items=30")).record]
    found = [[line for line in record["budget"]["not_covered"] if "--rating-levels" in line] for record in records]
    assert list(map(len, found)) == [1, 1, 0, 0, 0]


def test_fewer_than_two_levels_are_refused() -> None:
    """Ratings of one level say nothing."""
    with pytest.raises(ParameterError, match="rating_levels"):
        hushrec.train("synthetic:users=40,items=30", rating_levels=1)
