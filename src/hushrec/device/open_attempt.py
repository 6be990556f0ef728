"""How long a device keeps the secrets of an attempt: only while it can still report in that attempt.

A device deletes the secrets of its open attempt

- with its last report in the attempt (`device_round.py`), or when it accepts the announcement of a later attempt;
- when it refuses a message of the attempt (`Session.step`);
- when the server refuses its request for the next message, or says that the attempt does not ask this device any more;
- when the server's time limit has passed: with each message the server says how long the attempt may go on at most.
  Whatever the server says, a device deletes them a day after its first report in the attempt;
- when the person stops taking part, changes the key or leaves the run, and when the store turns out to be a copy.

The time is checked when the store is opened and before every step. Without its secrets a device cannot report in the
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
_NAME = "attempt_until"  # of two times in the store, in Unix seconds: the end, and the latest end of the attempt


def drop_out(session: "Session") -> None:
    """Delete the secrets and the unsent report of the attempt that this device has begun and not finished, if any."""
    if not session.is_enrolled:
        return
    client = session.client()
    if not client.has_attempts or not (client.in_round or session.store.get(_NAME) is not None):
        return
    client.rest()
    with session.store.change():
        session.store.put_private_state(client.private_state())
        session.store.drop(_NAME, "outbox")


def drop_expired(session: "Session") -> None:
    """Drop out if the time until which the secrets are kept has passed.

    If this time is more than `LONGEST_SECONDS` ahead, the clock was set back, and the device drops out as well.
    """
    times = session.store.get_json(_NAME)
    if times is not None and not 0 < times[0] - time.time() <= LONGEST_SECONDS:
        drop_out(session)


def put_time(session: "Session", client: Client, seconds: int | None) -> None:
    """Store the time at which the secrets of the open attempt must be deleted; call only inside `Store.change`.

    The time is `seconds` from now, as the server said, or `USUAL_SECONDS` from now if the server named none, but at
    most `LONGEST_SECONDS` after the attempt's first report. The attempt's last report contains shares of other devices'
    secrets, and is deleted at this time if the server has not received it. A protocol whose rounds have one phase has
    no such secrets, and nothing is stored.
    """
    if client.has_attempts:
        latest = time.time() + LONGEST_SECONDS if client.is_first_phase else session.store.get_json(_NAME)[1]
        session.store.put_json(_NAME, [_until(seconds, latest), latest])


def _until(seconds: int | None, latest: float) -> float:
    return min(time.time() + (USUAL_SECONDS if seconds is None else seconds), latest)


def extend(session: "Session", seconds: int | None) -> None:
    """Keep the secrets of the open attempt until `seconds` from now, if that is later than the stored time.

    `seconds` is what the server said, or None if it named no time; then, and if no attempt is open, do nothing. The
    stored time is replaced only by one that is more than a minute later, so that not every request writes to the disk.
    """
    if seconds and session.client().in_round:
        until, latest = session.store.get_json(_NAME)
        if until < _until(seconds, latest) - 60:
            with session.store.change():
                put_time(session, session.client(), seconds)
