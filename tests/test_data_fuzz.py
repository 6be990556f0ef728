"""Generated files: an answer or a DataError, never another exception.

`make test` makes two thousand of them; `make soak` makes ten thousand, five times as many of each kind.
"""

import csv
import gzip
import io
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hushrec.data import Ratings, load
from hushrec.data.columns import DUPLICATES
from hushrec.data.tables import read_batches, read_table
from hushrec.errors import DataError

LONG = os.environ.get("HUSHREC_FUZZ") == "long"  # `make soak`


def examples(count: int) -> int:
    """Return how many files to make where the long form makes `count`."""
    return count if LONG else count // 5


SPEC = st.sampled_from([None, None, "user,item,rating", "1,2,3", "2,1", "3,1,2", "a,b,c", "x", ",,", "0,1,2", "²,1,2"])
SCALE = st.sampled_from([None, None, None, "1,5", "0,1", "-10,10", "5,1", "nan,nan"])
SETTINGS = st.fixed_dictionaries(
    {"columns": SPEC, "scale": SCALE, "duplicates": st.sampled_from(DUPLICATES), "implicit": st.booleans()}
)
FIELD = st.one_of(
    st.integers(-20, 20).map(str),
    st.sampled_from(
        [
            "",
            " ",
            "user",
            "item",
            "rating",
            "movie",
            "1e400",
            "NaN",
            "inf",
            "-0",
            "007",
            "3.5",
            '"',
            '"a"',
            '""',
            "é",
            "a b",
        ]
    ),
    st.text(max_size=4),
)
LINE_END = st.sampled_from(["\n", "\n", "\r\n", "\r", "\n\n"])


@st.composite
def almost_files(draw) -> bytes:
    """Lines of fields: mostly regular, with headers, odd fields and odd widths now and then."""
    separator = draw(st.sampled_from([",", "\t", "::", ";", "|", ":", " "]))
    width = draw(st.integers(1, 5))
    odd_width = width + draw(st.sampled_from([0, 0, 0, -1, 1]))
    fields = draw(st.lists(FIELD, max_size=16))
    cuts = [0, width, width + odd_width, *range(2 * width + odd_width, len(fields) + width, width)]
    rows = [fields[start:stop] for start, stop in pairwise(cuts) if stop <= len(fields)]
    header = draw(
        st.sampled_from([[], [["user", "item", "rating", "time", "x"][:width]], [["rating", "user", "item"]]])
    )
    text = draw(LINE_END).join(separator.join(row) for row in header + rows)
    encoding = draw(st.sampled_from(["utf-8", "utf-8", "utf-8", "utf-8-sig", "utf-16"]))
    return text.encode(encoding, errors="replace")


@st.composite
def good_files(draw) -> tuple[bytes, list[tuple[int, int, int]]]:
    """A regular file, and the rows in it."""
    pairs = draw(st.lists(st.tuples(st.integers(-5, 99), st.integers(0, 99)), min_size=1, max_size=8, unique=True))
    rows = [(user, item, draw(st.integers(1, 5))) for user, item in pairs]
    separator = draw(st.sampled_from([",", "\t", "::", ";", "|"]))
    quote = draw(st.sampled_from(["", '"'])) if separator in ",\t;" else ""
    header = [separator.join(["userId", "movieId", "rating"])] if draw(st.booleans()) else []
    lines = header + [separator.join(f"{quote}{field}{quote}" for field in row) for row in rows]
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines).encode(), rows


