"""How long a device keeps the secrets of an attempt: only while it can still report in that attempt.

A device deletes the secrets of its open attempt

- with its last report in the attempt (`device_round.py`), or when it accepts the announcement of a later attempt;
- when the server refuses its request for the next message, or says that the attempt does not ask this device any more;
- when the time is over that the server named with its last message: the end of the next phase;
- when the person stops taking part or leaves the run, and when the store turns out to be a copy.

The time is checked when the store is opened and before every step. Without its secrets a device cannot report in the
attempt: it has dropped out, and reports again in the next attempt.
"""

import time
from typing import TYPE_CHECKING

from hushrec.client import Client

if TYPE_CHECKING:
    from hushrec.device.session import Session

USUAL_SECONDS = 600  # for which the secrets are kept if the server names no time
LONGEST_SECONDS = 86_400  # the longest time that a server may name
_NAME = "attempt_until"  # of the time in the store, in Unix seconds


def drop_out(session: "Session") -> None:
    """Delete the secrets of the attempt in which this device has reported and has phases left, if there is one."""
    if not session.is_enrolled or not session.in_round:
        return
    client = session.client()
    client.rest()
    with session.store.change():
        session.kept.put_private_state(client.private_state())
        session.store.drop(_NAME)


def drop_expired(session: "Session") -> None:
    """Drop out if the time is over, or so far ahead that the clock must have been set back since."""
    until = session.store.get_json(_NAME)
    if until is not None and not 0 < until - time.time() <= LONGEST_SECONDS:
        drop_out(session)


def put_time(session: "Session", client: Client, seconds: int | None) -> None:
    """Store the time with the state of this client after a report; call only inside `Store.change`.

    `seconds` is what the server named, or None.
    """
    if client.in_round:
        kept = USUAL_SECONDS if seconds is None else min(seconds, LONGEST_SECONDS)
        session.store.put_json(_NAME, time.time() + kept)
    else:
        session.store.drop(_NAME)


def extend(session: "Session", seconds: int | None) -> None:
    """Store a later time, because the server says that the attempt may ask this device for `seconds` more.

    A time that is later by less than a minute is not stored, so that short polls do not write to the disk.
    """
    if seconds and session.in_round and session.store.get_json(_NAME) < time.time() + seconds - 60:
        with session.store.change():
            put_time(session, session.client(), seconds)
