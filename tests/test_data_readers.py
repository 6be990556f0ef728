"""Readers: every format gives the same ratings; scales, duplicates, items files."""

import gzip
import io
import re
import subprocess
import sys

import numpy as np
import polars as pl
import pytest
from pace import slowness

from hushrec.data import Ratings, Scale, load
from hushrec.data.ratings import Catalogue
from hushrec.data.sources import Form, find_file
from hushrec.data.streamed import shard_file
from hushrec.errors import DataError

ROWS = [("7", "x", 5.0), ("10", "y", 3.0), ("7", "y", 1.0), ("9", "é", 4.0)]


def as_text(separator: str, *, header: str | None = None, end: str = "\n") -> bytes:
    """The four ratings as text."""
    lines = [separator.join((user, item, f"{value:g}")) for user, item, value in ROWS]
    return (end.join(([header] if header else []) + lines) + end).encode()


def as_parquet(**columns: pl.DataType) -> bytes:
    """The four ratings as Parquet, with columns cast as asked."""
    frame = pl.DataFrame(ROWS, schema=["user_id", "item_id", "rating"], orient="row").cast(columns)
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    return buffer.getvalue()


FORMATS = {
    "csv with a header": as_text(",", header="user,item,rating"),
    "csv by position": as_text(","),
    "tsv": as_text("\t"),
    "double colon": as_text("::"),
    "semicolon": as_text(";", header="userId;movieId;rating"),
    "bar": as_text("|"),
    "no newline at the end": as_text(",").rstrip(b"\n"),
    "empty lines at the end": as_text(",") + b"\n\n",
    "empty lines at the start and in the middle": b"\n\n" + as_text(",").replace(b"\n", b"\n\n\n"),
    "empty lines and quotes": b'\nuser,item,rating\n\n"7",x,5\n10,y,3\n\n\n7,y,1\n9,\xc3\xa9,4\n',
    "windows lines": as_text(",", header="User,Item,Rating", end="\r\n"),
    "old mac lines": as_text(",", end="\r"),
    "byte order mark": b"\xef\xbb\xbf" + as_text(",", header="user,item,rating"),
    "quotes": b'"user","item","rating"\n"7","x","5"\n10,"y",3\n7,y,1\n9,"\xc3\xa9",4\n',
    "tsv with quotes": b'"user"\t"item"\t"rating"\n7\tx\t5\n10\ty\t3\n7\ty\t1\n9\t\xc3\xa9\t4\n',
    "spaces around fields": b"user, item, rating\n7, x, 5\n10 ,y , 3\n7,y,1\n9, \xc3\xa9 ,4",
    "names with a type": as_text("\t", header="user_id:token\titem_id:token\trating:float"),
    "other order, more columns": b"time,rating,film,reviewerID\n0,5,x,7\n0,3,y,10\n0,1,y,7\n,4,\xc3\xa9,9\n",
    "parquet": as_parquet(),
    "parquet of integers and categories": as_parquet(user_id=pl.Int32(), item_id=pl.Categorical(), rating=pl.Int8()),
}


@pytest.fixture
def read(tmp_path):
    """Writes bytes to a file and loads it."""

    def write_and_load(data: bytes | str, name: str = "r.csv", **settings) -> Ratings:
        path = tmp_path / name
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return load(path, **settings)

    return write_and_load


@pytest.mark.parametrize("gzipped", [False, True], ids=["plain", "gzipped"])
@pytest.mark.parametrize("data", FORMATS.values(), ids=FORMATS.keys())
def test_every_format_gives_the_same_ratings(read, data, gzipped):
    """Numeric ids in numeric order, text ids in text order, rows in the file's order."""
    ratings = read(gzip.compress(data) if gzipped else data)

    assert ratings.user_ids == ["7", "9", "10"]
    assert ratings.item_ids == ["x", "y", "é"]
    assert ratings.users.tolist() == [0, 2, 0, 1]
    assert ratings.items.tolist() == [0, 1, 1, 2]
    assert ratings.values is not None
    assert ratings.values.tolist() == [5, 3, 1, 4]
    assert ratings.scale == Scale(1, 5)
    assert (ratings.n_users, ratings.n_items, ratings.n_ratings) == (3, 3, 4)
    assert ratings.checksum == read(as_text(","), "plain.csv").checksum


