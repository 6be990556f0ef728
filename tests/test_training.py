"""`hushrec.train`, results, run folders, and the two commands on top of them."""

import dataclasses
import json
import re
import stat
import sys

import numpy as np
import pytest
from typer.testing import CliRunner

import hushrec
import hushrec.recommender
from hushrec.cli import app, main
from hushrec.data.ratings import Ratings
from hushrec.data.sources import load as load_ratings
from hushrec.errors import HushrecError, ParameterError, RunError
from hushrec.json_values import to_json
from hushrec.scale import Scale
from hushrec.simulation.results import Result
from hushrec.simulation.results import load as load_run
from hushrec.simulation.settings import Settings
from hushrec.simulation.training import train

QUICK = {"model": "mf", "rounds": 3, "factors": 4, "engine": "reference"}
LISTS = {"precision_at_10", "recall_at_10", "ndcg_at_10"}
NON_PERSONAL = {"global_mean", "user_mean", "item_mean", "bias"}


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    """Sixty users by eighty items."""
    return load_ratings("synthetic:users=60,items=80,ratings=1500,seed=1")


@pytest.fixture(scope="module")
def result(ratings: Ratings) -> Result:
    """A short private run with its comparisons."""
    return train(ratings, protocol="sdcf", **QUICK)


def invoke(*arguments: str):
    """A command, with stdout and stderr apart."""
    return CliRunner().invoke(app, list(arguments))


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    """tests/test_recommender.py lists the names that are there."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = hushrec.nothing


def test_a_result_holds_everything_the_documentation_promises(result):
    """The fields of `train --json`."""
    record = result.record
    assert set(record) >= {
        "dataset", "model", "protocol", "engine", "seed", "split_seed", "rounds", "factors", "metrics", "curve",
        "baselines", "budget", "data", "seconds", "seconds_per_round", "bytes_per_client_round",
    }  # fmt: skip
    assert set(record["metrics"]) == {"rmse", "mae", *LISTS}
    assert [point["round"] for point in record["curve"]] == [1, 2, 3]
    assert record["curve"][-1]["rmse"] == record["metrics"]["rmse"]
    assert set(record["baselines"]) == {*NON_PERSONAL, "popularity"}
    assert set(record["baselines"]["popularity"]) == LISTS
    assert set(record["comparisons"]) == {"plain", "isgld"}
    assert record["data"]["train"] + record["data"]["test"] == 1500
    assert record["bytes_per_client_round"] > 0


def test_the_budget_is_in_its_unit(result):
    """Three rounds at ε_I = 4 cost ε_P = 8, not 12; ε_g is named with its caveat; values are not covered."""
    budget = result.record["budget"]
    assert budget["epsilon"] == 8
    assert budget["rounds"] == 3
    assert budget["delta"] == 0
    assert "profile-level" in budget["unit"]
    assert any("gradient values" in what for what in budget["not_covered"])
    assert any("not a guarantee" in what for what in budget["not_covered"])
    assert any("how many items" in what for what in budget["not_covered"])
    assert budget["value_rho"]["max"] >= budget["value_rho"]["median"] > 1000
    assert result.record["comparisons"]["plain"]["budget"]["epsilon"] == np.inf
    assert result.record["comparisons"]["isgld"]["budget"]["epsilon"] == 4


def test_one_round_costs_epsilon_i_and_a_cap_hides_the_number_of_ratings(ratings):
    """min(T ε_I, ε_P), over announced epochs; with a cap the unit says so."""
    one = train(ratings, compare=False, **{**QUICK, "rounds": 1})
    assert one.record["budget"]["epsilon"] == 4
    epochs = train(ratings, compare=False, epoch_rounds=2, **QUICK)
    assert epochs.record["budget"]["epsilon"] == 8 + 4
    assert epochs.record["budget"]["permanent_draws"] == 2
    capped = train(ratings, compare=False, profile_cap=60, **QUICK)
    assert "any two profiles of up to 60 ratings" in capped.record["budget"]["unit"]
    assert not any("how many" in what for what in capped.record["budget"]["not_covered"])


def test_a_scale_is_mapped_there_and_back(ratings):
    """Ratings of 0 to 100 train as 1 to 5 do; predictions and errors come back on the file's scale."""
    wide = Ratings(
        "wide", ratings.user_ids, ratings.item_ids, ratings.users, ratings.items,
        (ratings.values - 1) * 25, Scale(0, 100),
    )  # fmt: skip
    narrow = train(ratings, compare=False, **QUICK)
    result = train(wide, compare=False, **QUICK)
    assert result.metrics["rmse"] == pytest.approx(25 * narrow.metrics["rmse"])
    best, same = result.recommend("7", 1)[0], narrow.recommend("7", 1)[0]
    assert best.score == pytest.approx(25 * (same.score - 1))
    assert best.predicted == pytest.approx(25 * (same.predicted - 1))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"protocol": "magic"}, "protocol must be one of plain, isgld, sdcf"),
        ({"protocol": "plain", "epsilon_i": 4.0}, "epsilon_i must not be given"),
        ({"protocol": "isgld", "epsilon_g": 4.0}, "epsilon_g must not be given"),
        (
            {"protocol": "sdcf", "epsilon": 4.0},
            "epsilon must not be given.*or give epsilon_i or epsilon_p or epsilon_g",
        ),
        ({"protocol": "sdcf", "clamp": True}, "clamp must not be given"),
        ({"protocol": "plain", "reports_per_client": 3.0}, "reports_per_client must not be given"),
    ],
)
def test_an_option_that_the_protocol_does_not_use_is_refused(settings, sentence):
    """Never ignored."""
    with pytest.raises(ParameterError, match=sentence):
        Settings(**settings)


