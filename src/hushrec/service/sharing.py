"""How worker processes that share a database read each other's changes.

A worker reads the changes after every notification of the database, and at least once a second. The column `changed` of
a row is the id of the transaction that wrote it. At each read, all transactions with ids below the oldest running one
have ended, so the worker has seen their rows. The next read asks for rows from that oldest id on: some rows come twice,
none is missed.
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
class News:
    """The changes that all workers stored since the asking worker's last read."""

    since: int  # the id of the first transaction whose changes the next read must ask for
    version: int  # the present `version` of the run's row, which counts its changes
    devices: Sequence[Mapping[str, Any]] = field(repr=False)  # changed rows of the table `devices`
    digests: Mapping[str, bytes] = field(repr=False)  # SHA-256 of new reports of the open phase, by device
    items: Sequence[Entry] = field(repr=False)  # new entries of the catalogue


def read_news(connection: sa.Connection, since: int, open_phase: Address | None, n_items: int) -> News:
    """Return the changes of transaction `since` and later ones.

    `open_phase` is the open phase, and `n_items` the size of the catalogue, in the asking worker's memory.
    """
    running = sa.func.txid_snapshot_xmin(sa.func.txid_current_snapshot())
    following = connection.execute(sa.select(running)).scalar_one()
    changed = connection.execute(sa.select(devices).where(devices.c.changed >= since)).all()
    digests = {} if open_phase is None else read_digests(connection, open_phase, since)
    items, version = read_entries(connection, n_items), read_version(connection)
    return News(following, version, [row._asdict() for row in changed], digests, items)


async def listen(address: str, heard: Callable[[], None]) -> None:
    """Call `heard` after each notification of the PostgreSQL database at `address`, until the task is cancelled.

    The function uses a connection of its own, and opens it again if it breaks.
    """
    import psycopg

    while True:
        with suppress(psycopg.Error):
            async with await psycopg.AsyncConnection.connect(address, autocommit=True) as connection:
                await connection.execute(f"LISTEN {CHANNEL}")
                heard()
                async for _ in connection.notifies():
                    heard()
        await asyncio.sleep(RETRY_SECONDS)
