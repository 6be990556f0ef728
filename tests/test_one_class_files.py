"""Files that say who met what, without values: reading, training, lists for users and for newcomers, tiny sets."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hushrec.cli import app
from hushrec.data.own import read_own_profile, read_own_ratings
from hushrec.data.sources import load
from hushrec.errors import DataError, ParameterError
from hushrec.recommender import Recommender
from hushrec.scale import Scale
from hushrec.simulation.results import Result
from hushrec.simulation.training import train

N_USERS, N_ITEMS = 30, 12
ITEMS = "item,title,kind\n" + "".join(f"i{item},Title {item},{'odd' if item % 2 else 'even'}\n" for item in range(12))
TINY = {
    "three by three": [(0, 0), (0, 1), (1, 1), (1, 2), (2, 0), (2, 2)],
    "one person": [(0, item) for item in range(6)],
    "one item": [(user, 0) for user in range(6)],
    "one pair": [(0, 0)],
    "everybody has everything": [(user, item) for user in range(5) for item in range(4)],
    "one item each": [(user, user % 4) for user in range(8)],
}
NOTHING_TO_HOLD_OUT = {"one item", "one pair", "one item each"}


def write_pairs(path: Path, pairs: list[tuple[int, int]]) -> Path:
    """A file of user and item."""
    path.write_text("user,item\n" + "".join(f"u{user},i{item}\n" for user, item in pairs))
    return path


def half_of_all() -> list[tuple[int, int]]:
    """Everybody met about half of the items, mostly of one kind."""
    rng = np.random.default_rng(2)
    alike = np.arange(N_USERS)[:, None] % 2 == np.arange(N_ITEMS) % 2
    users, items = np.nonzero(rng.random((N_USERS, N_ITEMS)) < np.where(alike, 0.7, 0.2))
    return list(zip(users.tolist(), items.tolist(), strict=True))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on all pairs, with an items file, that the command line made."""
    place = tmp_path_factory.mktemp("one-class")
    items = place / "items.csv"
    items.write_text(ITEMS)
    command = ["train", str(write_pairs(place / "met.csv", half_of_all())), "--items", str(items), "--final"]
    outcome = CliRunner().invoke(app, [*command, "--out", str(place / "run")])
    assert outcome.exit_code == 0, outcome.output
    return place / "run"


@pytest.fixture(scope="module")
def recommender(folder: Path) -> Recommender:
    """The same in Python."""
    return Recommender.load(folder)


def met_by(user: int) -> list[str]:
    """What a user of the file met."""
    return [f"i{item}" for other, item in half_of_all() if other == user]


def test_a_newcomer_gets_the_list_of_a_user_with_the_same_items(recommender: Recommender) -> None:
    """Items alone or with values, in any order: scores depend on the public table and on the items alone."""
    assert recommender.record["model"] == "audience"
    expected = recommender.recommend("u3", 4).drop("user").to_dicts()
    for profile in (met_by(3), met_by(3)[::-1], dict.fromkeys(met_by(3), 1.0)):
        assert recommender.recommend_for(profile, 4).to_dicts() == expected


def test_a_newcomer_without_items_gets_what_is_popular(recommender: Recommender) -> None:
    """The released counts decide; an item that the run does not know is refused, without being named."""
    listed = recommender.recommend_for([], N_ITEMS)
    assert listed["support"].to_list() == sorted(listed["support"], reverse=True)
    with pytest.raises(ParameterError, match="items") as error:
        recommender.recommend_for(["secret"], 3)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("header", ["item\n", ""])
def test_the_command_line_reads_a_newcomers_items(folder: Path, tmp_path: Path, header: str) -> None:
    """A file of one column, with or without a header: the list of the user, and reasons without ratings."""
    mine = tmp_path / "mine.csv"
    mine.write_text(header + "\n".join(met_by(3)) + "\n")
    lists = {}
    for who in (("--user", "u3"), ("--user-ratings", str(mine))):
        outcome = CliRunner().invoke(app, ["recommend", str(folder), *who, "-n", "3", "--why", "--json"])
        assert outcome.exit_code == 0, outcome.output
        lists[who[0]] = json.loads(outcome.stdout)["items"]
    assert lists["--user"] == lists["--user-ratings"]
    reasons = [reason for item in lists["--user"] for reason in item["reasons"]]
    assert reasons
    assert {reason["rating"] for reason in reasons} == {None}
    assert {reason["item"] for reason in reasons} <= set(met_by(3))
    shown = CliRunner().invoke(app, ["recommend", str(folder), "--user-ratings", str(mine), "-n", "1", "--why"])
    assert reasons[0]["title"] in shown.output
    assert "None" not in shown.output


def test_ratings_below_the_lowest_action_are_no_actions_of_a_newcomer() -> None:
    """With at_least a profile needs values; what was rated lower is not learned from, and not recommended either."""
    data = "synthetic:users=40,items=20,ratings=400,seed=1"
    result = train(data, model="audience", at_least=4.0, final=True, compare=False)
    liked, disliked = result.item_ids[:2]
    alone = [entry for entry in result.recommend_to({liked: 5.0}, 20) if entry.item != disliked]
    assert result.recommend_to({liked: 5.0, disliked: 1.0}, 20) == alone
    with pytest.raises(ParameterError, match="profile"):
        result.recommend_to([liked])