def test_an_unknown_setting_is_refused(ratings):
    """By name."""
    with pytest.raises(ParameterError, match="epsilonn"):
        train(ratings, epsilonn=4)


def test_a_saved_run_loads_as_it_was(result, tmp_path):
    """Metrics, recommendations and ids survive; the folder is private to its owner and says why."""
    folder = tmp_path / "run"
    result.save(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert sorted(path.name for path in folder.iterdir()) == ["items.parquet", "model.npz", "run.json"]
    assert "user vectors" in json.loads((folder / "run.json").read_text())["private"]
    again = load_run(folder)
    assert again.metrics == result.metrics
    assert again.recommend("7", 5) == result.recommend("7", 5)
    with pytest.raises(RunError, match="empty folder"):
        result.save(folder)


def test_recommendations_are_unrated_and_sorted(result):
    """Nothing that the user rated comes back, whether it was trained on or held out."""
    mine = result.ratings.users == result.user_ids.index("7")
    rated = {result.item_ids[item] for item in result.ratings.items[mine]}
    best = result.recommend(7, 1000)
    assert not rated & {entry.item for entry in best}
    assert len(best) == 80 - len(rated)
    scores = [entry.score for entry in best]
    assert scores == sorted(scores, reverse=True)
    assert best[0].title


def test_a_prediction_is_shown_within_the_scale_and_ranked_as_it_is(result):
    """A model that overshoots recommends 8.2 as 5, in the order of its raw scores."""
    row = result.user_ids.index("7")
    vectors = result.predictor.user_vectors.copy()
    vectors[row] *= 4
    loud = dataclasses.replace(result.predictor, user_vectors=vectors)
    best = dataclasses.replace(result, predictor=loud).recommend("7", 1000, shrink=False)
    scores = [entry.score for entry in best]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > scores[1] > 5
    assert [entry.predicted for entry in best] == pytest.approx([min(5, max(1, score)) for score in scores])


def test_a_stranger_or_no_item_is_refused(result):
    """With the name of what was asked."""
    with pytest.raises(ParameterError, match=r"user .* 12345"):
        result.recommend(12345)
    with pytest.raises(ParameterError, match=r"^n must"):
        result.recommend("7", 0)


def test_a_folder_that_is_no_run_is_refused(result, tmp_path):
    """Missing, of another format, or damaged: each with its own sentence."""
    with pytest.raises(RunError, match="run folder"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text('{"format": 99}')
    with pytest.raises(RunError, match="must have format"):
        load_run(tmp_path)
    folder = tmp_path / "run"
    result.save(folder)
    (folder / "model.npz").write_bytes(b"not an archive")
    with pytest.raises(RunError, match="is damaged"):
        load_run(folder)


def test_infinity_is_a_string_in_json():
    """So that any JSON parser can read a record."""
    assert to_json({"a": [np.inf, -np.inf, np.nan, 1.5, "x"], "b": (2,)}) == {
        "a": ["inf", "-inf", None, 1.5, "x"],
        "b": [2],
    }


# The command line ----------------------------------------------------------------------------------------------

TRAIN = ("train", "synthetic:users=60,items=80,ratings=1500,seed=1", "--model", "mf", "--rounds", "2", "--factors", "4",
         "--engine", "reference")  # fmt: skip


def test_train_prints_one_json_object_alone_on_stdout():
    """Remarks and progress go to stderr."""
    answer = invoke(*TRAIN, "--json", "--no-compare")
    assert answer.exit_code == 0
    record = json.loads(answer.stdout)
    assert record["protocol"] == "sdcf"
    assert record["comparisons"] == {}


def test_train_prints_a_table_with_baselines_and_the_budget_in_words():
    """What a person sees: the run, its comparisons, the non-personal models, the unit, what is not covered."""
    answer = invoke(*TRAIN)
    assert answer.exit_code == 0
    for words in ("this run", "not private", "isgld", "bias", "global mean", "profile-level", "not covered", "Prec@10"):
        assert words in answer.stdout


def test_train_and_recommend_through_a_folder(tmp_path):
    """`--out` keeps the run; `recommend` reads it, as a table and as JSON."""
    folder = tmp_path / "first"
    assert invoke(*TRAIN, "--no-compare", "--out", str(folder)).exit_code == 0
    table = invoke("recommend", str(folder), "--user", "7", "-n", "3")
    assert table.exit_code == 0
    answer = json.loads(invoke("recommend", str(folder), "--user", "7", "-n", "3", "--json").stdout)
    assert len(answer["items"]) == 3
    assert answer["items"][0]["title"] in table.stdout


@pytest.mark.parametrize(
    ("arguments", "refusal"),
    [
        (["--user", "nobody"], "user must be"),
        (["--user", "7", "-n", "0"], "n must be at least 1"),
        (["--user-ratings", "missing.csv"], r"missing\.csv must be .*No such file"),
        (["--user-ratings", "."], r"\. must be a file, but is a directory"),
        (["--user-ratings", "own.csv"], "model must predict for people who took no part"),
    ],
)
def test_recommend_checks_its_arguments_before_it_trains_again(tmp_path, monkeypatch, arguments, refusal):
    """A refused command neither says that it trains again nor leaves a second model in the folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text("1,5\n")
    assert invoke(*TRAIN, "--no-compare", "--out", "run").exit_code == 0
    outcome = invoke("recommend", "run", *arguments)
    assert isinstance(outcome.exception, HushrecError)
    assert re.search(refusal, str(outcome.exception))
    assert "training again" not in outcome.stderr
    assert not (tmp_path / "run" / "final.npz").exists()


def run_main(monkeypatch, *arguments: str) -> int:
    """The exit code of the program itself."""
    monkeypatch.setattr(sys, "argv", ["hushrec", *arguments])
    with pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code)


def test_our_errors_are_one_sentence_and_exit_code_1(monkeypatch, capsys):
    """An impossible budget is refused with the smallest one that works."""
    assert run_main(monkeypatch, *TRAIN, "--epsilon-p", "4.1") == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert lines[-1].startswith("hushrec: epsilon_p must be at least")
    assert "Traceback" not in "".join(lines)


def test_usage_errors_are_exit_code_2(monkeypatch, capsys):
    """An option that does not exist."""
    assert run_main(monkeypatch, "train", "synthetic", "--nonsense") == 2
    assert "nonsense" in capsys.readouterr().err


def test_an_interrupt_keeps_what_was_trained(ratings, tmp_path):
    """Ctrl-C in round 2 of 3: the folder holds a run of two rounds that says so, with the budget of two."""

    def interrupt(what: str, round_number: int, rounds: int, error: float) -> None:
        if round_number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(ratings, out=tmp_path / "cut", progress=interrupt, **QUICK)
    record = load_run(tmp_path / "cut").record
    assert record["interrupted"]
    assert record["rounds"] == record["budget"]["rounds"] == 2


def test_ctrl_c_is_exit_code_130(monkeypatch, capsys):
    """And no traceback."""

    def interrupted(*arguments: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(hushrec.recommender, "train", interrupted)
    assert run_main(monkeypatch, *TRAIN) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_person_who_rated_everything_brings_no_option_that_was_not_given_into_an_error() -> None:
    """Three people, three items, all rated: whoever has an item held out takes part, and nothing is refused."""
    users, items = np.repeat(np.arange(3), 3), np.tile(np.arange(3), 3)
    values = np.array([5.0, 4, 1, 4, 5, 1, 1, 2, 5])
    square = Ratings("square", ["a", "b", "c"], ["x", "y", "z"], users, items, values, Scale(1, 5))
    result = train(square, model="mf", rounds=3, factors=2, compare=False)
    assert 0 < result.record["budget"]["reports_per_client"] < 3
