"""The catalogue of items, in the database and as a copy in memory. Items are only ever appended."""

from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa

from hushrec.arrays import FloatArray
from hushrec.messages import Catalogue, check_items
from hushrec.service.schema import items

ITEMS_PER_PAGE = 10_000  # bounds the reply to a request that needs no signature
Entry = tuple[int, str, str]  # position, id, title


class CatalogueCopy:
    """A copy of the catalogue in memory, from which devices are served."""

    def __init__(self, connection: sa.Connection) -> None:
        self._entries = read_entries(connection, 0)
        self._attributes = read_attributes(connection)

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entries: Sequence[Entry]) -> None:
        """Append those entries whose positions this copy does not have yet."""
        self._entries += [entry for entry in entries if entry[0] >= len(self._entries)]

    def page(self, first: int) -> Catalogue:
        """Return up to `ITEMS_PER_PAGE` items of the catalogue, from position `first` on."""
        page = slice(first, first + ITEMS_PER_PAGE)
        _, ids, titles = zip(*self._entries[page], strict=True) if self._entries[page] else ((), (), ())
        return Catalogue(first, list(ids), list(titles), None if self._attributes is None else self._attributes[page])


def read_entries(connection: sa.Connection, first: int) -> list[Entry]:
    """Return (position, id, title) of the items from position `first` on."""
    query = sa.select(items.c.position, items.c.id, items.c.title).where(items.c.position >= first)
    return [(row.position, row.id, row.title) for row in connection.execute(query.order_by(items.c.position))]


def changed_titles(connection: sa.Connection, ids: list[str], titles: list[str]) -> int:
    """Return how many items with these `ids` have another title in the database than in `titles`.

    Items that are not in the database do not count.
    """
    stored = {name: title for _, name, title in read_entries(connection, 0)}
    return sum(stored.get(name, title) != title for name, title in zip(ids, titles, strict=True))


def count_missing(connection: sa.Connection, ids: list[str]) -> int:
    """Return how many items of the database are not among `ids`."""
    return len({name for _, name, _ in read_entries(connection, 0)}.difference(ids))


def read_attributes(connection: sa.Connection) -> FloatArray | None:
    """Return the attributes of all items, `(n_items, n_columns)`, or None if the items have no attributes."""
    rows = connection.execute(sa.select(items.c.attributes).order_by(items.c.position)).scalars().all()
    if not rows or rows[0] is None:
        return None
    return np.stack([np.frombuffer(row, dtype="<f4") for row in rows]).astype(np.float64)


def insert_items(
    connection: sa.Connection, ids: list[str], titles: list[str], attributes: FloatArray | None = None
) -> int:
    """Append the items whose ids the catalogue does not have yet; return their number."""
    check_items(ids, titles)
    known = set(connection.execute(sa.select(items.c.id)).scalars())
    columns = [None] * len(ids) if attributes is None else [row.tobytes() for row in attributes.astype("<f4")]
    new = [entry for entry in zip(ids, titles, columns, strict=True) if entry[0] not in known]
    rows = [
        {"position": len(known) + n, "id": name, "title": title, "attributes": numbers}
        for n, (name, title, numbers) in enumerate(new)
    ]
    if rows:
        connection.execute(items.insert(), rows)
    return len(rows)
