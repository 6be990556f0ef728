"""The commands `hushrec device …`, with which one person uses their device."""

import csv
import secrets
import socket
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

import hushrec
from hushrec.cli.app import JsonFlag, app, counted, print_json, print_table, say
from hushrec.cli.options import Authority, Count, PersonalProtocol, Port, given_only, with_personal_options
from hushrec.errors import DataError, LocalProtocolError, ParameterError

device_app = typer.Typer(
    help="Keep one person's ratings on this machine, take part in training, and compute recommendations here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(device_app, name="device", epilog="Example: hushrec device recommend --count 10")

Folder = Annotated[
    Path | None,
    Option("--store", help="Folder of the device's ratings, ledger and keys.  [default: $XDG_DATA_HOME/hushrec]"),
]
WAIT_SECONDS = 30.0  # the longest that one step waits for a round to open
SPEAK_SECONDS = 10.0  # the least time between two progress lines


@device_app.command(epilog="Example: hushrec device init --epsilon 4 --rate 50=5 --rate 7=2")
@with_personal_options(after="protocol")
def init(
    store: Folder = None,
    protocol: PersonalProtocol = None,
    max_value_rho: Annotated[
        float | None,
        Option(
            help="sdcf: largest privacy cost of the gradient values (rho of zero-concentrated differential privacy);"
            " the device stops reporting before it spends more.  [default: no limit]"
        ),
    ] = None,
    scale: Annotated[str, Option(help="Smallest and largest rating, separated by a comma.")] = "1,5",
    ratings: Annotated[
        list[str] | None, Option("--rate", help="Rating to write into the new store, as ITEM=VALUE; may be repeated.")
    ] = None,
    **options: Any,
) -> None:
    """Create a store for this person's ratings, with the privacy budgets that the person allows."""
    from hushrec.device.budgets import check_ratings
    from hushrec.scale import Scale

    values, chosen = _first_ratings(ratings or []), Scale.parse(scale)
    check_ratings(values, (chosen.low, chosen.high))  # before a store is created
    with hushrec.Device.create(
        store,
        scale=(chosen.low, chosen.high),
        max_value_rho=max_value_rho,
        protocol=protocol,
        **given_only(options),
    ) as device:
        device.add_ratings(values)
    say("the store was created; only you can read it")


def _first_ratings(texts: list[str]) -> dict[str, float]:
    from hushrec.data.own import is_number

    pairs = [text.rpartition("=") for text in texts]
    if not all(item and is_number(value) for item, _, value in pairs):
        raise ParameterError("--rate must be given as ITEM=VALUE with a number, such as 50=5.")
    return {item: float(value) for item, _, value in pairs}


@device_app.command(epilog="Example: hushrec device rate 50 5")
def rate(
    item: Annotated[str, Argument(help="Id of the item.")],
    value: Annotated[float | None, Argument(help="The rating; leave it out with --remove.")] = None,
    remove: Annotated[bool, Option("--remove", help="Remove the rating of this item.")] = False,
    store: Folder = None,
) -> None:
    """Store or remove one rating."""
    if (value is None) != remove:
        raise ParameterError("rate needs either a rating or --remove: give exactly one of them.")
    with hushrec.Device(store) as device:
        if value is None:
            device.remove_rating(item)
        else:
            device.add_rating(item, value)


@device_app.command("import", epilog="Example: hushrec device import my-ratings.csv")
def import_ratings(
    path: Annotated[
        Path,
        Argument(help="Table with the columns item and rating; with --user, any rating file that `train` reads."),
    ],
    user: Annotated[
        str | None, Option(help="Import only the ratings of the user with this id, from a file of many users.")
    ] = None,
    store: Folder = None,
) -> None:
    """Import ratings from a file into the store."""
    from hushrec.data.own import read_own_ratings

    ratings = read_own_ratings(path) if user is None else _ratings_of(path, user)
    with hushrec.Device(store) as device:
        device.add_ratings(ratings, keep_unknown=True)
        unknown = sum(item not in device.catalogue for item in ratings) if device.has_joined else 0
    say(f"{counted(len(ratings), 'rating is', 'ratings are')} stored")
    if unknown:
        say(f"{unknown} of them are not used until the server's catalogue has their items")


@device_app.command(epilog="Example: hushrec device export > my-ratings.csv")
def export(store: Folder = None) -> None:
    """Print all ratings as CSV with the columns item and rating, which `hushrec device import` reads."""
    with hushrec.Device(store) as device:
        ratings = device.ratings()
    rows = csv.writer(sys.stdout, lineterminator="\n")
    rows.writerow(["item", "rating"])
    rows.writerows((item, f"{value:g}") for item, value in ratings.items())


def _ratings_of(path: Path, user: str) -> dict[str, float]:
    from hushrec.data import load

    ratings = load(path)
    if user not in ratings.user_ids or ratings.values is None:
        raise DataError(f"{path} has no ratings of the user that --user names. Check the id.")
    rows = ratings.users == ratings.user_ids.index(user)
    return {
        ratings.item_ids[item]: float(value)
        for item, value in zip(ratings.items[rows], ratings.values[rows], strict=True)
    }


@device_app.command(epilog="Example: hushrec device join https://127.0.0.1:8470 --ca certificate.pem")
def join(
    server: Annotated[
        str | None,
        Argument(help="Address of the server; needed the first time, and after the server's address changed."),
    ] = None,
    invitation: Annotated[
        str | None, Option(help="Invitation code that you got from the operator of the server.")
    ] = None,
    ca: Authority = None,
    insecure: Annotated[
        bool, Option("--insecure", help="Allow unencrypted HTTP to a server on another machine.")
    ] = False,
    again: Annotated[
        bool,
        Option(
            "--again",
            help="Enrol a second time, after this store was restored from a backup or copied. masked: if another copy"
            " of the store has reported, the rest of the run's budget counts as spent; sdcf: the next report costs"
            " epsilon-p again.",
        ),
    ] = False,
    follow: Annotated[
        bool,
        Option(
            "--next",
            help="Agree to what the server offers after the end of the run that this device joined: further rounds, or"
            " the next run.",
        ),
    ] = False,
    rounds: Annotated[
        int | None,
        Option(help="Stop after reporting in this many rounds; 0 only enrols.  [default: all rounds]", min=0),
    ] = None,
    store: Folder = None,
) -> None:
    """Enrol with a server, and take part in its rounds until the run is over.

    A device that has joined needs no address. If the server's address changes, give the new one, with --ca if its
    certificate is new as well: the device does not enrol again.
    """
    with hushrec.Device(store) as device:
        joined, old = device.has_joined and not again, device.server
        device.join(server, invitation=invitation, ca=ca, insecure=insecure, again=again)
        if not joined:
            say(_welcome(device))
        elif device.server != old:
            say(f"the server is now at {device.server}")
        if joined and follow:
            say(_follow(device))
        if follow or not joined:
            say(" ".join([*device.asks(), *_own_level(device.budget())]))
        try:
            _take_part(device, rounds)
        finally:
            device.drop_out()


def _own_level(statement: dict[str, Any]) -> list[str]:
    """Return a list with a sentence about the ε that the person chose for the joined run, if they chose one.

    `statement` is the result of `Device.budget`.
    """
    if statement["own_delta"] is None:
        return []
    own = f"ε = {statement['own_epsilon']:g} (δ = {statement['own_delta']:g})"
    return [f"Your own budget for this run is {own}; `hushrec device budget --epsilon` changes it for later reports."]


def _follow(device: "hushrec.Device") -> str:
    """Agree to the further rounds or next run that the server offers; return a line to print about them."""
    run = None if device.offer is None else device.offer.run_id
    device.follow()
    assert device.offer is not None
    return "agreed to the further rounds of this run" if device.offer.run_id == run else _welcome(device)


def _welcome(device: "hushrec.Device") -> str:
    """Return the line to print after joining: the server, its items and rounds, and the number of unused ratings."""
    status = device.status()
    unknown = status.n_ratings - status.n_known
    rest = f"; {counted(unknown, 'rating is', 'ratings are')} of items that the server does not have" if unknown else ""
    return f"joined {device.server}: {counted(status.n_items, 'item')}, {counted(status.rounds or 0, 'round')}{rest}"


def _take_part(device: "hushrec.Device", rounds: int | None) -> None:
    """Report in `rounds` rounds, by default until the run is over.

    Progress is printed to stderr, at most once in `SPEAK_SECONDS` seconds.
    """
    from hushrec.device.session import NO_ROUND, REFUSED, RUN_OVER, STEPPED

    seen: set[int] = set()
    outcome, spoke, status = "", -SPEAK_SECONDS, device.status()
    while outcome != RUN_OVER and (rounds is None or len(seen) < rounds or status.in_round):
        if not outcome:
            say("waiting for a round; Ctrl-C stops waiting, and nothing is lost")
        outcome = device.step(wait=WAIT_SECONDS)
        status = device.status()
        seen |= {status.round_number} if outcome == STEPPED else set()
        if outcome == REFUSED:
            say(f"left this attempt and waiting for the next one, because a message was refused: {status.refusal}")
        if time.monotonic() - spoke >= SPEAK_SECONDS and outcome != RUN_OVER:
            spoke = time.monotonic()
            still = "still waiting: the server opens a round when enough devices are online; " * (outcome == NO_ROUND)
            last = f"last reported: round {status.round_number} of {status.rounds}"
            say(f"{still}{last if status.round_number else 'nothing reported yet'}")
    say(f"{counted(len(seen), 'round')} reported" + ("; the run is over" if outcome == RUN_OVER else ""))


@device_app.command(epilog="Example: hushrec device search godfather")
def search(
    text: Annotated[
        list[str] | None, Argument(help="Words of the title.  [default: list items, the most popular first]")
    ] = None,
    count: Annotated[int, Option("-n", "--count", help="Largest number of items to list.", min=1)] = 20,
    store: Folder = None,
    as_json: JsonFlag = False,
) -> None:
    """Find items and their ids by title. Works offline, once the device has joined a server."""
    with hushrec.Device(store) as device:
        if not device.has_joined:
            raise LocalProtocolError("search needs the server's titles. Join a server first: hushrec device join.")
        found, ratings = device.search(" ".join(text or []), count=count), device.ratings()
    if as_json:
        items = [{"item": item, "title": title, "rating": ratings.get(item)} for item, title in found.items]
        print_json({"count": found.count, "items": items})
        return
    rows = ((item, title, f"{ratings[item]:g}" if item in ratings else "") for item, title in found.items)
    print_table(["item", "title", "your rating"], rows)
    if not found.count:
        say("no title has all of these words; search for fewer")
    if found.count > len(found.items):
        say(f"{found.count} items were found; -n {found.count} lists all of them")


@device_app.command(epilog="Example: hushrec device recommend -n 5")
def recommend(
    count: Count = 10,
    store: Folder = None,
    as_json: JsonFlag = False,
) -> None:
    """Recommend items that this person has not rated. Works offline: nothing is sent."""
    with hushrec.Device(store) as device:
        items, order = device.recommend(count), device.list_order
    if as_json:
        print_json({"items": [vars(item) for item in items], "order": order})
        return
    print_table(["item", "title", "predicted"], ((one.item, one.title, f"{one.predicted:.2f}") for one in items))
    if order is not None:
        say(order)


@device_app.command(epilog="Example: hushrec device budget --raise-to 16")
@with_personal_options(after="protocol", shows_defaults=False)
def budget(
    protocol: PersonalProtocol = None,
    raise_to: Annotated[
        float | None,
        Option(
            help="New, higher limit on the epsilon of all runs together. With it the device can join a next run"
            " (masked), draw permanent bits again (sdcf), or join a run of a protocol without budget options (name the"
            " protocol with --protocol)."
        ),
    ] = None,
    store: Folder = None,
    as_json: JsonFlag = False,
    **options: Any,
) -> None:
    """Show the privacy budget that this device has spent, what the budget covers, and what it does not cover.

    Options of a protocol, such as --epsilon, are set first, and count from the next round on. The server does not learn
    them.
    """
    with hushrec.Device(store) as device:
        given = given_only(options)
        if given or (protocol is not None and raise_to is None):
            device.choose(protocol, **given)
        if raise_to is not None:
            device.raise_budget(raise_to, protocol)
        statement, has_joined, budgets = device.budget(), device.has_joined, device.budgets
    if as_json:
        print_json(statement)
        return
    if not has_joined and statement["spent"] == 0:
        print("spent nothing: this device has not joined a server. It may join runs with these options:")
        for name, chosen in budgets.by_protocol().items():
            if chosen:
                values = (f"{option} {value:g}" for option, value in chosen.items() if value is not None)
                print(f"  {name}: {', '.join(values)}")
        return
    limit, rounds, delta = statement["limit"], statement["rounds"], statement["delta"]
    allowed = "" if limit is None else f" of {limit:.3g}"
    allowed += f" (delta {delta:g})" if delta else ""
    charged = statement["charged"] or (None if rounds is None else counted(rounds, "round"))
    print(f"spent epsilon {statement['spent']:.3g}{allowed}" + ("" if charged is None else f", {charged}"))
    for sentence in _own_level(statement):
        print(f"  {sentence}")
    print(f"  covers: {statement['unit']}")
    for sentence in statement["not_covered"]:
        print(f"  does not cover: {sentence}")
    for sentence in statement["sentences"]:
        print(f"  {sentence}")


@device_app.command("rotate-key", epilog="Example: hushrec device rotate-key")
def rotate_key(store: Folder = None) -> None:
    """Replace the key that signs this device's requests."""
    with hushrec.Device(store) as device:
        device.rotate_key()
    say("the key was replaced; the server knows the new one")


@device_app.command(epilog="Example: hushrec device leave")
def leave(
    without_server: Annotated[
        bool, Option("--without-server", help="Do not contact the server, because it no longer exists.")
    ] = False,
    store: Folder = None,
) -> None:
    """Leave the run, and tell the server so. The ratings and the privacy ledger stay in the store."""
    with hushrec.Device(store) as device:
        device.leave(tell=not without_server)
    say("this device has left the run; reports that were sent cannot be taken back")


@device_app.command(epilog="Example: hushrec device forget --yes")
def forget(
    yes: Annotated[bool, Option("--yes", help="Erase without asking for confirmation.")] = False,
    store: Folder = None,
) -> None:
    """Erase the store: ratings, user vector, permanent bits, privacy ledger and keys."""
    from hushrec.device.store import default_folder

    if not yes:
        typer.confirm(f"Erase all ratings and keys in {store or default_folder()}?", abort=True)
    hushrec.Device.forget(store)
    say("the store was erased")


@device_app.command(epilog="Example: hushrec device ui --port 8471")
def ui(port: Port = 8471, store: Folder = None) -> None:
    """Serve a page on this machine to rate items, take part in rounds, and see recommendations and what was sent."""
    import uvicorn

    from hushrec.audit.own_reports import read_reports
    from hushrec.device.ui import Page, make_ui

    with hushrec.Device(store, patience=1) as device, socket.socket(proto=socket.IPPROTO_TCP) as listening:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind(("127.0.0.1", port))
            listening.listen()  # a browser that is quicker than the server waits instead of failing
        except OSError:
            raise ParameterError(f"--port must be free, got {port}. Choose another port, or 0 for any.") from None
        place = f"127.0.0.1:{listening.getsockname()[1]}"
        token = secrets.token_urlsafe(24)
        page = Page(device, read_reports)
        made = make_ui(page, token=token, hosts={place, place.replace("127.0.0.1", "localhost")})
        print(f"http://{place}/#{token}", flush=True)
        say("open this address in a browser on this machine; Ctrl-C stops serving the page")
        config = uvicorn.Config(made, access_log=False, log_config=None, server_header=False, ws="none")
        config.timeout_graceful_shutdown = 2
        uvicorn.Server(config).run(sockets=[listening])
        if not page.is_forgotten:
            page.participation.stop()
