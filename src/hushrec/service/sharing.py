"""What workers that share a database learn of each other: all of it is in the database, and a notification says when.

A row's `changed` is the number of the transaction that wrote it. Whoever reads has seen every transaction below the
lowest one that was running then, so that the next look asks for rows from that number on: some come twice, none is
missed. Notifications only save time; a worker that hears none looks once a second.
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from hushrec.messages import Address
from hushrec.service.catalogue import Entry, read_entries
from hushrec.service.reports import read_digests
from hushrec.service.schema import devices
from hushrec.service.stored import CHANNEL, read_version

RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class Asked:
    """What a worker knows already."""

    since: int  # the first transaction that it may not know of
    address: Address | None  # the phase that is open, as far as it knows
    n_items: int


@dataclass(frozen=True)
class News:
    """What other workers, or this one, have stored since."""

    since: int  # for the next look
    version: int  # of the run
    devices: Sequence[Mapping[str, Any]] = field(repr=False)
    digests: Mapping[str, bytes] = field(repr=False)  # of reports of the phase that was asked for, by device
    items: Sequence[Entry] = field(repr=False)


def read_news(connection: sa.Connection, asked: Sequence[Asked]) -> list[News]:
    """Return the news for each who asked."""
    running = sa.func.txid_snapshot_xmin(sa.func.txid_current_snapshot())
    following = connection.execute(sa.select(running)).scalar_one()
    return [_news(connection, known, following) for known in asked]


def _news(connection: sa.Connection, known: Asked, following: int) -> News:
    changed = connection.execute(sa.select(devices).where(devices.c.changed >= known.since)).all()
    digests = {} if known.address is None else read_digests(connection, known.address, known.since)
    items, version = read_entries(connection, known.n_items), read_version(connection)
    return News(following, version, [row._asdict() for row in changed], digests, items)


async def listen(address: str, heard: Callable[[], None]) -> None:
    """Call `heard` whenever a worker has changed the run, on a connection of its own, made again when it breaks."""
    import psycopg

    while True:
        with suppress(psycopg.Error):
            async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                heard()
                async for _ in connection.notifies():
                    heard()
        await asyncio.sleep(RETRY_SECONDS)
