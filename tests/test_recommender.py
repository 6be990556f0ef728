"""`hushrec.Recommender`: what goes in, what comes out, what is kept, and what scikit-learn does with it."""

import importlib
import json
import os
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import polars as pl
import pytest
import scipy.sparse
from polars.testing import assert_frame_equal

import hushrec
from hushrec.data import Ratings, load, random_split
from hushrec.errors import DataError, LocalProtocolError, ParameterError
from hushrec.evaluate import auc_of_ranks, held_out_ranks
from hushrec.recommender import read_ratings
from hushrec.simulation.settings import COMMON, ModelSettings, declared_options

SMALL = "synthetic:users=60,items=40,ratings=1400,seed=1"
PUBLIC = ["Comparison", "Device", "HushrecError", "Recommender", "__version__", "compare", "data", "grid", "train"]
METHODS = {
    "budget", "compares_items", "explain", "explain_for", "fit", "get_params", "item_ids", "load", "measure", "metrics",
    "predict", "recommend", "recommend_for", "record", "save", "scale", "score", "set_params", "similar_items",
    "user_ids",
}  # fmt: skip
OF_A_DEVICE = {
    "add_rating", "add_ratings", "asks", "budget", "budgets", "catalogue", "choose", "close", "compares_items",
    "create", "drop_out", "erase", "follow", "forget", "has_joined", "has_learned", "join", "leave",
    "list_order", "look_at", "look_next", "offer", "predict", "public_table", "raise_budget", "ratings", "reasons",
    "recommend", "remove_rating", "rotate_key", "search", "sent", "server", "status", "step",
}  # fmt: skip


@pytest.fixture(scope="module")
def ratings() -> Ratings:
    """Sixty users by forty items."""
    return load(SMALL)


@pytest.fixture(scope="module")
def frame(ratings: Ratings) -> pl.DataFrame:
    """The same as a table of user, item and rating."""
    assert ratings.values is not None
    users, items = ([ids[place] for place in places] for ids, places in _columns(ratings))
    return pl.DataFrame({"user": users, "item": items, "rating": ratings.values})


def _columns(ratings: Ratings) -> list[tuple[list[str], Any]]:
    return [(ratings.user_ids, ratings.users), (ratings.item_ids, ratings.items)]


@pytest.fixture(scope="module")
def fitted(frame: pl.DataFrame) -> hushrec.Recommender:
    """Everything at its default."""
    return hushrec.Recommender(epsilon=8).fit(frame)


class OnlyArrow:
    """A table of which nothing is known but its Arrow stream."""

    def __init__(self, frame: pl.DataFrame) -> None:
        self._frame = frame

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._frame.__arrow_c_stream__(requested_schema)


def test_the_public_names_are_these() -> None:
    """A new public name, or one that goes, is a decision: this list and the documentation change with it."""
    assert sorted(hushrec.__all__) == PUBLIC == dir(hushrec)
    for name in hushrec.__all__:
        assert getattr(hushrec, name) is not None
    assert {name for name in dir(hushrec.Recommender) if not name.startswith("_")} == METHODS
    assert {name for name in dir(hushrec.Device) if not name.startswith("_")} == OF_A_DEVICE
    assert not set(hushrec.__all__) & set(hushrec.data.__all__)


def test_help_shows_how_to_begin() -> None:
    """`help(hushrec)` names every public name in an example or a sentence."""
    for name in ("Recommender", "train", "grid", "compare", "Device", "HushrecError", "data.load"):
        assert name in str(hushrec.__doc__)
    shown = pydoc.plain(pydoc.render_doc(hushrec.Recommender)).partition("Every setting")[0]
    assert all(f"{name}: " in shown for name in ModelSettings.__annotations__), shown


def test_every_setting_is_typed_as_it_is_declared() -> None:
    """The names that type checkers know are the options that models and protocols declare, of the same kinds."""
    declared = {option.name: option.kind for option in COMMON} | {
        name: option.kind for name, option in declared_options().items()
    }
    typed = {name: kind for name, kind in get_type_hints(ModelSettings).items() if name != "options"}
    of_a_run = {"split_seed", "patience", "final"}
    assert typed.keys() == declared.keys() - of_a_run, "add the option to ModelSettings (simulation/settings.py)"
    for name, kind in typed.items():
        assert declared[name] in (kind, *getattr(kind, "__args__", ())), name


