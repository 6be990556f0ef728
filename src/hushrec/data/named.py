"""The named data sets: their licences, how to find and download their files; and summary statistics of any ratings."""

import os
import tempfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from hushrec.arrays import IntArray
from hushrec.data.ratings import Ratings
from hushrec.data.tables import read_table
from hushrec.errors import DataError

Progress = Callable[[int, int | None], None]  # bytes so far, total number of bytes if known
CHUNK = 1 << 16

MOVIELENS_LICENCE = (
    "MovieLens (GroupLens, University of Minnesota): for research. Acknowledge it in publications; do not suggest "
    "that they endorse you; no redistribution and no commercial use without their permission."
)
NETFLIX_LICENCE = (
    "Netflix Prize: for research. Acknowledge it; no redistribution without permission; no commercial use. "
    "Its publisher withdrew it, so that it cannot be downloaded."
)
MOVIELENS_CITATION = (
    "F. Maxwell Harper and Joseph A. Konstan. 2015. The MovieLens Datasets: History and Context. "
    "ACM Transactions on Interactive Intelligent Systems 5, 4, Article 19. https://doi.org/10.1145/2827872"
)
NETFLIX_CITATION = "James Bennett and Stan Lanning. 2007. The Netflix Prize. Proceedings of KDD Cup and Workshop 2007."


@dataclass(frozen=True)
class NamedSet:
    """A data set that can be loaded by its name; paths are relative to a data folder."""

    name: str
    summary: str  # its size and scale, in words
    licence: str
    citation: str
    address: str | None  # of the publisher's archive; None if the publisher has withdrawn it
    ratings_files: tuple[str, ...]  # alternatives, plain or with .gz; the first existing file is used
    items_file: str  # titles and attributes of the items


SETS = {
    entry.name: entry
    for entry in (
        NamedSet(
            "ml-100k", "943 users, 1,682 films, 100,000 ratings of 1-5", MOVIELENS_LICENCE, MOVIELENS_CITATION,
            "https://files.grouplens.org/datasets/movielens/ml-100k.zip", ("ml-100k/u.data",), "ml-100k/u.item",
        ),
        NamedSet(
            "ml-1m", "6,040 users, 3,706 rated films, 1,000,209 ratings of 1-5", MOVIELENS_LICENCE, MOVIELENS_CITATION,
            "https://files.grouplens.org/datasets/movielens/ml-1m.zip",
            ("ml-1m/ratings.dat", "ml-1m/ratings_notime.dat"), "ml-1m/movies.dat",
        ),
        NamedSet(
            "netflix-10k",
            "10,000 users, 1,766 films, 551,931 ratings of 1-5; a cut of a random sample of the Netflix Prize data",
            NETFLIX_LICENCE, NETFLIX_CITATION, None, ("netflix/netflix-10k.csv",), "netflix/movie_titles.csv",
        ),
        NamedSet(
            "netflix-10k5k",
            "10,000 users, 5,000 films, 558,380 ratings of 1-5; pieced together: for time and memory only",
            NETFLIX_LICENCE, NETFLIX_CITATION, None, ("netflix/netflix-10k5k.csv",), "netflix/movie_titles.csv",
        ),
    )
}  # fmt: skip
# By set, the file of people beside the ratings, and its columns of id, gender, age and occupation.
PEOPLE_FILES = {"ml-100k": ("u.user", (0, 2, 1, 3)), "ml-1m": ("users.dat", (0, 1, 2, 3))}


