"""`hushrec fleet`."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hushrec.cli.app import JsonFlag, app, counted, print_json, say
from hushrec.cli.reading import Data, Reading, reads_ratings
from hushrec.errors import ParameterError

if TYPE_CHECKING:
    from hushrec.data import Ratings
    from hushrec.device.fleet import Member


@app.command(epilog="Example: hushrec fleet ml-100k --server https://127.0.0.1:8470 --ca certificate.pem --devices 943")
@reads_ratings
def fleet(
    data: Data,
    reading: Reading,
    server: Annotated[str, typer.Option(help="The server's address.")],
    devices: Annotated[int | None, typer.Option(help="How many devices, one per user.  [default: all]", min=1)] = None,
    stores: Annotated[Path, typer.Option(help="A folder for the devices' stores.")] = Path("fleet"),
    rounds: Annotated[int | None, typer.Option(help="Rounds to report in.  [default: until the run is over]")] = None,
    epsilon: Annotated[float, typer.Option(help="masked: what everybody allows the run.")] = 8.0,
    epsilon_i: Annotated[float, typer.Option(help="sdcf: budget of one round's selection.")] = 4.0,
    epsilon_g: Annotated[float, typer.Option(help="sdcf: range of the fake errors.")] = 4.0,
    epochs: Annotated[int, typer.Option(help="sdcf: permanent epochs that everybody agrees to.", min=1)] = 1,
    split_seed: Annotated[int, typer.Option(help="Which ratings are held out to measure with.")] = 0,
    invitations: Annotated[Path | None, typer.Option(help="A file of invitation codes, one a line.")] = None,
    ca: Annotated[Path | None, typer.Option(help="Trust this certificate only (PEM).")] = None,
    follow: Annotated[
        bool, typer.Option("--next", help="Everybody agrees to what the server offers after its run, and to its cost.")
    ] = False,
    processes: Annotated[int, typer.Option(help="Processes to spread the devices over.", min=1)] = 1,
    as_json: JsonFlag = False,
) -> None:
    """Run many real devices, each with its own store and keys, for load and end-to-end runs."""
    from hushrec.device.budgets import Budgets
    from hushrec.device.fleet import Orders, run_fleet
    from hushrec.device.transport import check_address

    ratings = reading.load(data)
    members = _members(ratings, devices or ratings.n_users, split_seed, stores)
    if ratings.scale is None:
        raise ParameterError(f"a fleet needs ratings, {ratings.name} holds pairs alone. Use data with a rating column.")
    scale = (ratings.scale.low, ratings.scale.high)
    budgets = Budgets(epsilon=epsilon, epsilon_i=epsilon_i, epsilon_g=epsilon_g, scale=scale)
    orders = Orders(
        server=check_address(server),
        budgets=budgets,
        ca=ca,
        rounds=rounds,
        invitations=None if invitations is None else tuple(invitations.read_text().split()),
        max_selection_epsilon=epochs * budgets.epsilon_p,
        follow=follow,
    )
    started = time.perf_counter()
    outcome = run_fleet(members, orders, processes=processes)
    seconds = time.perf_counter() - started
    record: dict[str, float | None] = {"devices": len(members), "reports": outcome.reports, "seconds": seconds}
    record |= {"rmse": outcome.rmse, "rmse_trained": outcome.rmse_trained}
    if as_json:
        print_json(record)
    else:
        accuracy = "" if outcome.rmse is None else f", rmse {outcome.rmse:.4f} on {outcome.held_out} held-out ratings"
        given = f"{counted(len(members), 'device')} made {counted(outcome.reports, 'report')}"
        say(f"{given} in {seconds:.1f} s{accuracy}")


def _members(ratings: "Ratings", devices: int, split_seed: int, stores: Path) -> "list[Member]":
    """Return the first users of the file who have training ratings; the split is the one that `train` uses."""
    from hushrec.data import random_split
    from hushrec.device.fleet import Member
    from hushrec.errors import ParameterError

    if ratings.values is None:
        raise ParameterError("a fleet needs ratings with values; this file has none.")
    split = random_split(ratings.n_ratings, split_seed)
    parts: list[dict[int, dict[str, float]]] = []
    for rows in (split.train, split.test):
        by_user: dict[int, dict[str, float]] = {}
        for user, item, value in zip(ratings.users[rows], ratings.items[rows], ratings.values[rows], strict=True):
            by_user.setdefault(int(user), {})[ratings.item_ids[item]] = float(value)
        parts.append(by_user)
    train, test = parts
    return [Member(stores / str(user), train[user], test.get(user, {})) for user in sorted(train)[:devices]]
