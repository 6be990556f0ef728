"""Every refusal of the readers: it names file, line, column and what was expected, and echoes no rating."""

import datetime
import gzip
import io
import os
import re
from pathlib import Path

import polars as pl
import pytest

from hushrec.data import load
from hushrec.errors import DataError

REMEDY = "Correct or remove the row"
IF_EMPTY = " If empty fields mean no rating, pass --missing '' (in Python: missing=\"\")."
EMPTY = f" {REMEDY}.{IF_EMPTY}"


def parquet(**columns: list) -> bytes:
    """A Parquet file of these columns."""
    buffer = io.BytesIO()
    pl.DataFrame(columns).write_parquet(buffer)
    return buffer.getvalue()


SAY_COLUMNS = (
    "Name the columns of user, item and rating with --columns reader,book,stars"
    ' (in Python: hushrec.data.load(..., columns="reader,book,stars"))'
)
SAY_IMPLICIT = ", or --implicit (implicit=True) for (user, item) pairs without ratings"
SAY_NAMES = "Pass --columns (in Python: columns) with names from the header, or with positions from 1."
KEEP_ONE = "Pass --duplicates first, last or mean (in Python: duplicates=...) to keep one of each."
ONCE = "expected each (user, item) pair once, but this pair is also in"
IF_HEADER = "If line 1 is a header, pass --columns with its names for user, item and rating."
SAY_SKIP = "If there are lines above the ratings, pass --skip-rows."
SAY_SCALE = (
    "ratings must lie on one of the usual scales (1-5, 0-1, 0.5-5, 0-5, 1-10, 0-10, -10-10, 0-100), but do not. Pass"
    " --scale MIN,MAX (in Python: hushrec.data.load(..., scale=(MIN, MAX)))."
)
SAY_JSON = (
    " must be CSV, TSV, `::` separated text or Parquet, but is JSON. Save it as CSV or Parquet, or in Python pass a"
    " frame."
)
SAY_LOWEST = "If the lowest rating means no rating, pass it with --missing (in Python: missing)."
SAY_COUNTS = (
    " If they are counts, such as plays or purchases, pass --implicit (in Python: implicit=True), which reads only who"
    " chose what."
)

