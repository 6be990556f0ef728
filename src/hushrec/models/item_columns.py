"""Numeric columns computed from the public attributes and titles of items, for models `gp` and `audience`.

*Taste columns* are attributes that a person may like or dislike. *Detail columns* only help to predict how popular and
how good an item is: the form of its title, its place in a series, and finer functions of the attributes. All columns
are public and cost no privacy budget. A data set without attributes or titles has fewer columns, or none.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl

from hushrec.arrays import FloatArray, PublicRatings
from hushrec.errors import ParameterError, require
from hushrec.models.titles import (
    FOREIGN_ARTICLES,
    TitleRows,
    own_titles,
    series_of,
    title_rows,
    without_brackets,
    words_of,
)

USUAL_LEVELS = 5  # number of different ratings that people can give, if nothing else is known
MOST_TASTE_COLUMNS = 40  # work grows with their square; further columns of lower variance become details
MOST_DETAILS = 300  # work grows with their cube; further detail columns of lower variance are left out
NUMBER_SPREAD = 0.85  # what one standard deviation of a number becomes in its column
FARTHEST_NUMBER = 2.5  # standard deviations; numbers beyond are clipped to this distance
CURVATURE = 0.4  # factor of the squared number, which is the second column of a number
PUBLIC_SPREAD = 3.0  # factor of log public counts: larger than that of other columns, so that ridge shrinks it less
KNOTS = np.linspace(0.02, 0.98, 11)  # quantiles of a number at which its detail columns peak

_NUMERALS = frozenset("ii iii iv v vi vii viii ix x 2 3 4 5 6 7 8 9 10".split())  # noqa: SIM905


@dataclass(frozen=True, eq=False)
class ItemColumns:
    """The public columns of all items: taste columns, detail columns and title rows.

    A person may like or dislike what a taste column says of an item, such as a genre. Detail columns only help to
    predict how popular and how good an item is. A title row says which words the item's title has.
    """

    taste: FloatArray = field(repr=False)  # (n_items, n_taste)
    details: FloatArray = field(repr=False)  # (n_items, n_details)
    titles: TitleRows = field(repr=False)
    n_left_out: int = 0  # detail columns beyond `MOST_DETAILS`
    n_unlisted: int = 0  # items that appear in ratings but not in the items file
    scale_is_guessed: bool = False  # whether the scale of the ratings was guessed from the ratings themselves
    rating_levels: int = USUAL_LEVELS  # number of different ratings that people can give
    levels_are_guessed: bool = False  # whether that number depends on the ratings themselves
    ratings_per_person: float = math.inf  # mean number; infinite if it is not known
    ratings_are_counted: bool = False  # whether that mean was computed from the ratings themselves
    public: PublicRatings | None = field(default=None, repr=False)  # ratings that are public

    def __post_init__(self) -> None:
        bad = [int(np.sum(~np.isfinite(columns))) for columns in (self.taste, self.details)]
        if any(bad):
            raise ParameterError(
                f"taste and details must hold finite numbers only, got {bad[0]} and {bad[1]} that are not finite."
                " Replace missing and infinite values."
            )
        if not len(self.taste) == len(self.details) == len(self.titles.starts) - 1:
            raise ParameterError(
                "taste, details and titles must have the same number of rows, one per item, got"
                f" {len(self.taste)}, {len(self.details)} and {len(self.titles.starts) - 1}."
            )

    @property
    def n_items(self) -> int:
        return len(self.taste)

    def first(self, n_items: int) -> "ItemColumns":
        """Return the taste columns, detail columns and title rows of the first `n_items` items."""
        titles, end = self.titles, self.titles.starts[n_items]
        rows = TitleRows(titles.starts[: n_items + 1], titles.columns[:end], titles.weights[:end])
        return replace(self, taste=self.taste[:n_items], details=self.details[:n_items], titles=rows)


@dataclass(frozen=True, eq=False)
class ModelOfColumns:
    """The base class of models `gp` and `audience`, which hold the public columns of the items."""

    name: ClassVar[str]

    columns: ItemColumns = field(repr=False)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], columns: ItemColumns) -> Self:
        """Return the model for a catalogue with these columns.

        The options `rating_levels` and `ratings_per_person`, if given, replace what was found for the data set.
        """
        levels, mean = options.get("rating_levels"), options.get("ratings_per_person")
        if levels is not None:
            advice = "Give the number of different ratings that people can give."
            require(levels >= 2, "rating_levels", "at least 2", levels, advice)
            columns = replace(columns, rating_levels=levels, levels_are_guessed=False)
        if mean is not None:
            advice = "Give the number of ratings that a person has on average."
            require(1 <= mean < math.inf, "ratings_per_person", "at least 1 and finite", mean, advice)
            columns = replace(columns, ratings_per_person=mean, ratings_are_counted=False)
        return cls(columns)

    @property
    def attributes(self) -> FloatArray:
        """The taste columns and then the detail columns of all items, `(n_items, n_taste + n_details)`."""
        return np.concatenate([self.columns.taste, self.columns.details], axis=1)

    @property
    def n_attributes(self) -> int:
        """The number of taste columns, which a run's record shows as its attributes; detail columns are not counted."""
        return int(self.columns.taste.shape[1])


