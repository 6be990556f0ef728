"""Named sets: where they are looked for, what they hold, and how they are fetched."""

import http.server
import io
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from hushrec.data import SETS, Ratings, Scale, describe, get, load
from hushrec.data.named import lookup
from hushrec.errors import DataError

COUNTS = {
    "ml-100k": (943, 1_682, 100_000, {"1": 6110, "2": 11370, "3": 27145, "4": 34174, "5": 21201}),
    "ml-1m": (6_040, 3_706, 1_000_209, {"1": 56174, "2": 107557, "3": 261197, "4": 348971, "5": 226310}),
    "netflix-10k": (10_000, 1_766, 551_931, None),
    "netflix-10k5k": (10_000, 5_000, 558_380, None),
}


@pytest.mark.data
@pytest.mark.parametrize("name", COUNTS)
def test_a_named_set_has_the_counts_its_publisher_gives(name, data_dir):
    """Users, items, ratings and the count of each value, as published; titles for every item."""
    users, items, ratings, values = COUNTS[name]
    loaded = load(name, data_dir=data_dir)
    summary = describe(loaded)

    assert (loaded.n_users, loaded.n_items, loaded.n_ratings, loaded.scale) == (users, items, ratings, Scale(1, 5))
    assert values is None or summary["values"] == values
    assert sum(summary["values"].values()) == ratings
    assert loaded.titles is not None
    assert not any(title == item for title, item in zip(loaded.titles, loaded.item_ids, strict=True))
    assert loaded.attributes is not None
    assert "year" in loaded.attributes.columns


@pytest.mark.data
def test_rows_keep_the_files_order_and_titles_belong_to_their_items(data_dir):
    """The first row of u.data is user 196, item 242, 3 stars; ids are in numeric order."""
    ratings = load("ml-100k", data_dir=data_dir)

    assert ratings.user_ids[ratings.users[0]] == "196"
    assert ratings.item_ids[ratings.items[0]] == "242"
    assert ratings.values is not None
    assert ratings.values[0] == 3
    assert ratings.item_ids == [str(number) for number in range(1, 1683)]
    assert ratings.titles is not None
    assert ratings.titles[0] == "Toy Story (1995)"
    assert ratings.attributes is not None
    row = ratings.attributes.row(0, named=True)
    assert row["year"] == 1995
    assert [name for name, flag in row.items() if flag is True] == [
        "genre=Animation",
        "genre=Children's",
        "genre=Comedy",
    ]


def write_tiny(folder: Path) -> None:
    """A data folder with two ratings in ml-100k."""
    (folder / "ml-100k").mkdir(parents=True)
    (folder / "ml-100k" / "u.data").write_text("1\t1\t5\t0\n2\t1\t3\t0\n")


def test_the_folder_given_comes_before_the_environment_and_that_before_the_cache(tmp_path, monkeypatch):
    """Named sets are found in any of the three places."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HUSHREC_DATA", raising=False)
    write_tiny(tmp_path / "cache" / "hushrec")
    assert load("ml-100k").n_ratings == 2

    monkeypatch.setenv("HUSHREC_DATA", str(tmp_path / "env"))
    (tmp_path / "env" / "ml-100k").mkdir(parents=True)
    (tmp_path / "env" / "ml-100k" / "u.data").write_text("1\t1\t5\t0\n")
    assert load("ml-100k").n_ratings == 1
    assert load("ml-100k", data_dir=tmp_path / "cache" / "hushrec").n_ratings == 2


def test_a_named_set_that_is_not_there_says_where_it_was_looked_for(tmp_path, monkeypatch):
    """Every folder is listed, with what to do."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HUSHREC_DATA", str(tmp_path / "env"))
    with pytest.raises(DataError) as refused:
        load("ml-1m", data_dir=tmp_path / "given")

    assert str(refused.value) == (
        "ml-1m was not found: looked for ml-1m/ratings.dat or ml-1m/ratings_notime.dat (or .gz) in "
        f"{tmp_path / 'given'}, {tmp_path / 'env'}, {tmp_path / 'cache' / 'hushrec'}. "
        "Run `hushrec data get ml-1m`, or set $HUSHREC_DATA or --data-dir to a folder that contains it."
    )


