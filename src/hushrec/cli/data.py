"""The commands `hushrec data list`, `get`, `describe` and `shard`, for rating data."""

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from hushrec.cli.app import DataDir, JsonFlag, app, as_percentage, counted, harmless, print_json, progress_bar, say
from hushrec.cli.reading import Data, Reading, reads_ratings

data_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.add_typer(
    data_app,
    name="data",
    help="List, download, describe and convert rating data.",
    epilog="Example: hushrec data describe ratings.csv",
)


@data_app.command(name="list", epilog="Example: hushrec data list --data-dir ~/ratings")
def list_sets(data_dir: DataDir = None, as_json: JsonFlag = False) -> None:
    """List the data sets that hushrec knows by name, and where each one is found on this machine."""
    from rich.console import Console
    from rich.table import Table

    summary = "generated, with known true ratings; options as in synthetic:users=100,items=50"
    rows = [{"name": "synthetic", "summary": summary, "found": "built in"}]
    rows += _named_sets(data_dir)
    if as_json:
        print_json({"sets": rows})
        return
    table = Table("name", "what", "where", box=None)
    for row in rows:
        table.add_row(row["name"], row["summary"], harmless(row["found"] or _how_to_get(row)))
    Console().print(table)


def _named_sets(data_dir: Path | None) -> list[dict[str, Any]]:
    from hushrec.data.named import SETS, find
    from hushrec.errors import DataError

    rows = []
    for entry in SETS.values():
        try:
            found: str | None = str(find(entry.name, data_dir)[0])
        except DataError:
            found = None
        rows.append(
            {
                "name": entry.name,
                "summary": entry.summary,
                "found": found,
                "licence": entry.licence,
                "citation": entry.citation,
                "address": entry.address,
            }
        )
    return rows


def _how_to_get(row: dict[str, Any]) -> str:
    return f"hushrec data get {row['name']}" if row["address"] else "not found; no longer published"


@data_app.command(epilog="Example: hushrec data get ml-100k --yes")
def get(
    name: Annotated[str, typer.Argument(help="Name of the data set, from `hushrec data list`.")],
    to: Annotated[Path | None, typer.Option(help="Folder to download into.  [default: the user's cache]")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Accept the licence without a question.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Download a named data set from its publisher, after showing its licence."""
    from rich.progress import DownloadColumn, TransferSpeedColumn

    from hushrec.data.named import get as download
    from hushrec.data.named import lookup

    entry = lookup(name)
    say(f"licence: {entry.licence}\ncite: {entry.citation}")
    if entry.address is not None and not yes:
        _confirm_licence(entry.address)
    with progress_bar(DownloadColumn(), TransferSpeedColumn()) as bar:
        task = bar.add_task(name, total=None)
        folder = download(name, to, progress=lambda done, total: bar.update(task, completed=done, total=total))
    if as_json:
        print_json({"name": name, "folder": str(folder), "licence": entry.licence, "citation": entry.citation})
    else:
        print(f"{name} is in {folder}")


def _confirm_licence(address: str) -> None:
    """Ask the user to accept the licence, and abort on a no; without a terminal, require --yes."""
    if not sys.stdin.isatty():
        raise typer.BadParameter(
            "the licence must be accepted, and there is no terminal to ask on. Read the licence, then pass --yes.",
            param_hint="--yes",
        )
    typer.confirm(f"download {address} on these terms?", abort=True, err=True)


@data_app.command(epilog="Example: hushrec data describe my.csv --columns reader,book,stars --items books.csv")
@reads_ratings
def describe(data: Data, reading: Reading, as_json: JsonFlag = False) -> None:
    """Print statistics of rating data: counts, scale, density, distribution. No single person's ratings are shown."""
    from hushrec.data import describe as summarize

    summary = summarize(reading.load(data))
    if as_json:
        print_json(summary)
    else:
        _print_summary(summary)


@data_app.command(epilog="Example: hushrec data shard ml-1m shards/ && hushrec train shards/ --engine ray")
@reads_ratings
def shard(
    data: Data,
    out: Annotated[Path, typer.Argument(help="New folder for the shards. Keep it private: it holds every rating.")],
    reading: Reading,
    ratings_per_shard: Annotated[
        int, typer.Option(min=1, help="Approximate number of ratings in one file.")
    ] = 2_000_000,
    as_json: JsonFlag = False,
) -> None:
    """Write rating data as Parquet files (shards), each with the ratings of some people, for `train`.

    Neither this command nor `train` then needs all ratings in memory, and a Ray cluster can share the shards.
    """
    manifest = reading.shard(data, out, ratings_per_shard).manifest
    if as_json:
        print_json(manifest)
    else:
        files = counted(len(manifest["shards"]), "shard")
        say(f"wrote {files} to {out} (private to you: every rating is in them). To train: hushrec train {out}")


def _print_summary(summary: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False)
    scale = (
        "none: pairs without ratings" if summary["scale"] is None else f"{summary['scale']}, mean {summary['mean']:.2f}"
    )
    table.add_row("users", f"{summary['users']:,}")
    table.add_row("items", f"{summary['items']:,}" + (", with titles" if summary["titles"] else ""))
    table.add_row("ratings", f"{summary['ratings']:,} ({as_percentage(summary['density'])} of all pairs)")
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
