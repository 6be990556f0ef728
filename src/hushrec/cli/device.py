"""`hushrec device`: a person's side."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from hushrec.cli.app import JsonFlag, app, counted, harmless, print_json, say

device_app = typer.Typer(
    help="A person's side: ratings stay here, recommendations are computed here.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(device_app, name="device", epilog="Example: hushrec device recommend --count 10")

Folder = Annotated[Path | None, typer.Option("--store", help="The store's folder.  [default: $XDG_DATA_HOME/hushrec]")]
WAIT_SECONDS = 30.0


@device_app.command(epilog="Example: hushrec device init --epsilon-i 4 --rate 50=5 --rate 7=2")
def init(
    store: Folder = None,
    epsilon_i: Annotated[float, typer.Option(help="Budget of one round's selection.")] = 4.0,
    epsilon_p: Annotated[
        float | None, typer.Option(help="Budget of all rounds' selections.  [default: 2 × epsilon-i]")
    ] = None,
    epsilon_g: Annotated[float, typer.Option(help="Range of the fake errors; 0 is α = ∞. No guarantee.")] = 4.0,
    max_value_rho: Annotated[
        float | None, typer.Option(help="Stop when the gradient values cost more than this.  [default: no limit]")
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
        device.add_ratings(ratings)
    say(f"{counted(len(ratings), 'rating is', 'ratings are')} stored")


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
    server: Annotated[str | None, typer.Argument(help="The server's address; needed the first time.")] = None,
    invitation: Annotated[str | None, typer.Option(help="An invitation code of the server's operator.")] = None,
    ca: Annotated[Path | None, typer.Option(help="Trust this certificate only (PEM).")] = None,
    insecure: Annotated[bool, typer.Option("--insecure", help="Allow plain HTTP beyond this machine.")] = False,
    again: Annotated[
        bool, typer.Option("--again", help="Enrol anew after a lost, restored or copied store; it costs epsilon-p.")
    ] = False,
    extend: Annotated[
        bool, typer.Option("--extend", help="Agree to further rounds that the server offers after its run was over.")
    ] = False,
    rounds: Annotated[
        int | None, typer.Option(help="Take part in so many rounds; 0 only enrols.  [default: all]", min=0)
    ] = None,
    store: Folder = None,
) -> None:
    """Enrol with a server, and take part in its rounds until they are over."""
    from hushrec import Device
    from hushrec.errors import ParameterError

    with Device(store) as device:
        if again or not device.has_joined:
            address = server or device.server
            if address is None:
                raise ParameterError("join needs the server's address the first time.")
            device.join(address, invitation=invitation, ca=ca, insecure=insecure, again=again)
            say("joined")
        elif extend:
            device.extend()
            say("agreed to the further rounds of this run")
        answered, outcome = 0, ""
        while outcome != "run over" and (rounds is None or answered < rounds):
            outcome = device.step(wait=WAIT_SECONDS)
            answered += outcome == "reported"
        say(f"{counted(answered, 'round')} answered" + ("; the run is over" if outcome == "run over" else ""))


@device_app.command(epilog="Example: hushrec device recommend -n 5")
def recommend(
    count: Annotated[int, typer.Option("-n", "--count", help="How many items.")] = 10,
    store: Folder = None,
    as_json: JsonFlag = False,
) -> None:
    """Recommend unrated items. Works offline."""
    from hushrec import Device

    with Device(store) as device:
        items = device.recommend(count)
    if as_json:
        print_json({"items": [vars(item) for item in items]})
        return
    table = Table("item", "title", "predicted", box=None)
    for item in items:
        table.add_row(harmless(item.item), harmless(item.title), f"{item.predicted:.2f}")
    Console().print(table)


@device_app.command(epilog="Example: hushrec device budget --raise-to 16")
def budget(
    raise_to: Annotated[
        float | None, typer.Option(help="Allow this much for selections: each further draw costs epsilon-p.")
    ] = None,
    store: Folder = None,
    as_json: JsonFlag = False,
) -> None:
    """Show what taking part has cost, in which unit, and what that does not cover."""
    from hushrec import Device

    with Device(store) as device:
        if raise_to is not None:
            device.raise_budget(raise_to)
        statement = device.budget()
    if as_json:
        print_json(statement)
        return
    print(
        f"spent epsilon {statement['spent']:.3g} of {statement['limit']:.3g}, {counted(statement['rounds'], 'round')}"
    )
    print(f"  covers: {statement['unit']}")
    for sentence in statement["not_covered"]:
        print(f"  does not cover: {sentence}")
    print(f"  gradient values so far: rho {statement['value_rho']:.3g}")


@device_app.command("rotate-key", epilog="Example: hushrec device rotate-key")
def rotate_key(store: Folder = None) -> None:
    """Change the key that signs this device's requests."""
    from hushrec import Device

    with Device(store) as device:
        device.rotate_key()


@device_app.command(epilog="Example: hushrec device leave")
def leave(store: Folder = None) -> None:
    """Tell the server that this device takes part no more. Ratings and ledger stay here."""
    from hushrec import Device

    with Device(store) as device:
        device.leave()
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
        page.part.stop()
