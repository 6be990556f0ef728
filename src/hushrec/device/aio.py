"""A device in an `asyncio` app: its rounds as events, while nothing in the app waits.

    async with taking_part(device) as events:
        async for event in events:
            ...

Everything else of `Device` may be called beside it: it is safe in several threads, and what does not ask the server
returns at once (docs/embed-a-device.md).
"""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from hushrec.device.device import Device
from hushrec.device.transport import Stopped
from hushrec.errors import ConnectionFailed, HushrecError

WAIT_SECONDS = 30.0  # that one step waits for a round
RETRY_SECONDS = 5.0  # after a server that could not be reached and says nothing of when


@dataclass(frozen=True)
class Event:
    """What happened to a device: `reported`, `unreachable`, `over` or `failed`; the latter two are the last.

    `error` is what a failure or an unreachable server said, for its `code` and its sentence.
    """

    kind: str
    round_number: int
    error: HushrecError | None = None


@asynccontextmanager
async def taking_part(device: Device, *, wait: float = WAIT_SECONDS) -> AsyncIterator[AsyncIterator[Event]]:
    """Report in every round of the device's server until the run is over; events come as they happen.

    Leaving the block ends it: the step that is under way is dropped after the request that it waits for, which the
    server answers within half a minute, and what was stored stays.
    """
    closing = threading.Event()
    try:
        yield _events(device, wait, closing)
    finally:
        closing.set()


async def _events(device: Device, wait: float, closing: threading.Event) -> AsyncIterator[Event]:
    while not closing.is_set():
        try:
            outcome = await asyncio.to_thread(device.step, wait, stopped=closing.is_set)
        except Stopped:
            return
        except ConnectionFailed as error:
            yield Event("unreachable", device.status().round_number, error)
            await asyncio.sleep(RETRY_SECONDS if error.retry_after is None else error.retry_after)
            continue
        except HushrecError as error:
            yield Event("failed", device.status().round_number, error)
            return
        if outcome == "reported":
            yield Event("reported", device.status().round_number)
        if outcome == "run over":
            yield Event("over", device.status().round_number)
            return
