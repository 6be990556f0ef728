"""`hushrec device`: a person's side."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from hushrec.cli.app import JsonFlag, app, counted, harmless, print_json, say

if TYPE_CHECKING:
    from hushrec import Device

device_app = typer.Typer(
    help="A person's side: ratings stay here, recommendations are computed here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(device_app, name="device", epilog="Example: hushrec device recommend --count 10")

Folder = Annotated[Path | None, typer.Option("--store", help="The store's folder.  [default: $XDG_DATA_HOME/hushrec]")]
WAIT_SECONDS = 30.0
SPEAK_SECONDS = 10.0  # from one line about rounds to the next


@device_app.command(epilog="Example: hushrec device init --epsilon 4 --rate 50=5 --rate 7=2")
def init(
    store: Folder = None,
    epsilon: Annotated[
        float, typer.Option(help="masked: what one run may cost this person's whole profile, at most.")
    ] = 8.0,
    least_cohort: Annotated[int, typer.Option(help="masked: how many devices a sum must have, at least.")] = 3,
    epsilon_i: Annotated[float, typer.Option(help="sdcf: budget of one round's selection.")] = 4.0,
    epsilon_p: Annotated[
        float | None, typer.Option(help="sdcf: budget of all rounds' selections.  [default: 2 × epsilon-i]")
    ] = None,
    epsilon_g: Annotated[float, typer.Option(help="sdcf: range of the fake errors; 0 is α = ∞. No guarantee.")] = 4.0,
    max_value_rho: Annotated[
        float | None, typer.Option(help="sdcf: stop when the gradient values cost more than this.  [default: no limit]")
    ] = None,
    scale: Annotated[str, typer.Option(help="Smallest and largest rating.")] = "1,5",
    ratings: Annotated[
        list[str] | None, typer.Option("--rate", help="A first rating, ITEM=VALUE; may be given again.")
    ] = None,
) -> None:
    """Make a store for ratings, with the budgets that this person allows."""
    from hushrec import Device

    values = _first_ratings(ratings or [])
    with Device.create(
        store,
        epsilon=epsilon,
        least_cohort=least_cohort,
        epsilon_i=epsilon_i,
        epsilon_p=epsilon_p,
        epsilon_g=epsilon_g,
        max_value_rho=max_value_rho,
        scale=_scale(scale),
    ) as device:
        device.add_ratings(values)
    say("the store is made; only you can read it")


def _first_ratings(texts: list[str]) -> dict[str, float]:
    from hushrec.data.own import is_number
    from hushrec.errors import ParameterError

    pairs = [text.rpartition("=") for text in texts]
    if not all(item and is_number(value) for item, _, value in pairs):
        raise ParameterError("--rate must be written ITEM=VALUE, as in 50=5.")
    return {item: float(value) for item, _, value in pairs}


def _scale(text: str) -> tuple[float, float]:
    from hushrec.errors import ParameterError

    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ParameterError("--scale must be written MIN,MAX, as in 1,5.") from None
    return low, high


@device_app.command(epilog="Example: hushrec device rate 50 5")
def rate(
    item: Annotated[str, typer.Argument(help="The item's id.")],
    value: Annotated[float | None, typer.Argument(help="The rating; leave it out with --remove.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Forget this item's rating.")] = False,
    store: Folder = None,
) -> None:
    """Store one rating, or forget it."""
    from hushrec import Device
    from hushrec.errors import ParameterError

    if (value is None) != remove:
        raise ParameterError("rate needs a rating, or --remove without one.")
    with Device(store) as device:
        if value is None:
            device.remove_rating(item)
        else:
            device.add_rating(item, value)


@device_app.command("import", epilog="Example: hushrec device import my-ratings.csv")
def import_ratings(
    path: Annotated[Path, typer.Argument(help="A table of item and rating, or of user, item and rating.")],
    user: Annotated[str | None, typer.Option(help="Take this user's rows of a table with users.")] = None,
    store: Folder = None,
) -> None:
    """Store many ratings from a file."""
    from hushrec import Device
    from hushrec.data.own import read_own_ratings

    ratings = read_own_ratings(path) if user is None else _ratings_of(path, user)
    with Device(store) as device:
        device.add_ratings(ratings, keep_unknown=True)
        unknown = sum(item not in device.catalogue for item in ratings) if device.has_joined else 0
    say(f"{counted(len(ratings), 'rating is', 'ratings are')} stored")
    if unknown:
        say(f"{unknown} of them count only when the server has their items")


@device_app.command(epilog="Example: hushrec device export > my-ratings.csv")
def export(store: Folder = None) -> None:
    """Print all ratings as a table of item and rating, which `hushrec device import` reads."""
    import csv
    import sys

    from hushrec import Device

    with Device(store) as device:
        ratings = device.ratings()
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(["item", "rating"])
    rows.writerows((item, f"{value:g}") for item, value in ratings.items())


def _ratings_of(path: Path, user: str) -> dict[str, float]:
    from hushrec.data import load
    from hushrec.errors import DataError

    ratings = load(path)
    if user not in ratings.user_ids or ratings.values is None:
        raise DataError(f"{path} holds no ratings of that user.")
    rows = ratings.users == ratings.user_ids.index(user)
    return {
        ratings.item_ids[item]: float(value)
        for item, value in zip(ratings.items[rows], ratings.values[rows], strict=True)
    }


@device_app.command(epilog="Example: hushrec device join https://127.0.0.1:8470 --ca certificate.pem")
def join(
    server: Annotated[
        str | None, typer.Argument(help="The server's address; needed the first time, and when it moved.")
    ] = None,
    invitation: Annotated[str | None, typer.Option(help="An invitation code of the server's operator.")] = None,
    ca: Annotated[Path | None, typer.Option(help="Trust this certificate only (PEM).")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plain HTTP beyond this machine.")] = False,
    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="Enrol anew after a restored or copied store. masked: charges what is left of the run if a copy has"
            " reported; sdcf: costs epsilon-p once more.",
        ),
    ] = False,
    follow: Annotated[
        bool,
        typer.Option("--next", help="Agree to what the server offers after its run: further rounds, or a next run."),
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(help="Take part in so many rounds; 0 only enrols.  [default: all]", min=0)
    ] = None,
    store: Folder = None,
) -> None:
    """Enrol with a server, and take part in its rounds until they are over.

    Once joined, no address is needed. A server that moved is followed with its new address, and --ca if it has a new
    certificate: nothing is enrolled anew for that.
    """
    from hushrec import Device

    with Device(store) as device:
        joined, old = device.has_joined and not again, device.server
        device.join(server, invitation=invitation, ca=ca, insecure=insecure, again=again)
        if not joined:
            say(_welcome(device))
        elif device.server != old:
            say(f"the server is now at {device.server}")
        if joined and follow:
            say(_follow(device))
        _take_part(device, rounds)


def _follow(device: "Device") -> str:
    """Agree to what comes next, and return what that is."""
    run = None if device.offer is None else device.offer.run_id
    device.follow()
    assert device.offer is not None
    return "agreed to the further rounds of this run" if device.offer.run_id == run else _welcome(device)


def _welcome(device: "Device") -> str:
    """Return the lines to print after joining."""
    status = device.status()
    unknown = status.n_ratings - status.n_known
    rest = f"; {counted(unknown, 'rating is', 'ratings are')} of items that it does not have" if unknown else ""
    return f"joined {device.server}: {counted(status.n_items, 'item')}, {counted(status.rounds or 0, 'round')}{rest}"


def _take_part(device: "Device", rounds: int | None) -> None:
    """Report in rounds until there are no more, or enough; say what is waited for, and now and then how far it is."""
    import time

    from hushrec.device.session import NO_ROUND, RUN_OVER, STEPPED

    seen: set[int] = set()
    outcome, spoke, status = "", -SPEAK_SECONDS, device.status()
    while outcome != RUN_OVER and (rounds is None or len(seen) < rounds or status.in_round):
        if not outcome:
            say("waiting for a round; Ctrl-C stops, and nothing is lost")
        outcome = device.step(wait=WAIT_SECONDS)
        status = device.status()
        seen |= {status.round_number} if outcome == STEPPED else set()
        if time.monotonic() - spoke >= SPEAK_SECONDS and outcome != RUN_OVER:
            spoke = time.monotonic()
            still = "still waiting: the server opens a round when enough devices are there; " * (outcome == NO_ROUND)
            last = f"last reported: round {status.round_number} of {status.rounds}"
            say(f"{still}{last if status.round_number else 'nothing reported yet'}")
    say(f"{counted(len(seen), 'round')} reported" + ("; the run is over" if outcome == RUN_OVER else ""))


@device_app.command(epilog="Example: hushrec device search godfather")
def search(
    text: Annotated[
        list[str] | None, typer.Argument(help="Words of the title.  [default: what most people like]")
    ] = None,
    count: Annotated[int, typer.Option("-n", "--count", help="How many items.", min=1)] = 20,
    store: Folder = None,
    as_json: JsonFlag = False,
) -> None:
    """Find items and their ids by title, after joining. Works offline."""
    from hushrec import Device
    from hushrec.errors import LocalProtocolError

    with Device(store) as device:
        if not device.has_joined:
            raise LocalProtocolError("there are no titles to search before the device has joined a server.")
        found, ratings = device.search(" ".join(text or []), count=count), device.ratings()
    if as_json:
        items = [{"item": item, "title": title, "rating": ratings.get(item)} for item, title in found.items]
        print_json({"count": found.count, "items": items})
        return
    table = Table("item", "title", "your rating", box=None)
    for item, title in found.items:
        table.add_row(harmless(item), harmless(title), f"{ratings[item]:g}" if item in ratings else "")
    Console().print(table)
    if found.count > len(found.items):
        say(f"{found.count} items were found; -n {found.count} shows them all")


@device_app.command(epilog="Example: hushrec device recommend -n 5")
def recommend(
    count: Annotated[int, typer.Option("-n", "--count", help="How many items.")] = 10,
    store: Folder = None,
    as_json: JsonFlag = False,
) -> None:
    """Recommend unrated items. Works offline."""
    from hushrec import Device

    with Device(store) as device:
        items, order = device.recommend(count), device.list_order
    if as_json:
        print_json({"items": [vars(item) for item in items], "order": order})
        return
    table = Table("item", "title", "predicted", box=None)
    for item in items:
        table.add_row(harmless(item.item), harmless(item.title), f"{item.predicted:.2f}")
    Console().print(table)
    if order is not None:
        say(order)


@device_app.command(epilog="Example: hushrec device budget --raise-to 16")
def budget(
    epsilon: Annotated[
        float | None, typer.Option(help="masked: allow a run this much from now on. Nobody else sees the change.")
    ] = None,
    raise_to: Annotated[
        float | None,
        typer.Option(help="Allow this much in all: for a next run of masked, or a further draw of sdcf (epsilon-p)."),
    ] = None,
    store: Folder = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what taking part has cost, in which unit, and what that does not cover."""
    from hushrec import Device

    with Device(store) as device:
        if epsilon is not None:
            device.choose_epsilon(epsilon)
        if raise_to is not None:
            device.raise_budget(raise_to)
        statement, has_joined, allowed = device.budget(), device.status().has_joined, device.budgets
    if as_json:
        print_json(statement)
        return
    if not has_joined and statement["spent"] == 0:
        print("spent nothing: this device has joined no server. Over all its rounds a run may cost")
        print(f"  masked: epsilon {allowed.epsilon:g} of the whole profile, at the delta that the run states")
        print(f"  sdcf: epsilon {allowed.epsilon_p:g} of the list of reported items")
        return
    print(
        f"spent epsilon {statement['spent']:.3g} of {statement['limit']:.3g}, {counted(statement['rounds'], 'round')}"
    )
    print(f"  covers: {statement['unit']}")
    for sentence in statement["not_covered"]:
        print(f"  does not cover: {sentence}")
    for sentence in statement.get("also", ()):
        print(f"  {sentence}")