def test_columns_can_be_named_or_numbered(read):
    """By the header's own names, or by position from 1 with or without a header that we know."""
    text = "note,artikel,kunde\n5,x,a\n2,y,b\n"
    by_name = read(text, columns="kunde,artikel,note")
    by_position = read(text.split("\n", 1)[1], columns="3,2,1")
    skipping = read("rating,item,user\n5,x,a\n2,y,b\n", columns="3,2,1")

    assert by_name.checksum == by_position.checksum == skipping.checksum
    assert by_name.user_ids == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "user", "item"),
    [
        ("a;1;3,5\nb;2;4,5\nc;3;1,0\n", "a", "1"),
        ("a|1|3,5|x\nb|2|4,5|y\nc|3|1,0|z\n", "a", "1"),
        ("Last, First;b1;3.5\nLast, First;b2;4.5\nNone, A;b1;1\n", "Last, First", "b1"),
        ('"Last, First";b1;3,5\n"Last, First";b2;4,5\n"None, A";b1;1,0\n', "Last, First", "b1"),
        ("std::a,b1,3.5\nstd::b,b2,4.5\nstd::c,b1,1\n", "std::a", "b1"),
        ("user;item;rating, of 5\na;1;3,5\nb;2;4,5\nc;3;1\n", "a", "1"),
        ("a,Tom;Jerry,3.5\na,Rocky,4.5\nb,Dr. No,1\n", "a", "Tom;Jerry"),
        ('a,"1\n\n;",3.5\na,2,"4,5"\nb,3,1\n', "a", "1\n\n;"),
    ],
)
def test_the_separator_makes_the_most_fields_of_most_lines(read, text, user, item):
    """A separator inside ids, a header or decimal commas is none; a comma in a number is a decimal comma."""
    ratings = read(text, columns="1,2,3" if "of 5" not in text else ["user", "item", "rating, of 5"])

    assert (ratings.user_ids[ratings.users[0]], ratings.item_ids[ratings.items[0]]) == (user, item)
    assert ratings.values.tolist() == [3.5, 4.5, 1]


def test_a_missing_rating_may_have_a_decimal_comma(read):
    """`--missing 0` means 0,0 too."""
    assert read("a;1;3,5\nb;2;0,0\n", missing="0").n_ratings == 1


def test_a_file_of_pairs_has_no_values(read):
    """Two columns, two named columns, or implicit on a file that has ratings."""
    for ratings in (
        read("user,item\na,x\nb,y\n"),
        read("a,x\nb,y\n"),
        read("when,who,what\n1,a,x\n2,b,y\n", columns="who,what"),
        read("user,item,rating\na,x,great\nb,y,\n", implicit=True),
        read("a,x,5\nb,y,1\n", implicit=True),
    ):
        assert ratings.values is None
        assert ratings.scale is None
        assert ratings.user_ids == ["a", "b"]
        assert ratings.n_ratings == 2
        assert "one-class" in repr(ratings)


def test_integer_ids_are_ordered_as_numbers_even_beyond_64_bits(read):
    """-3 < 2 < 02 < 10 < 10^30; one id that is no integer makes all of them text."""
    ids = ["10", "2", "-3", "02", "1" + "0" * 30]
    assert read("".join(f"{user},x,3\n" for user in ids)).user_ids == ["-3", "02", "2", "10", "1" + "0" * 30]
    assert read("10,x,3\n2,x,3\nb,x,3\n").user_ids == ["10", "2", "b"]