def test_a_misspelt_setting_is_found_by_mypy_and_by_python(tmp_path: Path) -> None:
    """`rouns=3` does not type-check, and is refused by name when it runs."""
    with pytest.raises(ParameterError, match="rouns"):
        hushrec.Recommender(rouns=3)  # type: ignore[call-arg]
    source = (
        "import hushrec\nhushrec.Recommender(rounds=3)\nhushrec.Recommender(rouns=3)\nhushrec.train('x', rouns=3)\n"
    )
    (tmp_path / "snippet.py").write_text(source)
    package = Path(hushrec.__file__).parent
    read = [package / "__init__.py", package / "recommender.py", package / "simulation" / "settings.py"]
    options = [
        "--follow-imports=skip",
        "--cache-dir",
        str(tmp_path / "cache"),
    ]  # nothing but what declares the settings
    command = [sys.executable, "-m", "mypy", *options, "snippet.py", *map(str, read)]
    environment = {"MYPYPATH": str(package.parent), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    found = [line.split(":")[1] for line in done.stdout.splitlines() if "rouns" in line]
    assert found == ["3", "4"], done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["lazy", "arrow", "array", "text array", "rows", "ratings", "file", "sparse", "X, y"])
def test_the_same_ratings_in_any_form_are_the_same(
    kind: str, frame: pl.DataFrame, ratings: Ratings, tmp_path: Path
) -> None:
    """One set of ratings: the same ids, rows and scale, whatever they come in."""
    frame.write_csv(tmp_path / "ratings.csv")
    matrix = scipy.sparse.csr_array((ratings.values, (ratings.users, ratings.items)), shape=(60, 40))
    forms: dict[str, Any] = {
        "lazy": frame.lazy(),
        "arrow": OnlyArrow(frame),
        "array": frame.cast(pl.Float64).to_numpy(),
        "text array": frame.cast(pl.String).to_numpy(),
        "rows": frame.rows(),
        "ratings": ratings,
        "file": tmp_path / "ratings.csv",
        "sparse": matrix,
    }
    if kind == "X, y":
        read = read_ratings(frame.select("user", "item"), frame["rating"].to_numpy())
    else:
        read = read_ratings(forms[kind])
    if kind == "sparse":  # whose ids are the numbers of its rows and columns, and whose entries are sorted
        assert (read.n_users, read.n_items, read.scale) == (60, 40, ratings.scale)
        order = np.lexsort((ratings.items, ratings.users))
        assert ratings.values is not None
        np.testing.assert_array_equal(read.values, ratings.values[order])
        return
    assert read.checksum == ratings.checksum


def test_pandas_goes_in_and_comes_out(frame: pl.DataFrame, ratings: Ratings) -> None:
    """Without pyarrow; text ids, categories and gaps are read."""
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    table = pandas.DataFrame(frame.to_dict(as_series=False))
    table["user"] = table["user"].astype("category")
    films = pandas.DataFrame({"id": [ratings.item_ids[0]], "title": ["The First"], "year": [None]})
    unfitted = hushrec.Recommender(model="mf", protocol="plain", rounds=2, factors=2, engine="reference")
    read = read_ratings(table, items=films)
    assert read.checksum == ratings.checksum
    assert read.titles is not None
    assert read.titles[:2] == ["The First", read.item_ids[1]]
    best = unfitted.fit(table, items=films).recommend(ratings.user_ids[3], 2)
    assert isinstance(best, pandas.DataFrame)
    assert list(best.columns) == ["user", "item", "title", "predicted", "deviation", "score", "support"]
    broken = table.assign(rating=[None, *table["rating"][1:]])
    with pytest.raises(DataError, match="row 1, column rating"):
        unfitted.fit(broken)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((3, 4)), "array"),
        ([], "row"),
        ([(1, 2, 3), (1, 2)], "row"),
        (7, "int"),
        (pl.DataFrame({"user": [], "item": [], "rating": []}), "ratings"),
        (pl.DataFrame({"who": ["a"], "what": ["b"], "how": [3]}), "user"),
    ],
)
def test_what_is_no_table_of_ratings_is_refused(data: Any, message: str) -> None:
    """In a sentence that says what is expected."""
    with pytest.raises(DataError, match=message):
        hushrec.Recommender().fit(data)


