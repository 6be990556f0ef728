"""Ratings in memory: ids of users and items, values and their scale, and public facts about the items."""

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import polars as pl

from hushrec.arrays import PublicRatings
from hushrec.errors import DataError
from hushrec.scale import from_unit, to_unit

MOST_CATEGORIES = 100  # a text column of an items file with more categories is not used as an attribute

FloatArray: TypeAlias = npt.NDArray[np.float64]
IntArray: TypeAlias = npt.NDArray[np.int64]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Scale:
    """A rating scale: the smallest and the largest rating that a person can give.

    Models work on the scale 1 to 5: `to_unit` maps ratings to it linearly, `from_unit` maps them back.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.low) and math.isfinite(self.high) and self.low < self.high):
            raise DataError(f"scale must be two finite numbers, low < high, got {self}. Write it as --scale 1,5.")

    def __str__(self) -> str:
        return f"{self.low:g}-{self.high:g}"

    @classmethod
    def parse(cls, text: str) -> "Scale":
        try:
            low, high = (float(part) for part in text.split(","))
        except ValueError:
            raise DataError(f"scale must be written MIN,MAX, such as 1,5; got {text!r}.") from None
        return cls(low, high)

    @classmethod
    def guess(cls, values: npt.ArrayLike) -> "Scale":
        """Return the first usual scale, such as 1-5, that contains every value; raise `DataError` if none does."""
        array = np.asarray(values, dtype=np.float64)
        for scale in USUAL_SCALES:
            if scale.holds(array).all():
                return scale
        raise DataError(
            f"ratings must lie on one of the usual scales ({', '.join(map(str, USUAL_SCALES))}). Pass --scale MIN,MAX."
        )

    def holds(self, values: npt.ArrayLike) -> BoolArray:
        """Return for each value whether it lies on the scale; False for NaN."""
        array = np.asarray(values, dtype=np.float64)
        return np.asarray((array >= self.low) & (array <= self.high))

    def to_unit(self, values: npt.ArrayLike) -> FloatArray:
        return to_unit(values, self.low, self.high)

    def from_unit(self, values: npt.ArrayLike) -> FloatArray:
        return from_unit(values, self.low, self.high)


USUAL_SCALES = (
    Scale(1, 5),
    Scale(0, 1),
    Scale(0.5, 5),
    Scale(0, 5),
    Scale(1, 10),
    Scale(0, 10),
    Scale(-10, 10),
    Scale(0, 100),
)


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All items that can be rated, in the order of the items file; rated items that it does not list come last."""

    ids: list[str]
    titles: list[str] | None
    attributes: pl.DataFrame | None
    rated_items: IntArray  # positions in `ids` of all rated items, which are sorted by id (`index_ids`)
    n_unlisted: int  # number of rated items that the items file does not list
    left_out: tuple[str, ...] = ()  # names of text columns with too many categories for an attribute

    @property
    def notices(self) -> list[str]:
        """Notes for the user on how the items file was read."""
        return [
            f"column {name} of the items file has more than {MOST_CATEGORIES} different texts and is left out"
            for name in self.left_out
        ]


