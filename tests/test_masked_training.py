"""`train` and `recommend` with the masked protocol, from Python and from the command line."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import polars as pl
import pytest
from typer.testing import CliRunner

import hushrec
from hushrec.cli.app import app
from hushrec.data import load as load_ratings
from hushrec.data import random_split
from hushrec.data.ratings import Ratings
from hushrec.data.shards import write_shards
from hushrec.errors import DataError, ParameterError
from hushrec.protocols.masked.protocol import Masked
from hushrec.scale import Scale
from hushrec.simulation.results import Result
from hushrec.simulation.results import load as load_run
from hushrec.simulation.settings import Settings
from hushrec.simulation.sharded import train_shards
from hushrec.simulation.training import train
from hushrec.simulation.verdict import verdict

DATA = "synthetic:users=80,items=60,ratings=2400,seed=1"


@pytest.fixture(scope="module")
def result() -> Result:
    """One run with every default."""
    return train(DATA)


def test_a_larger_budget_is_no_loss_to_people_with_few_ratings() -> None:
    """Ten ratings each: ε = 8 beats the bias model and ε = 1. Noise in the curvature block must not be inverted."""
    strict, usual = (train("synthetic:users=5000,items=40,ratings=50000", epsilon=epsilon) for epsilon in (1, 8))
    bias = usual.record["baselines"]["bias"]["rmse"]
    assert usual.metrics["rmse"] < min(strict.metrics["rmse"], bias - 0.01)


def test_masked_is_what_train_does_by_default(result: Result) -> None:
    """Protocol, model and budget, with both units of ε and what is not covered."""
    budget = result.record["budget"]
    assert (result.record["protocol"], result.record["model"]) == ("masked", "gp")
    assert (budget["epsilon"], budget["delta"]) == (8.0, 1e-6)
    assert budget["item_level"] > 2 * budget["epsilon"]
    assert budget["rounds"] == result.record["rounds"] == len(result.record["curve"])
    assert result.metrics["rmse"] < result.record["baselines"]["user_mean"]["rmse"]


def test_models_that_masked_does_not_speak_keep_their_protocol() -> None:
    """`--model mf` alone is `sdcf`, as before."""
    assert train(DATA, model="mf", rounds=1, factors=2, compare=False).record["protocol"] == "sdcf"


def test_rounds_of_a_plan_are_not_chosen_by_exact_ratings(result: Result) -> None:
    """Neither by `patience`, nor by the advice of a verdict."""
    with pytest.raises(ParameterError, match="patience"):
        Settings(protocol="masked", patience=2)
    better_before = result.record | {"curve": [{"round": 1, "rmse": 0.1}, {"round": 2, "rmse": 0.9}]}
    assert "patience" not in verdict(better_before)
    popular = {"popularity": {"precision_at_10": result.record["metrics"]["precision_at_10"]}}
    assert "are about as good as" in verdict(result.record | {"baselines": result.record["baselines"] | popular})


def test_a_masked_run_that_loses_says_how_to_find_out_why(result: Result) -> None:
    """No other protocol is trained beside it: a run without noise tells noise from a lack of ratings."""
    losing = result.record | {"baselines": {"bias": {"rmse": 0.1}}, "within_chance": {}}
    assert "Try --epsilon inf" in verdict(losing)
    assert "--model audience" in verdict(losing | {"baselines": {"bias": {"rmse": 0.0}}})
    noiseless = verdict(losing | {"budget": losing["budget"] | {"epsilon": np.inf}})
    assert "no noise" in noiseless
    assert "--epsilon" not in noiseless
    for reading in ({"items": "films.csv"}, None):
        listed = losing | {"attributes": 40, "reading": reading}
        for epsilon in (8.0, np.inf):
            assert "try it without --items" in verdict(listed | {"budget": losing["budget"] | {"epsilon": epsilon}})
    assert "--items" not in verdict(losing | {"attributes": 19, "reading": {"source": "ml-100k"}})
    assert "attributes of the items (--items)" in verdict(losing | {"attributes": 0})
    assert "--epsilon" not in verdict(losing | {"baselines": {"bias": {"rmse": 9.0}}})


def test_lists_are_compared_with_both_kinds_of_popularity(result: Result) -> None:
    """Exact counts protect nobody; noisy counts are what this run could show instead of its own lists."""
    baselines = result.record["baselines"]
    assert baselines["private_popularity"].keys() == baselines["popularity"].keys()
    own, sides = result.metrics["precision_at_10"], {"popularity": 1.0, "private_popularity": -1.0}
    lists = {name: {"precision_at_10": own + side} for name, side in sides.items()}
    told = verdict(result.record | {"baselines": baselines | lists, "within_chance": {}})
    assert re.search("lists lose to the most popular items .* and beat those by its own noisy counts", told)


def test_without_noise_training_is_said_to_protect_nothing_but_by_masks() -> None:
    """ε = ∞ is a number in Python, "inf" in JSON, and a caveat in words."""
    budget = train(DATA, epsilon=np.inf).record["budget"]
    assert budget["epsilon"] == np.inf
    assert any("exact sums" in line for line in budget["not_covered"])


def test_recommendations_come_with_deviations_and_released_support(result: Result) -> None:
    """Sorted by log n + o/2 + 3/2 (p − o), from the released popularity n and offset o, and the prediction p."""
    best = result.recommend("7", 60)
    assert all(item.deviation is not None and 0 < item.deviation < 2 for item in best)
    offsets = dict(zip(result.item_ids, result.predictor.table.offsets, strict=True))  # type: ignore[attr-defined]
    expected = [np.log(item.support) + 1.5 * item.predicted - offsets[item.item] for item in best if item.predicted]
    scores = [item.score for item in best]
    assert scores == sorted(scores, reverse=True)
    np.testing.assert_allclose(scores, expected, atol=0.2)  # support is shown as a whole number


@pytest.mark.parametrize("epsilon", [1.0, 8.0, np.inf])
def test_deviations_hold_for_held_out_ratings(epsilon: float) -> None:
    """About two thirds or more are within one deviation, and nearly all within two, even if nothing tells tastes.

    Without titles and attributes the taste that the item columns do not express is part of the deviation.
    """
    ratings = replace(load_ratings(DATA), titles=None, attributes=None)
    result = train(ratings, epsilon=epsilon)
    test = ratings.rows(random_split(ratings.n_ratings, 0).test)
    assert test.values is not None
    wide = np.array([result.predictor.deviations(user) for user in range(80)])[test.users, test.items]
    off = np.abs(result.predictor.predict(test.users, test.items) - test.values)
    assert 0.6 < np.mean(off < wide) < 0.78
    assert np.mean(off < 2 * wide) > 0.93


@pytest.mark.parametrize(("width", "scale"), [(1.0, "1,100"), (15.0, "-50,50"), (0.4, "0,1")])
def test_deviations_are_as_large_as_errors_on_scales_that_are_hardly_used(width: float, scale: str) -> None:
    """Ratings in the middle of a scale, around items of different quality: within a factor of two of the errors.

    With the constant variance of the model alone, the deviations were those of the whole scale.
    """
    rng = np.random.default_rng(4)
    users, items = np.repeat(np.arange(200), 30), np.concatenate([rng.permutation(60)[:30] for _ in range(200)])
    low, high = map(float, scale.split(","))
    values = (low + high) / 2 + width * (0.5 * rng.normal(size=60)[items] + rng.normal(size=6_000))
    table = pl.DataFrame({"user": users, "item": items, "rating": np.clip(values, low, high)})
    ratings = hushrec.data.load(table, scale=scale)
    result = train(ratings)
    test = ratings.rows(random_split(ratings.n_ratings, 0).test)
    deviations = np.array([result.predictor.deviations(user) for user in range(200)])[test.users, test.items]
    off = result.scale.from_unit(result.predictor.predict(test.users, test.items)) - test.values
    ratio = np.sqrt(np.mean(deviations**2)) * (high - low) / 4 / np.sqrt(np.mean(off**2))
    assert 0.5 < ratio < 2


def test_somebody_unseen_gets_recommendations_that_follow_their_ratings(result: Result) -> None:
    """A user's own profile gives that user's predictions; nobody has to train again."""
    rows = result.predictor.ratings  # type: ignore[attr-defined]
    own = slice(rows.starts[7], rows.starts[8])
    profile = {
        result.item_ids[item]: float(value) for item, value in zip(rows.items[own], rows.values[own], strict=True)
    }
    unseen = {item.item: item for item in result.recommend_to(profile, 60)}
    seen = result.recommend(result.user_ids[7], 10)
    assert seen
    for item in seen:
        assert unseen[item.item].predicted == pytest.approx(item.predicted)
        assert unseen[item.item].deviation == pytest.approx(item.deviation)
    assert all(reason.item in profile for reason in result.explain_to(profile, seen[0].item))
    assert len(result.recommend_to({}, 3)) == 3


def test_a_profile_off_the_catalogue_or_the_scale_is_refused(result: Result) -> None:
    """In words that name neither item nor rating."""
    with pytest.raises(ParameterError, match="items") as error:
        result.recommend_to({"secret": 4.0})
    assert "secret" not in str(error.value)
    with pytest.raises(ParameterError, match="scale"):
        result.recommend_to({result.item_ids[0]: 6.5})
    with pytest.raises(ParameterError, match="gp"):
        train(DATA, model="mf", rounds=1, factors=2, compare=False).recommend_to({result.item_ids[0]: 4.0})


def test_a_run_folder_predicts_as_before(result: Result, tmp_path: Path) -> None:
    """Saved and loaded: the same lists."""
    result.save(tmp_path / "run")
    assert load_run(tmp_path / "run").recommend("7", 5) == result.recommend("7", 5)


def test_the_command_line_trains_and_recommends_to_a_file_of_ratings(tmp_path: Path) -> None:
    """Both ε with their units, deviations in the table, and one sentence where neither user nor file is given."""
    runner, folder = CliRunner(), str(tmp_path / "run")
    trained = runner.invoke(app, ["train", DATA, "--epsilon", "4", "--dropout", "0.1", "--out", folder])
    assert trained.exit_code == 0, trained.output
    assert "ε = 4" in trained.output
    assert "whole profile" in trained.output
    mine = tmp_path / "mine.csv"
    item = load_run(folder).item_ids[0]
    mine.write_text(f"item,rating\n{item},5\n")
    listed = runner.invoke(app, ["recommend", folder, "--as-measured", "--user-ratings", str(mine), "-n", "2", "--why"])
    assert listed.exit_code == 0, listed.output
    assert "±" in listed.output
    as_json = runner.invoke(app, ["recommend", folder, "--as-measured", "--user-ratings", str(mine), "--json"])
    assert json.loads(as_json.output)["items"][0]["deviation"] > 0
    mine.write_text(f"{item}\n")
    unrated = runner.invoke(app, ["recommend", folder, "--as-measured", "--user-ratings", str(mine)])
    assert "in a file, an item and its rating on each line" in str(unrated.exception)
    neither = runner.invoke(app, ["recommend", folder, "--as-measured"])
    assert isinstance(neither.exception, ParameterError)


def test_public_ratings_help_everybody_and_cost_nothing(tmp_path: Path) -> None:
    """Seventy volunteers beside thirty devices at ε = 1: the same budget and caveats, and a smaller error."""
    whole = hushrec.data.load("synthetic:users=100,items=60,ratings=3000,seed=1")
    assert whole.values is not None
    files = {name: tmp_path / f"{name}.csv" for name in ("private", "public")}
    for name, chosen in (("private", whole.users < 30), ("public", whole.users >= 30)):
        rows = zip(whole.users[chosen], whole.items[chosen], whole.values[chosen], strict=True)
        files[name].write_text("user,item,rating\n" + "".join(f"{u},{i},{value:g}\n" for u, i, value in rows))
    items = tmp_path / "items.csv"
    items.write_text("id,title\n" + "".join(f"{item},Film {item}\n" for item in range(60)))
    alone = hushrec.train(hushrec.data.load(files["private"], items=items), epsilon=1)
    beside = hushrec.data.load(files["private"], items=items, public=files["public"])
    helped = hushrec.train(beside, epsilon=1)
    assert helped.metrics["rmse"] < alone.metrics["rmse"] - 0.02
    assert helped.budget == alone.budget
    assert helped.record["data"]["public"] == np.count_nonzero(whole.users >= 30)
    helped.save(tmp_path / "run")
    kept = load_run(tmp_path / "run").ratings.public
    assert kept is not None
    assert beside.public is not None
    np.testing.assert_array_equal(kept.values, beside.public.values)
    with pytest.raises(ParameterError, match="public"):
        hushrec.train(beside, model="mf", rounds=1, factors=2, compare=False)


@pytest.mark.parametrize(
    ("row", "options", "name"),
    [("v,unheard of,3", {}, "public"), ("v,f1,7", {}, "rating"), ("v,f1,3", {"implicit": True}, "public")],
)
def test_public_ratings_off_the_catalogue_or_the_scale_are_refused(
    tmp_path: Path, row: str, options: dict[str, bool], name: str
) -> None:
    """In words that name neither item nor rating."""
    ratings, items = write_films(tmp_path, 20)
    public = tmp_path / "public.csv"
    public.write_text(f"user,item,rating\n{row}\n")
    with pytest.raises(DataError, match=name) as refused:
        hushrec.data.load(ratings, items=items, public=public, **options)  # type: ignore[arg-type]
    assert "unheard" not in str(refused.value)


def write_films(folder: Path, listed: int) -> tuple[Path, Path]:
    """Ratings of 20 films, the last of them by one person, and an items file of so many."""
    source = hushrec.data.load("synthetic:users=30,items=20,ratings=300,seed=2")
    assert source.values is not None
    rows = zip(source.users, source.items, source.values, strict=True)
    ratings, items = folder / "ratings.csv", folder / "items.csv"
    ratings.write_text("user,item,rating\n" + "".join(f"u{user},f{item},{value:g}\n" for user, item, value in rows))
    items.write_text("id,title,year\n" + "".join(f"f{item},Film {item},{1980 + item}\n" for item in range(listed)))
    return ratings, items


def test_training_runs_over_the_whole_items_file(tmp_path: Path) -> None:
    """An item that nobody rated has predictions, may be listed, and is no candidate of measured lists."""
    ratings, items = write_films(tmp_path, 26)
    found = hushrec.train(hushrec.data.load(ratings, items=items))
    assert (found.record["data"]["items"], found.record["data"]["candidates"]) == (26, 20)
    assert not any("rated at all" in line for line in found.record["budget"]["not_covered"])
    assert {f"f{item}" for item in range(20, 26)} <= set(found.recommend("u7", 26)["item"])
    found.save(tmp_path / "run")
    again = load_run(tmp_path / "run")
    assert again.item_ids == found.item_ids
    assert (len(again.ratings.rated_items), again.ratings.n_unlisted) == (20, 0)
    beside = hushrec.train(hushrec.data.load(ratings, items=items), model="mf", rounds=1, factors=2, compare=False)
    assert beside.record["data"]["items"] == 20


@pytest.mark.parametrize("model", ["gp", "audience"])
@pytest.mark.parametrize("options", [{"dropout": 0.8}, {"own_epsilon": 1e-9}], ids=["absent", "clipped to nothing"])
def test_the_public_table_is_the_same_whatever_a_person_rated_who_sent_nothing(
    tmp_path: Path, model: str, options: dict[str, float]
) -> None:
    """Bit for bit, through `train`: not even the only rating of an item moves an item's place, and so its noise."""
    ratings, _ = write_films(tmp_path, 0)
    items = tmp_path / "items.csv"
    items.write_text("id,title,year\n" + "".join(f"f{item},Film {item},{1970 + item}\n" for item in range(29, -1, -1)))
    rows = ratings.read_text().splitlines()
    users = hushrec.data.load(ratings, items=items).user_ids
    protocol = Masked(8.0, **options)
    silent = np.all([~protocol.present(0, number, len(users)) for number in range(1, 10)], axis=0)
    person = users[int(np.flatnonzero(silent)[0])] if "dropout" in options else users[0]
    others = [row for row in rows if not row.startswith(f"{person},")]
    found = []
    for own in ([row for row in rows if row.startswith(f"{person},")], [f"{person},f25,1"]):
        ratings.write_text("\n".join([*others, *own]))
        data = hushrec.data.load(ratings, items=items)
        result = train(data, model=model, final=True, **options)
        public = {name: a for name, a in result.predictor.arrays().items() if not name.startswith("rated_")}
        found.append({"ids": result.item_ids, **{name: array.tobytes() for name, array in public.items()}})
    assert found[0]["ids"] == [f"f{item}" for item in range(29, -1, -1)]
    assert found[0] == found[1]


