"""The tables, and how an older database becomes a newer one.

Others' secrets are kept as SHA-256 hashes only. Nothing here says what a person rated; `reports` is empty between
rounds. `changed` is the transaction that wrote a row last, by which workers find what others have written.
"""

import hashlib
from collections.abc import Callable, Sequence

import sqlalchemy as sa

from hushrec.errors import StorageError

ACTIVE, LEFT, REVOKED = "active", "left", "revoked"  # states of a device
ASKED = "asked"  # another: it took part in the run before, and has not agreed to this one

metadata = sa.MetaData()

schema = sa.Table("schema", metadata, sa.Column("version", sa.Integer, nullable=False))

run = sa.Table(
    "run",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),  # one row: 1 for the first run of this database, 2 for the next, …
    sa.Column("offer", sa.LargeBinary, nullable=False),  # as on the wire
    sa.Column("state", sa.LargeBinary, nullable=False),  # of `Server` before the open round, or between two
    sa.Column("round", sa.Integer, nullable=False),  # the open round, or the last
    sa.Column("attempt", sa.Integer, nullable=False),  # of the open round; 0: none is open
    sa.Column("phase", sa.Text, nullable=False),  # that is open; "": none
    sa.Column("members", sa.LargeBinary, nullable=True),  # whom the open attempt asks
    sa.Column("expected", sa.Integer, nullable=False),  # devices that the open round, or the last, counts on
    sa.Column("is_paused", sa.Boolean, nullable=False),
    sa.Column("opened_at", sa.Float, nullable=False),  # the open phase, by the wall clock; or the end of the last
    sa.Column("admin_digest", sa.LargeBinary, nullable=False),
    sa.Column("secret", sa.LargeBinary, nullable=False),  # Ed25519, of the server in this run
    sa.Column("version", sa.BigInteger, nullable=False, server_default="0"),  # counts the changes of this row
)

items = sa.Table(
    "items",
    metadata,
    sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("id", sa.Text, nullable=False, unique=True),
    sa.Column("title", sa.Text, nullable=False),
    sa.Column("attributes", sa.LargeBinary, nullable=True),  # columns of numbers for models that have some: float32
)

devices = sa.Table(
    "devices",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("public_key", sa.LargeBinary, nullable=False),
    sa.Column("state", sa.Text, nullable=False),  # active, left, revoked or asked
    sa.Column("first_round", sa.Integer, nullable=False),  # the first round that it may report in
    sa.Column("last_round", sa.Integer, nullable=False),  # the last round that this key reported in
    sa.Column("last_nonce", sa.BigInteger, nullable=False),
    sa.Column("last_seen", sa.Float, nullable=True),  # wall clock, of its last report, enrolment or key change
    sa.Column("heard", sa.Integer, nullable=False, server_default="0"),  # the round in which it last asked
    sa.Column("tokens", sa.Float, nullable=True),  # of its rate, as `Bucket` has them; NULL: all
    sa.Column("filled_at", sa.Float, nullable=False, server_default="0"),
    sa.Column("changed", sa.BigInteger, nullable=False, server_default="0", index=True),
)

enrolments = sa.Table(  # the rate of all enrolments, one row
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
    sa.Column("changed", sa.BigInteger, nullable=False, server_default="0"),
)

parts = sa.Table(  # of the sums of a phase, one of each for each worker: empty between rounds
    "parts",
    metadata,
    sa.Column("round", sa.Integer, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("phase", sa.Text, primary_key=True),
    sa.Column("number", sa.Integer, primary_key=True),  # of the sum: a phase may have several
    sa.Column("worker", sa.Text, primary_key=True),
    sa.Column("devices", sa.LargeBinary, nullable=False),  # whose reports it holds, each once
    sa.Column("total", sa.LargeBinary, nullable=False),  # modulo 2³²: uint32, little-endian
)

rounds = sa.Table(
    "rounds",
    metadata,
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("reports", sa.Integer, nullable=False),  # of the last phase
    sa.Column("seconds", sa.Float, nullable=False),
)

history = sa.Table(  # of closed rounds; what a dashboard shows beside `rounds`
    "history",
    metadata,
    sa.Column("round", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("closed_at", sa.Float, nullable=False),  # wall clock
    sa.Column("devices", sa.Integer, nullable=False),  # from which a report could have come
    sa.Column("bytes", sa.BigInteger, nullable=False),  # of all reports
    sa.Column("latency_median", sa.Float, nullable=True),
    sa.Column("latency_slowest", sa.Float, nullable=True),
    sa.Column("moved", sa.Float, nullable=False),
    sa.Column("most_moved", sa.Text, nullable=False),  # JSON: positions of items, and distances
)


def is_shared(connection: sa.Connection) -> bool:
    """Whether other workers may use this database at the same time: PostgreSQL, not SQLite."""
    return connection.dialect.name == "postgresql"


def stamp(shared: bool) -> sa.ColumnElement[int]:
    """Return the value for `changed`: the number of the transaction, if workers share the database, or else 0."""
    return sa.func.txid_current() if shared else sa.literal(0)


Migration = Callable[[sa.Connection], None]


def _begin_protocol_2(connection: sa.Connection) -> None:
    """Make the tables of protocol version 2. A run of version 1 cannot go on: its devices speak another language."""
    if connection.execute(sa.text("SELECT count(*) FROM run")).scalar():
        raise StorageError(
            "the database holds a run of protocol version 1. Finish it with the hushrec that began it, or name another."
        )
    for table in (run, reports, rounds, items, devices):
        table.drop(connection)
        table.create(connection)


def _begin_signed_runs(connection: sa.Connection) -> None:
    """Give runs a key of the server. A run without one cannot go on: its devices have accepted none."""
    if connection.execute(sa.text("SELECT count(*) FROM run")).scalar():
        raise StorageError(
            "the database holds a run whose server has no key. Finish it with the hushrec that began it."
        )
    run.drop(connection)
    run.create(connection)


def _share(connection: sa.Connection) -> None:
    """Let several workers use one database: versions, digests, and rates that all of them see."""
    connection.execute(sa.text("DROP TABLE IF EXISTS owner"))
    for table in (run, devices, reports):
        _add_missing_columns(connection, table)
    for row in connection.execute(sa.select(reports)).all():
        place = sa.and_(*(column == row._mapping[column.name] for column in reports.primary_key))
        connection.execute(reports.update().where(place).values(digest=hashlib.sha256(row.body).digest()))
    for table in (enrolments, parts):
        table.create(connection, checkfirst=True)
    connection.execute(enrolments.insert().values(tokens=None, filled_at=0.0))


def _add_missing_columns(connection: sa.Connection, table: sa.Table) -> None:
    known = {column["name"] for column in sa.inspect(connection).get_columns(table.name)}
    for column in table.columns:
        if column.name not in known:
            words = sa.schema.CreateColumn(column).compile(dialect=connection.dialect)
            connection.execute(sa.text(f"ALTER TABLE {table.name} ADD COLUMN {words}"))
    for index in table.indexes:
        index.create(connection, checkfirst=True)


# Entry n brings a database of schema version n to n + 1. Entries are only ever added.
MIGRATIONS: Sequence[Migration] = (
    lambda connection: metadata.create_all(connection, checkfirst=True),
    lambda connection: history.create(connection, checkfirst=True),
    lambda connection: None,  # a table that the last step drops
    lambda connection: None,  # columns that the last step brings
    lambda connection: None,
    _begin_protocol_2,
    _begin_signed_runs,
    _share,
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
