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
from hushrec.data.ratings import IntArray, Ratings, Scale, index_ids
from hushrec.data.shards import Profiles, Shards, check_new, cut_people, items_frame, write_profiles
from hushrec.data.sources import File, Form
from hushrec.data.tables import read_batches
from hushrec.errors import DataError

BYTES_AT_ONCE = 1 << 25  # of text
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

    def take(self, column: pl.Series) -> IntArray:
        """Return the number of each id in the next batch of the column, numbering new ids; add its rows to `counts`."""
        distinct, known = column.unique(), self.numbers
        own = np.array([known.setdefault(one, len(known)) for one in distinct.to_list()], dtype=np.int64)
        taken: IntArray = own[column.cast(pl.Enum(distinct)).to_physical().to_numpy()]
        counts = np.bincount(taken, minlength=len(known))
        counts[: len(self.counts)] += self.counts
        self.counts = counts
        return taken

    def ordered(self) -> tuple[list[str], IntArray]:
        """Return all ids in sorted order, and an array that maps the number of an id to its position in that order."""
        return index_ids(pl.Series(list(self.numbers), dtype=pl.String))


class Written(NamedTuple):
    """The result of `shard_file`: the shards, their scale, and notes for the user on how the file was read."""

    shards: Shards
    scale: Scale | None
    guessed_from: tuple[float, float] | None  # the smallest and the largest rating if the scale was guessed
    notices: tuple[str, ...]


def shard_file(
    file: File, form: Form, folder: str | Path, ratings_per_shard: int, *, at_once: int = BYTES_AT_ONCE
) -> Written:
    """Write the ratings of a file of any size to a new folder as shards of about `ratings_per_shard` ratings each.

    The ratings are those that `load` would return. The file is read in batches of about `at_once` bytes of text, or a
    corresponding number of Parquet rows.
    """
    path = Path(folder).absolute()
    check_new(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.name}-", dir=path.parent) as scratch:
            return _Sorting(file, form, Path(scratch), at_once).write(path, ratings_per_shard)
    except OSError as error:
        raise DataError(
            f"{path} could not be written ({error.strerror or error}). Check the free space on its disk."
        ) from None