def test_a_scale_that_ratings_make_is_said_to_reveal_them(tmp_path: Path) -> None:
    """Guessed from a file or from its shards; not where the scale is given."""
    path, items = write_films(tmp_path, 20)
    guessed = hushrec.data.load(path, items=items)
    write_shards(guessed, tmp_path / "shards", ratings_per_shard=200)
    given = hushrec.data.load(path, items=items, scale="1,5")
    records = [train(guessed).record, train_shards(tmp_path / "shards")[0], train(given).record]
    found = [[line for line in record["budget"]["not_covered"] if "--scale" in line] for record in records]
    assert list(map(len, found)) == [1, 1, 0]


@pytest.mark.parametrize(("listed", "unlisted"), [(0, "20"), (17, "3")])
def test_a_catalogue_that_ratings_make_is_said_to_reveal_them(tmp_path: Path, listed: int, unlisted: str) -> None:
    """Without an items file, or with one that leaves rated items out."""
    ratings, items = write_films(tmp_path, listed)
    found = hushrec.train(hushrec.data.load(ratings, items=items if listed else None), epsilon=1)
    assert any(line.startswith(f"which items are rated at all: {unlisted} ") for line in
               found.record["budget"]["not_covered"])  # fmt: skip


@pytest.mark.parametrize(
    "rows",
    [
        [(0, 0, 4), (0, 1, 2), (1, 0, 3), (1, 1, 5), (2, 2, 1), (2, 0, 1), (0, 2, 3)],  # three by three
        [(0, item, 3) for item in range(6)],  # one person
        [(user, 0, 1 + user % 5) for user in range(12)],  # one item
        [(user, item, 3) for user in range(6) for item in range(6)],  # the same rating everywhere, all of them
        [(user, item, 1 + user * item % 5) for user in range(6) for item in range(6)],  # everybody rated everything
    ],
    ids=["three by three", "one person", "one item", "constant", "everything"],
)
def test_tiny_data_gives_an_answer(rows: list[tuple[int, int, int]]) -> None:
    """Finite predictions within the scale, whatever there is to learn from."""
    users, items, values = (np.array(column) for column in zip(*rows, strict=True))
    names = [str(user) for user in range(users.max() + 1)], [str(item) for item in range(items.max() + 1)]
    ratings = Ratings("tiny", *names, users, items, values.astype(float), Scale(1, 5))
    found = train(ratings)
    assert np.isfinite(found.metrics["rmse"])
    predicted = found.predictor.predict(users, items)
    assert np.all((predicted >= 1) & (predicted <= 5))