def test_lists_leave_out_what_was_rated_and_are_sorted(fitted: hushrec.Recommender, frame: pl.DataFrame) -> None:
    """One tidy frame, also of several people."""
    best = fitted.recommend(["7", 8], 5)
    assert best["user"].to_list() == ["7"] * 5 + ["8"] * 5
    assert best.filter(pl.col("user") == "7")["score"].is_sorted(descending=True)
    rated = best.join(frame, on=["user", "item"], how="inner")
    assert rated.is_empty()
    assert best.filter(pl.col("user") == "8").equals(fitted.recommend("8", 5))


def test_somebody_unseen_needs_no_training(fitted: hushrec.Recommender, frame: pl.DataFrame) -> None:
    """A user's own profile gives that user's predictions; ids may be numbers."""
    own = dict(frame.filter(pl.col("user") == "7").select("item", "rating").iter_rows())
    seen = fitted.recommend("7", 40).select("item", "predicted").sort("item")
    unseen = fitted.recommend_for({int(item): rating for item, rating in own.items()}, 40)
    assert_frame_equal(unseen.select("item", "predicted").sort("item"), seen)  # to rounding
    reasons = fitted.explain_for(own, seen["item"][0])
    assert_frame_equal(reasons, fitted.explain("7", seen["item"][0]))
    assert set(reasons["item"]) <= set(own)


def test_similar_items_are_others_the_likest_first(fitted: hushrec.Recommender) -> None:
    """Never the item itself."""
    alike = fitted.similar_items("3", 39)
    assert sorted([*alike["item"], "3"], key=int) == fitted.item_ids
    assert alike["likeness"].is_sorted(descending=True)
    with pytest.raises(ParameterError, match="item"):
        fitted.similar_items("no such")


def test_what_is_predicted_for_the_unknown(fitted: hushrec.Recommender, frame: pl.DataFrame) -> None:
    """A stranger like a person without ratings, an unknown item by the person's own mean, both by the overall mean."""
    found = fitted.predict([("stranger", "3"), ("7", "novelty"), ("stranger", "novelty"), ("7", "3")])
    own = frame.filter(pl.col("user") == "7")["rating"].mean()
    assert found[1:3] == pytest.approx([own, frame["rating"].mean()])
    assert found[0] == pytest.approx(fitted.recommend_for({}, 40).filter(pl.col("item") == "3")["predicted"][0])
    assert np.isfinite(found).all()


def test_measuring_held_out_ratings_is_what_train_measures(ratings: Ratings, frame: pl.DataFrame) -> None:
    """Two ways, one number: `train` holds a fifth out; `measure` is handed that fifth."""
    trained = hushrec.train(ratings, compare=False)
    test = frame[random_split(ratings.n_ratings, 0).test]
    found = trained.measure(test)
    assert {name: found[name] for name in trained.metrics} == pytest.approx(trained.metrics)
    assert 0.5 < found["auc"] < 1
    assert trained.score(test.select("user", "item"), test["rating"]) == -found["rmse"]


def test_held_out_ratings_off_the_scale_are_refused_like_training_ratings() -> None:
    """Whatever holds them; a scale that no guess would find is that of training."""
    rows = [(f"u{n % 8}", f"i{n // 8}", 1 + n % 5) for n in range(80)]
    fitted = hushrec.Recommender(protocol="plain", model="mf", rounds=1, factors=1).fit(rows)
    for off in (9, 900):
        test = [("u1", "i1", 5.0), ("u2", "i1", off)]
        with pytest.raises(DataError, match="row 2, column rating: expected a number from 1 to 5"):
            fitted.measure(test)
        with pytest.raises(DataError, match="row 2, column rating"):
            fitted.score([row[:2] for row in test], [5.0, off])
        with pytest.raises(ParameterError, match="scale of the training ratings, 1-5, but 1 of 2 do not"):
            fitted.measure(load(test, scale=(0, 1000)))
    wide = hushrec.Recommender(protocol="plain", model="mf", rounds=1, factors=1).fit(load(rows, scale=(1, 900)))
    assert wide.measure([("u1", "i1", 700)])["rmse"] > 0