@pytest.mark.parametrize(
    ("values", "scale"),
    [
        ([1, 5], "1-5"),
        ([3, 4], "1-5"),
        ([0.5, 5], "0.5-5"),
        ([0, 5], "0-5"),
        ([1, 6], "1-10"),
        ([0, 10], "0-10"),
        ([-0.1, 3], "-10-10"),
        ([0, 11], "0-100"),
    ],
)
def test_the_scale_is_the_smallest_usual_one_that_holds_every_value(values, scale):
    """The order is that of the list in docs/data.md."""
    assert str(Scale.guess(values)) == scale


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ([1, 3, 5], ""),
        ([0, 1, 2, 3, 4, 5], ""),
        ([3, 3], ""),
        ([-9.5, -0.3, 4, 9.8], ""),
        ([68, 75, 84], "16% of the guessed scale 0-100.*--scale MIN,MAX"),
        ([1, 2, 3], "50% of the guessed scale 1-5.*--scale MIN,MAX"),
        ([3, 3.5, 4], "25% of the guessed scale 1-5.*--scale MIN,MAX"),
        ([-1, 1, 2, 3, 4, 5], r"30% of the guessed scale -10-10.*--scale MIN,MAX.*--missing -1 .*missing=-1\)"),
        ([0, 5, 6, 7, 8, 9, 10], "^The lowest rating, 0, .*--missing 0"),
    ],
)
def test_a_guessed_scale_is_doubted_if_ratings_use_little_of_it_or_one_seems_to_mean_none(values, said):
    """By hand: (84 − 68)/100 = 16 %; −1 is 2 away from 1, and the others are 1 apart."""
    doubt = Scale.guess(values).doubt(values)
    assert re.search(said, doubt) if said else doubt == ""


def test_a_scale_maps_to_one_to_five_and_back():
    """Worked by hand: 0, 25, 50 and 100 of 0-100 are 1, 2, 3 and 5."""
    scale = Scale(0, 100)
    assert scale.to_unit([0, 25, 50, 100]).tolist() == [1, 2, 3, 5]
    assert scale.from_unit([1, 2, 3, 5]).tolist() == [0, 25, 50, 100]
    values = np.linspace(-10, 10, 7)
    assert np.allclose(Scale(-10, 10).from_unit(Scale(-10, 10).to_unit(values)), values, atol=1e-12)


def test_a_scale_can_be_given_as_text(read):
    """`1,7` is the scale from 1 to 7."""
    assert read("a,x,3\n", scale="1,7").scale == Scale(1, 7)
    assert Scale.parse(" -1, 1 ") == Scale(-1, 1)


@pytest.mark.parametrize("text", ["5", "1,2,3", "a,b", "", "1;5"])
def test_a_scale_that_is_not_two_numbers_is_refused(text):
    """The form is in the message."""
    with pytest.raises(DataError, match="scale"):
        Scale.parse(text)


@pytest.mark.parametrize("text", ["5,1", "1,1", "nan,5", "1,inf"])
def test_a_scale_without_room_is_refused(text):
    """Low must be below high, and both finite."""
    with pytest.raises(DataError, match="scale"):
        Scale.parse(text)


@pytest.mark.parametrize(
    ("mode", "values", "items"),
    [("first", [1, 4], ["x", "y"]), ("last", [4, 5], ["y", "x"]), ("mean", [3, 4], ["x", "y"])],
)
def test_duplicates_are_settled_as_asked(read, mode, values, items):
    """(a, x) comes with 1, 3 and 5; rows stay in the order of the row kept."""
    ratings = read("a,x,1\na,y,4\na,x,3\na,x,5\n", duplicates=mode)

    assert ratings.values is not None
    assert ratings.values.tolist() == values
    assert [ratings.item_ids[item] for item in ratings.items] == items


def test_duplicate_pairs_without_ratings_are_kept_once(read):
    """Any mode but refuse keeps one row per pair."""
    assert read("a,x\na,y\na,x\n", duplicates="mean").n_ratings == 2


def test_an_items_file_gives_titles_flags_and_numbers(read, tmp_path):
    """Categories, also `|` separated, become flags; numbers stay; an item that is not listed has its id for a title."""
    items = tmp_path / "items.csv"
    items.write_text('id,title,kind,length,note\ny,"Why, Y",drama|war,90,\nx,Ex,comedy,,\nother,Other,western,1,\n')
    ratings = read("a,x,5\na,y,3\nb,z,4\n", items=items)

    assert ratings.titles == ["Ex", "Why, Y", "z"]
    assert ratings.attributes is not None
    assert ratings.attributes.to_dict(as_series=False) == {
        "kind=comedy": [True, False, False],
        "kind=drama": [False, True, False],
        "kind=war": [False, True, False],
        "length": [None, 90.0, None],
    }