def test_other_scales_are_mapped_and_mapped_back() -> None:
    """0 to 100 instead of 1 to 5: everything is 25 times as wide."""
    narrow = hushrec.data.load(DATA)
    assert narrow.values is not None
    wide = Ratings("wide", narrow.user_ids, narrow.item_ids, narrow.users, narrow.items, 25 * (narrow.values - 1),
                   Scale(0, 100), narrow.titles, narrow.attributes)  # fmt: skip
    first, second = train(narrow), train(wide)
    assert second.metrics["rmse"] == pytest.approx(25 * first.metrics["rmse"], rel=1e-6)
    assert second.recommend("7", 1)[0].deviation == pytest.approx(25 * first.recommend("7", 1)[0].deviation)


@pytest.mark.parametrize(
    ("titles", "amplitude"), [(None, 0.0), (["Same (1990)", "Same II (1995)"] + ["Other"] * 13, 0.12)]
)
def test_items_of_which_only_ids_are_known_are_not_alike(titles: list[str] | None, amplitude: float) -> None:
    """Neither by quality nor by popularity; titles make them so."""
    data = hushrec.data.load("synthetic:users=20,items=15,ratings=150,seed=3")
    bare = replace(data, attributes=None, catalogue=None, titles=titles)
    predictor = train(bare, final=True).predictor
    assert predictor.table.kernel[0] == amplitude  # type: ignore[attr-defined]
    predicted = predictor.predict(np.zeros(15, np.int64), np.arange(15))
    ratings = predictor.ratings  # type: ignore[attr-defined]
    own = slice(ratings.starts[0], ratings.starts[1])
    assert np.allclose(predicted, predictor.of_profile(ratings.items[own], ratings.values[own]).predicted)


@pytest.mark.parametrize("model", ["gp", "audience"])
def test_a_run_is_the_same_bit_for_bit_in_any_number_of_threads(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learned, and what is predicted from it, through `train`."""
    data = hushrec.data.load("synthetic:users=60,items=30,ratings=900,seed=4")
    found = []
    for threads in (1, 2, 4):
        monkeypatch.setattr(numba, "get_num_threads", lambda threads=threads: threads)
        result = train(data, model=model)
        arrays = {name: array.tobytes() for name, array in result.predictor.arrays().items()}
        users = np.arange(60)
        found.append((arrays, result.metrics, result.predictor.scores(users).tobytes()))
    assert found[0] == found[1] == found[2]
