"""A run in the database, and the `Server` that is made from it: at the start, and whenever memory is behind.

The state of the server between two rounds is stored when a round opens and when it ends. An open round is made again
from that and from the reports of its phases, which are kept until the round has ended.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import sqlalchemy as sa

from hushrec.arrays import pack_arrays, unpack_arrays
from hushrec.messages import Address, Offer
from hushrec.offers import make_run_model, make_run_protocol
from hushrec.protocols.parties import State
from hushrec.server import Server, Stage
from hushrec.service.catalogue import read_attributes, read_items
from hushrec.service.reports import at, read_reports
from hushrec.service.schema import reports, run
from hushrec.wire import decode, encode

Entitled = Callable[[int], list[str]]  # the devices that may report in a round


@dataclass(frozen=True, eq=False)
class Stored:
    """A run as the database has it."""

    offer: Offer
    server: Server
    is_paused: bool
    opened_at: float


def insert_run(connection: sa.Connection, offer: Offer, server: Server, admin_digest: bytes, number: int = 1) -> None:
    """Store a run before its first round; `number` counts the runs of this database."""
    values = {"id": number, "is_paused": False, "admin_digest": admin_digest, "opened_at": 0.0, "expected": 0}
    values |= {"secret": server.side.secret, **_position(server), **_between_rounds(offer, server.state())}
    connection.execute(run.insert().values(**values))


def read_offer(connection: sa.Connection) -> Offer:
    """Return what devices of the stored run accept."""
    return decode(bytes(connection.execute(sa.select(run.c.offer)).scalar_one()), Offer)


def load_run(connection: sa.Connection, entitled: Entitled) -> Stored:
    """Make the server as it stood: between two rounds, or in the open phase with the reports that are stored."""
    row = connection.execute(sa.select(run)).one()
    offer = decode(bytes(row.offer), Offer)
    state = unpack_arrays(bytes(row.state))
    round_number = int(state.pop("round_number"))
    titles = [title for _, title in read_items(connection, 0)]
    model = make_run_model(offer.model, offer.options, read_attributes(connection), titles)
    protocol = make_run_protocol(offer.protocol, offer.model, offer.options)
    side = protocol.make_network_server(offer.terms, model, state)
    side.sign_as(offer.run_id, bytes(row.secret))
    members = entitled(round_number + 1) if row.members is None else msgspec.msgpack.decode(row.members)
    server = Server(side, members, round_number=round_number, most_attempts=None)
    if row.attempt:
        side.expect(row.expected)
        phases = server.side.phases
        closed = [Address(row.round, row.attempt, phase) for phase in phases[: phases.index(row.phase)]]
        server.resume_round(
            [read_reports(connection, address) for address in closed], attempt=row.attempt, members=members
        )
        _keep_digests(connection, server)
    return Stored(offer, server, row.is_paused, row.opened_at)


def _keep_digests(connection: sa.Connection, server: Server) -> None:
    query = sa.select(reports.c.device, reports.c.body).where(at(server.address))
    for row in connection.execute(query):
        server.keep(row.device, server.address, hashlib.sha256(row.body).digest())


def is_behind(connection: sa.Connection, server: Server) -> bool:
    """Whether the database has another phase than this server: a write succeeded whose reply was lost."""
    stored = connection.execute(sa.select(run.c.round, run.c.attempt, run.c.phase)).one()
    return tuple(stored) != tuple(_position(server)[name] for name in ("round", "attempt", "phase"))


def write_offer(connection: sa.Connection, offer: Offer) -> None:
    """Store another offer of the same run, between two rounds."""
    connection.execute(run.update().values(offer=encode(offer)))


def write_opened(
    connection: sa.Connection, offer: Offer, server: Server, before: State, expected: int, now: float
) -> None:
    """Store that a round has opened: the state before it, with the items that joined, and its first phase."""
    values = {**_between_rounds(offer, before), **_position(server), **_asked(server), "expected": expected}
    connection.execute(run.update().values(**values, opened_at=now))


def write_moved(connection: sa.Connection, server: Server, now: float) -> None:
    """Store the next phase, or the first of the next attempt: whom it asks, and what earlier attempts told."""
    values: dict[str, Any] = {**_position(server), "opened_at": now}
    if server.address.phase == server.side.phases[0]:
        values |= {**_asked(server), "state": pack_arrays(server.state_before())}
    connection.execute(run.update().values(**values))


def write_ended(connection: sa.Connection, offer: Offer, server: Server, now: float) -> None:
    """Store the state after a round."""
    values = {**_between_rounds(offer, server.state()), **_position(server), "members": None, "opened_at": now}
    connection.execute(run.update().values(**values))


def grown(offer: Offer, server: Server) -> Offer:
    """Return the offer with the terms that the server has now: items may have joined."""
    return replace(offer, terms=server.side.terms)


def _between_rounds(offer: Offer, state: State) -> dict[str, bytes]:
    return {"offer": encode(offer), "state": pack_arrays(state)}


def _asked(server: Server) -> dict[str, bytes]:
    return {"members": msgspec.msgpack.encode(sorted(map(str, server.asked)))}


def _position(server: Server) -> dict[str, int | str]:
    if server.stage is Stage.IDLE:
        return {"round": server.round_number, "attempt": 0, "phase": ""}
    address = server.address
    return {"round": address.round_number, "attempt": address.attempt, "phase": address.phase}
