"""The catalogue in the database, and a copy of it in memory: items are only ever appended."""

from collections.abc import Sequence

import numpy as np
import sqlalchemy as sa

from hushrec.arrays import FloatArray
from hushrec.messages import Catalogue, check_items
from hushrec.service.schema import items

ITEMS_PER_PAGE = 10_000  # which anybody may ask for
Entry = tuple[int, str, str]  # position, id, title


class CatalogueCopy:
    """What devices are told of the items, from memory."""

    def __init__(self, entries: Sequence[Entry], attributes: FloatArray | None) -> None:
        self._entries = list(entries)
        self._attributes = attributes

    @classmethod
    def read(cls, connection: sa.Connection) -> "CatalogueCopy":
        return cls(read_entries(connection, 0), read_attributes(connection))

    def __len__(self) -> int:
        return len(self._entries)

    def append(self, entries: Sequence[Entry]) -> None:
        """Add the items that are new here."""
        self._entries += [entry for entry in entries if entry[0] >= len(self._entries)]

    def page(self, first: int) -> Catalogue:
        """Return the items from a position on, a page of them at most."""
        page = slice(first, first + ITEMS_PER_PAGE)
        _, ids, titles = zip(*self._entries[page], strict=True) if self._entries[page] else ((), (), ())
        return Catalogue(first, list(ids), list(titles), None if self._attributes is None else self._attributes[page])


def read_entries(connection: sa.Connection, first: int) -> list[Entry]:
    """Return the items from a position on."""
    query = sa.select(items.c.position, items.c.id, items.c.title).where(items.c.position >= first)
    return [(row.position, row.id, row.title) for row in connection.execute(query.order_by(items.c.position))]


def read_items(connection: sa.Connection, first: int) -> list[tuple[str, str]]:
    """(id, title) from a position on."""
    return [(name, title) for _, name, title in read_entries(connection, first)]


def changed_titles(connection: sa.Connection, ids: list[str], titles: list[str]) -> int:
    """Count the items whose title differs from the one that the run was made with."""
    known = {row.id: row.title for row in connection.execute(sa.select(items.c.id, items.c.title))}
    return sum(known.get(name, title) != title for name, title in zip(ids, titles, strict=True))


def read_attributes(connection: sa.Connection) -> FloatArray | None:
    """Return the columns of all items, `(n_items, n_columns)`; None where they have none."""
    rows = connection.execute(sa.select(items.c.attributes).order_by(items.c.position)).scalars().all()
    if not rows or rows[0] is None:
        return None
    return np.stack([np.frombuffer(row, dtype="<f4") for row in rows]).astype(np.float64)


def insert_items(
    connection: sa.Connection, ids: list[str], titles: list[str], attributes: FloatArray | None = None
) -> int:
    """Append the ids that the catalogue does not hold; positions of the others never change. Return how many."""
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
