"""The command `hushrec fleet`: run many real devices against a server."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.progress import MofNCompleteColumn
from typer import Option

from hushrec.cli.app import JsonFlag, app, counted, print_json, progress_bars, say
from hushrec.cli.options import Authority, PersonalProtocol, given_only, with_personal_options
from hushrec.cli.reading import Data, Reading, reads_ratings
from hushrec.errors import ParameterError

if TYPE_CHECKING:
    from hushrec.data import Ratings
    from hushrec.device.fleet import Member, Place


@app.command(epilog="Example: hushrec fleet ml-100k --server https://127.0.0.1:8470 --ca certificate.pem --devices 943")
@reads_ratings
@with_personal_options(after="protocol")
def fleet(
    data: Data,
    reading: Reading,
    server: Annotated[str, Option(help="Address of the server.")],
    devices: Annotated[
        int | None, Option(help="Number of devices, one per user of the data.  [default: all users]", min=1)
    ] = None,
    stores: Annotated[Path, Option(help="Folder in which each device gets a folder for its store.")] = Path("fleet"),
    rounds: Annotated[
        int | None,
        Option(
            help="Number of rounds in which every device reports; 0 only enrols.  [default: until the run is over]",
            min=0,
        ),
    ] = None,
    protocol: PersonalProtocol = None,
    epochs: Annotated[
        int, Option(help="sdcf: largest number of times that a device draws its permanent bits in the run.", min=1)
    ] = 1,
    split_seed: Annotated[int, Option(help="Seed of the split into training and held-out ratings, as in `train`.")] = 0,
    invitations: Annotated[
        Path | None, Option(help="File with one invitation code per line.  [default: none, for an open server]")
    ] = None,
    ca: Authority = None,
    follow: Annotated[
        bool,
        Option(
            "--next",
            help="Let every device agree to the further rounds or next run that the server offers, and to their cost.",
        ),
    ] = False,
    processes: Annotated[int, Option(help="Number of processes that share the devices.", min=1)] = 1,
    as_json: JsonFlag = False,
    **options: Any,
) -> None:
    """Run many real devices against a server, each with its own store and keys, for load and end-to-end tests."""
    from hushrec.device.budgets import Budgets
    from hushrec.device.fleet import Orders, run_fleet
    from hushrec.device.transport import check_address

    ratings = reading.load(data)
    if ratings.scale is None:
        raise ParameterError(f"a fleet needs rating values, and {ratings.name} has none. Use data with ratings.")
    wanted = devices or ratings.n_users
    members = _members(ratings, wanted, split_seed, stores)
    budgets = Budgets(scale=(ratings.scale.low, ratings.scale.high)).choosing(given_only(options), protocol)
    if epochs > 1:
        one_draw = next(own["epsilon_p"] for own in budgets.by_protocol().values() if "epsilon_p" in own)
        budgets = replace(budgets, limits={"selection": epochs * one_draw})
    orders = Orders(
        server=check_address(server),
        budgets=budgets,
        ca=ca,
        rounds=rounds,
        invitations=None if invitations is None else _codes(invitations, len(members)),
        follow=follow,
    )
    fewer = "" if len(members) == wanted else f", not {wanted:,}: no more users have ratings to train on"
    say(f"{counted(len(members), 'device')}{fewer}; they join {server} and wait for its rounds")
    started = time.perf_counter()
    with _shown_progress() as progress:
        outcome = run_fleet(members, orders, processes=processes, progress=progress)
    seconds = time.perf_counter() - started
    record: dict[str, float | None] = {"devices": len(members), "reports": outcome.reports, "seconds": seconds}
    record |= {"rmse": outcome.rmse, "rmse_trained": outcome.rmse_trained}
    if as_json:
        print_json(record)
    else:
        accuracy = "" if outcome.rmse is None else f", rmse {outcome.rmse:.4f} on {outcome.held_out} held-out ratings"
        done = f"{counted(len(members), 'device')} made {counted(outcome.reports, 'report')}"
        say(f"{done} in {seconds:.1f} s{accuracy}")


def _codes(path: Path, wanted: int) -> tuple[str, ...]:
    """Return the invitation codes in a file, one for each device."""
    try:
        codes = tuple(path.read_text("utf-8").split())
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8 text"
        raise ParameterError(f"--invitations must be a readable file ({reason}), got {path}. Check the path.") from None
    if len(codes) < wanted:
        devices = counted(wanted, "device")
        raise ParameterError(
            f"--invitations must have a code for each of {devices}, but {path} has {len(codes):,}. Create more with"
            " `hushrec serve --invitations`, or give fewer --devices."
        )
    return codes


@contextmanager
def _shown_progress() -> "Iterator[Callable[[Place], None]]":
    """Yield a function that shows the progress of a fleet on stderr: a bar on a terminal, else a line per round."""
    latest: Place | None = None
    devices, started = 0, time.perf_counter()

    def say_round() -> None:
        if latest is not None and not sys.stderr.isatty():
            done = f"round {latest.round_number} of {latest.rounds}: {counted(devices, 'device')} reported"
            say(f"{done} ({time.perf_counter() - started:.1f} s)")

    with progress_bars(MofNCompleteColumn()) as show:

        def progress(place: "Place") -> None:
            nonlocal latest, devices
            if latest is not None and place < latest:  # of a process that is behind
                return
            if latest is not None and place.round_number > latest.round_number:
                say_round()
            devices = place.devices + (devices if place == latest else 0)
            latest = place
            phase = f", {place.phases[place.phase]}" if len(place.phases) > 1 else ""
            attempt = f", attempt {place.attempt}" if place.attempt > 1 else ""
            text = f"round {place.round_number}{attempt}{phase}: {counted(devices, 'device')}"
            show("rounds", place.round_number, place.rounds, text)

        yield progress
    say_round()


def _members(ratings: "Ratings", devices: int, split_seed: int, stores: Path) -> "list[Member]":
    """Return a `Member` (store folder, training and held-out ratings) for each of the first `devices` users.

    The ratings are split as by `train`. Users without training ratings are left out.
    """
    from hushrec.data import random_split
    from hushrec.device.fleet import Member

    assert ratings.values is not None
    split = random_split(ratings.n_ratings, split_seed)
    parts: list[dict[int, dict[str, float]]] = []
    for rows in (split.train, split.test):
        by_user: dict[int, dict[str, float]] = {}
        for user, item, value in zip(ratings.users[rows], ratings.items[rows], ratings.values[rows], strict=True):
            by_user.setdefault(int(user), {})[ratings.item_ids[item]] = float(value)
        parts.append(by_user)
    train, test = parts
    return [Member(stores / str(user), train[user], test.get(user, {})) for user in sorted(train)[:devices]]
