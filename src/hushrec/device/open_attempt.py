"""How long a device keeps the secrets of an attempt: only while it can still report in that attempt.

A device deletes the secrets of its open attempt

- with its last report in the attempt (`protocols/masked/device_round.py`), or when it accepts the announcement of a
  later attempt;
- when it refuses a message of the attempt (`Session.step`);
- when the server refuses its request for the next message, or says that the attempt needs no further report of it;
- when the server's time limit has passed: with each message the server says how long the attempt may go on at most.
  Whatever the server says, a device deletes them a day after its first report in the attempt;
- when the person stops taking part, changes the key or leaves the run, and when the store turns out to be a copy.

The time is checked when the store is opened, before every step and, from the first step of an open `Device` on, once a
minute, so that a request which never ends keeps no secrets. Without its secrets a device cannot report in the
attempt: it has dropped out, and reports again in the next attempt. A report that was stored but not received by the
server is deleted as well, because the report of the attempt's last phase contains shares of other devices' secrets. If
the deleted report is a table, its cost stays in the ledger.
"""

import time
from typing import TYPE_CHECKING

from hushrec.client import Client

if TYPE_CHECKING:
    from hushrec.device.session import Session

USUAL_SECONDS = 600  # for which the secrets are kept if the server names no time
LONGEST_SECONDS = 86_400  # the longest time for which the secrets are kept, from the first report in the attempt on
_NAME = "attempt_until"  # name in the store of two Unix times: the secrets' end, and the latest possible end


def drop_out(session: "Session") -> None:
    """Drop out of the open attempt, if any: delete its secrets and a report that the server has not confirmed."""
    if not session.is_enrolled:
        return
    client = session.client()
    if not client.has_attempts or not (client.in_round or session.store.get(_NAME) is not None):
        return
    client.rest()
    with session.store.change():
        session.store.put_client(client)
        session.store.drop(_NAME, "outbox")


def drop_expired(session: "Session") -> None:
    """Drop out of the open attempt if the time until which its secrets are kept has passed.

    If this time is more than `LONGEST_SECONDS` ahead, the clock was set back, and the device drops out as well.
    """
    times = session.store.get_json(_NAME)
    if times is not None and not 0 < times[0] - time.time() <= LONGEST_SECONDS:
        drop_out(session)


def put_time(session: "Session", client: Client, seconds: int | None) -> None:
    """Store the time at which the secrets of the open attempt must be deleted; call only inside `Store.change`.

    The time is `seconds` from now, as the server said, or `USUAL_SECONDS` from now if the server named no time, but at
    most `LONGEST_SECONDS` after the attempt's first report. At this time a report that the server has not received is
    deleted too, because it may contain shares of other devices' secrets. Nothing is stored if the protocol's rounds
    have one phase: then there are no secrets.
    """
    if client.has_attempts:
        latest = time.time() + LONGEST_SECONDS if client.place[2] == 0 else session.store.get_json(_NAME)[1]
        session.store.put_json(_NAME, [_until(seconds, latest), latest])


def _until(seconds: int | None, latest: float) -> float:
    return min(time.time() + (USUAL_SECONDS if seconds is None else seconds), latest)


def extend(session: "Session", seconds: int | None) -> None:
    """Keep the secrets of the open attempt for `seconds` from now, as the server said.

    Do nothing if no attempt is open, or if the server named no time (None). To spare the disk, the stored time is
    replaced only if the new time is more than a minute later.
    """
    if seconds and session.client().in_round:
        until, latest = session.store.get_json(_NAME)
        if until < _until(seconds, latest) - 60:
            with session.store.change():
                put_time(session, session.client(), seconds)
