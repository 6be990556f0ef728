"""The tables, and how an older database becomes a newer one.

Secrets are kept as SHA-256 hashes only. Nothing here says what a person rated; `reports` is empty between rounds.
"""

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from hushrec.errors import StorageError

metadata = sa.MetaData()

schema = sa.Table("schema", metadata, sa.Column("version", sa.Integer, nullable=False))

run = sa.Table(
    "run",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),  # one row
    sa.Column("offer", sa.LargeBinary, nullable=False),  # as on the wire
    sa.Column("item_vectors", sa.LargeBinary, nullable=False),  # float64, so that a restart changes no bit
    sa.Column("round", sa.Integer, nullable=False),  # the open round, or the last
    sa.Column("is_open", sa.Boolean, nullable=False),
    sa.Column("is_paused", sa.Boolean, nullable=False),
    sa.Column("opened_at", sa.Float, nullable=False),  # wall clock
    sa.Column("admin_digest", sa.LargeBinary, nullable=False),
    sa.Column("max_report_norm", sa.Float, nullable=True),  # of the open round, or the last
)

items = sa.Table(
    "items",
    metadata,
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("title", sa.Text, nullable=False),
)

devices = sa.Table(
    "devices",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("public_key", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.Text, nullable=False),  # active, left or revoked
    sa.Column("first_round", sa.Integer, nullable=False),  # the first round that it may answer
    sa.Column("last_round", sa.Integer, nullable=False),  # the last round that this key answered
    sa.Column("last_nonce", sa.BigInteger, nullable=False),
    sa.Column("last_seen", sa.Float, nullable=True),  # wall clock, of its last report, enrolment or key change
)

invitations = sa.Table(
    "invitations",
    metadata,
    sa.Column("digest", sa.LargeBinary, primary_key=True),
    sa.Column("used_by", sa.Text, nullable=True),
)

reports = sa.Table(
    "reports",
    metadata,
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),
)

rounds = sa.Table(
    "rounds",
    metadata,
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("answers", sa.Integer, nullable=False),
    sa.Column("seconds", sa.Float, nullable=False),
)

history = sa.Table(  # of closed rounds; what a dashboard shows beside `rounds`
    "history",
    metadata,
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("closed_at", sa.Float, nullable=False),  # wall clock
    sa.Column("devices", sa.Integer, nullable=False),  # from which an answer could have come
    sa.Column("bytes", sa.BigInteger, nullable=False),  # of all answers
    sa.Column("latency_median", sa.Float, nullable=True),
    sa.Column("latency_slowest", sa.Float, nullable=True),
    sa.Column("moved", sa.Float, nullable=False),
    sa.Column("most_moved", sa.Text, nullable=False),  # JSON: positions of items, and distances
)

owner = sa.Table(  # of the database: the server that was started last, one row
    "owner",
    metadata,
    sa.Column("token", sa.Text, nullable=False),
)


def _add_column(connection: sa.Connection, column: "sa.Column[Any]") -> None:
    """Add a nullable column that tables of an older server lack."""
    table = column.table.name
    if column.name not in {found["name"] for found in sa.inspect(connection).get_columns(table)}:
        kind = column.type.compile(connection.dialect)
        connection.execute(sa.text(f"ALTER TABLE {table} ADD COLUMN {column.name} {kind}"))


Migration = Callable[[sa.Connection], None]

# Entry n brings a database of schema version n to n + 1. Entries are only ever added.
MIGRATIONS: Sequence[Migration] = (
    lambda connection: metadata.create_all(connection, checkfirst=True),
    lambda connection: history.create(connection, checkfirst=True),
    lambda connection: owner.create(connection, checkfirst=True),
    lambda connection: _add_column(connection, run.c.max_report_norm),
    lambda connection: _add_column(connection, devices.c.last_seen),
)


def migrate(connection: sa.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Brings the schema up to date, all steps or none; a newer one than we know is refused."""
    schema.create(connection, checkfirst=True)
    version = connection.execute(sa.select(schema.c.version)).scalar()
    if version is None:
        version = 0
        connection.execute(schema.insert().values(version=0))
    if version > len(migrations):
        raise StorageError(
            f"the database has schema version {version}, this server knows up to {len(migrations)}. Update hushrec."
        )
    for step in migrations[version:]:
        step(connection)
    connection.execute(schema.update().values(version=len(migrations)))
