"""The paper's table on ML-100K, on the split of docs/reproduction.md: a short form of `make reproduce`."""

import pytest

import hushrec
from hushrec.data.ratings import Ratings
from hushrec.data.sources import load as load_ratings

pytestmark = pytest.mark.data


@pytest.fixture(scope="module")
def ml_100k(data_dir) -> Ratings:
    """The real ratings."""
    return load_ratings("ml-100k", data_dir=data_dir)


# Test RMSE after 100 rounds with 50 factors on split seed 0. The seed alone has a standard deviation of 0.001 in
# `sdcf`, 0.002 in `isgld` at ε 4 and 0.009 at ε 2, where noise is larger than the scale; hence the last tolerance.
TABLE = {
    "non-private": ({"protocol": "plain"}, 0.950, 0.006),
    "SDMF ε_I 4, ε_g 4": ({"protocol": "sdcf", "epsilon_i": 4.0, "epsilon_g": 4.0}, 0.957, 0.006),
    "SDMF ε_I 4, ε_g 0.0625": ({"protocol": "sdcf", "epsilon_i": 4.0, "epsilon_g": 0.0625}, 0.974, 0.006),
    "SDMF α = ∞": ({"protocol": "sdcf", "epsilon_i": 4.0, "epsilon_g": 0.0}, 0.977, 0.006),
    "ISGLD ε 4": ({"protocol": "isgld", "epsilon": 4.0}, 1.005, 0.006),
    "ISGLD ε 2": ({"protocol": "isgld", "epsilon": 2.0}, 1.380, 0.027),
}


@pytest.mark.parametrize(("settings", "expected", "tolerance"), TABLE.values(), ids=TABLE)
def test_the_table_comes_out(ml_100k, settings, expected, tolerance):
    """Each column within its tolerance."""
    result = hushrec.train(ml_100k, compare=False, rounds=100, factors=50, **settings)
    assert result.metrics["rmse"] == pytest.approx(expected, abs=tolerance)


def test_epsilon_i_hardly_matters(ml_100k):
    """From 4 to 0.0625 the error moves by less than 0.004: nearly everything sent is noise already."""
    errors = [
        hushrec.train(ml_100k, compare=False, epsilon_i=epsilon_i, epsilon_g=4.0).metrics["rmse"]
        for epsilon_i in (4.0, 0.0625)
    ]
    assert abs(errors[0] - errors[1]) < 0.004


def test_the_engine_of_real_clients_starts_on_the_same_path(ml_100k):
    """Six rounds of `reference` and of `cpu` differ by their draws alone: at most 0.01 in RMSE."""
    errors = [
        hushrec.train(ml_100k, compare=False, rounds=6, engine=engine).metrics["rmse"]
        for engine in ("reference", "cpu")
    ]
    assert errors[0] == pytest.approx(errors[1], abs=0.01)


def test_the_bias_model_beats_every_private_run_here(ml_100k):
    """The non-personal baselines of the same split, which every table must show: 1.130, 1.047, 1.028, 0.942."""
    record = hushrec.train(ml_100k, compare=False, rounds=1, factors=5).record
    errors = {name: metrics["rmse"] for name, metrics in record["baselines"].items()}
    expected = {"global_mean": 1.130, "user_mean": 1.047, "item_mean": 1.028, "bias": 0.942}
    assert errors == pytest.approx(expected, abs=0.001)