def test_an_unknown_name_lists_the_names():
    """Neither a file nor a set: the names follow."""
    with pytest.raises(DataError, match="synthetic, ml-100k"):
        load("ml-99")
    with pytest.raises(DataError, match="one of ml-100k"):
        lookup("ml-99")


def test_netflix_cannot_be_downloaded(tmp_path):
    """It has no publisher any more, and we say so."""
    with pytest.raises(DataError, match="netflix-10k"):
        get("netflix-10k", tmp_path)


@contextmanager
def serving(body: bytes, status: int = 200) -> Iterator[str]:
    """The address of a loopback server that answers every request with `body`."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            """Says nothing."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/ml-100k.zip"
        finally:
            server.shutdown()
            thread.join()


def archive(**files: str) -> bytes:
    """A zip archive; `__` in a name stands for a slash and `_dot_` for a dot."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as content:
        for name, text in files.items():
            content.writestr(name.replace("__", "/").replace("_dot_", "."), text)
    return buffer.getvalue()


def test_get_unpacks_what_the_publisher_sends_and_load_finds_it(tmp_path):
    """From a loopback server to ratings; nothing but the set's own files is written."""
    body = archive(**{"ml-100k__u_dot_data": "1\t1\t5\t0\n", "ml-100k__sub__x": "", "__evil": "", "ml-100k__": ""})
    with serving(body) as address:
        folder = get("ml-100k", tmp_path / "new", address=address)

    assert folder == tmp_path / "new" / "ml-100k"
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["u.data"]
    assert load("ml-100k", data_dir=tmp_path / "new").n_ratings == 1


def test_get_says_what_to_do_by_hand_when_the_publisher_cannot_be_reached(tmp_path):
    """No network, an error page, no archive, the wrong archive: one sentence each, and nothing is left behind."""
    by_hand = "Download http://127.0.0.1"
    with serving(b"") as address:
        pass
    with pytest.raises(DataError, match=f"ml-100k .*refused.*{by_hand}"):
        get("ml-100k", tmp_path, address=address)
    with (
        serving(b"gone", 404) as address,
        pytest.raises(DataError, match=f"ml-100k .*Not Found.*{by_hand}"),
    ):
        get("ml-100k", tmp_path, address=address)
    with serving(b"<html>") as address, pytest.raises(DataError, match=f"zip archive.*{by_hand}"):
        get("ml-100k", tmp_path, address=address)
    with (
        serving(archive(other="")) as address,
        pytest.raises(DataError, match=r"ml-100k/u.data"),
    ):
        get("ml-100k", tmp_path, address=address)

    assert list(tmp_path.iterdir()) == []


def test_get_says_so_when_the_folder_cannot_be_written(tmp_path):
    """A file where the folder should be."""
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"ml-100k .*File exists"):
        get("ml-100k", tmp_path / "file", address="http://127.0.0.1:9/x.zip")


def test_every_named_set_carries_licence_citation_and_files():
    """What the command line shows before it downloads."""
    for entry in SETS.values():
        assert "research" in entry.licence
        assert entry.citation
        assert entry.ratings_files
        assert (entry.address is None) == entry.name.startswith("netflix")


def test_describe_counts_by_hand():
    """Three ratings of two users on three items."""
    ratings = Ratings(
        "tiny",
        ["a", "b"],
        list("xyz"),
        np.array([0, 0, 1]),
        np.array([0, 1, 0]),
        np.array([1.0, 5.0, 3.0]),
        Scale(1, 5),
    )
    summary = describe(ratings)

    assert (summary["users"], summary["items"], summary["ratings"], summary["scale"]) == (2, 3, 3, [1, 5])
    assert summary["density"] == 0.5
    assert summary["values"] == {"1": 1, "3": 1, "5": 1}
    assert summary["mean"] == 3
    assert summary["per_user"]["max"] == 2
    assert (summary["users_with_one_rating"], summary["items_with_one_rating"], summary["items_without_rating"]) == (
        1,
        1,
        1,
    )
