"""`hushrec capacity`."""

from typing import Annotated, Any, Literal

import typer

from hushrec.cli.app import JsonFlag, app, print_json

ROWS = {
    "device_mb_up": ("a device sends", "MB"),
    "device_mb_down": ("a device fetches", "MB"),
    "device_seconds": ("a device computes", "s"),
    "server_cores": ("the server computes, all the time", "cores"),
    "server_gbit_up": ("the server receives", "Gbit/s"),
    "server_gb_sums": ("the server holds, of sums", "GB"),
    "server_core_hours": ("the server computes", "core-hours"),
}


@app.command(epilog="Example: hushrec capacity --people 1e8 --items 1e6")
def capacity(
    people: Annotated[float, typer.Option(help="Devices that take part.")],
    items: Annotated[float, typer.Option(help="Items of the catalogue.")],
    protocol: Annotated[Literal["masked", "sdcf"], typer.Option(help="What devices send.")] = "masked",
    epsilon: Annotated[float, typer.Option(help="masked: budget of a profile; decides how much is learned.")] = 8.0,
    hours: Annotated[float, typer.Option(help="How long a round is open.")] = 24.0,
    item_blocks: Annotated[
        int | None, typer.Option(min=1, help="masked: parts of the catalogue, one for each device.  [default: enough]")
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Print what so many people and items cost per round and per training, and what would be too much.

    From constants that were measured on two cores: docs/scale.md says how well they predict.
    """
    from hushrec.capacity import capacity as predict

    found = predict(people, items, protocol=protocol, epsilon=epsilon, hours=hours, item_blocks=item_blocks)
    if as_json:
        print_json(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    """One table, and what is too much."""
    from rich.console import Console
    from rich.table import Table

    from hushrec.capacity import in_digits

    console = Console(highlight=False)
    cohorts = "" if found["cohorts"] is None else f", {found['cohorts']:,} cohorts"
    blocks = "" if found["item_blocks"] == 1 else f", {found['item_blocks']} item blocks"
    console.print(
        f"{found['protocol']}: {found['people']:,} people, {found['items']:,} items, {found['rounds']} rounds of"
        f" {found['hours_per_round']:g} hours{cohorts}{blocks}"
    )
    table = Table("", "largest round", "whole training", "", box=None)
    for name, (words, unit) in ROWS.items():
        if name not in found["largest_round"] | found["training"]:
            continue
        cells = [in_digits(found[part][name]) if name in found[part] else "" for part in ("largest_round", "training")]
        table.add_row(words, *cells, unit)
    console.print(table)
    for one in found["too_much"]:
        words, unit = ROWS[one["what"]]
        console.print(
            f"too much: {words} {in_digits(one['found'])} {unit}, of at most {one['most']:g}. {one['advice']}."
        )
    if not found["too_much"]:
        console.print("nothing is too much")