def test_a_model_of_ratings_needs_values(recommender: Recommender) -> None:
    """Items alone are refused by gp, and its own kind of profile is not."""
    result = train("synthetic:users=40,items=20,ratings=400,seed=1", final=True, compare=False)
    with pytest.raises(ParameterError, match="profile"):
        result.recommend_to(result.item_ids[:2])
    assert result.recommend_to({result.item_ids[0]: 5.0}, 2)


@pytest.mark.parametrize("with_items", [False, True], ids=["pairs alone", "with an items file"])
@pytest.mark.parametrize("name", TINY)
def test_tiny_files_have_an_answer(tmp_path: Path, name: str, with_items: bool) -> None:
    """Measured where something can be held out, one sentence elsewhere; lists for users and newcomers in any case."""
    items = tmp_path / "items.csv"
    items.write_text(ITEMS)
    ratings = load(write_pairs(tmp_path / "met.csv", TINY[name]), items=items if with_items else None)
    if name in NOTHING_TO_HOLD_OUT:
        with pytest.raises(DataError, match="ratings must"):
            train(ratings, compare=False)
    else:
        assert np.isfinite(train(ratings, compare=False).metrics["auc"])
    result = train(ratings, compare=False, final=True)
    check_lists(result, {item for user, item in TINY[name] if user == 0})


def check_lists(result: Result, met: set[int]) -> None:
    """Nothing that was met, everything else, with finite scores; the same for a newcomer."""
    others = set(result.item_ids) - {f"i{item}" for item in met}
    for listed in (result.recommend("u0", 20), result.recommend_to([f"i{item}" for item in met], 20)):
        assert {entry.item for entry in listed} == others
        assert np.isfinite([entry.score for entry in listed]).all()
    assert len(result.recommend_to([], 20)) == len(result.item_ids)


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("item,rating\ni1,5\nnowhere,4\n", ", line 3", "one of the 12 items"),
        ("i1;5\n\ni2;x\n", ", line 3", "an item and its rating"),
        ("item\ni1\ni1\n", ", line 3", "each item once"),
        ("i1\t5\ni2\t99\n", ", line 2", "scale of the run"),
        ("item,rating\n", "", "at least one rating"),
        ("", "", "at least one row"),
        ("item,stars,when\ni1,5,2\n", ", line 1", "an item and its rating"),
        ("note,item\n5,i1\n", ", line 1", "a header with the names item and rating"),
    ],
)
def test_a_wrong_profile_is_named_by_file_and_line(tmp_path: Path, text: str, place: str, word: str) -> None:
    """And not by its item: what a person knows stays out of errors."""
    path = tmp_path / "mine.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=word) as refused:
        read_own_profile(path, [f"i{item}" for item in range(12)], Scale(1, 5))
    assert str(refused.value).startswith(f"{path}{place}")
    assert "nowhere" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["rating,item\n5,i1\n3.5,i2\n", "i1;5\n\ni2;3,5\n", '\n"i1"\t5\n"i2"\t3.5\n', "Movie,Stars\ni1,5\ni2,3.5"]
)
def test_a_profile_is_read_like_a_rating_file(tmp_path: Path, text: str) -> None:
    """Columns by the names of the header; empty lines, quotes and decimal commas."""
    path = tmp_path / "mine.csv"
    path.write_text(text)
    assert read_own_profile(path, ["i1", "i2"], Scale(1, 5)) == read_own_ratings(path) == {"i1": 5, "i2": 3.5}


def test_items_alone_are_no_ratings(tmp_path: Path) -> None:
    """A device stores ratings; a list of items is refused."""
    path = tmp_path / "mine.csv"
    path.write_text("item\ni1\n")
    with pytest.raises(DataError, match="line 2: expected an item and its rating"):
        read_own_ratings(path)


def test_reasons_are_what_the_model_takes_as_met(tmp_path: Path) -> None:
    """From `at_least` up, and below a person's mean as well where every rating is an action."""
    pairs = half_of_all()
    rated = [(user, item, 5 if (user + item) % 3 else 2) for user, item in pairs]
    path = tmp_path / "rated.csv"
    path.write_text("user,item,rating\n" + "".join(f"u{user},i{item},{value}\n" for user, item, value in rated))
    named = {}
    for at_least in (None, 4.0):
        fitted = Recommender(model="audience", at_least=at_least).fit(path)
        found = [fitted.explain("u3", row["item"], 12) for row in fitted.recommend("u3", 12).to_dicts()]
        named[at_least] = {value for frame in found for value in frame["rating"]}
    assert named == {None: {2.0, 5.0}, 4.0: {5.0}}
    with pytest.raises(ParameterError, match="at_least"):
        fitted.recommend_for(["i1"])
    with pytest.raises(ParameterError, match="profile"):
        Recommender(model="audience").fit(path).recommend_for("i1")