REFUSED = {
    # name: (content, settings, message after the file's name)
    "no bytes": (b"", {}, " must have at least one row, but is empty."),
    "only newlines": (b"\n\r\n \n", {}, " must have at least one row, but is empty."),
    "only a header": (
        b"user,item,rating\n",
        {},
        ": expected one rating per line below the header, found none.",
    ),
    "no rows in parquet": (
        parquet(user=[], item=[]),
        {},
        " must have at least one row, but is empty.",
    ),
    "no separator": (
        b"hello\nworld\n",
        {},
        f", line 1: expected fields separated by a comma, tab, semicolon, `|` or `::`; found none. {SAY_SKIP}",
    ),
    "no rating column": (
        b"user,item,time\na,x,1\n",
        {},
        f", line 1: expected one column for the rating, found none. {SAY_COLUMNS}{SAY_IMPLICIT}.",
    ),
    "no user column": (
        b"item,rating\nx,1\n",
        {},
        f", line 1: expected one column for the user, found none. {SAY_COLUMNS}.",
    ),
    "two item columns": (
        b"user,movie,movieId,rating\na,x,1,5\n",
        {},
        f", line 1: expected one column for the item, found 2 candidates. {SAY_COLUMNS}.",
    ),
    "parquet without a user": (
        parquet(item=[1], rating=[5]),
        {},
        f": expected one column for the user, found none. {SAY_COLUMNS}.",
    ),
    "a named column that is missing": (
        b"user,item,rating\na,x,5\n",
        {"columns": "user,item,stars"},
        f", line 1: expected one column 'stars', found none among 3 columns. {SAY_NAMES}",
    ),
    "a named column that comes twice": (
        b"user,item,stars,stars\na,x,5,4\n",
        {"columns": "user,item,stars"},
        f", line 1: expected one column 'stars', found more than one among 4 columns. {SAY_NAMES}",
    ),
    "a position that is missing": (
        b"a,x,5\n",
        {"columns": "1,2,4"},
        ": columns must be positions from 1 to 3, the number of columns, got 1,2,4.",
    ),
    "text as rating": (
        b"a,x,5\nb,y,great\n",
        {},
        ", line 2, column rating: expected a finite number. Correct or remove the row.",
    ),
    "text as rating under a header": (
        b"user,item,rating\na,x,5\nb,y,great\n",
        {"scale": "1,5"},
        ", line 3, column rating: expected a number from 1 to 5. Correct or remove the row, or change --scale.",
    ),
    "text as rating in line 1": (
        b"kunde,artikel,note\na,x,5\n",
        {},
        f", line 1, column rating: expected a finite number. {REMEDY}. {IF_HEADER}",
    ),
    "an empty rating": (
        b"a,x,5\nb,y,\n",
        {},
        ", line 2, column rating: expected a finite number." + EMPTY,
    ),
    "a rating that is not a number": (
        b"a,x,5\nb,y,NaN\n",
        {},
        ", line 2, column rating: expected a finite number. Correct or remove the row.",
    ),
    "an infinite rating": (
        b"a,x,5\nb,y,-inf\n",
        {},
        ", line 2, column rating: expected a finite number. Correct or remove the row.",
    ),
    "a rating too large for a float": (
        b"a,x,5\nb,y,1e999\n",
        {},
        ", line 2, column rating: expected a finite number. Correct or remove the row.",
    ),
    "a null in parquet": (
        parquet(user=[1, 2], item=[1, 2], rating=[5.0, None]),
        {},
        ", row 2, column rating: expected a finite number." + EMPTY,
    ),
    "dates as ratings": (
        parquet(user=[1], item=[1], rating=[datetime.date(2020, 1, 31)]),
        {},
        ", column rating: expected numbers, found Date. Convert the column to numbers.",
    ),
    "a truth value that is missing": (
        parquet(user=[1, 2], item=[1, 2], rating=[True, None]),
        {},
        f", row 2, column rating: expected a number from 0 to 1. {REMEDY}, or change --scale.{IF_EMPTY}",
    ),
    "fractions as ids": (
        parquet(user=[1.5], item=[1], rating=[5]),
        {},
        ", column user: expected whole numbers or text as ids, found Float64. Convert the column to text.",
    ),
    "a rating off the scale given": (
        b"a,x,5\nb,y,6\n",
        {"scale": "1,5"},
        ", line 2, column rating: expected a number from 1 to 5. Correct or remove the row, or change --scale.",
    ),
    "ratings on no usual scale": (
        b"a,x,5\nb,y,1000\n",
        {},
        f", column rating: {SAY_SCALE}{SAY_COUNTS}",
    ),
    "a sign for no rating far below the others": (
        b"a,x,1\nb,y,2\nc,y,3\nd,x,-99\n",
        {},
        f", column rating: {SAY_SCALE} {SAY_LOWEST}",
    ),
    "an empty user": (
        b"a,x,5\n ,y,4\n",
        {},
        ", line 2, column user: expected an id, found an empty field. Fill it in, or remove the line.",
    ),
    "an empty item": (
        b'a,x,5\nb,"",4\n',
        {},
        ", line 2, column item: expected an id, found an empty field. Fill it in, or remove the line.",
    ),
    "latin-1": (
        "user,item,rating\na,x,5\nb,é,4\n".encode("latin-1"),
        {},
        ", line 3: expected UTF-8 text, found other bytes. Pass the file's --encoding, for example latin-1.",
    ),
    "utf-16": (
        "a,x,5\n".encode("utf-16"),
        {},
        " must be UTF-8 text, but is UTF-16. Pass --encoding utf-16, or save it as UTF-8.",
    ),
    "a binary file": (
        bytes(range(256)),
        {},
        " must be CSV, TSV, `::` separated text or Parquet, but is another binary file. Save it as CSV.",
    ),
    "a zip archive": (
        b"PK\x03\x04abc,d",
        {},
        " must be CSV, TSV, `::` separated text or Parquet, but is another binary file. Save it as CSV.",
    ),
    "json": (b'[{"user": "a", "item": "x", "rating": 5}]', {}, SAY_JSON),
    "json over several lines": (b'{\n  "a": [\n    ["x", 5]\n  ]\n}\n', {}, SAY_JSON),
    "a json object per line": (b'{"user": 1, "note": "a \\"b\\""}\n{"user": 2, "note": ""}\n', {}, SAY_JSON),
    "a line too short": (b"a,x,5\nb,y,4\nc,z\n", {}, ", line 3: expected 3 fields as in line 1, found 2."),
    "a line too long": (b"a,x,5\nb,y,4,1\nc,z,3\n", {}, ", line 2: expected 3 fields as in line 1, found 4."),
    "one too short and one too long": (
        b"a,x,5\nb,y\nc,z,3,1\n",
        {},
        ", line 2: expected 3 fields as in line 1, found 2.",
    ),
    "a short line made up for by empty fields in the last": (
        b"a,x\n \nb,y\n,,",
        {},
        ", line 2: expected 2 fields as in line 1, found 1.",
    ),
    "a short line below empty lines": (b"\na,x,5\n\nb\n", {}, ", line 4: expected 3 fields as in line 2, found 1."),
    "a short line below empty lines, with quotes": (
        b'\na,"x,y",5\n\nb\n',
        {},
        ", line 4: expected 3 fields as in line 2, found 1.",
    ),
    "two separators that are equally plausible": (
        b"a;x,5\nb;y,4\n",
        {},
        (
            ", line 1: expected one separator, but both ',' and ';' divide the lines into 2 fields. Save the file as"
            " CSV with quotes around every field."
        ),
    ),
    "a ragged line where another separator divides every line": (
        b"a;x;3,5\nb;y;4,5\nc;1,5\nd;y;1,5\n",
        {},
        ", line 3: expected 3 fields as in line 1, found 2.",
    ),
    "what could separate thousands": (
        b"a;x;3,5\nb;y;4,500\n",
        {},
        f", line 2, column rating: expected a finite number. {REMEDY}.",
    ),
    "a ragged line after quotes over two lines": (
        b'a,"x\ny",5\nb,y\n',
        {},
        ", line 3: expected 3 fields as in line 1, found 2.",
    ),
    "a quote that is never closed": (
        b'a,x,5\nb,"y,4\nc,z,3\n',
        {},
        ", line 2: expected quoted fields to be closed, and quotes inside them doubled.",
    ),
    "every separator at once": (
        b"a::x::5\nb::\t\x1f::4\n",
        {},
        " must not contain both tabs and the character U+001F if fields are separated by `::`. Save it as CSV.",
    ),
    "a pair twice": (
        b"user,item,rating\na,x,5\nb,x,4\na,x,5\na,x,1\n",
        {},
        f", line 4: {ONCE} line 2; 2 rows repeat an earlier pair. {KEEP_ONE}",
    ),
    "a pair twice in parquet": (
        parquet(user=[1, 1], item=[1, 1], rating=[5, 4]),
        {},
        f", row 2: {ONCE} row 1; 1 row repeats an earlier pair. {KEEP_ONE}",
    ),
    "gzip cut short": (
        gzip.compress(b"a,x,5\n" * 100)[:-10],
        {},
        " is incomplete: its gzip data ends early. Copy or download it again.",
    ),
    "gzip damaged": (
        gzip.compress(b"a,x,5\n")[:-8] + bytes(8),
        {},
        " is damaged: its gzip data does not decompress. Copy or download it again.",
    ),
    "parquet damaged": (
        parquet(user=[1], item=[1], rating=[5])[:-9],
        {},
        " is damaged: its Parquet data cannot be read. Copy or download it again.",
    ),
}


