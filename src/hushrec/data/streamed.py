"""Conversion to shards of a file that does not fit into memory: it is read in batches and sorted by person on disk.

    file ──batches of rows──▶ a record per rating ──by person──▶ a file of records per shard ──sorted──▶ shard

Memory holds a batch of rows, one shard, and the ids of all people and items. The records are stored in a scratch folder
beside the shards, readable by the user only and removed at the end; they take up to 64 bytes per rating.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from hushrec.arrays import FloatArray, IntArray, row_starts
from hushrec.data.columns import (
    Columns,
    all_missing,
    duplicate_error,
    find_columns,
    first_repeat,
    guess_scale,
    kept_rows,
    mean_by_pair,
    number_pairs,
    only_a_header,
    read_values,
    take_columns,
    without_missing,
)
from hushrec.data.items import read_items
from hushrec.data.ratings import Ratings, index_ids
from hushrec.data.shards import Profiles, Shards, check_new, cut_people, items_frame, write_profiles
from hushrec.data.sources import File, Form
from hushrec.data.tables import read_batches
from hushrec.data.texts import BYTES_AT_ONCE
from hushrec.errors import DataError

RECORDS_AT_ONCE = 1 << 20
RECORD = np.dtype([("user", "<u4"), ("item", "<u4"), ("value", "<f8"), ("row", "<u8"), ("line", "<u8")])
Records = np.ndarray[Any, Any]


@dataclass
class Ids:
    """The distinct ids of a column, numbered from 0, and the number of rows with each id.

    Ids of a later batch get higher numbers than all earlier ids; within a batch the order is arbitrary.
    """

    numbers: dict[str, int] = field(default_factory=dict)
    counts: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, batch: pl.Series) -> IntArray:
        """Add the next batch of the column to the numbers and counts; return the number of each row's id."""
        distinct, known = batch.unique(), self.numbers
        own = np.array([known.setdefault(one, len(known)) for one in distinct.to_list()], dtype=np.int64)
        rows: IntArray = own[batch.cast(pl.Enum(distinct)).to_physical().to_numpy()]
        counts = np.bincount(rows, minlength=len(known))
        counts[: len(self.counts)] += self.counts
        self.counts = counts
        return rows

    def ordered(self) -> tuple[list[str], IntArray]:
        """Return all ids in sorted order, and an array that maps the number of an id to its position in that order."""
        return index_ids(pl.Series(list(self.numbers), dtype=pl.String))


class Written(NamedTuple):
    """The result of `shard_file`."""

    shards: Shards
    about: Ratings  # name, scale and catalogue of the data set, with neither users nor ratings
    extremes: FloatArray  # the smallest and the largest rating; infinite without ratings


