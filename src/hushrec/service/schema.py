"""The database's tables, and the migrations that update an older database.

Only `reports`, and the partial sums in `parts`, hold report contents; both are emptied when an attempt ends. While a
round of `plain` or `isgld` is open, its reports show which items each person rated. `run.state` holds the learned
public table. Invitations and the admin token are stored as SHA-256 hashes. The column `changed` is set whenever a row
is written. In PostgreSQL it is the id of the transaction, by which workers find each other's changes. In SQLite, which
has only one worker, it is 0.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa

from hushrec.errors import StorageError

CHANNEL = "hushrec"  # of the PostgreSQL notifications of a changed run
ACTIVE, LEFT, REVOKED = "active", "left", "revoked"  # states of a device
ASKED = "asked"  # state of a device that took part in the previous run and has not yet agreed to this one

_STAMP = sa.func.txid_current()
_CHANGED: dict[str, Any] = {"nullable": False, "server_default": "0", "default": _STAMP, "onupdate": _STAMP}

metadata = sa.MetaData()

schema = sa.Table("schema", metadata, sa.Column("version", sa.Integer, nullable=False))

run = sa.Table(
    "run",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),  # one row: 1 for the first run of this database, 2 for the next, …
    sa.Column("offer", sa.LargeBinary, nullable=False),  # as on the wire
    sa.Column("state", sa.LargeBinary, nullable=False),  # of `Server` before the open attempt, or between two rounds
    sa.Column("round", sa.Integer, nullable=False),  # the open round, or the last
    sa.Column("attempt", sa.Integer, nullable=False),  # of the open round; 0 if no round is open
    sa.Column("phase", sa.Text, nullable=False),  # the open phase; "" if no round is open
    sa.Column("members", sa.LargeBinary, nullable=True),  # ids of the devices that the open attempt asks
    sa.Column("expected", sa.Integer, nullable=False),  # number of devices expected in the open round, or the last
    sa.Column("is_paused", sa.Boolean, nullable=False),
    sa.Column("opened_at", sa.Float, nullable=False),  # wall clock: when the phase opened or the latest round ended
    sa.Column("round_opened_at", sa.Float, nullable=True),  # wall clock: when the open round, or the last, opened
    sa.Column("admin_digest", sa.LargeBinary, nullable=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),  # the server's Ed25519 signing key
    sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),  # counts the changes of this row
    sa.Column("failures", sa.Text, nullable=True),  # JSON: as in `history`, of the open round
)

items = sa.Table(
    "items",
    metadata,
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("attributes", sa.LargeBinary, nullable=True),  # one float32 per column, for models with attributes
)

devices = sa.Table(
    "devices",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("public_key", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.Text, nullable=False),  # active, left, revoked or asked
    sa.Column("first_round", sa.Integer, nullable=False),  # the first round in which the device may report
    sa.Column("last_round", sa.Integer, nullable=False),  # the last round in which the device reported
    sa.Column("last_attempt", sa.Integer, nullable=False, server_default="0"),  # of the last report
    sa.Column("last_phase", sa.Integer, nullable=False, server_default="0"),  # of the last report: its index from 0
    sa.Column("last_nonce", sa.BigInteger, nullable=False),
    sa.Column("last_seen", sa.Float, nullable=True),  # wall clock; SQLite: last report, enrolment or key change
    sa.Column("heard", sa.Integer, nullable=False, server_default="0"),  # PostgreSQL: the round at the last request
    sa.Column("tokens", sa.Float, nullable=True),  # in the device's token bucket; NULL: the bucket is full
    sa.Column("filled_at", sa.Float, nullable=False, server_default="0"),
    sa.Column("changed", sa.BigInteger, index=True, **_CHANGED),
)

enrolments = sa.Table(  # one row: the token bucket of all enrolments
    "enrolments",
    metadata,
    sa.Column("tokens", sa.Float, nullable=True),
    sa.Column("filled_at", sa.Float, nullable=False),
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
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("phase", sa.Text, primary_key=True),
    sa.Column("device", sa.Text, primary_key=True),
    sa.Column("body", sa.LargeBinary, nullable=False),  # as on the wire
    sa.Column("digest", sa.LargeBinary, nullable=False, server_default=""),  # SHA-256 of the body
    sa.Column("changed", sa.BigInteger, **_CHANGED),
)

parts = sa.Table(  # partial sums of a phase's reports, per worker; empty between attempts
    "parts",
    metadata,
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("phase", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),  # which sum: a phase may have several
    sa.Column("worker", sa.Text, primary_key=True),
    sa.Column("devices", sa.LargeBinary, nullable=False),  # for each report in the sum: device id and `Addend.kept`
    sa.Column("total", sa.LargeBinary, nullable=False),  # the sum modulo 2³², little-endian uint32
)

rounds = sa.Table(
    "rounds",
    metadata,
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("reports", sa.Integer, nullable=False),  # number of reports of the last phase
    sa.Column("seconds", sa.Float, nullable=False),  # since the round opened; if `history.attempts` is NULL, see there
)

history = sa.Table(  # further facts about closed rounds, for the dashboard
    "history",
    metadata,
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("closed_at", sa.Float, nullable=False),  # wall clock
    sa.Column("devices", sa.Integer, nullable=False),  # number of devices that could have reported
    sa.Column("bytes", sa.BigInteger, nullable=False),  # total size of the reports of the round's last attempt
    sa.Column("latency_median", sa.Float, nullable=True),
    sa.Column("latency_slowest", sa.Float, nullable=True),
    sa.Column("moved", sa.Float, nullable=False),
    sa.Column("most_moved", sa.Text, nullable=False),  # JSON: positions of items, and distances
    sa.Column("attempts", sa.Integer, nullable=True),  # NULL: of an older version, whose `seconds` are the last phase's
    sa.Column("phases", sa.Text, nullable=True),  # JSON: number of reports in each phase of the last attempt
    sa.Column("counts", sa.Text, nullable=True),  # JSON: `ServerSide.round_counts`
    sa.Column("failures", sa.Text, nullable=True),  # JSON: attempt, phase and reason of each failed attempt
)


def is_shared(connection: sa.Connection) -> bool:
    """Return whether several workers may use this database at the same time: PostgreSQL, not SQLite."""
    return connection.dialect.name == "postgresql"


Migration = Callable[[sa.Connection], None]


def _replace_tables(what: str, *tables: sa.Table) -> Migration:
    """Return a migration that drops these tables and creates them again, empty.

    If the database holds a run, the migration raises `StorageError`; `what` describes the run in the message.
    """

    def migrate(connection: sa.Connection) -> None:
        if connection.execute(sa.text("SELECT count(*) FROM run")).scalar():
            raise StorageError(
                f"the database holds a run {what}. Finish it with the hushrec version that began it, or choose another"
                " database."
            )
        for table in tables:
            table.drop(connection)
            table.create(connection)

    return migrate


def _share(connection: sa.Connection) -> None:
    """Add the columns that let several workers share a database, and drop the table `owner`.

    Store the SHA-256 of every report in its column `digest`, and a full token bucket in the table `enrolments`.
    """
    connection.execute(sa.text("DROP TABLE IF EXISTS owner"))
    _add_missing_columns(connection)
    for row in connection.execute(sa.select(reports)).all():
        place = sa.and_(*(column == row._mapping[column.name] for column in reports.primary_key))
        connection.execute(reports.update().where(place).values(digest=hashlib.sha256(row.body).digest()))
    connection.execute(enrolments.insert().values(tokens=None, filled_at=0.0))


def _add_missing_columns(connection: sa.Connection) -> None:
    """Add the columns that the database's tables lack, and the indexes of these columns."""
    for table in metadata.sorted_tables:
        known = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
        for column in table.columns:
            if column.name not in known:
                words = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
                connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {words}"))
        for index in table.indexes:
            index.create(connection, checkfirst=True)


