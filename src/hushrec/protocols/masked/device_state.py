"""What a device of a masked run keeps between messages, as arrays: what the run has cost, and the open attempt.

The attempt holds secrets of this device and shares of others': it is stored with the report that it belongs to, and
`NO_ATTEMPT` takes its place as soon as it is over.
"""

from dataclasses import astuple
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from hushrec.budget.accountants import TableAccountant
from hushrec.protocols.masked import device_round as rounds
from hushrec.protocols.parties import State

_STATES: dict[str, Any] = {state.__name__: state for state in rounds.NEXT_STATE}
NO_ATTEMPT: npt.NDArray[np.uint8] = np.empty(0, dtype=np.uint8)


def new_state() -> State:
    """Return what a device keeps before its first round."""
    return make_state(rounds.Idle(), TableAccountant())


def make_state(attempt: rounds.State, spent: TableAccountant) -> State:
    """Return the state that a device keeps: where its attempt stands, and what its tables have cost in this run."""
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
    """Return where a device stands in its attempt."""
    if not len(state["attempt"]):
        return rounds.Idle((int(state["place"][0]), int(state["place"][1])))
    name, packed = msgspec.msgpack.decode(state["attempt"].tobytes(), type=tuple[str, msgspec.Raw])
    attempt: rounds.State = msgspec.msgpack.decode(packed, type=_STATES[name])
    return attempt


def spent_in(state: State) -> TableAccountant:
    """Return what this run has cost so far."""
    tables, *costs = state["spent"].tolist()
    return TableAccountant(int(tables), *costs)


def at_rest(state: State) -> State:
    """Return the state without the secrets of an attempt that is over."""
    return {**state, "attempt": NO_ATTEMPT}