def test_a_model_that_ranks_is_measured_by_its_lists(frame: pl.DataFrame) -> None:
    """Any action counts; there is no rating to predict."""
    order = np.random.default_rng(0).permutation(len(frame))
    train, test = (frame[rows].select("user", "item") for rows in (order[:1100], order[1100:]))
    ranking = hushrec.Recommender(model="bpr", protocol="plain", rounds=30, factors=4).fit(train)
    found = ranking.measure(test)
    assert found.keys() == {"auc", "precision_at_10", "recall_at_10", "ndcg_at_10"}
    assert ranking.score(test) == found["auc"] > 0.5
    own, known = ranking._training, ranking._fitted
    users = np.array([known.user_ids.index(name) for name in test["user"]])
    items = np.array([known.ratings.item_ids.index(name) for name in test["item"]])
    exact = auc_of_ranks(*held_out_ranks(known.predictor.scores, users, items, own.starts, own.items))
    assert found["auc"] == pytest.approx(np.mean(exact)), "scores of a ranking are not shrunk, as in `recommend`"
    assert np.isnan(ranking.predict([("nobody", "3")])).all()
    assert ranking.recommend("7", 1)["predicted"].to_list() == [None]
    assert ranking.measure(pl.concat([test, train])) == found, "no list holds what training has seen"
    assert ranking.measure(train) == {}
    with pytest.raises(ParameterError, match="ratings"):
        ranking.score(train)
    with pytest.raises(ParameterError, match="ratings"):
        hushrec.compare(ranking, ranking, train)


def test_kept_and_read_back_it_is_the_same(fitted: hushrec.Recommender, tmp_path: Path) -> None:
    """Settings and lists; no file of it is a pickle."""
    fitted.save(tmp_path / "run")
    again = hushrec.Recommender.load(tmp_path / "run")
    assert again.recommend("7", 5).equals(fitted.recommend("7", 5))
    assert again.get_params() == fitted.get_params() | {"epsilon": 8.0, "model": "gp", "protocol": "masked"}
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["items.parquet", "model.npz", "run.json"]
    with np.load(tmp_path / "run" / "model.npz", allow_pickle=False) as arrays:
        assert all(arrays[name].dtype != object for name in arrays.files)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["final"]


@pytest.mark.parametrize("columns", ["who,what,stars", ["who", "what", "stars"], ("1", "2", "3")])
def test_columns_of_a_frame_are_named_as_text_or_as_a_list(columns: Any, frame: pl.DataFrame, ratings: Ratings) -> None:
    """A frame with names of its own; without `columns` the refusal says how to name them."""
    own = frame.rename({"user": "who", "item": "what", "rating": "stars"})
    assert load(own, columns=columns).checksum == ratings.checksum
    with pytest.raises(DataError, match="columns="):
        load(own)


def test_a_setting_that_is_misspelt_names_the_one_that_was_meant() -> None:
    """In a recommender and among the options of plug-ins; something else is told where all are listed."""
    with pytest.raises(ParameterError, match="profile_cap"):
        hushrec.Recommender(profil_cap=3)  # type: ignore[call-arg]
    with pytest.raises(ParameterError, match="rounds"):
        hushrec.Recommender(options={"rouns": 3})
    with pytest.raises(ParameterError, match="help"):
        hushrec.Recommender(zzz=3)  # type: ignore[call-arg]


@pytest.mark.parametrize("seed", [1.5, "7", True, float("nan")])
def test_a_seed_that_is_no_whole_number_is_refused_at_once(seed: Any) -> None:
    """Before any data is read, and not by a TypeError of the engine."""
    with pytest.raises(ParameterError, match="seed must be a whole number"):
        hushrec.Recommender(seed=seed)
    with pytest.raises(ParameterError, match="split_seed must be a whole number"):
        hushrec.train("nowhere.csv", split_seed=seed)