@device_app.command("rotate-key", epilog="Example: hushrec device rotate-key")
def rotate_key(store: Folder = None) -> None:
    """Change the key that signs this device's requests."""
    from hushrec import Device

    with Device(store) as device:
        device.rotate_key()


@device_app.command(epilog="Example: hushrec device leave")
def leave(
    without_server: Annotated[
        bool, typer.Option("--without-server", help="Do not tell the server: it is gone for good.")
    ] = False,
    store: Folder = None,
) -> None:
    """Tell the server that this device takes part no more. Ratings and ledger stay here."""
    from hushrec import Device

    with Device(store) as device:
        device.leave(tell=not without_server)
    say("left; what was sent stays sent")


@device_app.command(epilog="Example: hushrec device forget --yes")
def forget(
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    store: Folder = None,
) -> None:
    """Erase the store: ratings, vector, bits, ledger and keys."""
    from hushrec import Device

    if not yes:
        typer.confirm("erase all ratings and keys in this store?", abort=True)
    Device.forget(store)
    say("erased")


@device_app.command(epilog="Example: hushrec device ui --port 8471")
def ui(
    port: Annotated[int, typer.Option(help="The port on this machine; 0 takes a free one.", min=0, max=65535)] = 8471,
    store: Folder = None,
) -> None:
    """Open a page for this person, on this machine only: rate, take part, see recommendations and what left."""
    import secrets
    import socket

    import uvicorn

    from hushrec import Device
    from hushrec.audit.own_uploads import read_uploads
    from hushrec.device.ui import Page, make_ui
    from hushrec.errors import ParameterError

    with Device(store, patience=1) as device, socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
        except OSError:
            raise ParameterError(f"--port must be free, got {port}. Choose another, or 0.") from None
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        token = secrets.token_urlsafe(24)
        page = Page(device, read_uploads)
        made = make_ui(page, token=token, hosts={place, place.replace("127.0.0.1", "localhost")})
        print(f"http://{place}/#{token}", flush=True)
        say("open this address in a browser on this machine; Ctrl-C ends the page")
        config = uvicorn.Config(made, access_log=False, log_config=None, server_header=False, ws="none")
        config.timeout_graceful_shutdown = 2
        uvicorn.Server(config).run(sockets=[listening])
        page.participation.stop()