def shard_file(file: File, form: Form, folder: str | Path, ratings_per_shard: int) -> Written:
    """Write the ratings of a file of any size to a new folder as shards of about `ratings_per_shard` ratings each.

    The ratings are those that `load` would return. The file is read in batches of about `BYTES_AT_ONCE` bytes of text,
    or a corresponding number of Parquet rows.
    """
    path = Path(folder).absolute()
    check_new(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
            return _Sorting(file, form, Path(scratch)).write(path, ratings_per_shard)
    except OSError as error:
        raise DataError(
            f"{path} could not be written ({error.strerror or error}). Check the free space on its disk."
        ) from None


class _Sorting:
    """The conversion of one file to shards: the constructor reads the file, `write` sorts it and writes the shards."""

    def __init__(self, file: File, form: Form, scratch: Path) -> None:
        self.file, self.form, self.scratch = file, form, scratch
        self.users, self.items = Ids(), Ids()
        self.n_read, self.n_kept = 0, 0  # all rows, and rows that have a rating
        self.extremes = (np.inf, -np.inf)  # the smallest and the largest rating
        self.has_values, self.unit = False, "line"
        with self._unsorted.open("wb") as out:
            for records in self._read():
                records.tofile(out)
        if self.n_read == 0:
            raise only_a_header(file.path)
        if self.n_kept == 0:
            raise all_missing(file.path)
        self.scale = (self.form.scale or guess_scale(file.path, np.array(self.extremes))) if self.has_values else None

    @property
    def _unsorted(self) -> Path:
        return self.scratch / "ratings"

    def _read(self) -> Iterator[Records]:
        """Yield the ratings in the file's order, as arrays of `RECORD`, with users and items as numbers of `Ids`.

        Raise `DataError` for invalid rows.
        """
        form, positions = self.form, None
        for table in read_batches(
            self.file.path, encoding=form.encoding, skip_rows=form.skip_rows, at_once=BYTES_AT_ONCE
        ):
            if positions is None:
                positions, has_header = find_columns(table, form.columns, implicit=form.implicit)
                table = table.without_first() if has_header else table
            self.n_read += len(table.frame)
            chosen = without_missing(take_columns(table, positions), form.missing)
            if not chosen.users.is_empty():
                yield self._records(chosen)

    def _records(self, chosen: Columns) -> Records:
        table, records = chosen.table, np.zeros(len(chosen.users), RECORD)
        records["user"], records["item"] = self.users.add(chosen.users), self.items.add(chosen.items)
        records["row"] = np.arange(self.n_kept, self.n_kept + len(records))
        records["line"] = table.lines
        self.n_kept += len(records)
        self.unit, self.has_values = table.unit, chosen.ratings is not None
        self.form = self.form.of_column(chosen.ratings)
        if chosen.ratings is not None:
            records["value"] = values = read_values(table, chosen.ratings, self.form.scale)
            self.extremes = (min(self.extremes[0], float(values.min())), max(self.extremes[1], float(values.max())))
        return records

    def write(self, folder: Path, ratings_per_shard: int) -> Written:
        item_ids, item_positions = self.items.ordered()
        user_ids, user_positions = self.users.ordered()
        counts = np.zeros(len(user_ids), np.int64)
        counts[user_positions] = self.users.counts
        borders = cut_people(row_starts(counts), ratings_per_shard)
        about = self._about(item_ids)
        self._divide(borders, user_positions, item_positions)
        dropped = self._settle_duplicates(len(borders) - 1)
        chunks = (
            (user_ids[first:stop], self._profiles(number, first, stop, dropped))
            for number, (first, stop) in enumerate(pairwise(borders))
        )
        shards = write_profiles(folder, chunks, items_frame(about), about)
        return Written(shards, about, np.array(self.extremes))

    def _about(self, item_ids: list[str]) -> Ratings:
        items = self.file.items
        titles, attributes, catalogue = (
            (None, None, None)
            if items is None
            else read_items(items, item_ids, self.form.encoding, ratings=self.file.path)
        )
        guessed = self.scale is not None and self.form.scale is None and not self.file.is_named
        facts = {"titles": titles, "attributes": attributes, "scale_is_guessed": guessed, "catalogue": catalogue}
        return Ratings.of_items(self.file.name, item_ids, self.scale, **facts)

    def _divide(self, borders: list[int], user_positions: IntArray, item_positions: IntArray) -> None:
        """Append every rating to the temporary file of its shard, with its user and item as positions in sorted ids.

        `user_positions` and `item_positions` map the numbers of ids to these positions (`Ids.ordered`).
        `borders` has the position of each shard's first person (`cut_people`).
        """
        with self._unsorted.open("rb") as file:
            while len(records := np.fromfile(file, RECORD, RECORDS_AT_ONCE)):
                records["user"] = user_positions[records["user"]]
                records["item"] = item_positions[records["item"]]
                shard = np.searchsorted(borders, records["user"], "right") - 1
                records = records[np.argsort(shard, kind="stable")]
                ends = np.cumsum(np.bincount(shard, minlength=len(borders) - 1))
                for number, part in enumerate(np.split(records, ends[:-1])):
                    if len(part):
                        with (self.scratch / str(number)).open("ab") as out:
                            part.tofile(out)
        self._unsorted.unlink()

    def _settle_duplicates(self, n_shards: int) -> IntArray:
        """Keep one rating of each (user, item) pair in the temporary files; return the others' row numbers, sorted.

        Raise `DataError` if a pair is repeated and the option `duplicates` is "refuse".
        """
        mode, dropped, repeats = self.form.duplicates, [np.empty(0, np.int64)], []
        for number in range(n_shards):
            records = self._shard(number)
            pairs = number_pairs(records["user"].astype(np.int64), records["item"].astype(np.int64))
            keep = kept_rows(pairs, mode)
            if keep.all():
                continue
            dropped.append(records["row"][~keep].astype(np.int64))
            if mode == "refuse":
                first, second = records["line"][first_repeat(pairs, keep)].tolist()
                repeats.append((second, first))
                continue
            if mode == "mean":
                records["value"] = mean_by_pair(pairs, records["value"])
            records[keep].tofile(self.scratch / str(number))
        rows = np.sort(np.concatenate(dropped))
        if repeats:
            second, first = min(repeats)
            raise duplicate_error(self.file.path, self.unit, first, second, len(rows))
        return rows

    def _shard(self, number: int) -> Records:
        return np.fromfile(self.scratch / str(number), RECORD)

    def _profiles(self, number: int, first: int, stop: int, dropped: IntArray) -> Profiles:
        """Return the ratings of shard `number`, which has people `first` … `stop` − 1, and delete its temporary file.

        `dropped` has the row numbers of the ratings that were left out as duplicates. Row numbers in the result count
        only the ratings that remain.
        """
        records = self._shard(number)
        (self.scratch / str(number)).unlink()
        records = records[np.lexsort((records["item"], records["user"]))]
        starts = np.searchsorted(records["user"], np.arange(first, stop + 1)).astype(np.int64)
        rows = records["row"].astype(np.int64)
        values = records["value"].copy() if self.has_values else None
        return Profiles(starts, records["item"].astype(np.int64), values, rows - np.searchsorted(dropped, rows))
