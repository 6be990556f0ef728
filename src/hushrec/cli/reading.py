"""The options for reading rating data, for every command that reads DATA.

A command gets these options by a parameter `reading: Reading` and the decorator `reads_ratings`.
"""

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from typer import Argument, Option

from hushrec.cli.app import DataDir, counted, say

if TYPE_CHECKING:
    from hushrec.arrays import FloatArray
    from hushrec.data.ratings import Ratings
    from hushrec.data.shards import Shards

Data = Annotated[str, Argument(help="Name of a data set (synthetic, ml-100k, …) or path of a rating file.")]


@dataclass(frozen=True)
class Reading:
    """The options for reading rating data; the fields have the names of the parameters of `hushrec.data.load`."""

    columns: Annotated[
        str | None,
        Option(
            help="Names or positions of the columns of user, item and rating, separated by commas.  [default: found by"
            " the header]"
        ),
    ] = None
    scale: Annotated[
        str | None, Option(help="Smallest and largest rating, such as 1,5.  [default: guessed from the ratings]")
    ] = None
    duplicates: Annotated[
        Literal["refuse", "first", "last", "mean"] | None,
        Option(
            help="Which rating of a repeated (user, item) pair counts; refuse stops with an error.  [default: refuse]"
        ),
    ] = None
    items: Annotated[
        Path | None,
        Option(help="File with one item per row: id, title, attributes.  [default: the file of a named set, or none]"),
    ] = None
    implicit: Annotated[
        bool, Option("--implicit", help="Read only the (user, item) pairs of the file, without ratings.")
    ] = False
    encoding: Annotated[str | None, Option(help="Encoding of the text files, such as latin-1.  [default: utf-8]")] = (
        None
    )
    skip_rows: Annotated[int, Option(min=0, help="Number of lines to skip at the start of the file.")] = 0
    missing: Annotated[
        str | None,
        Option(
            help="Value of the rating column that means no rating, such as 0 or ''. Rows with it are left out."
            "  [default: every row has a rating]"
        ),
    ] = None
    public: Annotated[
        Path | None,
        Option(
            help="Model gp: file of public ratings by other people, read with the same options. Training also learns"
            " from these ratings how good each item is, which costs no privacy budget.",
        ),
    ] = None
    data_dir: DataDir = None

    def load(self, data: str, *, silent: bool = False) -> "Ratings":
        """Return the ratings of a data set or file, after printing a summary to stderr unless `silent`."""
        from hushrec.data.sources import load

        ratings = load(data, data_dir=self.data_dir, **self.given())
        if not silent:
            announce(ratings)
        return ratings

    def shard(self, data: str, folder: Path, ratings_per_shard: int) -> "Shards":
        """Write the data to a folder as shards, print a summary to stderr, and return the shards.

        A file is read in batches, so that it need not fit into memory. Raise `DataError` if --public is given, because
        shards cannot contain public ratings.
        """
        from hushrec.data.shards import write_shards
        from hushrec.data.sources import Form, find_file, is_made
        from hushrec.data.streamed import shard_file

        given = self.given()
        if is_made(data) or "public" in given:
            return write_shards(self.load(data), folder, ratings_per_shard)
        file = find_file(data, given.pop("items", None), self.data_dir)
        written = shard_file(file, Form.of(**given), folder, ratings_per_shard)
        about = written.shards.manifest
        sizes = {"user": about["people"], "item": about["items"], "rating": about["ratings"]}
        _print_summary(written.about, sizes, written.extremes)
        return written.shards

    def given(self) -> dict[str, Any]:
        """Return the options that the user gave, by their names in `hushrec.data.load`, without `data_dir`."""
        options = {entry.name: getattr(self, entry.name) for entry in fields(self) if entry.name != "data_dir"}
        return {name: value for name, value in options.items() if value not in (None, False, 0)}  # "" counts as given


def announce(ratings: "Ratings") -> None:
    """Print the name, counts and scale of the data, and notices about its catalogue, to stderr."""
    sizes = {"user": ratings.n_users, "item": ratings.n_items, "rating": ratings.n_ratings}
    _print_summary(ratings, sizes, ratings.values)


def _print_summary(about: "Ratings", sizes: Mapping[str, int], values: "FloatArray | None") -> None:
    """Print the name, sizes and scale of the data set `about`, and notices about its catalogue, to stderr.

    `sizes` maps a noun (user, item, rating) to its number. `values` has at least the smallest and the largest rating.
    """
    counts = ", ".join(counted(number, noun) for noun, number in sizes.items())
    words = "no scale" if about.scale is None else f"scale {about.scale}"
    doubt = ""
    if about.scale_is_guessed and about.scale is not None and values is not None:
        guessed = f"guessed from ratings of {values.min():g} to {values.max():g}"
        doubt = about.scale.doubt(values)
        words += f", {guessed}" + ("" if doubt else ". If the scale is wrong, pass --scale MIN,MAX")
    say(f"{about.name}: {counts}, {words}")
    if doubt:
        say(doubt)
    for notice in [] if about.catalogue is None else about.catalogue.notices:
        say(notice)


def reads_ratings(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of `Reading` to a command, and pass their values to it as its parameter `reading`."""
    signature, hints = inspect.signature(command), get_type_hints(Reading, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [
        inspect.Parameter(entry.name, kind, default=entry.default, annotation=hints[entry.name])
        for entry in fields(Reading)
    ]
    own = [one for one in signature.parameters.values() if one.name != "reading"]
    parameters = [one.replace(kind=kind) for one in own] + options

    @functools.wraps(command)
    def with_options(**given: Any) -> None:
        reading = Reading(**{option.name: given.pop(option.name) for option in options})
        command(reading=reading, **given)

    with_options.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    with_options.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return with_options
