"""Model `gp` and items files of many columns."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

import hushrec
from hushrec.models.item_columns import item_columns
from hushrec.protocols.masked.gp.constants import CONSTANTS, LARGEST_TASTE
from hushrec.protocols.masked.gp.plan import choose_plan
from hushrec.protocols.masked.gp.server import GpLearner, initial_variance
from hushrec.simulation.settings import Settings

ITEMS = 400


def numbers(count: int, items: int = ITEMS) -> pl.DataFrame:
    """So many random numbers for each item."""
    rng = np.random.default_rng(51)
    return pl.DataFrame({"id": list(map(str, range(items)))} | {f"n{k}": rng.normal(size=items) for k in range(count)})


def test_the_first_variance_of_tastes_is_the_constant_for_few_columns() -> None:
    """One number: 0.09 · mean ‖t‖² is below the bound, and no taste columns have no size."""
    taste = item_columns(ITEMS, None, numbers(1).drop("id")).taste
    assert initial_variance(taste) == initial_variance(np.zeros((ITEMS, 0))) == CONSTANTS.taste_variance


def test_the_first_variance_of_many_tastes_together_is_bounded() -> None:
    """Two columns of 1 and −1 times 10 have ‖t‖² = 200: each taste gets the variance 0.4 / 200."""
    taste = np.full((ITEMS, 2), 10.0)
    taste[::2] = -10.0
    assert initial_variance(taste) == pytest.approx(LARGEST_TASTE / 200)
    columns = item_columns(ITEMS, None, numbers(20).drop("id"))
    learner = GpLearner(columns, choose_plan(300, ITEMS, columns.taste.shape[1], 1.0), 300)
    assert np.mean(np.sum(learner.table().rows[:, 1:-2] ** 2, axis=1)) == pytest.approx(LARGEST_TASTE)


@pytest.mark.data
@pytest.mark.parametrize("name", ["ml-100k", "ml-1m", "netflix-10k"])
def test_columns_of_movielens_and_netflix_are_below_the_bound(name: str, data_dir: Path) -> None:
    """So that their published results stay as they are."""
    settings = Settings()
    model = settings.make_model(settings.among_items(hushrec.data.load(name, data_dir=data_dir)))
    assert initial_variance(model.columns.taste) == CONSTANTS.taste_variance


@pytest.mark.parametrize("epsilon", [1.0, 8.0])
def test_numbers_that_say_nothing_hardly_make_a_run_worse(epsilon: float) -> None:
    """Twenty random numbers for each item: without the bound, RMSE is 0.07 and 0.10 larger than without them."""
    rng = np.random.default_rng(7)
    users = np.repeat(np.arange(400), 30)
    items = np.concatenate([rng.choice(ITEMS, 30, replace=False) for _ in range(400)])
    opinions = 0.4 * rng.normal(size=400)[users] + 0.4 * rng.normal(size=ITEMS)[items] + 0.8 * rng.normal(size=12_000)
    table = pl.DataFrame({"user": users, "item": items, "rating": np.clip(np.rint(3.6 + opinions), 1, 5)})
    found = [
        hushrec.train(hushrec.data.load(table, items=file), epsilon=epsilon).metrics["rmse"]
        for file in (numbers(0), numbers(20))
    ]
    assert found[1] < found[0] + 0.05