def cache_dir() -> Path:
    """Return the folder of downloaded data sets: $XDG_CACHE_HOME/hushrec, or ~/.cache/hushrec."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "hushrec"


def find(name: str, data_dir: str | Path | None) -> tuple[Path, Path | None]:
    """Return the file of ratings and the file of items of a named set, from the first data folder that has the ratings.

    The data folders are `data_dir`, $HUSHREC_DATA and the cache. The file of items is None if that folder has none.
    Raise `DataError` if no folder has the ratings.
    """
    entry = lookup(name)
    given = [Path(folder) for folder in (data_dir, os.environ.get("HUSHREC_DATA")) if folder]
    folders = [*given, cache_dir()]
    for folder in folders:
        ratings = [path for file in entry.ratings_files if (path := _plain_or_gzipped(folder / file))]
        if ratings:
            return ratings[0], _plain_or_gzipped(folder / entry.items_file)
    looked = ", ".join(str(folder) for folder in folders)
    wanted = " or ".join(entry.ratings_files)
    raise DataError(f"{name} was not found: looked for {wanted} (or .gz) in {looked}. {_how_to_get(entry)}")


def lookup(name: str) -> NamedSet:
    """Return the named set with this name; raise `DataError` if there is none."""
    if name not in SETS:
        raise DataError(f"name must be one of {', '.join(SETS)}, got {name!r}.")
    return SETS[name]


def _plain_or_gzipped(path: Path) -> Path | None:
    return next((candidate for candidate in (path, path.with_name(path.name + ".gz")) if candidate.is_file()), None)


def load_people(name: str, user_ids: Sequence[str], data_dir: str | Path | None) -> dict[str, IntArray] | None:
    """Return arrays "gender", "age" and "occupation", with a whole number for each user in the order of `user_ids`.

    Gender is 1 for "F" and 0 otherwise. Age is 1 above the median age of `user_ids` and 0 otherwise. Occupations are
    numbered from 0 in sorted order. The result is None if the data set `name` has no file of people.
    """
    if name not in PEOPLE_FILES:
        return None
    file, columns = PEOPLE_FILES[name]
    path = _plain_or_gzipped(find(name, data_dir)[0].with_name(file))
    if path is None:
        return None
    frame = read_table(path).frame
    ids, genders, ages, occupations = (frame[:, column].to_list() for column in columns)
    row_of = {str(person): row for row, person in enumerate(ids)}
    rows = [row_of[person] for person in user_ids]
    age = np.array([int(ages[row]) for row in rows])
    return {
        "gender": np.array([genders[row] == "F" for row in rows]).astype(np.int64),
        "age": (age > np.median(age)).astype(np.int64),
        "occupation": np.unique([occupations[row] for row in rows], return_inverse=True)[1].astype(np.int64),
    }


def _how_to_get(entry: NamedSet) -> str:
    if entry.address:
        return f"Run `hushrec data get {entry.name}`, or set $HUSHREC_DATA or --data-dir to a folder that contains it."
    return (
        f"Its publisher withdrew it. Put a copy at {cache_dir() / entry.ratings_files[0]}, or set $HUSHREC_DATA or"
        f" --data-dir to a folder that contains {entry.ratings_files[0]}."
    )


def get(
    name: str,
    destination: str | Path | None = None,
    *,
    address: str | None = None,
    timeout: float = 60,
    progress: Progress | None = None,
) -> Path:
    """Download a named set from its publisher and unpack it; return its folder.

    `destination` is a data folder, by default the user's cache; `address` replaces the publisher's URL. `progress` is
    called with the number of bytes received and, if known, the total; `timeout` is in seconds. Show
    `lookup(name).licence` to the user first.
    """
    entry = lookup(name)
    folder = Path(destination) if destination else cache_dir()
    source = address or entry.address
    if source is None:
        raise DataError(f"{name} cannot be downloaded. {_how_to_get(entry)}")
    by_hand = f"Download {source} by hand and unpack it, so that {folder / entry.ratings_files[0]} exists."
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            archive = Path(scratch) / "archive.zip"
            with urllib.request.urlopen(source, timeout=timeout) as response, archive.open("wb") as file:
                total = int(response.headers.get("Content-Length") or 0) or None
                while chunk := response.read(CHUNK):
                    file.write(chunk)
                    if progress is not None:
                        progress(file.tell(), total)
            return _unpack(entry, archive, folder)
    except zipfile.BadZipFile:
        raise DataError(f"{source} must be a complete zip archive, but is not. {by_hand}") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"{name} could not be downloaded from {source} ({reason}). {by_hand}") from None
    except OSError as error:
        raise DataError(f"{name} could not be written to {folder} ({error.strerror or error}). {by_hand}") from None


def _unpack(entry: NamedSet, archive: Path, folder: Path) -> Path:
    """Unpack the set's files into the folder `folder`/NAME, where NAME is the set's name; return that folder.

    Only files directly in the archive's folder NAME are unpacked, so that an archive cannot write anywhere else.
    """
    with zipfile.ZipFile(archive) as content:
        names = content.namelist()
        if not any(file in names for file in entry.ratings_files):
            raise DataError(
                f"the archive of {entry.name} must contain {' or '.join(entry.ratings_files)}, but does not:"
                " its publisher may have changed it. Nothing was unpacked. Unpack a copy of the set by hand, so that"
                f" {folder / entry.ratings_files[0]} exists."
            )
        content.extractall(folder, [name for name in names if PurePosixPath(name).parts[:-1] == (entry.name,)])
    return folder / entry.name


def describe(ratings: Ratings) -> dict[str, Any]:
    """Return summary statistics: counts, scale, density, and quantiles of the numbers of ratings per user and per item.

    The result also has the names of the attributes, the checksum and, if the ratings have values, their smallest and
    largest value ("range"), mean and standard deviation. If there are at most `MOST_VALUES` different values, "values"
    says how often each occurs.
    """
    per_user = np.bincount(ratings.users, minlength=ratings.n_users)
    per_item = np.bincount(ratings.items, minlength=ratings.n_items)
    summary: dict[str, Any] = {
        "name": ratings.name,
        "users": ratings.n_users,
        "items": ratings.n_items,
        "ratings": ratings.n_ratings,
        "scale": None if ratings.scale is None else [ratings.scale.low, ratings.scale.high],
        "density": ratings.n_ratings / (ratings.n_users * ratings.n_items),
        "per_user": _quantiles(per_user),
        "per_item": _quantiles(per_item),
        "users_with_one_rating": int((per_user == 1).sum()),
        "items_with_one_rating": int((per_item == 1).sum()),
        "items_without_rating": int((per_item == 0).sum()),
        "titles": ratings.titles is not None and ratings.titles != ratings.item_ids,
        "attributes": [] if ratings.attributes is None else ratings.attributes.columns,
        "checksum": ratings.checksum,
    }
    if ratings.values is not None:
        values, counts = np.unique(ratings.values, return_counts=True)
        summary["range"] = [float(ratings.values.min()), float(ratings.values.max())]
        summary["mean"] = float(ratings.values.mean())
        summary["standard_deviation"] = float(ratings.values.std())
        if len(values) <= MOST_VALUES:
            summary["values"] = {f"{value:g}": int(count) for value, count in zip(values, counts, strict=True)}
    return summary


MOST_VALUES = 25
QUANTILES = {"min": 0.0, "q10": 0.1, "q25": 0.25, "median": 0.5, "q75": 0.75, "q90": 0.9, "max": 1.0}


def _quantiles(counts: IntArray) -> dict[str, float]:
    spread = {name: float(np.quantile(counts, share)) for name, share in QUANTILES.items()}
    return {**spread, "mean": float(counts.mean())}
