"""Lists of items: how good they are, what is never in them, and the model that they are made from."""

import json
from pathlib import Path

import numpy as np
import pytest
from command import run

from hushrec.data.ratings import Ratings
from hushrec.data.synthetic import synthetic
from hushrec.errors import ParameterError, RunError
from hushrec.evaluate import is_chance
from hushrec.models.predictor import Predictor
from hushrec.report.studies import read_studies
from hushrec.scale import Scale
from hushrec.simulation.results import Result
from hushrec.simulation.results import load as load_run
from hushrec.simulation.settings import Settings
from hushrec.simulation.tasks import Profiles, rating_task
from hushrec.simulation.training import load_final, train, train_final
from hushrec.simulation.verdict import verdict

QUICK = {"protocol": "plain", "rounds": 15, "factors": 4, "compare": False}


@pytest.fixture(scope="module")
def sparse() -> Ratings:
    """150 people and 1,500 items, most of them rated by nobody or by few."""
    return synthetic(n_users=150, n_items=1500, n_ratings=6000, seed=3)


@pytest.fixture(scope="module")
def measured(sparse: Ratings) -> Result:
    """A run that learned something, measured on its test part."""
    return train(sparse, **QUICK)


def rated_by(ratings: Ratings, user: str) -> set[str]:
    """Everything that one person rated, in training and test part."""
    mine = ratings.users == ratings.user_ids.index(user)
    return {ratings.item_ids[item] for item in ratings.items[mine]}


def test_a_rating_model_is_measured_by_its_lists_beside_popularity(measured: Result) -> None:
    """Precision, recall and NDCG at 10 of both; shrunk lists are far better than bare predictions."""
    names = {"precision_at_10", "recall_at_10", "ndcg_at_10"}
    assert names < set(measured.metrics)
    assert set(measured.record["baselines"]["popularity"]) == names
    task = rating_task(measured.ratings, 0)
    bare = task.measure_lists(measured.predictor.scores)
    assert measured.metrics["precision_at_10"] > 3 * bare["precision_at_10"]


def test_what_counts_as_liked_is_the_upper_quarter_of_any_scale() -> None:
    """4 of 1-5, 8 of 0-10 (from 7.5), 4 of half stars (from 3.875), 75 of 0-100, 1 of 0/1: the same lists are good."""
    base = synthetic(n_users=40, n_items=60, n_ratings=1200, seed=5)
    assert base.values is not None
    scores = np.random.default_rng(0).random((40, 60))
    found = []
    for scale in (Scale(1, 5), Scale(0, 10), Scale(0.5, 5), Scale(0, 100), Scale(0, 1)):
        values = scale.from_unit(base.values)
        ratings = Ratings("r", base.user_ids, base.item_ids, base.users, base.items, values, scale)
        found.append(rating_task(ratings, 0).measure_lists(lambda users: scores[users]))
    assert all(one == found[0] for one in found)
    assert found[0]["precision_at_10"] > 0


def test_no_number_stands_where_nobody_likes_a_held_out_item() -> None:
    """A file of low ratings has no lists to measure, and no popularity beside them."""
    base = synthetic(n_users=30, n_items=40, n_ratings=600, seed=5)
    low = Ratings("low", base.user_ids, base.item_ids, base.users, base.items, np.full(600, 2.0), Scale(1, 5))
    result = train(low, **QUICK)
    assert set(result.metrics) == {"rmse", "mae"}
    assert "popularity" not in result.record["baselines"]


def test_recommended_items_have_support(measured: Result) -> None:
    """Without shrinking most of a list was rated once or never; with it, by more people than the usual item."""
    support = np.bincount(measured.ratings.items, minlength=1500)
    for user in ("1", "7", "30"):
        shrunk = [entry.support for entry in measured.recommend(user)]
        bare = [entry.support for entry in measured.recommend(user, shrink=False)]
        assert min(shrunk) > np.median(support)
        assert np.median(bare) < np.median(shrunk)
        assert shrunk == [support[measured.item_ids.index(entry.item)] for entry in measured.recommend(user)]


def test_a_model_that_knows_its_uncertainty_sorts_by_itself() -> None:
    """Predictors with deviations are not shrunk. The deviations, which take long, are not computed for this."""

    class Unsure(Predictor):
        def scores(self, users: np.ndarray) -> np.ndarray:
            return np.array([[5.0, 1.0]])

    class Sure(Unsure):
        def deviations(self, user: int) -> np.ndarray:
            raise AssertionError("lists need no deviations")

    own = Profiles(np.array([0, 1]), np.array([0]), np.array([3.0]), np.array([0.0, 0.0]))
    assert own.list_scores(Sure(), np.array([0])).tolist() == [[5.0, 1.0]]
    assert own.list_scores(Unsure(), np.array([0])).tolist() == [[3.0, 3.0]]


# The model that lists are made from ----------------------------------------------------------------------------------


