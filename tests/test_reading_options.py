"""One group of reading options, wherever a command takes rating data."""

import json
from pathlib import Path

import pytest
import typer
from command import run

from hushrec import Recommender, train
from hushrec.cli import app
from hushrec.cli.reading import Reading
from hushrec.data import load
from hushrec.errors import DataError

OPTIONS = {
    *("--columns", "--scale", "--duplicates", "--items", "--implicit"),
    *("--encoding", "--skip-rows", "--missing", "--data-dir"),
}
BOOKS = "reader;book;stars\nann;b1;4\nann;b2;0\nbob;b1;8\nbob;b2;1\nbob;b1;6\n"
FILE = """
name = "tiny"
title = "Tiny"
[data]
set = "{path}"
[splits]
count = 1
[run]
factors = 2
rounds = 1
[[curves]]
protocol = "plain"
"""


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """Marks from 1 to 10 in words of their own; 0 stands for none, and a pair comes twice."""
    path = tmp_path / "books.csv"
    path.write_text(BOOKS)
    return path


@pytest.mark.parametrize("words", [("train",), ("audit",), ("experiment",), ("fleet",), ("data", "describe")])
def test_every_command_that_takes_data_has_the_whole_group(words: tuple[str, ...]) -> None:
    """What one command advises, every other one understands."""
    command = typer.main.get_command(app)
    for word in words:
        command = command.commands[word]  # type: ignore[attr-defined]
    assert {name for parameter in command.params for name in parameter.opts} >= OPTIONS


def test_an_audit_takes_the_advice_of_its_own_refusals(books: Path) -> None:
    """Columns, then duplicates, then so few people that nothing is left to read."""
    assert "--columns reader,book,stars" in run("audit", books).err
    named = ("audit", books, "--columns", "reader,book,stars")
    assert "Pass --duplicates" in run(*named).err
    assert "needs at least 8 people" in run(*named, "--duplicates", "last").err


def test_an_experiment_reads_as_its_options_or_its_file_say(books: Path, tmp_path: Path) -> None:
    """Options go before the file's own; the record keeps what was used."""
    file = tmp_path / "tiny.toml"
    file.write_text(FILE.format(path=books))
    given = ("--columns", "reader,book,stars", "--duplicates", "mean", "--missing", "0", "--scale", "1,10")
    assert "--columns reader,book,stars" in run("experiment", file, "--out", tmp_path).err
    outcome = run("experiment", file, "--out", tmp_path, *given, "--json")
    assert outcome.code == 0, outcome.err
    about = json.loads((tmp_path / "tiny" / "experiment.json").read_text())
    assert about["config"]["data"]["missing"] == "0"
    assert about["data"]["scale"] == [1, 10]
    table = 'columns = "reader,book,stars"\nduplicates = "first"\nscale = "0,10"'
    file.write_text(FILE.format(path=books).replace("[splits]", f"{table}\n[splits]"))
    again = run("experiment", file, "--out", tmp_path / "again", "--jobs", "2", "--json")
    assert again.code == 0, again.err


def test_a_file_in_another_encoding_is_read_with_its_name(tmp_path: Path) -> None:
    """The refusal without it says what to pass; items files are read alike."""
    path, items = tmp_path / "cafe.csv", tmp_path / "items.csv"
    path.write_bytes("user,item,rating\nann,café,4\nbob,café,3\n".encode("latin-1"))
    items.write_bytes("id,title\ncafé,Größe\n".encode("latin-1"))
    with pytest.raises(DataError, match="--encoding"):
        load(path)
    ratings = load(path, encoding="latin-1", items=items)
    assert ratings.item_ids == ["café"]
    assert ratings.titles == ["Größe"]
    path.write_bytes("user,item,rating\nann,café,4\n".encode("utf-16"))
    with pytest.raises(DataError, match="--encoding utf-16"):
        load(path)
    assert load(path, encoding="utf-16").item_ids == ["café"]
    with pytest.raises(DataError, match="encoding must be"):
        load(path, encoding="no-such")
    with pytest.raises(DataError, match="ascii text"):
        load(path, encoding="ascii")


def test_lines_above_the_ratings_are_skipped_and_still_counted(tmp_path: Path) -> None:
    """Messages name the file's own lines, with and without quotes that matter."""
    path = tmp_path / "notes.csv"
    path.write_text("exported 2026\n# two notes\nuser,item,rating\nann,a,4\nbob,a,x\n")
    with pytest.raises(DataError, match="--skip-rows"):
        load(path)
    with pytest.raises(DataError, match="line 5, column rating"):
        load(path, skip_rows=2)
    path.write_text('note\nuser,item,rating\nann,"a,b",4\nbob,a,x\n')
    with pytest.raises(DataError, match="line 4, column rating"):
        load(path, skip_rows=1)
    path.write_text("note\nuser,item,rating\nann,a\n")
    with pytest.raises(DataError, match="line 3: expected 3 fields"):
        load(path, skip_rows=1)
    with pytest.raises(DataError, match="skip_rows"):
        load(path, skip_rows=9)