def test_gaps_of_other_programs_leave_a_column_of_numbers(read, tmp_path):
    """R and pandas write NA, NaN, Inf …; a number beyond 1e100 is no measurement; NA among words is a word."""
    items = tmp_path / "items.csv"
    items.write_text("id;year;price;region\nx;NA;1,5;NA\ny;1999;null;EU\nz;inf;N/A;EU\nw;1e300;NaN;EU\n")
    known = read("a,x,5\na,y,3\nb,z,4\nb,w,4\n", items=items).with_catalogue().attributes

    assert known.to_dict(as_series=False) == {
        "year": [None, 1999, None, None],
        "price": [1.5, None, None, None],
        "region=EU": [False, True, True, True],
        "region=NA": [True, False, False, False],
    }
    frame = pl.DataFrame({"id": ["x", "y", "z", "w"], "year": [float("nan"), 1999, float("inf"), 1e300]})
    again = read("a,x,5\na,y,3\nb,z,4\nb,w,4\n", items=frame).with_catalogue().attributes
    assert again["year"].to_list() == [None, 1999, None, None]


def test_truth_values_are_ratings_from_0_to_1(tmp_path):
    """As from `frame.rating > 3`; the scale is that of their type, not guessed from which of the two occur."""
    frame = pl.DataFrame({"user": ["a", "b"], "item": ["x", "y"], "rating": [True, False]})
    frame.write_parquet(tmp_path / "r.parquet")
    for source in (frame, tmp_path / "r.parquet", frame.rows()):
        ratings = load(source)
        assert ratings.values.tolist() == [1, 0]
        assert (ratings.scale, ratings.scale_is_guessed) == (Scale(0, 1), False)
    assert load(frame[:1]).scale == Scale(0, 1)
    shards = shard_file(find_file(tmp_path / "r.parquet"), Form(), tmp_path / "shards", 10)
    assert (shards.about.scale, shards.about.scale_is_guessed) == (Scale(0, 1), False)


def test_truth_values_of_pandas_are_read_like_those_of_polars():
    """With the dtype of NumPy, and with that of pandas, in which a value can be missing."""
    pandas = pytest.importorskip("pandas")
    for kind in ("bool", "boolean"):
        frame = pandas.DataFrame({"user": ["a", "b"], "item": ["x", "y"]})
        frame["rating"] = pandas.array([True, False], dtype=kind)
        assert load(frame).values.tolist() == [1, 0]


def test_lists_in_a_pandas_frame_are_those_of_a_polars_frame(read):
    """Lists, arrays and missing values; a category is an element."""
    pandas = pytest.importorskip("pandas")
    columns = {"id": ["x", "y", "z"], "tags": [["a", "b"], None, ["b"]]}
    frames = [pandas.DataFrame(columns), pl.DataFrame(columns)]
    frames.append(pandas.DataFrame({**columns, "tags": [np.array(["a", "b"]), None, ("b",)]}))
    for frame in frames:
        known = read("a,x,5\na,y,3\nb,z,4\n", items=frame).attributes
        assert known.to_dict(as_series=False) == {"tags=a": [True, False, False], "tags=b": [True, False, True]}


def test_an_items_file_without_any_rated_item_is_refused(read, tmp_path):
    """With both files and counts, and no rated id; if some are listed, a notice has the counts."""
    items = tmp_path / "items.csv"
    items.write_text("id,title\nfilm-x,X\nfilm-y,Y\n")
    with pytest.raises(DataError, match="items") as refused:
        read("a,secret-1,5\na,secret-2,3\n", items=items)
    assert str(refused.value) == (
        f"{items} must list the items that {tmp_path / 'r.csv'} rates: none of the 2 rated items is among its 2 ids,"
        " such as 'film-x'. Write the ids in the same way in both."
    )
    ratings = read("a,film-x,5\na,y,3\nb,z,3\n", items=items)
    assert ratings.catalogue.notices == ["1 of 3 rated items are in the items file"]


