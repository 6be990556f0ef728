"""A small app around `hushrec.Device`: rate, join, take part in the background, show recommendations.

    python examples/app.py store https://127.0.0.1:8470 --ca certificate.pem --rate 1=5 --rate 2=4

The person goes on while the device takes part: a round may last minutes, and nothing here waits for one.
"""

import argparse
import asyncio
from pathlib import Path

from hushrec import Device, HushrecError
from hushrec.device.aio import taking_part


def open_device(folder: Path, patience: float) -> Device:
    """Open the person's store, or make it the first time; `patience` is how long a call tries to reach the server."""
    return Device(folder, patience=patience) if folder.exists() else Device.create(folder, patience=patience)


async def take_part(device: Device) -> None:
    """Say what happens in the rounds of the server, to the end of the run."""
    said = 0
    async with taking_part(device) as events:
        async for event in events:
            if event.kind == "reported" and event.round_number != said:  # a round may have several reports
                said = event.round_number
                print(f"round {said} of {device.status().rounds}: reported")
            if event.error is not None:
                print(f"[{event.error.code}] {event.error}")


def show(device: Device) -> None:
    """Print recommendations and what taking part cost; both are computed here."""
    if not device.status().can_recommend:
        print("no recommendations yet: they need one round")
        return
    for suggestion in device.recommend(3):
        print(f"{suggestion.predicted:.1f}  {suggestion.title}")
    print("spent so far:", device.budget()["spent"])


async def run(folder: Path, server: str, ca: Path | None, ratings: dict[str, float], patience: float) -> None:
    """Run the app to the end of the run, or until Ctrl-C."""
    try:
        with open_device(folder, patience) as device:
            device.add_ratings(ratings)
            await asyncio.to_thread(device.join, server, ca=ca)
            background = asyncio.create_task(take_part(device))
            while not background.done():  # here an app serves its screen; this one waits
                await asyncio.wait([background], timeout=1)
            show(device)
    except HushrecError as error:
        print(f"[{error.code}] {error}")


def main() -> None:
    """Read the command line, and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("store", type=Path)
    parser.add_argument("server")
    parser.add_argument("--ca", type=Path)
    parser.add_argument("--rate", action="append", default=[], metavar="ITEM=RATING")
    parser.add_argument("--patience", type=float, default=20, help="seconds of trying to reach the server")
    options = parser.parse_args()
    ratings = {item: float(value) for item, _, value in (entry.partition("=") for entry in options.rate)}
    asyncio.run(run(options.store, options.server, options.ca, ratings, options.patience))


if __name__ == "__main__":
    main()
