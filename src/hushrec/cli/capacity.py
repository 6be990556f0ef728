"""The command `hushrec capacity`: estimate the costs of a training with many devices."""

from typing import Annotated, Any

from rich.console import Console
from rich.table import Table
from typer import Option

from hushrec.cli.app import JsonFlag, app, deliver

ROWS = {
    "device_mb_up": ("reports of a device", "MB"),
    "device_mb_down": ("download of a device", "MB"),
    "device_seconds": ("processor time of a device", "s"),
    "server_cores": ("processors of the server", "cores"),
    "server_gbit_up": ("traffic into the server", "Gbit/s"),
    "server_gb_sums": ("memory of the server for sums", "GB"),
    "server_core_hours": ("processor time of the server", "core-hours"),
}  # by name of a cost in `hushrec.capacity`: the words to print, and the unit


@app.command(epilog="Example: hushrec capacity --people 1e8 --items 1e6")
def capacity(
    people: Annotated[float, Option(help="Number of devices that take part, one per person.")],
    items: Annotated[float, Option(help="Number of items in the catalogue.")],
    protocol: Annotated[str, Option(help="Protocol of the run: masked or sdcf.")] = "masked",
    epsilon: Annotated[
        float,
        Option(
            help="masked: privacy budget of a person's whole profile; it decides the number of rounds and the report"
            " size."
        ),
    ] = 8.0,
    hours: Annotated[float, Option(help="Hours for which a round is open.")] = 24.0,
    item_blocks: Annotated[
        int | None,
        Option(
            min=1,
            help="masked: number of blocks into which the catalogue is divided; a device reports on the items of one"
            " block.  [default: the smallest number that is estimated to keep reports below 10 MB]",
        ),
    ] = None,
    as_json: JsonFlag = False,
) -> None:
    """Estimate the traffic, processor time and memory of a training, and warn of costs above recommended limits.

    The estimate uses constants that were measured on two cores; docs/scale.md says how well they predict.
    """
    from hushrec.capacity import capacity as predict

    found = predict(people, items, protocol=protocol, epsilon=epsilon, hours=hours, item_blocks=item_blocks)
    deliver(found, _print, as_json=as_json)


def _print(found: dict[str, Any]) -> None:
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
            f"above the limit: {words}, {in_digits(one['found'])} of at most {one['most']:g} {unit}. Advice:"
            f" {one['advice']}."
        )
    if not found["too_much"]:
        console.print("no cost is above its limit")
