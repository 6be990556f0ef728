"""Public columns of items, from any items file: what people's tastes may differ in, and what foretells an item's fate.

*Taste columns* are attributes: a person may like or dislike each of them. *Detail columns* only help to guess how
popular and how good an item is before anybody has said so: shape and series of its title, and finer views of the
attributes. All are public and cost no budget. A set without attributes or titles has fewer columns, down to none.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

import numpy as np
import polars as pl

from hushrec.arrays import FloatArray, PublicRatings
from hushrec.errors import ParameterError
from hushrec.models.titles import TitleRows, series_of, title_rows

MOST_TASTE_COLUMNS = 40  # work grows with their square; the rarest categories come last and become details
NUMBER_SPREAD = 0.85  # of one standard deviation of a number
FARTHEST_NUMBER = 2.5  # standard deviations: what lies beyond counts as this far
CURVATURE = 0.4  # of the squared number, beside the number itself
PUBLIC_SPREAD = 3.0  # of log public counts: more than others, so that a ridge hardly holds it back
KNOTS = np.linspace(0.02, 0.98, 11)  # quantiles of a number at which its details have a bump

_FOREIGN_ARTICLES = frozenset("le la les il el der das die lo los un une l den det".split())  # noqa: SIM905
_NUMERALS = frozenset("ii iii iv v vi vii viii ix x 2 3 4 5 6 7 8 9 10".split())  # noqa: SIM905


@dataclass(frozen=True, eq=False)
class ItemColumns:
    """Columns of all items, each with mean 0, and the rows of their titles."""

    taste: FloatArray = field(repr=False)  # (n_items, n_taste)
    details: FloatArray = field(repr=False)  # (n_items, n_details)
    titles: TitleRows = field(repr=False)
    n_unlisted: int = 0  # items that are known only because somebody rated them
    public: PublicRatings | None = field(default=None, repr=False)  # ratings of others that anybody may see

    def __post_init__(self) -> None:
        if not (np.all(np.isfinite(self.taste)) and np.all(np.isfinite(self.details))):
            raise ParameterError("columns of items must be finite numbers.")
        if not len(self.taste) == len(self.details) == len(self.titles.starts) - 1:
            raise ParameterError("columns and titles must have one row per item.")

    @property
    def n_items(self) -> int:
        """Length of the catalogue."""
        return len(self.taste)

    def first(self, n_items: int) -> "ItemColumns":
        """Return the columns of the first so many items: those that a run was made with."""
        titles, end = self.titles, self.titles.starts[n_items]
        rows = TitleRows(titles.starts[: n_items + 1], titles.columns[:end], titles.weights[:end])
        return replace(self, taste=self.taste[:n_items], details=self.details[:n_items], titles=rows)


@dataclass(frozen=True, eq=False)
class ModelOfColumns:
    """A model that knows the public columns of the items, and learns the rest from sums."""

    name: ClassVar[str]

    columns: ItemColumns = field(repr=False)

    @classmethod
    def from_options(cls, options: Mapping[str, Any], columns: ItemColumns) -> Self:
        """Return the model for a catalogue."""
        return cls(columns)

    @property
    def attributes(self) -> FloatArray:
        """Everything that is known of the items, `(n_items, n_taste + n_details)`."""
        return np.concatenate([self.columns.taste, self.columns.details], axis=1)

    @property
    def n_attributes(self) -> int:
        """Number of taste columns."""
        return int(self.columns.taste.shape[1])


def columns_of(ratings: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the public item columns of a data set, for models `gp` and `audience`."""
    columns = item_columns(ratings.n_items, ratings.titles, ratings.attributes)
    if ratings.public is not None:
        columns = replace(columns, details=np.concatenate([columns.details, _public_counts(ratings)], axis=1))
    return {"columns": replace(columns, n_unlisted=ratings.n_unlisted, public=ratings.public)}


def _public_counts(ratings: Any) -> FloatArray:
    """The logarithm of how many public ratings each item has, `(n_items, 1)`: it foretells how many others rate it."""
    counts = np.bincount(ratings.public.items, minlength=ratings.n_items)
    return _centred(ratings.n_items, [PUBLIC_SPREAD * np.log1p(counts)[:, None]])


def sent_columns(taste: FloatArray | None, titles: Sequence[str], details: FloatArray | None) -> dict[str, Any]:
    """What models of item columns know of a server's items: the taste columns and titles that it sends.

    Details stay with the server, which alone needs them.
    """
    none = np.zeros((len(titles), 0))
    columns = (none if taste is None else taste, none if details is None else details)
    return {"columns": ItemColumns(*columns, title_rows(titles))}


