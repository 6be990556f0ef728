"""`hushrec recommend`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from hushrec.cli.app import JsonFlag, app, harmless, print_json, say

Row = dict[str, Any]  # of a frame that `Recommender` returns


@app.command(epilog="Example: hushrec recommend runs/first --user 42 -n 5 --why")
def recommend(
    folder: Annotated[Path, typer.Argument(help="A run folder that `train --out` made.")],
    user: Annotated[str | None, typer.Option(help="The user's id, as in the rating file.")] = None,
    user_ratings: Annotated[
        Path | None,
        typer.Option(
            help="A file of item and rating of somebody who took no part in training (gp, audience); for audience, a"
            " file of items is enough."
        ),
    ] = None,
    count: Annotated[int, typer.Option("-n", "--count", help="How many items.")] = 10,
    why: Annotated[
        bool, typer.Option("--why", help="Name the user's own items that each recommended item is most like.")
    ] = False,
    shrink: Annotated[
        bool,
        typer.Option(
            "--shrink/--no-shrink",
            help="mf, fm: draw predictions toward the user's own mean where few people rated the item; or sort by"
            " predictions alone.",
        ),
    ] = True,
    as_measured: Annotated[
        bool,
        typer.Option("--as-measured", help="Use the model that was measured; do not train again on every rating."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Recommend items that one person has not rated, from a finished run.

    A run that held out a test part is first trained again on every rating, once; a run of `train --final` is used as it
    is.
    """
    from hushrec.data.own import read_own_profile
    from hushrec.errors import ParameterError
    from hushrec.recommender import Recommender

    if (user is None) == (user_ratings is None):
        raise ParameterError("recommend needs --user, or --user-ratings for somebody who took no part in training.")
    recommender = Recommender.load(folder, refit=not as_measured, remark=say)
    if user is not None:
        items = recommender.recommend(user, count, shrink=shrink).drop("user").to_dicts()
        reasons = [recommender.explain(user, item["item"]).to_dicts() if why else [] for item in items]
    else:
        assert user_ratings is not None
        profile = read_own_profile(user_ratings, recommender.item_ids, recommender.scale)
        items = recommender.recommend_for(profile, count).to_dicts()
        reasons = [recommender.explain_for(profile, item["item"]).to_dicts() if why else [] for item in items]
    if as_json:
        shown = [{**item, "reasons": found} if why else item for item, found in zip(items, reasons, strict=True)]
        print_json({"user": user, "items": shown})
        return
    _print_items(items, reasons, why=why)


def _print_items(items: list[Row], reasons: list[list[Row]], *, why: bool) -> None:
    """The list as a table; a prediction comes with its deviation where the model knows it."""
    from rich.console import Console
    from rich.table import Table

    if not items:
        say("nothing to recommend: every item of the run is known to this person")
        return
    is_rating = all(item["predicted"] is not None for item in items)
    table = Table("item", "title", "predicted" if is_rating else "score", "support", box=None)
    if why:
        table.add_column("like what you know")
    for item, found in zip(items, reasons, strict=True):
        named = ", ".join(map(_reason, found))
        cells = [item["item"], item["title"] or "", _number(item), str(item["support"]), *([named] if why else [])]
        table.add_row(*map(harmless, cells))
    Console().print(table)
    if not is_rating:
        say("scores of a ranking model: only their order means something")


def _reason(reason: Row) -> str:
    name = reason["title"] or reason["item"]
    return str(name) if reason["rating"] is None else f"{name}: {reason['rating']:g}"


def _number(item: Row) -> str:
    if item["predicted"] is None:
        return f"{item['score']:.2f}"
    if item["deviation"] is None:
        return f"{item['predicted']:.2f}"
    return f"{item['predicted']:.1f} ± {item['deviation']:.1f}"
