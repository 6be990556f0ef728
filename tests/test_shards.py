"""Shards on disk: what they hold, and that training on them is training on the same ratings in memory."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import run

from hushrec.data.shards import Shards, is_shards, write_shards
from hushrec.data.synthetic import synthetic
from hushrec.errors import DataError, ParameterError
from hushrec.simulation.sharded import train_shards
from hushrec.simulation.training import train

RATINGS = synthetic(n_users=60, n_items=50, n_ratings=900, seed=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small data set in three shards."""
    path = tmp_path_factory.mktemp("data") / "shards"
    write_shards(RATINGS, path, ratings_per_shard=300)
    return path


def test_shards_hold_every_rating_once(folder: Path) -> None:
    """Whoever reads across the border of two shards gets the people of both, items rising, rows of the file."""
    shards = Shards(folder)
    shards.check()
    assert is_shards(folder)
    assert (len(shards.borders), shards.n_people, shards.n_ratings) == (4, RATINGS.n_users, RATINGS.n_ratings)
    for first, stop in ((0, 60), (5, 50), (int(shards.borders[1]) - 1, int(shards.borders[1]) + 1)):
        own = shards.read(first, stop)
        users = first + np.repeat(np.arange(stop - first), np.diff(own.starts))
        np.testing.assert_array_equal(users, RATINGS.users[own.rows])
        np.testing.assert_array_equal(own.items, RATINGS.items[own.rows])
        assert own.values is not None
        assert RATINGS.values is not None
        np.testing.assert_array_equal(own.values, RATINGS.values[own.rows])
        assert np.count_nonzero((RATINGS.users >= first) & (RATINGS.users < stop)) == len(own.rows)


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    """So is a folder without a manifest, and one that is not empty."""
    write_shards(RATINGS, tmp_path / "shards")
    with (tmp_path / "shards" / "shard-0000.parquet").open("ab") as file:
        file.write(b"x")
    with pytest.raises(DataError, match="shard-0000"):
        Shards(tmp_path / "shards").check()
    with pytest.raises(DataError, match="empty"):
        write_shards(RATINGS, tmp_path / "shards")
    with pytest.raises(DataError, match="shards"):
        Shards(tmp_path).check()


@pytest.mark.parametrize(
    "settings",
    [
        {"protocol": "masked", "model": "gp"},
        {"protocol": "masked", "model": "audience"},
        {"protocol": "sdcf", "model": "mf", "factors": 5, "step": 0.05, "rounds": 3},
        {"protocol": "sdcf", "model": "bpr", "factors": 5, "rounds": 3},
    ],
    ids=lambda settings: f"{settings['protocol']} {settings['model']}",
)
def test_training_out_of_core_gives_the_bits_of_training_in_memory(folder: Path, settings: dict[str, Any]) -> None:
    """One part of 200 ratings in memory at a time: the same split, table, vectors and budget, and the same metrics."""
    record, public = train_shards(folder, ratings_at_once=200, **settings)
    expected = train(RATINGS, compare=False, **settings)
    assert record["data"]["parts"] > 2
    learned = expected.predictor.arrays()
    shared = public.keys() & learned.keys() - {"kernel"}
    assert shared
    for name in shared:
        np.testing.assert_array_equal(public[name], learned[name], err_msg=name)
    for name in ("train", "test", "cold_users", "cold_items"):
        assert record["data"][name] == expected.record["data"][name]
    assert record["budget"] == expected.record["budget"]
    for name, value in record["metrics"].items():
        assert value == pytest.approx(expected.record["metrics"][name], rel=1e-9), name
    of_lists = {"popularity"} if "rmse" in record["metrics"] else set()  # lists of ratings are not measured
    assert record["baselines"].keys() == expected.record["baselines"].keys() - of_lists
    for name, metrics in record["baselines"].items():
        for measure, value in metrics.items():
            assert value == pytest.approx(expected.record["baselines"][name][measure], rel=1e-9), (name, measure)


def test_what_shards_cannot_do_is_refused(folder: Path) -> None:
    """Engines and options that need all ratings in one place."""
    for settings, name in (({"engine": "reference"}, "engine"), ({"protocol": "sdcf", "patience": 3}, "patience")):
        with pytest.raises(ParameterError, match=name):
            train_shards(folder, **settings)


def test_the_command_line_shards_and_trains(tmp_path: Path) -> None:
    """`hushrec data shard DATA OUT`, then `hushrec train OUT`."""
    data = "synthetic:users=60,items=50,ratings=900"
    run("data", "shard", data, str(tmp_path / "shards"))
    found = json.loads(run("train", str(tmp_path / "shards"), "--out", tmp_path / "run", "--json").out)
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == found
    assert "log_counts" in np.load(tmp_path / "run" / "public.npz")
    expected = json.loads(run("train", data, "--no-compare", "--json").out)
    assert found["metrics"]["rmse"] == pytest.approx(expected["metrics"]["rmse"], rel=1e-9)
    assert found["data"]["test"] == expected["data"]["test"]