def damaged(files: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """Files cut at one place, with a few bytes put in there instead."""

    def cut(parts: tuple[bytes, float, int, bytes]) -> bytes:
        data, share, length, put = parts
        place = int(share * len(data))
        return data[:place] + put + data[place + length :]

    return st.tuples(files, st.floats(0, 1), st.integers(0, 3), st.binary(max_size=3)).map(cut)


def as_parquet(rows: list[tuple[int, int, int]]) -> bytes:
    """The rows as Parquet."""
    buffer = io.BytesIO()
    pl.DataFrame(rows, schema=["user", "item", "rating"], orient="row").write_parquet(buffer)
    return buffer.getvalue()


TEXT = st.lists(st.text('ab",\n', max_size=6), min_size=1, max_size=8).map(lambda fields: "a," + ",".join(fields))


@settings(max_examples=examples(600))
@given(text=TEXT)
def test_fields_are_those_of_pythons_strict_reader(path, text):
    """Texts of letters, quotes, commas and line ends: the same fields without empty lines, or a refusal."""
    path.write_text(text)
    rows = [row for row in csv.reader(io.StringIO(text.rstrip("\n"), newline="")) if row]
    try:
        table = read_table(path)
    except DataError:
        return
    assert [[field or "" for field in row] for row in table.frame.rows()] == rows


@settings(max_examples=examples(600))
@given(data=st.one_of(TEXT.map(str.encode), almost_files()), at_once=st.integers(1, 30))
def test_a_file_read_in_blocks_has_the_fields_and_lines_of_one_read_at_once(path, data, at_once):
    """Whatever is read at once is read in blocks of any size."""
    path.write_bytes(data)
    try:
        whole = read_table(path)
    except DataError:
        return
    batches = list(read_batches(path, at_once=at_once))
    fields = pl.concat([batch.frame for batch in batches])
    assert fields.fill_null("").equals(whole.frame.fill_null(""))  # an empty field is either
    assert np.concatenate([batch.lines for batch in batches]).tolist() == whole.lines.tolist()


GOOD_BYTES = good_files().map(lambda pair: pair[0])
GOOD_ROWS = good_files().map(lambda pair: pair[1])


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    """One file, written anew for every example."""
    return tmp_path_factory.mktemp("fuzz") / "file"


def load_or_refusal(path: Path, **chosen) -> Ratings | str:
    """The ratings, or the message of a DataError; any other exception goes through."""
    try:
        return load(path, **chosen)
    except DataError as refusal:
        return str(refusal)


def answer_or_refusal(path: Path, data: bytes, **chosen) -> None:
    """Loads; what comes back is whole, or the refusal starts with the file or the setting."""
    path.write_bytes(data)
    ratings = load_or_refusal(path, **chosen)
    if isinstance(ratings, str):
        assert ratings.startswith((str(path), "columns must", "scale must"))
        return
    assert ratings.n_ratings >= 1
    assert 0 <= ratings.users.min() <= ratings.users.max() < ratings.n_users
    assert 0 <= ratings.items.min() <= ratings.items.max() < ratings.n_items
    assert len(set(zip(ratings.users.tolist(), ratings.items.tolist(), strict=True))) == ratings.n_ratings
    if ratings.values is not None:
        assert ratings.scale is not None
        assert ratings.scale.holds(ratings.values).all()


@settings(max_examples=examples(3800))
@given(data=almost_files(), chosen=SETTINGS)
def test_any_almost_regular_file_gives_an_answer_or_a_refusal(path, data, chosen):
    """Files of odd fields, widths, separators, ends of line and encodings, with odd settings."""
    answer_or_refusal(path, data, **chosen)


@settings(max_examples=examples(2300))
@given(data=damaged(GOOD_BYTES), chosen=SETTINGS)
def test_any_damaged_text_file_gives_an_answer_or_a_refusal(path, data, chosen):
    """Good files with one place damaged."""
    answer_or_refusal(path, data, **chosen)


@settings(max_examples=examples(2200))
@given(data=st.binary(max_size=60))
def test_any_bytes_give_an_answer_or_a_refusal(path, data):
    """Files of random bytes."""
    answer_or_refusal(path, data)


@settings(max_examples=examples(600))
@given(data=damaged(GOOD_BYTES.map(lambda data: gzip.compress(data, 1))))
def test_any_damaged_gzip_file_gives_an_answer_or_a_refusal(path, data):
    """Gzipped files with one place damaged."""
    answer_or_refusal(path, data)


@settings(max_examples=6)
@given(data=damaged(GOOD_ROWS.map(as_parquet)), chosen=SETTINGS)
def test_any_damaged_parquet_file_gives_an_answer_or_a_refusal(path, data, chosen):
    """6 Parquet files (each needs a process) with one place damaged."""
    answer_or_refusal(path, data, **chosen)


@settings(max_examples=examples(600))
@given(data=st.one_of(almost_files(), damaged(GOOD_BYTES)))
def test_any_items_file_gives_an_answer_or_a_refusal(path, data):
    """Items files."""
    ratings = path.with_name("ratings.csv")
    ratings.write_text("u,1,5\nu,2,4\n")
    path.write_bytes(data)
    loaded = load_or_refusal(ratings, items=path)
    if isinstance(loaded, str):
        assert loaded.startswith(str(path))
        return
    assert loaded.titles is not None
    assert len(loaded.titles) == 2


@settings(max_examples=examples(700))
@given(file=good_files(), gzipped=st.booleans())
def test_a_regular_file_comes_back_row_by_row(path, file, gzipped):
    """Files: ids and values by row are what was written, and ids are in numeric order."""
    data, rows = file
    path.write_bytes(gzip.compress(data, 1) if gzipped else data)
    ratings = load(path)

    users = np.array(ratings.user_ids, dtype=int)
    items = np.array(ratings.item_ids, dtype=int)
    assert ratings.values is not None
    assert list(zip(users[ratings.users], items[ratings.items], ratings.values, strict=True)) == rows
    assert (np.diff(users) > 0).all()
    assert (np.diff(items) > 0).all()