class _Sorting:
    """The conversion of one file to shards: the constructor reads the file, `write` sorts it and writes the shards."""

    def __init__(self, file: File, form: Form, scratch: Path, at_once: int) -> None:
        self.file, self.form, self.scratch = file, form, scratch
        self.users, self.items = Ids(), Ids()
        self.n_read, self.n_kept = 0, 0  # rows; those whose rating is the value for "no rating" are not kept
        self.extremes = (np.inf, -np.inf)  # the smallest and the largest rating
        self.has_values, self.unit = False, "line"
        with self._unsorted.open("wb") as out:
            for records in self._read(at_once):
                records.tofile(out)
        if self.n_read == 0:
            raise only_a_header(file.path)
        if self.n_kept == 0:
            raise all_missing(file.path)
        self.scale = (form.scale or guess_scale(file.path, np.array(self.extremes))) if self.has_values else None

    @property
    def _unsorted(self) -> Path:
        return self.scratch / "ratings"

    def _read(self, at_once: int) -> Iterator[Records]:
        """Yield records in the file's order, with ids as numbers (`Ids`); raise on invalid rows, as `load` does."""
        form, positions = self.form, None
        for batch in read_batches(self.file.path, encoding=form.encoding, skip_rows=form.skip_rows, at_once=at_once):
            table = batch
            if positions is None:
                positions, has_header = find_columns(table, form.columns, implicit=form.implicit)
                table = table.without_first() if has_header else table
            self.n_read += len(table.frame)
            chosen = without_missing(take_columns(table, positions), form.missing)
            if not chosen.users.is_empty():
                yield self._records(chosen)

    def _records(self, chosen: Columns) -> Records:
        table, records = chosen.table, np.zeros(len(chosen.users), RECORD)
        records["user"], records["item"] = self.users.take(chosen.users), self.items.take(chosen.items)
        records["row"] = np.arange(self.n_kept, self.n_kept + len(records))
        records["line"] = table.all_lines
        self.n_kept += len(records)
        self.unit, self.has_values = table.unit, chosen.ratings is not None
        if chosen.ratings is not None:
            records["value"] = values = read_values(table, chosen.ratings, self.form.scale)
            self.extremes = (min(self.extremes[0], float(values.min())), max(self.extremes[1], float(values.max())))
        return records

    def write(self, folder: Path, ratings_per_shard: int) -> Written:
        """Sort the records and write them as shards; return the shards and notes for the user."""
        item_ids, item_places = self.items.ordered()
        user_ids, user_places = self.users.ordered()
        counts = np.zeros(len(user_ids), np.int64)
        counts[user_places] = self.users.counts
        borders = cut_people(counts, ratings_per_shard)
        about = self._about(item_ids)
        self._part(borders, user_places, item_places)
        dropped = self._settle_duplicates(len(borders) - 1)
        chunks = (
            (user_ids[first:stop], self._profiles(number, first, stop, dropped))
            for number, (first, stop) in enumerate(pairwise(borders))
        )
        shards = write_profiles(folder, chunks, items_frame(about), about)
        notices = () if about.catalogue is None else tuple(about.catalogue.notices)
        return Written(shards, self.scale, self.extremes if about.scale_is_guessed else None, notices)

    def _about(self, item_ids: list[str]) -> Ratings:
        """Return the name, scale and catalogue of the data set, as `Ratings` with neither users nor ratings."""
        items, nobody = self.file.items, np.empty(0, np.int64)
        known = (None, None, None) if items is None else read_items(items, item_ids, self.form.encoding)
        titles, attributes, catalogue = known
        values = None if self.scale is None else np.empty(0)
        is_guessed = self.scale is not None and self.form.scale is None and not self.file.is_named
        return Ratings(
            self.file.name, [], item_ids, nobody, nobody, values, self.scale, titles, attributes, is_guessed,
            catalogue=catalogue,
        )  # fmt: skip

    def _part(self, borders: list[int], user_places: IntArray, item_places: IntArray) -> None:
        """Write every record to the file of its shard, with the positions of its person and item in the sorted ids.

        `user_places` and `item_places` map the numbers of ids to these positions (`Ids.ordered`). `borders` is the
        result of `cut_people`.
        """
        with self._unsorted.open("rb") as file:
            while len(records := np.fromfile(file, RECORD, RECORDS_AT_ONCE)):
                records["user"] = user_places[records["user"]]
                records["item"] = item_places[records["item"]]
                shard = np.searchsorted(borders, records["user"], "right") - 1
                records = records[np.argsort(shard, kind="stable")]
                ends = np.cumsum(np.bincount(shard, minlength=len(borders) - 1))
                for number, part in enumerate(np.split(records, ends[:-1])):
                    if len(part):
                        with (self.scratch / str(number)).open("ab") as out:
                            part.tofile(out)
        self._unsorted.unlink()

    def _settle_duplicates(self, n_shards: int) -> IntArray:
        """Keep one record of each (user, item) pair; return the sorted row numbers of the records left out.

        Raise `DataError` if a pair is repeated and the option `duplicates` is "refuse".
        """
        mode, dropped, repeats = self.form.duplicates, [np.empty(0, np.int64)], []
        for number in range(n_shards):
            records = self._shard(number)
            pairs = number_pairs(records["user"].astype(np.int64), records["item"].astype(np.int64))
            keep = kept_rows(pairs, mode)
            if keep is None:
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
        """Return the ratings of shard `number`, which has people `first` … `stop` − 1, and delete their temporary file.

        `dropped` has the numbers of input rows that were left out as duplicates. Row numbers in the result count only
        the rows that remain.
        """
        records = self._shard(number)
        (self.scratch / str(number)).unlink()
        records = records[np.lexsort((records["item"], records["user"]))]
        starts = np.searchsorted(records["user"], np.arange(first, stop + 1)).astype(np.int64)
        rows = records["row"].astype(np.int64)
        values = records["value"].copy() if self.has_values else None
        return Profiles(starts, records["item"].astype(np.int64), values, rows - np.searchsorted(dropped, rows))