def test_nothing_that_a_person_rated_is_recommended_to_them(sparse: Ratings, tmp_path: Path) -> None:
    """Neither from the measured model, whose test part was unknown to it, nor from the final one."""
    train(sparse, **QUICK, out=tmp_path / "run")
    for options in ((), ("--as-measured",), ("--as-measured", "--no-shrink")):
        found = json.loads(run("recommend", tmp_path / "run", "--user", "7", "-n", 1500, "--json", *options).out)
        offered = {entry["item"] for entry in found["items"]}
        assert not offered & rated_by(sparse, "7")
        assert len(offered) == 1500 - len(rated_by(sparse, "7"))


def test_recommend_trains_on_every_rating_once(sparse: Ratings, tmp_path: Path) -> None:
    """The test part's too; the second call finds what the first one kept, and it is what `train --final` makes."""
    train(sparse, **QUICK, out=tmp_path / "run")
    first = run("recommend", tmp_path / "run", "--user", "7", "--json")
    second = run("recommend", tmp_path / "run", "--user", "7", "--json")
    assert "all 6000 ratings" in first.err
    assert "training" not in second.err
    assert first.out == second.out
    final = train(sparse, **QUICK, final=True, out=tmp_path / "final")
    assert final.record["data"]["train"] == 6000
    assert run("recommend", tmp_path / "final", "--user", "7", "--json").out == first.out
    (tmp_path / "run" / "final.npz").write_bytes(b"damaged")
    assert run("recommend", tmp_path / "run", "--user", "7", "--json").out == first.out


@pytest.mark.parametrize("model", ["fm", "bpr"])
def test_every_model_can_be_trained_again_from_its_folder(model: str, tmp_path: Path) -> None:
    """Item attributes and the ratings below `at_least` are kept with the run."""
    data = synthetic(n_users=40, n_items=60, n_ratings=1200, seed=5)
    options = {"at_least": 4.0} if model == "bpr" else {"order": 3}
    settings = {**QUICK, **options, "model": model}
    train(data, **settings, out=tmp_path / "run")
    again, whole = load_final(tmp_path / "run"), train(data, **settings, final=True)
    np.testing.assert_array_equal(again.predictor.scores(np.arange(40)), whole.predictor.scores(np.arange(40)))
    assert again.explain("3", again.recommend("3", 1)[0].item) == whole.explain("3", whole.recommend("3", 1)[0].item)


def test_a_run_with_patience_is_trained_again_for_as_many_rounds_as_were_best(sparse: Ratings) -> None:
    """There is no validation part left to stop by."""
    result = train(sparse, **{**QUICK, "rounds": 40}, patience=3)
    assert train_final(result).record["rounds"] == result.record["best_round"]
    with pytest.raises(ParameterError, match=r"patience.*final"):
        Settings(protocol="plain", final=True, patience=3)


def test_a_final_run_measures_nothing_and_reports_leave_it_out(sparse: Ratings, tmp_path: Path) -> None:
    """No metrics, no curve, no baselines; a report of such runs alone is refused in one sentence."""
    path = tmp_path / "sparse.csv"
    rows = zip(sparse.users, sparse.items, sparse.values, strict=True)  # type: ignore[arg-type]
    path.write_text("user,item,rating\n" + "".join(f"{user},{item},{value:g}\n" for user, item, value in rows))
    command = ("train", path, "--protocol", "plain", "--rounds", 3, "--factors", 2)
    outcome = run(*command, "--final", "--out", tmp_path / "runs" / "final")
    assert "accuracy is unknown" in " ".join(outcome.out.split())
    record = load_run(tmp_path / "runs" / "final").record
    assert (record["metrics"], record["curve"], record["baselines"], record["verdict"]) == ({}, [], {}, "")
    with pytest.raises(RunError, match="--final"):
        read_studies([tmp_path / "runs"])
    assert run(*command, "--out", tmp_path / "runs" / "measured").code == 0
    (study,) = read_studies([tmp_path / "runs"])
    assert len(study.settings) == 1


# The verdict ---------------------------------------------------------------------------------------------------------


def test_train_ends_with_a_verdict_that_names_the_gap_and_what_to_try() -> None:
    """One line, the last one; it says against whom, by how much, and what the curve suggests."""
    data = "synthetic:users=40,items=60,ratings=1200,seed=5"
    outcome = run("train", data, "--protocol", "plain", "--rounds", 12, "--factors", 3, "--step", 0.02, columns=400)
    last = outcome.out.strip().splitlines()[-1]
    assert last.startswith("verdict: plain loses to the bias model by ")
    assert "its lists" in last
    assert "--rounds 24" in last