def test_an_items_file_is_the_catalogue_whatever_was_rated(read, tmp_path):
    """Items stand in the order of the file, those that it does not list come last; the checksum stays."""
    items = tmp_path / "items.csv"
    items.write_text("id,title,kind\ny,Y,drama\nother,Other,western\nx,X,comedy\n")
    ratings = read("a,x,5\na,y,3\nb,z,4\n", items=items)
    whole = ratings.with_catalogue()

    assert whole.item_ids == ["y", "other", "x", "z"]
    assert whole.titles == ["Y", "Other", "X", "z"]
    assert whole.attributes["kind=western"].to_list() == [False, True, False, False]
    assert (ratings.n_items, whole.n_items, whole.n_unlisted) == (3, 4, 1)
    assert [whole.item_ids[place] for place in whole.rated_items] == ratings.item_ids
    assert [whole.item_ids[item] for item in whole.items] == [ratings.item_ids[item] for item in ratings.items]
    assert whole.checksum == ratings.checksum
    assert whole.with_catalogue() is whole
    bare = read("a,x,5\na,y,3\n")
    assert bare.with_catalogue() is bare
    assert bare.n_unlisted == 2


def test_an_items_file_may_be_parquet_with_lists(read, tmp_path):
    """A list of categories is read like `a|b`; `name` serves as title; Boolean is a number."""
    items = tmp_path / "items.parquet"
    frame = pl.DataFrame({"item": [1, 2], "Name": ["One", None], "tags": [["a", "b"], []], "new": [True, False]})
    frame.write_parquet(items)
    ratings = read("u,1,5\nu,2,3\n", items=items)

    assert ratings.titles == ["One", "2"]
    assert ratings.attributes is not None
    assert ratings.attributes.to_dict(as_series=False) == {
        "tags=a": [True, False],
        "tags=b": [True, False],
        "new": [1.0, 0.0],
    }


def test_a_text_column_of_many_categories_is_no_attribute(read, tmp_path):
    """101 different addresses say nothing about taste."""
    rows = range(101)
    items = tmp_path / "items.csv"
    items.write_text("id,address\n" + "".join(f"{row},a{row}\n" for row in rows))
    ratings = read("".join(f"u,{row},3\n" for row in rows), items=items)

    assert ratings.attributes is None
    assert ratings.titles == [str(row) for row in rows]
    assert [notice.partition(" of ")[0] for notice in ratings.catalogue.notices] == ["column address"]


def test_an_items_file_may_hold_ids_alone(read, tmp_path):
    """A catalogue without titles and attributes: no separator is needed."""
    items = tmp_path / "items.csv"
    items.write_text("id\nz\ny\nx\n")
    whole = read("a,x,5\na,y,3\n", items=items).with_catalogue()

    assert (whole.item_ids, whole.attributes) == (["z", "y", "x"], None)
    assert whole.n_unlisted == 0


def test_the_publishers_items_files_are_known_by_name(read, tmp_path):
    """movies.dat and movie_titles.csv are latin-1; a title may hold commas; a year may be unknown."""
    movies = tmp_path / "movies.dat"
    movies.write_bytes("1::Amélie: the film (2001)::Comedy|Romance\n2::Untitled::Drama\n".encode("latin-1"))
    titles = tmp_path / "movie_titles.csv.gz"
    titles.write_bytes(gzip.compress("1,NULL,Hier, aujourd'hui, demain\n2,1999,Été\n".encode("latin-1")))
    by_movies = read("u,1,5\nu,2,3\n", items=movies)
    by_titles = read("u,1,5\nu,2,3\n", items=titles)

    assert by_movies.titles == ["Amélie: the film (2001)", "Untitled"]
    assert by_movies.attributes is not None
    assert by_movies.attributes.columns == ["year", "genre=Comedy", "genre=Drama", "genre=Romance"]
    assert by_movies.attributes["year"].to_list() == [2001, None]
    assert by_titles.titles == ["Hier, aujourd'hui, demain", "Été"]
    assert by_titles.attributes is not None
    assert by_titles.attributes["year"].to_list() == [None, 1999]


