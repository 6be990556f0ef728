"""`hushrec recommend`."""

from pathlib import Path
from typing import Annotated

import typer

from hushrec.cli.app import JsonFlag, app, harmless, print_json, say


@app.command(epilog="Example: hushrec recommend runs/first --user 42 -n 5 --why")
def recommend(
    folder: Annotated[Path, typer.Argument(help="A run folder that `train --out` made.")],
    user: Annotated[str, typer.Option(help="The user's id, as in the rating file.")],
    count: Annotated[int, typer.Option("-n", "--count", help="How many items.")] = 10,
    why: Annotated[bool, typer.Option("--why", help="Name what the user rated well that each item is like.")] = False,
    as_json: JsonFlag = False,
) -> None:
    """Recommend unrated items to one user of a finished run."""
    from rich.console import Console
    from rich.table import Table

    from hushrec.simulation.results import load

    result = load(folder)
    items = result.recommend(user, count)
    reasons = [result.explain(user, item.item) if why else [] for item in items]
    if as_json:
        shown = [
            {**vars(item), "reasons": [vars(reason) for reason in found]} if why else vars(item)
            for item, found in zip(items, reasons, strict=True)
        ]
        print_json({"user": user, "items": shown})
        return
    is_rating = all(item.predicted is not None for item in items)
    table = Table("item", "title", "predicted" if is_rating else "score", box=None)
    if why:
        table.add_column("like what you rated")
    for item, found in zip(items, reasons, strict=True):
        named = ", ".join(f"{reason.title or reason.item}: {reason.rating:g}" for reason in found)
        number = item.score if item.predicted is None else item.predicted
        cells = [item.item, item.title or "", f"{number:.2f}", *([named] if why else [])]
        table.add_row(*map(harmless, cells))
    Console().print(table)
    if not is_rating:
        say("scores of a ranking model: only their order means something")