def test_a_verdict_says_when_a_run_wins_and_when_privacy_is_what_costs() -> None:
    """Of made-up records: the comparison without privacy decides what is advised."""
    record = {
        "protocol": "sdcf", "rounds": 20, "patience": None, "metrics": {"rmse": 0.95}, "curve": [{"rmse": 0.95}] * 20,
        "baselines": {"bias": {"rmse": 0.94}, "user_mean": {"rmse": 1.0}}, "comparisons": {"plain": {"rmse": 0.9}},
    }  # fmt: skip
    assert verdict(record).startswith("sdcf loses to the bias model by 0.010 RMSE (0.950 against 0.940).")
    assert "Without privacy it would win (0.900)" in verdict(record)
    record |= {"comparisons": {"plain": {"rmse": 0.945}}}
    assert "Without privacy it loses too (0.945)" in verdict(record)
    record |= {"curve": [{"rmse": 0.93}] * 5 + [{"rmse": 0.95}] * 15}
    assert verdict(record).endswith("try --patience 10.")
    assert verdict(record | {"metrics": {"rmse": 0.9401}}).startswith(
        "sdcf is about as accurate as the bias model in RM"
    )
    ranking = {
        "metrics": {"auc": 0.9}, "curve": [{"auc": 0.9}] * 20, "comparisons": {},
        "baselines": {"popularity": {"auc": 0.86}, "random": {"auc": 0.5}},
    }  # fmt: skip
    assert verdict(record | ranking) == "sdcf beats the most popular items by 0.040 AUC (0.900 against 0.860)."
    worse = {"metrics": {"auc": 0.9, "hr_at_10": 0.1}, "baselines": {"popularity": {"auc": 0.86, "hr_at_10": 0.2}}}
    assert "its lists lose to the most popular items (HR@10 0.100 against 0.200)." in verdict(record | ranking | worse)


def test_a_difference_that_chance_explains_is_neither_won_nor_lost() -> None:
    """Nine of ten people are better served by a hair; one person's errors turn the sum. Then everybody agrees."""
    record = {
        "protocol": "masked", "rounds": 1, "patience": None, "metrics": {"rmse": 0.95}, "curve": [{"rmse": 0.95}],
        "baselines": {"bias": {"rmse": 0.94}}, "comparisons": {}, "budget": {"epsilon": 8.0},
    }  # fmt: skip
    assert "Try --epsilon inf" in verdict(record)
    record |= {"within_chance": {"bias": ["rmse"]}}
    chance = verdict(record | {"data": {"test": 100}})
    assert chance == "masked is about as accurate as the bias model in RMSE (0.950 against 0.940)."
    assert verdict(record | {"data": {"test": 60}}).startswith(
        "the test part of 60 ratings is too small to tell masked from the bias model in RMSE (0.950 against 0.940)."
    )
    far = {"metrics": {"rmse": 0.486}, "baselines": {"bias": {"rmse": 1.0}}}
    assert "too small" in verdict(record | far | {"data": {"test": 5_000}})
    assert is_chance(np.array([-0.1] * 9 + [2.0]))
    assert is_chance(np.zeros(10))
    assert not is_chance(np.full(10, 0.1))


def test_a_run_that_cannot_differ_but_by_chance_says_so() -> None:
    """Twenty ratings of six people are not enough to tell two models apart; the record says in which metrics."""
    record = train("synthetic:users=6,items=20,ratings=100,seed=1").record
    assert "rmse" in record["within_chance"]["bias"]
    assert "the test part of 20 ratings is too small to tell" in record["verdict"]
    assert record["within_chance"].keys() == record["baselines"].keys()


# Comparisons ---------------------------------------------------------------------------------------------------------


def test_the_non_private_comparison_of_bpr_runs_at_its_own_tuned_step() -> None:
    """10 without privacy, 4 with it, whatever step the private run is given; models without one share the step."""
    assert Settings(model="bpr", protocol="sdcf").options["step"] == 4
    assert Settings(model="bpr", protocol="plain").options["step"] == 10
    assert Settings(model="bpr", protocol="sdcf", step=2).compared_with("plain").options["step"] == 10
    assert Settings(model="mf", protocol="sdcf", step=0.3).compared_with("plain").options["step"] == 0.3
    data = synthetic(n_users=40, n_items=60, n_ratings=1200, seed=5)
    result = train(data, model="bpr", protocol="sdcf", rounds=2, factors=4)
    assert (result.record["step"], result.record["comparisons"]["plain"]["step"]) == (4, 10)


def test_seconds_of_measuring_and_comparing_are_said_too() -> None:
    """Rounds alone were said, a tenth of what the command took."""
    data = "synthetic:users=40,items=60,ratings=1200,seed=5"
    record = json.loads(run("train", data, "--model", "bpr", "--rounds", 3, "--json").out)
    assert record["seconds_in_all"] > record["seconds"]
    assert "s in all" in " ".join(run("train", data, "--model", "bpr", "--rounds", 3).out.split())


def test_the_decision_on_lists_has_the_numbers_of_its_record() -> None:
    """docs/decisions/0014 shows what experiments/lists.py kept."""
    root = Path(__file__).parents[1]
    page = (root / "docs" / "decisions" / "0014-support-of-lists.md").read_text("utf-8")
    record = json.loads((root / "experiments" / "records" / "lists.json").read_text("utf-8"))
    for name, row in record.items():
        assert f"| {name} | {' | '.join(f'{value:.3f}' for value in row.values())} |" in page