def columns_of(ratings: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments of `ModelOfColumns.from_options` for a data set: its public item columns.

    `options` is not used.
    """
    titles = None if ratings.titles is None else own_titles(zip(ratings.item_ids, ratings.titles, strict=True))
    columns = item_columns(ratings.n_items, titles, ratings.attributes)
    counts = [] if ratings.public is None else [_public_counts(ratings)]
    known = replace(
        columns,
        details=np.concatenate([columns.details, *counts], axis=1),
        n_unlisted=ratings.n_unlisted,
        scale_is_guessed=ratings.scale_is_guessed,
        rating_levels=ratings.rating_levels,
        levels_are_guessed=ratings.scale is not None and ratings.scale.levels() < USUAL_LEVELS,
        ratings_per_person=_rounded(ratings.ratings_per_person),
        ratings_are_counted=True,
        public=ratings.public,
    )
    return {"columns": known}


def _rounded(mean: float) -> float:
    """Return the nearest power of √2, so that a plan chosen by a counted mean hardly ever tells one person's number."""
    return math.inf if mean == math.inf else 2 ** (round(2 * math.log2(max(mean, 1.0))) / 2)


def _public_counts(ratings: Any) -> FloatArray:
    """Return the detail column log(1 + number of public ratings), `(n_items, 1)`, scaled and centred."""
    counts = np.bincount(ratings.public.items, minlength=ratings.n_items)
    return _centred(ratings.n_items, [PUBLIC_SPREAD * np.log1p(counts)[:, None]])


def sent_columns(taste: FloatArray | None, titles: Sequence[str], details: FloatArray | None) -> dict[str, Any]:
    """Return the keyword arguments of `ModelOfColumns.from_options` for the catalogue of a run on a network.

    Server and devices call this function. `taste` has the taste columns, which the server sends to devices, and
    `details` the detail columns. A device does not get the detail columns and passes None. A server that restores a
    stored run passes None too, because its stored state contains the detail columns.
    """
    none = np.zeros((len(titles), 0))
    columns = (none if taste is None else taste, none if details is None else details)
    return {"columns": ItemColumns(*columns, title_rows(titles))}


def item_columns(n_items: int, titles: Sequence[str] | None, attributes: pl.DataFrame | None) -> ItemColumns:
    """Return the taste columns, detail columns and title rows of all items, computed from their titles and attributes.

    Taste columns and detail columns have mean 0 over the items. At most `MOST_TASTE_COLUMNS` and `MOST_DETAILS` of
    largest variance are kept; further taste columns become details. `attributes` has a Boolean column named
    `NAME=CATEGORY` for each category, and a column for each numeric attribute.
    """
    attributes = pl.DataFrame() if attributes is None else attributes
    flags, numbers = _flags(attributes), _numbers(attributes)
    taste = _centred(n_items, [_unit_rows(one) for one in flags] + [_curved(one) for one in numbers])
    kept, rest = _split_columns(taste, MOST_TASTE_COLUMNS)
    details = [rest, *(one.sum(axis=1, keepdims=True) for one in flags), *(_bumps(one) for one in numbers)]
    details += [_standard(number)[:, None] * one for number in numbers for one in flags]
    if titles is not None:
        shapes = np.array([_title_shape(title) for title in titles], dtype=np.float64)  # (n_items, 7)
        details += [shapes, _series_places(titles, numbers)]
    rows = title_rows([""] * n_items if titles is None else titles)
    centred, left_out = _centred(n_items, details), 0
    if centred.shape[1] > MOST_DETAILS:
        left_out = centred.shape[1] - MOST_DETAILS
        centred = np.ascontiguousarray(_split_columns(centred, MOST_DETAILS)[0])
    return ItemColumns(kept, centred, rows, n_left_out=left_out)


def _flags(attributes: pl.DataFrame) -> list[FloatArray]:
    """Return an array `(n_items, n_categories)` per categorical attribute: 1 if an item has the category, else 0."""
    names: dict[str, list[str]] = {}
    for column in attributes.columns:
        if attributes.schema[column] == pl.Boolean:
            names.setdefault(column.partition("=")[0], []).append(column)
    return [attributes.select(own).fill_null(False).to_numpy().astype(np.float64) for own in names.values()]


def _numbers(attributes: pl.DataFrame) -> list[FloatArray]:
    """Return each numeric attribute that varies over the items, `(n_items,)`; NaN for items without a value."""
    columns = [attributes[name] for name, kind in attributes.schema.items() if kind != pl.Boolean]
    numbers = [column.cast(pl.Float64).fill_null(float("nan")).to_numpy().astype(np.float64) for column in columns]
    return [number for number in numbers if len(np.unique(number[np.isfinite(number)])) > 1]


def _unit_rows(flags: FloatArray) -> FloatArray:
    """Return one array of `_flags` with its rows scaled to norm 1; the row of an item without a category stays 0."""
    return np.asarray(flags / np.sqrt(np.maximum(flags.sum(axis=1, keepdims=True), 1)))


def _standard(number: FloatArray) -> FloatArray:
    """Return an attribute scaled to mean 0 and deviation `NUMBER_SPREAD`, outliers clipped; missing values become 0."""
    known = number[np.isfinite(number)]
    away = (number - known.mean()) / known.std()
    return np.asarray(NUMBER_SPREAD * np.nan_to_num(np.clip(away, -FARTHEST_NUMBER, FARTHEST_NUMBER)))


def _curved(number: FloatArray) -> FloatArray:
    """Return the standardized attribute x and `CURVATURE` · x², `(n_items, 2)`; x² lets people prefer middle values."""
    standard = _standard(number)
    return np.stack([standard, CURVATURE * standard**2], axis=1)


def _bumps(number: FloatArray) -> FloatArray:
    """Return triangular basis functions of a numeric attribute, `(n_items, n_knots)`; 0 for items without a value.

    The knots are quantiles of the attribute.
    """
    known = number[np.isfinite(number)]
    knots = np.unique(np.quantile(known, KNOTS))
    unit = np.eye(len(knots))
    values = np.stack([np.interp(number, knots, bump) for bump in unit], axis=1)
    return np.where(np.isfinite(number)[:, None], values, 0.0)


def _title_shape(title: str) -> list[float]:
    """Return seven numbers that describe the form of a title.

    Flags for: a numeral after the first word; "part" or a colon; a second title in brackets; a foreign article,
    such as "le", in that second title or after the last comma; a trailing ", The"; a trailing ", A" or ", An". Then the
    number of words, at most 8, centred and scaled.
    """
    plain = without_brackets(title)
    second = " ".join(part for part in re.findall(r"\(([^)]*)\)", title) if not part.strip().isdigit())
    after_comma = plain.rpartition(",")[2] if "," in plain else ""
    words = words_of(plain)
    articles = FOREIGN_ARTICLES.intersection(words_of(f"{second} {after_comma}"))
    shape = (
        any(word in _NUMERALS for word in words[1:]),
        "part" in words or ":" in plain,
        second != "",
        bool(articles),
        after_comma.strip().lower() == "the",
        after_comma.strip().lower() in ("a", "an"),
    )
    return [*map(float, shape), (min(len(words), 8) - 3) / 2]


def _series_places(titles: Sequence[str], numbers: Sequence[FloatArray]) -> FloatArray:
    """Return three numbers for each title, `(n_items, 3)`: is it in a series, is it a sequel, and its position there.

    The first two are 0 or 1. The position is 0 for the first title of a series, ¼ for the second, and at most 1. Titles
    of a series are ordered by the first of `numbers` (such as the year) or, if there are none, as listed.
    """
    series = series_of(titles)
    order = np.arange(len(titles)) if not numbers else np.argsort(np.nan_to_num(numbers[0], nan=np.inf), kind="stable")
    places, seen = np.zeros((len(titles), 3)), dict.fromkeys(series.tolist(), 0)
    for item in order:
        number = int(series[item])
        if number >= 0:
            places[item] = 1, seen[number] > 0, min(seen[number], 4) / 4
            seen[number] += 1
    return places


def _split_columns(columns: FloatArray, most: int) -> tuple[FloatArray, FloatArray]:
    """Split the columns into the `most` columns of largest variance and the others; both keep their order."""
    ranks = np.argsort(np.argsort(-columns.var(axis=0), kind="stable"))
    return columns[:, ranks < most], columns[:, ranks >= most]


def _centred(n_items: int, parts: Sequence[FloatArray]) -> FloatArray:
    """Return the arrays `parts`, each `(n_items, any)`, side by side, with the mean subtracted from each column.

    Columns that are equal for all items are left out.
    """
    columns = np.concatenate([np.zeros((n_items, 0)), *parts], axis=1)
    columns = columns - columns.mean(axis=0, keepdims=True) if n_items else columns
    return np.ascontiguousarray(columns[:, np.abs(columns).max(axis=0, initial=0) > 1e-9])