@pytest.mark.parametrize(("content", "settings", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_a_bad_file_is_refused_with_its_place_and_what_was_expected(tmp_path, content, settings, message):
    """The whole message, so that nothing from the file can hide in it."""
    path = tmp_path / "mine.csv"
    path.write_bytes(content)
    with pytest.raises(DataError) as refused:
        load(path, **settings)

    assert str(refused.value) == f"{path}{message}"


def test_a_parquet_file_damaged_inside_is_refused_without_noise(tmp_path, capfd):
    """Overwritten bytes can make the decoder panic or abort: here that ends nothing and writes nothing to stderr."""
    whole = parquet(user=[1, 2, None], item=[1, 2, 3], rating=[5, 4, 3])
    path = tmp_path / "r.parquet"
    for place in range(4, len(whole) // 2, len(whole) // 12):
        path.write_bytes(whole[:place] + b"\xff\xff\xff" + whole[place + 3 :])
        with pytest.raises(DataError, match=r"r\.parquet"):
            load(path)

    assert capfd.readouterr() == ("", "")


def test_settings_that_mean_nothing_are_refused(tmp_path):
    """Before any file is opened, or with the form that is expected."""
    path = tmp_path / "r.csv"
    path.write_text("a,x,5\n")
    with pytest.raises(DataError, match="duplicates"):
        load(path, duplicates="keep")
    for columns in ("user", "a,b,c,d", "a,,c", "a,a,b"):
        with pytest.raises(DataError, match="columns"):
            load(path, columns=columns)
    with pytest.raises(DataError, match="columns"):
        load(path, columns="1,2,3", implicit=True)
    with pytest.raises(DataError, match="synthetic"):
        load("synthetic", scale="1,5")


def test_a_path_that_cannot_be_read_is_refused(tmp_path):
    """Missing, a directory, or a name that no system allows."""
    with pytest.raises(DataError, match=r"missing\.csv"):
        load(tmp_path / "missing.csv")
    with pytest.raises(DataError, match="directory"):
        load(tmp_path)
    for name in ("a\0b", "x" * 5000):
        with pytest.raises(DataError, match="named set"):
            load(name)
    with pytest.raises(DataError, match=r"no-items\.csv"):
        _load_with_items(tmp_path, None)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_file_without_permission_is_refused(tmp_path):
    """With the system's own reason."""
    path = tmp_path / "locked.csv"
    path.write_text("a,x,5\n")
    path.chmod(0)
    with pytest.raises(DataError, match=r"locked\.csv"):
        load(path)


def _load_with_items(folder, items: bytes | None, name: str = "no-items.csv"):
    path = folder / "r.csv"
    path.write_text("u,x,5\n")
    if items is not None:
        (folder / name).write_bytes(items)
    return load(path, items=folder / name)


HEADER = ", line 1: expected a header"
BAD_ITEMS = {
    "no header": (b"x,Title\n", "i.csv", HEADER),
    "a column name twice": (b"id,a,a\nx,1,2\n", "i.csv", HEADER),
    "a column without name": (b"id,a,\nx,1,2\n", "i.csv", HEADER),
    "an empty id": (b"id,a\nx,1\n,2\n", "i.csv", ", line 3, column 1 (item id): expected an id, found an empty field."),
    "a second field below ids alone": (b"id\nx\ty\n", "i.csv", ", line 2: expected 1 fields as in line 1, found 2."),
    "an empty id in quotes": (
        b'id\n\n""\nx\n',
        "i.csv",
        ", line 3, column 1 (item id): expected an id, found an empty",
    ),
    "no rated item": (
        b"id,a\nfilm-x,1\n",
        "i.csv",
        " must list the items that ",
    ),
    "an id twice": (
        b"id,a\nx,1\nx,2\n",
        "i.csv",
        ", column 1: expected each item id once, but 1 row repeats an earlier id.",
    ),
    "a flag's name twice": (b"id,a,a=b\nx,b,1\n", "i.csv", ", line 1: expected no column 'a=b'"),
    "nested parquet": (
        parquet(id=["x"], a=[{"b": 1}]),
        "i.parquet",
        ": expected numbers, text or lists of text in every column. Remove columns of other types.",
    ),
    "movies.dat cut short": (b"1::Title\n", "movies.dat", ", line 1: expected 3 fields separated by '::', found 2."),
    "u.item cut short": (b"\n1|Title\n", "u.item", ", line 2: expected 24 fields separated by '|', found 2."),
}


@pytest.mark.parametrize(("content", "name", "message"), BAD_ITEMS.values(), ids=BAD_ITEMS.keys())
def test_a_bad_items_file_is_refused(tmp_path, content, name, message):
    """With its own name, not that of the rating file."""
    with pytest.raises(DataError, match=rf"{re.escape(name)}{re.escape(message)}"):
        _load_with_items(tmp_path, content, name)


@pytest.mark.parametrize(
    "source", ["synthetic:users", "synthetic:users=-1", "synthetic:size=3", "synthetic:seed=1,seed=2"]
)
def test_a_synthetic_name_that_cannot_be_read_is_refused(source):
    """The form is in the message."""
    with pytest.raises(DataError, match="synthetic:users=N"):
        load(source)


def test_a_synthetic_shape_that_cannot_be_is_refused():
    """More ratings than pairs, fewer than people, nobody at all."""
    with pytest.raises(DataError, match="ratings"):
        load("synthetic:users=3,items=2,ratings=7")
    with pytest.raises(DataError, match="users and items"):
        load("synthetic:users=0")
    with pytest.raises(DataError, match="seed"):
        load("synthetic:seed=18446744073709551616")


ON_PAGES = {  # page: files, each of which is refused with a line of that page
    "data.md": {
        "ratings.csv": [
            b"user,item,rating\n" + b"".join(b"u,i%d,3\n" % number for number in range(15)) + b"u,i99,9\n",
            b"u,i,3\nu,j,4\nv,i,3\nv,j\n",
            b"user,item,rating\nu,a,3\nu,b,3\nu,c,1\nu,d,1\nu,e,1\nv,a,1\nv,b,2\nu,b,3\nv,b,2\n",
            "user,item,rating\nu,a,3\n\u00fc,b,3\n".encode("latin-1"),
        ]
    },
    "first-hour.md": {"my.csv": [b"reader;book;stars;month\nreader000;b21;5;2026-12\n"]},
}


@pytest.mark.parametrize("page", ON_PAGES)
def test_the_refusals_that_a_page_shows_are_the_programs_own(page, tmp_path, monkeypatch):
    """Word for word, each on a line of the page."""
    monkeypatch.chdir(tmp_path)
    lines = (Path(__file__).parents[1] / "docs" / page).read_text().splitlines()
    for name, contents in ON_PAGES[page].items():
        for content in contents:
            Path(name).write_bytes(content)
            with pytest.raises(DataError) as refusal:
                load(name, scale="1,5")
            assert str(refusal.value) in {line.removeprefix("hushrec: ") for line in lines}
