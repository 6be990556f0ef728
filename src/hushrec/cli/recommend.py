"""`hushrec recommend`."""

from pathlib import Path
from typing import Annotated

import typer

from hushrec.cli.app import JsonFlag, app, harmless, print_json


@app.command(epilog="Example: hushrec recommend runs/first --user 42 -n 5")
def recommend(
    folder: Annotated[Path, typer.Argument(help="A run folder that `train --out` made.")],
    user: Annotated[str, typer.Option(help="The user's id, as in the rating file.")],
    count: Annotated[int, typer.Option("-n", "--count", help="How many items.")] = 10,
    as_json: JsonFlag = False,
) -> None:
    """Recommend unrated items to one user of a finished run."""
    from rich.console import Console
    from rich.table import Table

    from hushrec.runs import load

    items = load(folder).recommend(user, count)
    if as_json:
        print_json({"user": user, "items": [vars(item) for item in items]})
        return
    table = Table("item", "title", "predicted", box=None)
    for item in items:
        table.add_row(harmless(item.item), harmless(item.title or ""), f"{item.predicted:.2f}")
    Console().print(table)