def test_what_stands_for_no_rating_is_left_out(books: Path) -> None:
    """Before the scale is guessed; as a number or as text."""
    ratings = load(books, columns="reader,book,stars", duplicates="last", missing="0")
    assert ratings.n_ratings == 3
    assert str(ratings.scale) == "1-10"
    books.write_text(BOOKS.replace(";0\n", ";NA\n"))
    assert load(books, columns="reader,book,stars", duplicates="last", missing="NA").n_ratings == 3
    with pytest.raises(DataError, match="line 6"):
        load(books, columns="reader,book,stars", missing="NA")
    with pytest.raises(DataError, match="missing"):
        load(books, columns="reader,book", missing="0")
    books.write_text(BOOKS.replace(";0\n", ";\n"))
    with pytest.raises(DataError, match="--missing ''"):
        load(books, columns="reader,book,stars", duplicates="last")
    assert load(books, columns="reader,book,stars", duplicates="last", missing="").n_ratings == 3
    given = Reading(columns="reader,book,stars", duplicates="last", missing="").given()
    assert given["missing"] == ""  # the command line hands it on
    books.write_text("user,item,rating\nann,b,0\n")
    with pytest.raises(DataError, match="missing"):
        load(books, missing=0)


@pytest.mark.parametrize(
    ("values", "scale"),
    [((0, 1), "0-1"), ((0.5, 4), "0.5-5"), ((1, 5), "1-5"), ((0, 87), "0-100"), ((1, 1), "1-5")],
)
def test_a_guessed_scale_is_announced_with_what_it_was_guessed_from(
    values: tuple[float, float], scale: str, tmp_path: Path
) -> None:
    """On every command, on stderr; a scale that is given or known is not a guess."""
    path = tmp_path / "r.csv"
    path.write_text("user,item,rating\n" + "".join(f"u{n},i,{value}\n" for n, value in enumerate(values)))
    said = run("data", "describe", path).err
    low, high = values
    assert f"scale {scale}, guessed from ratings of {low:g} to {high:g}" in said
    assert "--scale" in said
    assert "guessed" not in run("data", "describe", path, "--scale", "0,100").err
    assert "guessed" not in run("data", "describe", "synthetic").err


def test_counts_are_described_with_their_range_and_with_what_to_pass(tmp_path: Path) -> None:
    """No usual scale holds them; `--implicit` is what the user needs, and other commands refuse with the same hint."""
    path = tmp_path / "plays.csv"
    path.write_text("user,item,rating\nann,a,1\nbob,a,50000\nbob,b,30\n")
    outcome = run("data", "describe", path)
    assert outcome.code == 0
    assert "--implicit" in outcome.err
    assert "ratings of 1 to 50,000" in outcome.out
    found = json.loads(run("data", "describe", path, "--json").out)
    assert (found["scale"], found["range"], found["ratings"]) == (None, [1, 50000], 3)
    assert "--implicit" in run("train", path).err
    path.write_text("user,item,rating\nann,a,500\n")
    assert run("data", "describe", path).code == 1


def test_a_doubtful_scale_is_remarked_once_where_it_is_guessed(tmp_path: Path) -> None:
    """By every command, and by `fit` and `train`, whoever read the ratings; not if the scale is given."""
    rows = [(f"u{n % 8}", f"i{n // 8}", 68 + n % 5 + n // 8) for n in range(80)]
    path = tmp_path / "wine.csv"
    path.write_text("user,item,rating\n" + "".join(f"{u},{i},{value}\n" for u, i, value in rows))
    assert run("data", "describe", path).err.count("--scale MIN,MAX") == 1
    assert "too wide" in run("data", "describe", path).err
    assert "too wide" not in run("data", "describe", path, "--scale", "60,90").err
    said: list[str] = []
    few = {"protocol": "plain", "model": "mf", "rounds": 1, "factors": 1}
    Recommender(**few).fit(rows, remark=said.append)
    train(rows, remark=said.append, **few)
    train(load(rows), remark=said.append, **few)
    Recommender(**few).fit(load(rows, scale=(60, 90)), remark=said.append)
    assert sum("--scale" in sentence for sentence in said) == 3
    outcome = run("train", path, "--protocol", "plain", "--model", "mf", "--rounds", 1, "--factors", 1)
    assert outcome.err.count("too wide") == 1