def test_ratings_show_counts_only_and_cannot_be_written_to(read):
    """Neither a rating nor an id is in the repr."""
    ratings = read("secretuser,secretitem,5\n", "mine.csv")

    assert repr(ratings) == "Ratings('mine.csv', 1 users, 1 items, 1 ratings, scale 1-5)"
    with pytest.raises(ValueError, match="read-only"):
        ratings.users[0] = 1


def test_ratings_that_do_not_fit_together_are_refused():
    """Lengths, scale and titles are checked where the object is built."""
    one, two, value = np.zeros(1, np.int64), np.zeros(2, np.int64), np.ones(1)
    with pytest.raises(DataError, match="users, items and values"):
        Ratings("bad", ["a"], ["x"], one, two, value, Scale(1, 5))
    with pytest.raises(DataError, match="scale"):
        Ratings("bad", ["a"], ["x"], one, one, value, None)
    with pytest.raises(DataError, match="catalogue"):
        Ratings("bad", ["a"], ["x"], one, one, value, Scale(1, 5), catalogue=Catalogue(["x"] * 3, None, None, two, 0))
    with pytest.raises(DataError, match="titles"):
        Ratings("bad", ["a"], ["x"], one, one, value, Scale(1, 5), ["x", "y"])


def test_the_checksum_sees_ids_rows_values_and_scale(read):
    """Any of these changed gives another checksum; the file's name and form do not."""
    texts = ["a,x,5\nb,y,3\n", "b,y,3\na,x,5\n", "a,x,5\nc,y,3\n", "a,x,5\nb,y,4\n", "a,y,5\nb,x,3\n"]
    sums = {read(text).checksum for text in texts} | {
        read(texts[0], scale="1,6").checksum,
        read(texts[0], implicit=True).checksum,
    }

    assert len(sums) == len(texts) + 2


READ_AND_MEASURE = """
import pathlib, re, sys, time
from hushrec.data import load
start = time.process_time()
ratings = load(sys.argv[1])
seconds = time.process_time() - start
status = pathlib.Path("/proc/self/status").read_text()  # ru_maxrss would count what the parent held when it forked
peak = re.search(r"VmHWM:\\s+(\\d+) kB", status)[1]
print(ratings.n_ratings, ratings.checksum, seconds, peak)
"""


@pytest.fixture(scope="module")
def million():
    """A million ratings, and their lines with commas."""
    rng = np.random.default_rng(0)
    pairs = np.sort(rng.choice(6000 * 4000, 1_000_000, replace=False))
    users, items, stars = pairs // 4000, pairs % 4000, rng.integers(1, 6, len(pairs))
    rows = pl.DataFrame({"user": users, "item": items, "rating": stars, "time": 978300000 + pairs})
    ids = [[str(number) for number in range(count)] for count in (6000, 4000)]
    return Ratings("same", *ids, users, items, stars.astype(float), Scale(1, 5)), rows.write_csv(include_header=False)


@pytest.mark.parametrize("separator", [",", "::", '","'])
def test_a_million_rows_are_read_in_seconds_and_little_memory(tmp_path, million, separator):
    """In a fresh process: under 4 s of processor time over all threads, 500 MB in all (measured: 0.7, 260)."""
    same, lines = million
    text = lines.replace(",", separator)
    if '"' in separator:
        text = '"' + text.strip().replace("\n", '"\n"') + '"\n'
    path = tmp_path / "million.dat"
    path.write_text(text)

    command = [sys.executable, "-c", READ_AND_MEASURE, str(path)]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    n_ratings, checksum, seconds, peak_kib = output.split()

    assert (n_ratings, checksum) == ("1000000", same.checksum)
    assert float(seconds) < 4 * slowness()
    assert int(peak_kib) < 500_000