# Entry n migrates a database from schema version n to n + 1. Entries are only ever added. The first five once added
# tables, which `migrate` now makes, and columns, which `_share` adds.
MIGRATIONS: Sequence[Migration] = (
    *[lambda connection: None] * 5,
    _replace_tables("of protocol version 1", run, reports, rounds, items, devices),  # its messages were different
    _replace_tables("whose server has no key", run),
    _share,
    _add_missing_columns,  # `devices`: the attempt and phase of the last report
    _add_missing_columns,  # `run`: when the round opened
    _add_missing_columns,  # `history`: attempts, phases and counts
    _add_missing_columns,  # `run` and `history`: failed attempts
)


def migrate(connection: sa.Connection, migrations: Sequence[Migration] = MIGRATIONS) -> None:
    """Migrate the database to the newest schema version; raise `StorageError` if the database has a newer version."""
    metadata.create_all(connection)  # only the tables that are missing
    version = connection.execute(sa.select(schema.c.version)).scalar()
    if version is None:
        version = 0
        connection.execute(schema.insert().values(version=0))
    if version > len(migrations):
        raise StorageError(
            f"the database's schema version must be at most {len(migrations)}, got {version}. Update hushrec."
        )
    for step in migrations[version:]:
        step(connection)
    connection.execute(schema.update().values(version=len(migrations)))
