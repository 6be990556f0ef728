"""People and items that training has not seen: what is predicted, and runs that diverge on them."""

from pathlib import Path

import numpy as np
import pytest

from hushrec.data.ratings import Ratings
from hushrec.errors import Diverged
from hushrec.models.cold import ColdStart, own_means
from hushrec.models.mf import MatrixFactorization
from hushrec.models.predictor import VectorPredictor
from hushrec.scale import Scale
from hushrec.simulation.results import load as load_run
from hushrec.simulation.training import train


@pytest.fixture(scope="module")
def cold() -> Ratings:
    """1,200 people and as many items, most with one rating or two, on the scale 1-10."""
    rng = np.random.default_rng(0)
    weights = [np.minimum(rng.zipf(2.2, 2000), 200).astype(float) for _ in range(2)]
    pairs = {tuple(int(rng.choice(2000, p=own / own.sum())) for own in weights) for _ in range(3600)}
    users, items = (np.unique(column, return_inverse=True)[1] for column in np.array(sorted(pairs)).T)
    biases = rng.normal(0, 1, users.max() + 1), rng.normal(0, 0.7, items.max() + 1)
    values = 7.6 + biases[0][users] + biases[1][items] + rng.normal(0, 1.4, len(users))
    ids = [[str(number) for number in range(column.max() + 1)] for column in (users, items)]
    return Ratings("cold", *ids, users, items, np.clip(np.rint(values), 1, 10), Scale(1, 10))


def test_predictions_without_knowledge_by_hand():
    """User 1 has no ratings, item 2 never moved: own mean, the mean vector's product, and the mean of those."""
    vectors = np.array([[2.0, 0.0], [0.0, 4.0], [9.0, 9.0]])
    start = ColdStart(own_means(np.array([0, 2, 2]), np.array([3.0, 4.0])), np.array([False, False, True]))
    found = VectorPredictor(MatrixFactorization(2), np.array([[1.0, 1.0], [7.0, 7.0]]), vectors, start)
    expected = np.array([[2.0, 4.0, 3.5], [2.0, 8.0, 5.0]])  # the mean vector is (1, 2)
    np.testing.assert_allclose(found.scores(np.array([0, 1])), expected)
    users, items = np.repeat([0, 1], 3), np.tile([0, 1, 2], 2)
    np.testing.assert_allclose(found.predict(users, items), expected.ravel())


def test_matrix_factorization_with_many_cold_people_and_items_is_not_behind_the_global_mean(cold: Ratings) -> None:
    """It was at 3.3 where the global mean was at 1.8; `no_fallback` still predicts from random vectors."""
    settings = {"protocol": "plain", "rounds": 30, "step": 0.1, "compare": False}
    known, random = train(cold, **settings), train(cold, **settings, no_fallback=True)
    mean = known.record["baselines"]["global_mean"]["rmse"]
    assert known.metrics["rmse"] < 1.05 * mean
    assert random.metrics["rmse"] > 1.5 * mean


def test_predictions_of_a_kept_run_know_what_is_cold(cold: Ratings, tmp_path: Path) -> None:
    """Read back from its folder, a run predicts the same."""
    result = train(cold, protocol="plain", rounds=2, factors=4, compare=False, out=tmp_path / "run")
    again = load_run(tmp_path / "run").predictor
    users = np.arange(len(result.user_ids))
    np.testing.assert_array_equal(again.scores(users), result.predictor.scores(users))


def test_where_everything_is_known_nothing_changes() -> None:
    """Every item is reported under sdcf, and everybody has ratings: the same bits with the fallback and without."""
    settings = {"protocol": "sdcf", "rounds": 5, "factors": 4, "compare": False}
    known, random = (train("synthetic", **settings, no_fallback=off) for off in (False, True))
    assert known.record["curve"] == random.record["curve"]


# Runs that diverge ---------------------------------------------------------------------------------------------------


def test_a_run_that_diverges_begins_again_at_a_smaller_step(cold: Ratings, tmp_path: Path) -> None:
    """Said while it happens and in the record; what it is compared with does so on its own."""
    heard: list[str] = []
    result = train(cold, protocol="isgld", rounds=12, out=tmp_path / "run", remark=heard.append)
    tried = result.record["tried"]
    assert [one["step"] for one in tried] == [0.4 / 4**place for place in range(len(tried))]
    assert tried
    assert result.record["step"] == tried[-1]["step"] / 4
    assert result.record["comparisons"]["plain"]["step"] == 0.4
    assert len(result.record["curve"]) == 12
    assert any("beginning again at step 0.1" in sentence for sentence in heard)
    again = train(cold, protocol="isgld", rounds=12, step=result.record["step"], compare=False)
    assert again.metrics == result.metrics


def test_a_given_step_that_diverges_is_refused_with_advice_that_works(cold: Ratings) -> None:
    """Without the option that the sentence names, the same run ends."""
    with pytest.raises(Diverged, match="leave --step out"):
        train(cold, protocol="isgld", rounds=12, step=0.4, compare=False)
    assert train(cold, protocol="isgld", rounds=12, compare=False).metrics["rmse"] < 5


def test_a_lowered_step_survives_an_interruption(cold: Ratings, tmp_path: Path) -> None:
    """Resumed, the run goes on at the smaller step, bit for bit."""

    def stop(protocol: str, round_number: int, rounds: int, error: float) -> None:
        if round_number == 10 and error < 5:  # not while it diverges
            raise KeyboardInterrupt

    settings = {"protocol": "isgld", "rounds": 12, "compare": False}
    with pytest.raises(KeyboardInterrupt):
        train(cold, out=tmp_path / "run", progress=stop, **settings)
    resumed = train(cold, out=tmp_path / "run", resume=True, **settings)
    whole = train(cold, **settings)
    assert resumed.record["tried"] == whole.record["tried"]
    assert resumed.record["curve"] == whole.record["curve"]
