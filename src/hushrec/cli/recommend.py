"""The command `hushrec recommend`: recommend items to one person, from a finished run."""

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from hushrec.cli.app import JsonFlag, app, print_json, print_table, say
from hushrec.cli.options import Count
from hushrec.errors import ParameterError

Row = dict[str, Any]  # one row of a data frame that `Recommender` returns


@app.command(epilog="Example: hushrec recommend runs/first --user 42 -n 5 --why")
def recommend(
    folder: Annotated[Path, Argument(help="Folder of a run, written by `train --out`.")],
    user: Annotated[str | None, Option(help="Id of the user in the rating file.")] = None,
    user_ratings: Annotated[
        Path | None,
        Option(
            help="gp, audience: file with the ratings of a person who took no part in training, one item and rating"
            " per line; for audience, items without ratings suffice."
        ),
    ] = None,
    count: Count = 10,
    why: Annotated[
        bool, Option("--why", help="Show, for each recommended item, the most similar items that the person liked.")
    ] = False,
    shrink: Annotated[
        bool,
        Option(
            "--shrink/--no-shrink",
            help="mf, fm: shrink the predictions of items with few ratings towards the user's mean rating.",
        ),
    ] = True,
    as_measured: Annotated[
        bool,
        Option("--as-measured", help="Use the model of the run as it is, without training again on all ratings."),
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Recommend items that one person has not rated, from a finished run.

    A predicted rating is shown with ± its standard deviation, if the model estimates it: about two thirds of a person's
    own ratings are that close to the predicted ones. A run without attributes and titles of the items may know too
    little of them to say with --why which are similar.

    If the run held out test ratings, the first `recommend` trains it again on all ratings, and keeps the result in the
    folder. A run of `train --final` has been trained on all ratings already.
    """
    from hushrec.data.own import read_own_profile
    from hushrec.models.lists import NO_REASONS
    from hushrec.recommender import Recommender

    if (user is None) == (user_ratings is None):
        raise ParameterError(
            "recommend needs either --user, or --user-ratings for a person who took no part in training."
        )
    measured = Recommender.load(folder)
    profile = None if user_ratings is None else read_own_profile(user_ratings, measured.item_ids, measured.scale)

    def ask(recommender: Recommender) -> tuple[list[Row], list[list[Row]]]:
        if profile is not None:
            items = recommender.recommend_for(profile, count).to_dicts()
            return items, [recommender.explain_for(profile, item["item"]).to_dicts() if why else [] for item in items]
        assert user is not None
        items = recommender.recommend(user, count, shrink=shrink).drop("user").to_dicts()
        return items, [recommender.explain(user, item["item"]).to_dicts() if why else [] for item in items]

    items, reasons = ask(measured)  # an invalid argument is refused here, before training again
    used = measured
    if not as_measured:
        used = Recommender.load(folder, refit=True, remark=say)
        items, reasons = ask(used)
    if why and not used.compares_items:
        say(NO_REASONS)
    if as_json:
        shown = [{**item, "reasons": found} if why else item for item, found in zip(items, reasons, strict=True)]
        print_json({"user": user, "items": shown})
        return
    _print_items(items, reasons, why=why and used.compares_items)


def _print_items(items: list[Row], reasons: list[list[Row]], *, why: bool) -> None:
    """Print the recommended items as a table, with the standard deviations of predictions if the model has them.

    With `why`, a column lists the `reasons` for each item: similar items that the person liked.
    """
    if not items:
        say("there is nothing to recommend: this person has rated every item of the run")
        return
    is_rating = all(item["predicted"] is not None for item in items)
    titled = any(item["title"] for item in items)
    heads = ["item", *["title"] * titled, "predicted" if is_rating else "score", "support", *["similar to"] * why]
    rows = []
    for item, found in zip(items, reasons, strict=True):
        named, title = ", ".join(map(_reason, found)), item["title"] or ""
        rows.append([item["item"], *[title] * titled, _number(item), str(item["support"]), *[named] * why])
    print_table(heads, rows)
    if not is_rating:
        say("these are scores of a ranking model: only their order has a meaning")


def _reason(reason: Row) -> str:
    name = reason["title"] or reason["item"]
    return str(name) if reason["rating"] is None else f"{name}: {reason['rating']:g}"


def _number(item: Row) -> str:
    if item["predicted"] is None:
        return f"{item['score']:.2f}"
    if item["deviation"] is None:
        return f"{item['predicted']:.2f}"
    return f"{item['predicted']:.1f} ± {item['deviation']:.1f}"
