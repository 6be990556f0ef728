"""`hushrec data`, and how `hushrec train` is told to read a file."""

import json
import zipfile
from pathlib import Path
from urllib.request import pathname2url

import pytest
from command import run

from hushrec.data import named

BOOKS = "reader,book,stars,when\nann,b1,4,1\nann,b2,2,2\nbob,b1,5,3\nbob,b2,1,4\nbob,b3,3,5\n"


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """A rating file with names of its own."""
    path = tmp_path / "books.csv"
    path.write_text(BOOKS)
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No named set is on this machine."""
    monkeypatch.delenv("HUSHREC_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def test_list_says_how_to_get_what_is_not_here(elsewhere: Path) -> None:
    """A set with a publisher names its command, Netflix has none."""
    outcome = run("data", "list", columns=160)
    assert outcome.code == 0
    assert "built in" in outcome.out
    assert "hushrec data get ml-1m" in outcome.out
    assert outcome.out.count("no longer published") == 2


def test_list_finds_a_set_and_prints_json(elsewhere: Path) -> None:
    """`found` is the rating file where there is one, null where not."""
    (elsewhere / "ml-100k").mkdir()
    (elsewhere / "ml-100k" / "u.data").write_text("1\t1\t3\t0\n")
    sets = json.loads(run("data", "list", "--data-dir", elsewhere, "--json").out)["sets"]
    found = {entry["name"]: entry["found"] for entry in sets}
    assert found["ml-100k"] == str(elsewhere / "ml-100k" / "u.data")
    assert found["ml-1m"] is None
    assert found["synthetic"] == "built in"


def test_get_shows_the_licence_and_refuses_when_nobody_can_accept_it(elsewhere: Path) -> None:
    """Without a terminal and without --yes nothing is downloaded: a usage error."""
    outcome = run("data", "get", "ml-100k")
    assert outcome.code == 2
    assert outcome.err.startswith("licence: MovieLens")
    assert "pass --yes" in outcome.err


def test_get_downloads_after_yes(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The publisher's archive ends up where named sets are looked for."""
    archive = elsewhere / "ml-100k.zip"
    with zipfile.ZipFile(archive, "w") as content:
        content.writestr("ml-100k/u.data", "1\t1\t3\t0\n2\t1\t4\t0\n")
    entry = named.SETS["ml-100k"]
    local = named.NamedSet(**{**vars(entry), "address": f"file://{pathname2url(str(archive))}"})
    monkeypatch.setitem(named.SETS, "ml-100k", local)
    outcome = run("data", "get", "ml-100k", "--yes", "--to", elsewhere / "sets", "--json")
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out)["folder"] == str(elsewhere / "sets" / "ml-100k")
    described = run("data", "describe", "ml-100k", "--data-dir", elsewhere / "sets", "--json")
    assert json.loads(described.out)["ratings"] == 2


def test_get_says_what_to_do_for_a_set_without_a_publisher(elsewhere: Path) -> None:
    """One sentence, exit 1."""
    outcome = run("data", "get", "netflix-10k", "--yes")
    assert outcome.code == 1
    assert "netflix-10k" in outcome.err


def test_describe_counts_what_the_file_holds(books: Path, tmp_path: Path) -> None:
    """Columns by name, titles from an items file; the histogram adds up."""
    items = tmp_path / "titles.csv"
    items.write_text("id,title,kind\nb1,One,novel\nb2,Two,essay\nb3,Three,novel\n")
    outcome = run("data", "describe", books, "--columns", "reader,book,stars", "--items", items, "--json")
    summary = json.loads(outcome.out)
    assert (summary["users"], summary["items"], summary["ratings"]) == (2, 3, 5)
    assert summary["titles"] is True
    assert summary["attributes"] == ["kind=essay", "kind=novel"]
    assert sum(summary["values"].values()) == 5


def test_describe_says_no_titles_where_items_are_shown_by_their_ids(books: Path, tmp_path: Path) -> None:
    """An items file of ids and attributes has no titles."""
    items = tmp_path / "pages.csv"
    items.write_text("id,pages\nb1,100\nb2,200\nb3,300\n")
    outcome = run("data", "describe", books, "--columns", "reader,book,stars", "--items", items)
    assert outcome.code == 0
    assert "with titles" not in outcome.out


def test_an_items_file_that_lists_some_rated_items_is_announced(books: Path, tmp_path: Path) -> None:
    """On stderr, with counts; `train` prints the same summary."""
    items = tmp_path / "titles.csv"
    items.write_text("id,title\nb1,One\nb2,Two\nb9,Nine\n")
    outcome = run("data", "describe", books, "--columns", "reader,book,stars", "--items", items)
    assert "2 of 3 rated items are in the items file" in outcome.err


def test_describe_fits_eighty_columns(books: Path) -> None:
    """No line is longer than the terminal."""
    outcome = run("data", "describe", books, "--columns", "reader,book,stars")
    assert outcome.code == 0
    assert max(map(len, outcome.out.splitlines())) <= 80
    assert "1-5, mean 3.00" in outcome.out


def test_describe_of_pairs_has_no_scale(books: Path) -> None:
    """--implicit leaves the ratings out."""
    outcome = run("data", "describe", books, "--columns", "reader,book", "--implicit")
    assert "none: pairs without ratings" in outcome.out


def test_train_asks_for_the_columns_it_cannot_find(books: Path) -> None:
    """The refusal names file, line, and the option that helps; exit 1, no traceback."""
    outcome = run("train", books)
    assert outcome.code == 1
    assert outcome.err.startswith(f"hushrec: {books}, line 1")
    assert "--columns" in outcome.err
    assert "Traceback" not in outcome.err


def test_train_reads_a_file_as_it_is_told(tmp_path: Path) -> None:
    """--columns, --duplicates, --items and --scale reach the reader; titles reach the recommendations."""
    rows = [f"p{user},f{item},{(user * item) % 10}" for user in range(12) for item in range(12) if (user + item) % 3]
    path = tmp_path / "own.csv"
    path.write_text("\n".join(["who,what,marks", *rows, rows[0]]) + "\n")
    titles = tmp_path / "films.csv"
    titles.write_text("id,title\n" + "".join(f"f{item},Film [red]{item}\n" for item in range(12)))
    small = ["--rounds", 2, "--factors", 3, "--protocol", "plain", "--engine", "reference"]
    reading = ["--columns", "who,what,marks", "--items", titles, "--scale", "0,9"]
    refused = run("train", path, *reading, *small)
    assert refused.code == 1
    assert "Pass --duplicates first, last or mean" in refused.err
    outcome = run("train", path, *reading, *small, "--duplicates", "first", "--out", tmp_path / "run", "--json")
    assert outcome.code == 0, outcome.err
    record = json.loads(outcome.out)
    assert record["data"]["scale"] == [0.0, 9.0]
    assert record["data"]["train"] + record["data"]["test"] == len(rows)
    recommended = run("recommend", tmp_path / "run", "--user", "p1", "-n", 2)
    assert recommended.out.count("Film [red]") == 2


def test_an_unknown_choice_is_a_usage_error(books: Path) -> None:
    """Exit 2, and the choices are named."""
    outcome = run("train", books, "--duplicates", "some")
    assert outcome.code == 2
    assert "refuse" in outcome.err
    assert "mean" in outcome.err
