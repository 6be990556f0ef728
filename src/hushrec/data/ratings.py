"""Ratings in memory: ids of users and items, values and their scale, and public facts about the items."""

import hashlib
import json
import math
import re
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from hushrec.arrays import FloatArray, IntArray, PublicRatings
from hushrec.errors import DataError
from hushrec.scale import MOST_STARS, Scale

MOST_CATEGORIES = 100  # a text column of an items file with more categories is not used as an attribute


@dataclass(frozen=True, eq=False)
class Catalogue:
    """All items that can be rated, in the order of the items file; rated items that it does not list come last."""

    ids: list[str]
    titles: list[str] | None
    attributes: pl.DataFrame | None
    rated_items: IntArray  # positions in `ids` of all rated items, sorted by id (`index_ids`)
    n_unlisted: int  # number of rated items that the items file does not list
    left_out: tuple[str, ...] = ()  # names of text columns with too many categories for an attribute

    @property
    def notices(self) -> list[str]:
        """Notes for the user on how the items file was read."""
        n_rated = len(self.rated_items)
        listed = f"{n_rated - self.n_unlisted} of {n_rated} rated items are in the items file"
        return [listed] * (self.n_unlisted > 0) + [
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
    values: FloatArray | None  # None for one-class data, which only has (user, item) pairs
    scale: Scale | None
    titles: list[str] | None = None
    attributes: pl.DataFrame | None = None  # `NAME=CATEGORY` flags and numbers (may be null) of each item
    scale_is_guessed: bool = False  # from the values, because the scale was neither given nor known
    times: FloatArray | None = None  # time of each rating: a date in seconds since 1970, or the file's number
    catalogue: Catalogue | None = None  # None if the items are known only from the ratings
    public: PublicRatings | None = None  # ratings of other people that everybody may see
    reading: dict[str, Any] | None = (
        None  # arguments of `load` that read the ratings from files; None if not from files
    )
    stored_levels: int | None = None  # `rating_levels` of ratings that are stored elsewhere, in shards
    stored_mean: float | None = None  # `ratings_per_person` of such ratings

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

    @classmethod
    def of_items(cls, name: str, item_ids: list[str], scale: Scale | None = None, **facts: Any) -> "Ratings":
        """Return `Ratings` with these items, but with neither users nor ratings; `facts` are further fields by name."""
        nothing = np.empty(0, np.int64)
        return cls(name, [], item_ids, nothing, nothing, None if scale is None else np.empty(0), scale, **facts)

    @cached_property
    def rating_levels(self) -> int:
        """The number of different ratings that people can give, as far as scale and ratings tell (`Scale.levels`).

        It is `MOST_STARS` for one-class data.
        """
        if self.scale is None or self.values is None:
            return MOST_STARS
        return self.stored_levels or self.scale.levels(self.values)

    @property
    def ratings_per_person(self) -> float:
        """The mean number of ratings of a user; infinite if there are no users."""
        if self.stored_mean is not None:
            return self.stored_mean
        return self.n_ratings / self.n_users if self.user_ids else math.inf

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

    @property
    def scale_doubt(self) -> str:
        """Why the scale may be wrong, if it was guessed, and what to pass (`Scale.doubt`); empty if nothing does."""
        if self.values is None or self.scale is None or not self.scale_is_guessed:
            return ""
        return self.scale.doubt(self.values)

    @cached_property
    def rated_items(self) -> IntArray:
        """The positions in `item_ids` of the items that the data set has ratings of, sorted by id (`index_ids`).

        In a sparse matrix and in synthetic ratings, all items count as rated.
        """
        if self.catalogue is None or not self._is_whole:
            return np.arange(self.n_items)
        return self.catalogue.rated_items

    @property
    def n_unlisted(self) -> int:
        """The number of items that are known only because somebody rated them; 0 for a sparse or synthetic set."""
        return self.n_items if self.catalogue is None else self.catalogue.n_unlisted

    def with_catalogue(self) -> "Ratings":
        """Return the ratings with all items of the catalogue as their items; unchanged without a catalogue."""
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
        """The SHA-256 of the ids of users and rated items, the ratings in order, the scale and the public ratings.

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
