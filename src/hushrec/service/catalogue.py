"""The catalogue in the database: items are only ever appended."""

import sqlalchemy as sa

from hushrec.messages import check_items
from hushrec.service.schema import items


def read_items(connection: sa.Connection, first: int) -> list[tuple[str, str]]:
    """(id, title) from a position on."""
    query = sa.select(items.c.id, items.c.title).where(items.c.position >= first).order_by(items.c.position)
    return [(row.id, row.title) for row in connection.execute(query)]


def changed_titles(connection: sa.Connection, ids: list[str], titles: list[str]) -> int:
    """Count the items whose title differs from the one that the run was made with."""
    known = {row.id: row.title for row in connection.execute(sa.select(items.c.id, items.c.title))}
    return sum(known.get(name, title) != title for name, title in zip(ids, titles, strict=True))


def insert_items(connection: sa.Connection, ids: list[str], titles: list[str]) -> int:
    """Appends the ids that the catalogue does not hold; positions of the others never change."""
    check_items(ids, titles)
    known = set(connection.execute(sa.select(items.c.id)).scalars())
    new = [(name, title) for name, title in zip(ids, titles, strict=True) if name not in known]
    rows = [{"position": len(known) + n, "id": name, "title": title} for n, (name, title) in enumerate(new)]
    if rows:
        connection.execute(items.insert(), rows)
    return len(rows)
