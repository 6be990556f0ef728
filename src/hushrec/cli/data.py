"""The commands `hushrec data list`, `get`, `describe` and `shard`, for rating data."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import DownloadColumn, TransferSpeedColumn
from rich.table import Table
from typer import Argument, Option

from hushrec.cli.app import (
    DataDir,
    JsonFlag,
    app,
    as_percentage,
    counted,
    deliver,
    harmless,
    print_json,
    print_table,
    progress_bars,
    say,
)
from hushrec.cli.reading import Data, Reading, reads_ratings
from hushrec.errors import DataError, NoUsualScale

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(
    data_app,
    name="data",
    help="List, download, describe and convert rating data.",
    epilog="Example: hushrec data describe ratings.csv",
)


@data_app.command(name="list", epilog="Example: hushrec data list --data-dir ~/ratings")
def list_sets(data_dir: DataDir = None, as_json: JsonFlag = False) -> None:
    """List the data sets that hushrec knows by name, and where each data set is on this machine."""
    summary = "generated, with known true ratings; options as in synthetic:users=100,items=50"
    rows = [{"name": "synthetic", "summary": summary, "found": "built in"}]
    rows += _named_sets(data_dir)
    if as_json:
        print_json({"sets": rows})
        return
    for row in rows:
        how = f"hushrec data get {row['name']}" if row.get("address") else "not found; no longer published"
        row["found"] = row["found"] or how
    print_table(["name", "what", "where"], ((row["name"], row["summary"], row["found"]) for row in rows))


def _named_sets(data_dir: Path | None) -> list[dict[str, Any]]:
    from hushrec.data.named import SETS, find

    rows = []
    for entry in SETS.values():
        try:
            found: str | None = str(find(entry.name, data_dir)[0])
        except DataError:
            found = None
        about = {name: getattr(entry, name) for name in ("licence", "citation", "address")}
        rows.append({"name": entry.name, "summary": entry.summary, "found": found, **about})
    return rows


@data_app.command(epilog="Example: hushrec data get ml-100k --yes")
def get(
    name: Annotated[str, Argument(help="Name of the data set, from `hushrec data list`.")],
    to: Annotated[Path | None, Option(help="Folder to download into.  [default: the user's cache]")] = None,
    yes: Annotated[bool, Option("--yes", "-y", help="Accept the licence without a question.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Download a named data set from its publisher, after showing its licence."""
    from hushrec.data.named import get as download
    from hushrec.data.named import lookup

    entry = lookup(name)
    say(f"licence: {entry.licence}\ncite: {entry.citation}")
    if entry.address is not None and not yes:
        _confirm_licence(entry.address)
    with progress_bars(DownloadColumn(), TransferSpeedColumn()) as show:
        folder = download(name, to, progress=lambda done, total: show(name, done, total))
    if as_json:
        print_json({"name": name, "folder": str(folder), "licence": entry.licence, "citation": entry.citation})
    else:
        print(f"{name} is in {folder}")


def _confirm_licence(address: str) -> None:
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "the licence must be accepted, but there is no terminal to answer on. Read the licence, then pass --yes.",
            param_hint="--yes",
        )
    typer.confirm(f"download {address} on these terms?", abort=True, err=True)


@data_app.command(epilog="Example: hushrec data describe my.csv --columns reader,book,stars --items books.csv")
@reads_ratings
def describe(data: Data, reading: Reading, as_json: JsonFlag = False) -> None:
    """Print statistics of rating data: counts, scale, density, distribution. No single person's ratings are shown."""
    from hushrec.data import describe as summarize

    try:
        summary = summarize(reading.load(data))
    except NoUsualScale as error:
        if error.low == error.high:
            raise
        say(str(error))
        within = replace(reading, scale=f"{error.low!r},{error.high!r}")
        summary = summarize(within.load(data, silent=True)) | {"scale": None}
    deliver(summary, _print_summary, as_json=as_json)


@data_app.command(epilog="Example: hushrec data shard ml-1m shards/ && hushrec train shards/ --engine ray")
@reads_ratings
def shard(
    data: Data,
    out: Annotated[Path, Argument(help="New folder for the shards. Keep it private: it holds every rating.")],
    reading: Reading,
    ratings_per_shard: Annotated[int, Option(min=1, help="Approximate number of ratings in one file.")] = 2_000_000,
    as_json: JsonFlag = False,
) -> None:
    """Divide rating data by person into Parquet files (shards), and write them to a folder.

    `train` accepts the folder as data, and then holds only some of the ratings in memory at a time. With --engine ray,
    every worker loads the ratings of some people only. This command reads a file in pieces, so that the file may be
    larger than the memory.
    """
    manifest = reading.shard(data, out, ratings_per_shard).manifest
    if as_json:
        print_json(manifest)
    else:
        files = counted(len(manifest["shards"]), "shard")
        say(f"wrote {files} to {out} (private to you: every rating is in them). To train: hushrec train {out}")


def _print_summary(summary: dict[str, Any]) -> None:
    from hushrec.scale import Scale

    table = Table(box=None, show_header=False)
    table.add_row("users", f"{summary['users']:,}")
    table.add_row("items", f"{summary['items']:,}" + (", with titles" if summary["titles"] else ""))
    table.add_row("ratings", f"{summary['ratings']:,} ({as_percentage(summary['density'])} of all pairs)")
    scale = "none: pairs without ratings"
    if "mean" in summary:
        low, high = summary["range"]
        off = f"none of the usual ones: ratings of {low:,.12g} to {high:,.12g}"
        scale = f"{off if summary['scale'] is None else Scale(*summary['scale'])}, mean {summary['mean']:,.2f}"
    table.add_row("scale", scale)
    for value, count in summary.get("values", {}).items():
        table.add_row("", f"{value:>4} {'█' * round(40 * count / max(summary['values'].values()))} {count:,}")
    for who in ("user", "item"):
        spread = summary[f"per_{who}"]
        parts = ", ".join(f"{name} {spread[name]:g}" for name in ("min", "q25", "median", "q75", "max"))
        table.add_row(f"per {who}", parts)
    table.add_row("attributes", harmless(", ".join(summary["attributes"]) or "none"))
    console = Console(highlight=False)
    console.print(harmless(summary["name"]))
    console.print(table)
