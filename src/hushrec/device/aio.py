"""A device in an `asyncio` app: its rounds as an asynchronous stream of events that never blocks the event loop.

    async with taking_part(device) as events:
        async for event in events:
            ...

Other methods of `Device` may be called at the same time: the class is thread-safe, and methods that do not contact the
server return at once (docs/embed-a-device.md).
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hushrec.device.device import Device
from hushrec.device.transport import LONGEST_ASKED, Stopped
from hushrec.errors import ConnectionFailed, HushrecError, RemoteProtocolError

WAIT_SECONDS = 30.0  # the longest that one step waits for a round
RETRY_SECONDS = 5.0  # pause after the server could not be reached, unless the server said when to try again


@dataclass(frozen=True)
class Event:
    """An event of a device's participation in a run, of one of five kinds:

    - `reported`: this device has finished a phase: it has sent its report, or had nothing to send;
    - `refused`: this device refused a message of the server, left the attempt, and waits for the next attempt;
    - `unreachable`: the server cannot be reached or is busy, and this device tries again;
    - `over`: the run is over. This is the last event;
    - `failed`: an error ended the participation. This is the last event.
    """

    kind: str
    round_number: int  # the last round in which this device reported; 0 before the first
    error: HushrecError | None = None  # the reason for `refused`, `unreachable` or `failed`


@asynccontextmanager
async def taking_part(device: Device, *, wait: float = WAIT_SECONDS) -> AsyncIterator[AsyncIterator[Event]]:
    """Yield an iterator of the events of a device that takes part in every round until the run is over.

    The device reports only while the iterator is read. One request waits up to `wait` seconds for the server's next
    message. Leaving the block ends the participation: the device drops out of the open round, and a step in progress
    stops when its current request is answered.
    """
    closing = threading.Event()
    try:
        yield _events(device, wait, closing)
    finally:
        closing.set()
        await asyncio.to_thread(device.drop_out)


async def _events(device: Device, wait: float, closing: threading.Event) -> AsyncIterator[Event]:
    last_round = 0
    while not closing.is_set():
        try:
            last_round = device.status().round_number
            outcome = await asyncio.to_thread(device.step, wait, stopped=closing.is_set)
        except Stopped:  # by leaving the block, or by another thread that closed the device or gave it a new address
            continue
        except ConnectionFailed as error:
            yield Event("unreachable", last_round, error)
            await asyncio.sleep(RETRY_SECONDS if error.retry_after is None else min(error.retry_after, LONGEST_ASKED))
            continue
        except HushrecError as error:
            yield Event("failed", last_round, error)
            return
        status = device.status()
        if outcome == "reported":
            yield Event("reported", status.round_number)
        if outcome == "refused":
            yield Event("refused", status.round_number, RemoteProtocolError(status.refusal))
        if outcome == "run over":
            yield Event("over", status.round_number)
            return