def test_a_threshold_that_no_rating_reaches_is_named() -> None:
    """Nothing is left to learn from: the error says which option left it out."""
    rows = [("ann", "x", 3), ("bob", "y", 1), ("ann", "y", 2)]
    with pytest.raises(ParameterError, match="at_least"):
        hushrec.Recommender(model="audience", at_least=5).fit(rows)


def test_a_profile_whose_ratings_are_no_numbers_is_refused(fitted: hushrec.Recommender) -> None:
    """Without an echo of what was given."""
    with pytest.raises(ParameterError, match="numbers") as refused:
        fitted.recommend_for({"3": "fabulous"})  # type: ignore[dict-item]
    assert "fabulous" not in str(refused.value)


@pytest.mark.parametrize("n", [0, 1.5, True, "3", None, float("nan")])
def test_every_number_of_results_is_a_whole_number_from_one_up(fitted: hushrec.Recommender, n: Any) -> None:
    """One check for every method; 2.0 is 2."""
    calls: list[Callable[[Any], pl.DataFrame]] = [
        lambda n: fitted.recommend("3", n),
        lambda n: fitted.recommend_for({"3": 5}, n),
        lambda n: fitted.similar_items("3", n),
        lambda n: fitted.explain("3", "5", n),
        lambda n: fitted.explain_for({"3": 5}, "5", n),
    ]
    for call in calls:
        with pytest.raises(ParameterError, match=r"^n must be"):
            call(n)
        assert_frame_equal(call(2.0), call(2))


def test_several_users_are_a_list_an_array_or_a_series(fitted: hushrec.Recommender) -> None:
    """Every iterable of ids but a text, which is one id."""
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    expected = fitted.recommend(["3", "4"], 2)
    for users in (np.array([3, 4]), pl.Series([3, 4]), pd.Series([3, 4]), (3, "4")):
        assert_frame_equal(fitted.recommend(users, 2), expected)


def test_a_profile_is_a_mapping_a_series_or_a_list(fitted: hushrec.Recommender) -> None:
    """Other objects are refused by their type, and an item with two ratings by the number of such items."""
    pd = pytest.importorskip("pandas", reason="pandas is not installed")
    expected = fitted.recommend_for({"3": 4.0, "5": 2.0}, 3)
    assert_frame_equal(fitted.recommend_for(pd.Series({3: 4.0, 5: 2.0}), 3), expected)
    rows = {"item": [3], "rating": [4.0]}
    for other in (None, 5, "3", pl.DataFrame(rows), pd.DataFrame(rows)):
        with pytest.raises(ParameterError, match=f"profile must be .*{type(other).__name__}"):
            fitted.recommend_for(other, 3)  # type: ignore[arg-type]
    for twice in ({"3": 5, 3: 1}, pd.Series([5, 1], index=[3, 3])):
        with pytest.raises(ParameterError, match="each item id once, but 1 "):
            fitted.recommend_for(twice, 3)


@pytest.mark.parametrize("rating", [None, "four"])
def test_a_row_without_a_number_is_refused_with_its_place(rating: Any) -> None:
    """Text that is a number is read, as in a file, and an empty rating can be left out with `missing`."""
    with pytest.raises(DataError, match=r"row 2, column rating: expected a finite number"):
        load([("ann", "b1", 4), ("bob", "b1", rating)])
    assert load([("ann", "b1", "4"), ("bob", "b1", None)], missing="").n_ratings == 1


def test_a_scale_may_be_two_numbers() -> None:
    """As in records, and as in the text MIN,MAX."""
    rows = [("ann", "b1", 4), ("bob", "b1", 2)]
    for scale in ((0, 10), [0, 10], "0,10"):
        assert str(load(rows, scale=scale).scale) == "0-10"
    for scale in ((1,), 5, (1, "a")):
        with pytest.raises(DataError, match="scale must be"):
            load(rows, scale=scale)  # type: ignore[arg-type]


