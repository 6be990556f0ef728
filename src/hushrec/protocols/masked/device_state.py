"""The stored state of a device in a masked run: the cost of the run so far and the open attempt, packed into arrays.

The attempt contains secrets of this device and shares of other devices' secrets. It is stored together with the report
of its phase, and replaced by `NO_ATTEMPT` when the attempt is over.
"""

from dataclasses import astuple
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from hushrec.budget.accountants import TableAccountant
from hushrec.protocols.masked import device_round as rounds
from hushrec.protocols.masked.messages import Announcement
from hushrec.protocols.parties import State

_STATES: dict[str, Any] = {state.__name__: state for state in rounds.NEXT_STATE}
NO_ATTEMPT: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)


class _Announced(msgspec.Struct):
    """The announcement of a stored attempt; msgspec skips the other stored fields when it decodes this type."""

    announcement: Announcement


def make_state(attempt: rounds.State, spent: TableAccountant) -> State:
    """Return the arrays that store the state of the attempt and the cost of this run so far."""
    packed = NO_ATTEMPT
    if not isinstance(attempt, rounds.Idle):
        name = type(attempt).__name__
        packed = np.frombuffer(msgspec.msgpack.encode((name, attempt)), dtype=np.uint8)
    return {
        "place": np.array(rounds.place_of(attempt), dtype=np.int64),
        "spent": np.array(astuple(spent), dtype=np.float64),
        "attempt": packed,
    }


def attempt_in(state: State) -> rounds.State:
    """Return the state of the open attempt, as stored in these arrays; `Idle` if no attempt is open."""
    name, packed = _stored(state)
    if name == rounds.Idle.__name__:
        return rounds.Idle(place_in(state))
    attempt: rounds.State = msgspec.msgpack.decode(packed, type=_STATES[name])
    return attempt


def place_in(state: State) -> tuple[int, int]:
    """Return the (round, attempt) of the latest announcement that the device replied to, as stored in these arrays."""
    return int(state["place"][0]), int(state["place"][1])


def announced_table(state: State) -> bytes | None:
    """Return the hash of the public table for which the next report is computed; None unless that report is a table.

    Only the announcement is decoded: the roster of the attempt is long.
    """
    name, packed = _stored(state)
    if name != rounds.Shared.__name__:
        return None
    return msgspec.msgpack.decode(packed, type=_Announced).announcement.table_digest


def _stored(state: State) -> tuple[str, msgspec.Raw]:
    """Return the name of the class of the stored attempt, and its packed fields."""
    if not len(state["attempt"]):
        return rounds.Idle.__name__, msgspec.Raw()
    return msgspec.msgpack.decode(state["attempt"].tobytes(), type=tuple[str, msgspec.Raw])


def spent_in(state: State) -> TableAccountant:
    """Return the cost of the run so far, as stored in these arrays."""
    tables, *costs = state["spent"].tolist()
    return TableAccountant(int(tables), *costs)
