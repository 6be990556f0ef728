"""Shards on disk: what they hold, and that training on them is training on the same ratings in memory."""

import gzip
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from command import run
from test_data_errors import REFUSED

from hushrec.data import load, streamed
from hushrec.data.shards import Shards, is_shards, write_shards
from hushrec.data.sources import Form, find_file
from hushrec.data.synthetic import synthetic
from hushrec.errors import DataError, ParameterError
from hushrec.simulation import sharded
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
        {"protocol": "masked", "model": "gp", "evaluation": 0.2},
        {"protocol": "masked", "model": "audience"},
        {"protocol": "sdcf", "model": "mf", "factors": 5, "step": 0.05, "rounds": 3},
        {"protocol": "sdcf", "model": "bpr", "factors": 5, "rounds": 3},
    ],
    ids=lambda settings: f"{settings['protocol']} {settings['model']}",
)
def test_training_out_of_core_gives_the_bits_of_training_in_memory(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """One part of 200 ratings in memory at a time: the same split, table, vectors and budget, and the same metrics."""
    monkeypatch.setattr(sharded, "RATINGS_AT_ONCE", 200)
    record, public = sharded.train_shards(folder, **settings)
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
    of_lists = {"popularity", "private_popularity"} if "rmse" in record["metrics"] else set()  # lists are not measured
    assert record["baselines"].keys() == expected.record["baselines"].keys() - of_lists
    for name, metrics in record["baselines"].items():
        for measure, value in metrics.items():
            assert value == pytest.approx(expected.record["baselines"][name][measure], rel=1e-9), (name, measure)


def test_what_shards_cannot_do_is_refused(folder: Path) -> None:
    """Engines and options that need all ratings in one place."""
    for settings, name in (({"engine": "reference"}, "engine"), ({"protocol": "sdcf", "patience": 3}, "patience")):
        with pytest.raises(ParameterError, match=name):
            sharded.train_shards(folder, **settings)


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


# Files that no memory holds -------------------------------------------------------------------------------------


def rows(n_users: int = 30, n_items: int = 20, *, seed: int = 0) -> list[tuple[str, str, float]]:
    """Ratings in a random order, each pair once."""
    rng = np.random.default_rng(seed)
    pairs = rng.permutation(n_users * n_items)[: n_users * n_items // 2]
    return [(f"u{pair // n_items}", str(pair % n_items), float(rng.integers(1, 6))) for pair in pairs]


def text(separator: str = ",", header: str = "", quote: str = "", end: str = "\n", **kwargs: Any) -> str:
    """The rows as lines."""
    lines = [separator.join(f"{quote}{field}{quote}" for field in row) for row in rows(**kwargs)]
    return header + end.join(lines) + end


def as_parquet() -> bytes:
    """The rows as a Parquet file of several row groups."""
    found = io.BytesIO()
    columns = zip(*rows(), strict=True)
    frame = pl.DataFrame(dict(zip(("user", "item", "rating"), columns, strict=True)))
    frame.write_parquet(found, row_group_size=50)
    return found.getvalue()


STREAMED: dict[str, tuple[bytes, dict[str, Any]]] = {
    "commas": (text().encode(), {}),
    "a header": (text(header="user,item,rating\n").encode(), {}),
    "two colons": (text("::").encode(), {}),
    "carriage returns": (text(end="\r\n").encode(), {}),
    "old line ends and empty lines": ((text(end="\r") + "\n\n\r\n").encode(), {}),
    "needless quotes": (text(quote='"').encode(), {}),
    "quotes that matter further down": ((text() + '"u,1\nof two lines",3,4\nu0,new,5\n').encode(), {}),
    "compressed": (gzip.compress(text("\t").encode()), {}),
    "another encoding": ((text() + "é,1,3\n").encode("latin-1"), {"encoding": "latin-1"}),
    "utf-16": ((text() + "é,1,3\n").encode("utf-16"), {"encoding": "utf-16"}),
    "lines above": (("about\nthis file\n" + text()).encode(), {"skip_rows": 2}),
    "columns": (text(header="wer,was,wie\n").encode(), {"columns": "wer,was,wie"}),
    "missing": (text().encode(), {"missing": "3", "scale": "1,10"}),
    "pairs alone": (text().encode(), {"implicit": True}),
    "parquet": (as_parquet(), {}),
    "compressed parquet": (gzip.compress(as_parquet()), {"missing": 2.0}),
    "the first of each": ((text() * 2).encode(), {"duplicates": "first"}),
    "the last of each": ((text() + text(seed=1)).encode(), {"duplicates": "last", "missing": "1"}),
    "the mean of each": ((text() + text(seed=1)).encode(), {"duplicates": "mean"}),
}


@pytest.mark.parametrize(("content", "settings"), STREAMED.values(), ids=STREAMED.keys())
def test_a_file_read_a_few_rows_at_a_time_gives_the_shards_of_one_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, settings: dict[str, Any]
) -> None:
    """The same people, items, ratings and rows, in the same files where no pair comes twice; no scratch is left."""
    path = tmp_path / "ratings.csv"
    path.write_bytes(content)
    whole = load(path, **settings)
    expected = write_shards(whole, tmp_path / "whole", 100)
    monkeypatch.setattr(streamed, "BYTES_AT_ONCE", 100)
    written = streamed.shard_file(find_file(path), Form.of(**settings), tmp_path / "some", 100)
    shards = written.shards
    shards.check()
    if "duplicates" not in settings:
        assert shards.manifest == expected.manifest
    assert (tmp_path / "some" / "items.parquet").read_bytes() == (tmp_path / "whole" / "items.parquet").read_bytes()
    assert (shards.n_people, shards.n_ratings) == (whole.n_users, whole.n_ratings)
    for found, wanted in zip(shards.read(0, shards.n_people), expected.read(0, whole.n_users), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert written.about.scale == whole.scale
    assert written.about.scale_is_guessed == whole.scale_is_guessed
    assert sorted(place.name for place in tmp_path.iterdir()) == ["ratings.csv", "some", "whole"]


@pytest.mark.parametrize(("content", "settings", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_file_read_a_few_rows_at_a_time_is_refused_as_one_read_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes, settings: dict[str, Any], message: str
) -> None:
    """File, line and sentence are those of `load`; nothing is left behind."""
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    monkeypatch.setattr(streamed, "BYTES_AT_ONCE", 8)
    with pytest.raises(DataError) as refused:
        streamed.shard_file(find_file(path), Form.of(**settings), tmp_path / "shards", 100)
    assert str(refused.value) == f"{path}{message}"
    assert [place.name for place in tmp_path.iterdir()] == ["mine.csv"]


def test_a_named_set_is_sharded_with_its_items(tmp_path: Path) -> None:
    """Titles, attributes, and items that nobody rated, from the publisher's own files."""
    (tmp_path / "ml-1m").mkdir()
    (tmp_path / "ml-1m" / "ratings.dat").write_text("1::10::5::0\n2::20::3::0\n1::20::4::0\n")
    (tmp_path / "ml-1m" / "movies.dat").write_text("10::Ten (1990)::Comedy\n20::Twenty (2000)::Drama\n30::x::War\n")
    done = run("data", "shard", "ml-1m", tmp_path / "shards", "--data-dir", tmp_path, "--json")
    assert "ml-1m: 2 users, 2 items, 3 ratings, scale 1-5\n" in done.err
    write_shards(load("ml-1m", data_dir=tmp_path), tmp_path / "whole")
    assert json.loads(done.out) == Shards(tmp_path / "whole").manifest
    again = run("data", "shard", "ml-1m", tmp_path / "shards", "--data-dir", tmp_path)
    assert (again.code, again.err.count("\n")) == (1, 1)


SHARD_IN_LITTLE_MEMORY = """
import resource, sys
from pathlib import Path
from hushrec.data.sources import Form, find_file
from hushrec.data import streamed
streamed.BYTES_AT_ONCE = 1 << 17
folder = Path(sys.argv[1])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
def shard(name):
    streamed.shard_file(find_file(folder / name), Form(), folder / f"{name}-shards", 20_000)
shard("small.csv")
before = peak()
shard("large.csv")
print(1024 * (peak() - before))
"""


def test_sharding_a_file_takes_less_memory_than_the_file(tmp_path: Path) -> None:
    """Twenty times as many ratings grow the peak by less than half of the file, which in memory is many times it."""
    for name, times in (("small.csv", 1), ("large.csv", 20)):
        pairs = ((person, item) for item in range(50 * times) for person in range(500))
        lines = [f"person-{person},item-{item},{1 + (person + item) % 5}\n" for person, item in pairs]
        (tmp_path / name).write_text("".join(lines))
    child = subprocess.run(
        [sys.executable, "-c", SHARD_IN_LITTLE_MEMORY, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert int(child.stdout) < (tmp_path / "large.csv").stat().st_size / 2
    assert Shards(tmp_path / "large.csv-shards").n_ratings == 500_000