def item_columns(n_items: int, titles: Sequence[str] | None, attributes: pl.DataFrame | None) -> ItemColumns:
    """Return the columns of a catalogue; `attributes` are flags `NAME=CATEGORY` and numbers, which may be missing."""
    flags, numbers = _flags(attributes), _numbers(attributes)
    taste = _centred(n_items, [_shared(one) for one in flags] + [_curved(one) for one in numbers])
    kept, rest = _split_columns(taste)
    details = [rest, *(one.sum(axis=1, keepdims=True) for one in flags), *(_bumps(one) for one in numbers)]
    details += [_standard(number)[:, None] * one for number in numbers for one in flags]
    if titles is not None:
        details += [_title_shapes(titles), _series_places(titles, numbers)]
    rows = title_rows([""] * n_items if titles is None else titles)
    return ItemColumns(kept, _centred(n_items, details), rows)


def _flags(attributes: pl.DataFrame | None) -> list[FloatArray]:
    """Flags of each attribute, `(n_items, n_categories)`."""
    if attributes is None:
        return []
    names: dict[str, list[str]] = {}
    for column in attributes.columns:
        if attributes.schema[column] == pl.Boolean:
            names.setdefault(column.partition("=")[0], []).append(column)
    return [attributes.select(own).fill_null(False).to_numpy().astype(np.float64) for own in names.values()]


def _numbers(attributes: pl.DataFrame | None) -> list[FloatArray]:
    """Each number, `(n_items,)`, NaN where it is missing; a number that is the same everywhere says nothing."""
    if attributes is None:
        return []
    columns = [attributes[name] for name, kind in attributes.schema.items() if kind != pl.Boolean]
    numbers = [column.cast(pl.Float64).fill_null(float("nan")).to_numpy().astype(np.float64) for column in columns]
    return [number for number in numbers if len(np.unique(number[np.isfinite(number)])) > 1]


def _shared(flags: FloatArray) -> FloatArray:
    """Flags divided by the root of how many of the attribute are set: every item has norm 1."""
    return np.asarray(flags / np.sqrt(np.maximum(flags.sum(axis=1, keepdims=True), 1)))


def _standard(number: FloatArray) -> FloatArray:
    """The number with mean 0 and deviation `NUMBER_SPREAD`, without outliers; 0 where it is missing."""
    known = number[np.isfinite(number)]
    away = (number - known.mean()) / known.std()
    return np.asarray(NUMBER_SPREAD * np.nan_to_num(np.clip(away, -FARTHEST_NUMBER, FARTHEST_NUMBER)))


def _curved(number: FloatArray) -> FloatArray:
    """The number and its square, so that somebody can like what lies in the middle."""
    standard = _standard(number)
    return np.stack([standard, CURVATURE * standard**2], axis=1)


def _bumps(number: FloatArray) -> FloatArray:
    """Triangular bumps at quantiles of the number: a curve of any shape is a sum of them. 0 where it is missing."""
    known = number[np.isfinite(number)]
    knots = np.unique(np.quantile(known, KNOTS))
    unit = np.eye(len(knots))
    values = np.stack([np.interp(number, knots, bump) for bump in unit], axis=1)
    return np.where(np.isfinite(number)[:, None], values, 0.0)


def _title_shapes(titles: Sequence[str]) -> FloatArray:
    """Shapes of a title: sequel numeral, part or colon, second title, its article, length in words."""
    return np.array([_title_shape(title) for title in titles], dtype=np.float64)


def _title_shape(title: str) -> list[float]:
    plain = re.sub(r"\([^)]*\)", " ", title)
    second = " ".join(part for part in re.findall(r"\(([^)]*)\)", title) if not part.strip().isdigit())
    after_comma = plain.rpartition(",")[2] if "," in plain else ""
    words = re.findall(r"[^\W_]+", plain.lower())
    articles = set(re.findall(r"[^\W_]+", f"{second} {after_comma}".lower())) & _FOREIGN_ARTICLES
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
    """Whether a title belongs to a series, is not its first, and its place in it, by the first number or as listed."""
    series = series_of(titles)
    order = np.arange(len(titles)) if not numbers else np.argsort(np.nan_to_num(numbers[0], nan=np.inf), kind="stable")
    places, seen = np.zeros((len(titles), 3)), dict.fromkeys(series.tolist(), 0)
    for item in order:
        number = int(series[item])
        if number >= 0:
            places[item] = 1, seen[number] > 0, min(seen[number], 4) / 4
            seen[number] += 1
    return places


def _split_columns(columns: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the `MOST_TASTE_COLUMNS` of largest variance, in their order, and the others."""
    ranks = np.argsort(np.argsort(-columns.var(axis=0), kind="stable"))
    return columns[:, ranks < MOST_TASTE_COLUMNS], columns[:, ranks >= MOST_TASTE_COLUMNS]


def _centred(n_items: int, parts: Sequence[FloatArray]) -> FloatArray:
    """Return the parts side by side with mean 0; columns that are the same for all items are left out."""
    columns = np.concatenate([np.zeros((n_items, 0)), *parts], axis=1)
    columns = columns - columns.mean(axis=0, keepdims=True) if n_items else columns
    return np.ascontiguousarray(columns[:, np.abs(columns).max(axis=0, initial=0) > 1e-9])