@dataclass(frozen=True, eq=False)
class Ratings:
    """A set of ratings: one row per rating in the file's order, in read-only arrays."""

    name: str
    user_ids: list[str]
    item_ids: list[str]
    users: IntArray  # positions in `user_ids`
    items: IntArray  # positions in `item_ids`
    values: FloatArray | None  # None for one-class data, which only says which users interacted with which items
    scale: Scale | None
    titles: list[str] | None = None
    attributes: pl.DataFrame | None = None  # `NAME=CATEGORY` flags and numbers (may be null) of each item
    scale_is_guessed: bool = False  # from the values, because the scale was neither given nor known
    times: FloatArray | None = None  # time of each rating: a date in seconds since 1970, or the file's number
    catalogue: Catalogue | None = None  # None without an items file: items are then known only from the ratings
    public: PublicRatings | None = None  # ratings of other people that everybody may see

    def __post_init__(self) -> None:
        if not len(self.users) == len(self.items) == (len(self.users) if self.values is None else len(self.values)):
            raise DataError(
                f"users, items and values must have the same length, got {len(self.users)}, {len(self.items)} and"
                f" {'none' if self.values is None else len(self.values)}."
            )
        if self.times is not None and len(self.times) != len(self.users):
            raise DataError(f"times must have one entry for each of {len(self.users)} ratings, got {len(self.times)}.")
        if (self.values is None) != (self.scale is None):
            raise DataError("values and scale must be given together. Give both or neither.")
        for what, rows in (("titles", self.titles), ("attributes", self.attributes)):
            if rows is not None and len(rows) != self.n_items:
                raise DataError(f"{what} must have one entry for each of {self.n_items} items, got {len(rows)}.")
        whole = self.catalogue
        if whole is not None and self.n_items not in (len(whole.rated_items), len(whole.ids)):
            raise DataError(
                f"catalogue.rated_items must have one position for each of {self.n_items} items of the ratings, got"
                f" {len(whole.rated_items)}."
            )
        for array in (self.users, self.items, self.values, self.times):
            if array is not None:
                array.flags.writeable = False

    @property
    def n_users(self) -> int:
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @property
    def n_ratings(self) -> int:
        return len(self.users)

    def rows(self, chosen: IntArray) -> "Ratings":
        """Return only the ratings with row numbers `chosen`; `user_ids` and `item_ids` stay complete."""
        return replace(
            self,
            users=self.users[chosen],
            items=self.items[chosen],
            values=None if self.values is None else self.values[chosen],
            times=None if self.times is None else self.times[chosen],
        )

    @cached_property
    def rated_items(self) -> IntArray:
        """The positions in `item_ids` of the items that were rated in the file, sorted by item id (`index_ids`)."""
        if self.catalogue is None or not self._is_whole:
            return np.arange(self.n_items)
        return self.catalogue.rated_items

    @property
    def n_unlisted(self) -> int:
        """The number of items that are known only from ratings, not from an items file."""
        return self.n_items if self.catalogue is None else self.catalogue.n_unlisted

    def with_catalogue(self) -> "Ratings":
        """Return the same ratings, but with all items of the catalogue; unchanged if there is no catalogue."""
        whole = self.catalogue
        if whole is None or self._is_whole:
            return self
        items = whole.rated_items[self.items]
        return replace(self, item_ids=whole.ids, titles=whole.titles, attributes=whole.attributes, items=items)

    @property
    def _is_whole(self) -> bool:
        """Whether `item_ids` is the whole catalogue, in its order."""
        return self.catalogue is not None and self.item_ids == self.catalogue.ids

    def __repr__(self) -> str:
        return (
            f"Ratings({self.name!r}, {self.n_users} users, {self.n_items} items, {self.n_ratings} ratings, "
            f"scale {self.scale if self.scale else 'none (one-class)'})"
        )

    @cached_property
    def checksum(self) -> str:
        """The SHA-256 of the ids of users and rated items, the rows in order, values, scale and public ratings.

        Titles, attributes, times and the name are not included, and `with_catalogue` does not change the checksum.
        """
        number = np.zeros(self.n_items, dtype=np.int64)
        number[self.rated_items] = np.arange(len(self.rated_items))
        digest = hashlib.sha256(b"hushrec ratings 1")
        for ids in (self.user_ids, [self.item_ids[place] for place in self.rated_items]):
            digest.update(json.dumps(ids).encode())
        for array in (self.users, number[self.items]):
            digest.update(array.astype("<i8").tobytes())
        if self.values is not None and self.scale is not None:
            digest.update(np.array([self.scale.low, self.scale.high], dtype="<f8").tobytes())
            digest.update(self.values.astype("<f8").tobytes())
        if self.public is not None:
            for part in self.public:
                digest.update(part.astype("<f8").tobytes())
        return digest.hexdigest()


def index_ids(column: pl.Series) -> tuple[list[str], IntArray]:
    """Return the distinct ids, sorted as numbers if all are integers, and the position of each row's id among them."""
    distinct = column.unique()
    if distinct.str.contains(r"^-?[0-9]+$").all():
        ordered = sorted(distinct.to_list(), key=lambda text: (int(text), text))
    else:
        ordered = sorted(distinct.to_list())
    indices = column.cast(pl.Enum(ordered)).to_physical().to_numpy().astype(np.int64)
    return ordered, indices


def year_of(title: str) -> float | None:
    """Return the year in brackets at the end of a title, or None."""
    match = re.search(r"\((\d{4})\)\s*$", title)
    return float(match[1]) if match else None