def test_what_a_person_should_know_is_a_warning_of_the_logger(
    fitted: hushrec.Recommender, ratings: Ratings, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where nobody passes `remark`: a library that is silent for half a minute seems to hang."""
    settings: ModelSettings = {"model": "mf", "protocol": "plain", "rounds": 1, "factors": 2, "engine": "reference"}
    hushrec.train(ratings, out=tmp_path / "run", compare=False, **settings)
    hushrec.Recommender.load(tmp_path / "run", refit=True)
    assert [(record.name, record.levelname) for record in caplog.records] == [("hushrec", "WARNING")]
    heard: list[str] = []
    hushrec.train(ratings, out=tmp_path / "other", compare=False, **settings)
    hushrec.Recommender.load(tmp_path / "other", refit=True, remark=heard.append)
    assert len(heard) == len(caplog.records) == 1


def test_before_it_is_fitted_it_says_what_to_do(fitted: hushrec.Recommender) -> None:
    """Also after its settings changed."""
    with pytest.raises(LocalProtocolError, match="fit"):
        hushrec.Recommender().recommend("7")
    changed = hushrec.Recommender(epsilon=1).set_params(epsilon=2, seed=3)
    assert (changed.get_params()["epsilon"], changed.get_params()["seed"]) == (2, 3)
    with pytest.raises(LocalProtocolError, match="fit"):
        changed.similar_items("3")


def test_it_shows_budget_and_metrics_and_no_rating(fitted: hushrec.Recommender, ratings: Ratings) -> None:
    """In one line, and as HTML that escapes what came from a file."""
    assert repr(hushrec.Recommender(epsilon=8, seed=1)) == "Recommender(epsilon=8, seed=1)"
    assert "60 users × 40 items" in repr(fitted)
    assert "ε 8" in repr(fitted)
    assert "not fitted" in hushrec.Recommender()._repr_html_()
    html = hushrec.train(ratings, compare=False)._repr_html_()
    for part in ("RMSE", "bias", "whole profile", "ε = 8", "not covered"):
        assert part in html


def test_importing_the_package_imports_nothing_heavy() -> None:
    """Nor does looking at its help; pandas and scikit-learn are never imported unless their frames are there."""
    code = "import sys, hushrec; dir(hushrec); print(sorted({'numpy', 'polars', 'numba'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


class TestScikitLearn:
    """`clone`, `cross_validate` and `GridSearchCV`, where scikit-learn is installed."""

    @pytest.fixture(autouse=True)
    def _installed(self) -> None:
        pytest.importorskip("sklearn", reason="scikit-learn is not installed")

    def test_a_clone_has_the_settings_and_nothing_learned(self, fitted: hushrec.Recommender) -> None:
        """As scikit-learn checks it: the same objects."""
        from sklearn.base import clone

        twin = clone(fitted)
        assert twin.get_params() == fitted.get_params()
        with pytest.raises(LocalProtocolError, match="fit"):
            twin.recommend("7")

    def test_it_is_cross_validated(self, frame: pl.DataFrame) -> None:
        """With the ratings inside X, or as y with a scorer of scikit-learn's: the same error."""
        from sklearn.model_selection import KFold, cross_validate

        folds = KFold(3, shuffle=True, random_state=0)
        whole = cross_validate(hushrec.Recommender(), frame, cv=folds)["test_score"]
        pairs, values = frame.select("user", "item"), frame["rating"].to_numpy()
        error = "neg_root_mean_squared_error"
        apart = cross_validate(hushrec.Recommender(), pairs, values, cv=folds, scoring=error)["test_score"]
        assert whole == pytest.approx(apart)
        assert (whole > -frame["rating"].std()).all()

    def test_budgets_are_searched(self, frame: pl.DataFrame) -> None:
        """More budget is never worse by much; the best is refitted on everything."""
        from sklearn.model_selection import GridSearchCV

        search = GridSearchCV(hushrec.Recommender(), {"epsilon": [0.05, float("inf")]}, cv=3)
        search.fit(frame)
        assert search.best_params_ == {"epsilon": float("inf")}
        assert search.best_estimator_.recommend("7", 1).height == 1
        assert search.predict(frame[:2]).shape == (2,)


def test_a_module_of_the_package_can_be_imported_alone() -> None:
    """The lazy names resolve to where they live."""
    assert importlib.import_module("hushrec.recommender").Recommender is hushrec.Recommender
