"""The server's state machine, without I/O: which device may report when, in which round, attempt and phase.

    IDLE ──start_round──▶ OPEN ──close_phase──▶ OPEN (the next phase, or the first phase of the next attempt)
                               ──close_phase──▶ IDLE (the round has ended)

The protocol (`ServerSide`) decides what is computed from the reports. Deadlines reach the server as calls of
`close_phase`. Reports are processed in the order of the devices' names, so that the result does not depend on the order
of arrival. A refused message leaves the server unchanged. Between rounds, `state` and the members describe the server
completely; an open round is restored from its stored reports (`resume_round`).
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from hushrec.arrays import WordArray
from hushrec.errors import LocalProtocolError, RemoteProtocolError
from hushrec.messages import Address
from hushrec.protocols.parties import Inbox, Name, NextAttempt, RoundOver, ServerSide, State

MOST_ATTEMPTS = 30  # of one simulated round: a round that needs more would never end


class Stage(enum.Enum):
    """The stage of a server: between two rounds, or in an open phase of a round."""

    IDLE = "idle"
    OPEN = "open"


class Event(enum.Enum):
    """An event of the server's state machine. `NEXT_STAGE` maps each stage to its events and the stages after them."""

    START_ROUND = "start a round"
    RECEIVE = "receive a message"
    CLOSE_PHASE = "close a phase"
    END_ROUND = "end the round"
    ENROL = "enrol a device"


NEXT_STAGE: dict[Stage, dict[Event, Stage]] = {
    Stage.IDLE: {Event.START_ROUND: Stage.OPEN, Event.ENROL: Stage.IDLE},
    Stage.OPEN: {Event.RECEIVE: Stage.OPEN, Event.CLOSE_PHASE: Stage.OPEN, Event.END_ROUND: Stage.IDLE},
}


class Server:
    """The server of one run: its members (the devices that take part), the open round, and a `ServerSide`."""

    def __init__(
        self,
        side: ServerSide,
        members: Collection[Name],
        *,
        round_number: int = 0,
        most_attempts: int | None = MOST_ATTEMPTS,
    ) -> None:
        self.side = side
        self._most_attempts = most_attempts  # None: unlimited, because an operator sees the number of attempts
        self._members = set(members)
        self.round_number = round_number  # of the open round or, between rounds, of the latest one; 0 before the first
        self.stage = Stage.IDLE
        self._attempt = 0
        self._phase = 0  # index of the open phase in `side.phases`
        self._inbox: Inbox = {}
        self.invited: frozenset[Name] = frozenset()  # devices that the open attempt asked in its first phase
        self._reports: dict[Name, Any] = {}
        self.failure: NextAttempt | None = None  # the last failed attempt's outcome

    def __repr__(self) -> str:
        return f"Server({self.stage.value}, round {self.round_number}, {len(self._reports)} reports)"

    @property
    def address(self) -> Address:
        """The open round, attempt and phase; raises `LocalProtocolError` if no round is open."""
        if self.stage is not Stage.OPEN:
            raise LocalProtocolError("no round is open. Start one first.")
        return Address(self.round_number, self._attempt, self.side.phases[self._phase])

    @property
    def reported(self) -> Mapping[Name, Any]:
        """The reports received in the open phase, by device.

        For a device whose report was recorded by the method `keep`, the mapping has the `value` passed to `keep`.
        """
        return self._reports

    @property
    def asked(self) -> AbstractSet[Name]:
        """The devices that the open phase asks for a report, including those that have reported."""
        return self._inbox.keys()

    def inbox(self, name: Name) -> Any | None:
        """Return the open phase's message to this device.

        Return None if no phase is open, the phase does not ask the device, or the device has reported.
        """
        if self.stage is not Stage.OPEN or name in self._reports:
            return None
        return self._inbox.get(name)

    def replace_members(self, names: Collection[Name]) -> None:
        """Let only these devices take part from the next round on; raise `LocalProtocolError` while a round is open."""
        self._next_stage(Event.ENROL)
        self._members = set(names)

    # A round ---------------------------------------------------------------------------------------------------

    def start_round(self) -> None:
        """Open the first phase of the next round; raise `LocalProtocolError` if a round is open or the run is over."""
        self._next_stage(Event.START_ROUND)
        last = self.side.terms.max_rounds
        if self.round_number >= last:
            raise LocalProtocolError(f"the run is over: all {last} rounds have ended.")
        self._open_attempt(self.round_number + 1, 1, self.side.choose_members(self._members))

    def _open_attempt(self, round_number: int, attempt: int, members: Collection[Name]) -> None:
        inbox = self.side.open(round_number, attempt, members)
        self.stage = Stage.OPEN
        self.round_number, self._attempt, self._phase = round_number, attempt, 0
        self._inbox, self.invited, self._reports = inbox, frozenset(inbox), {}

    def check_asked(self, sender: Name, address: Address) -> None:
        """Raise `RemoteProtocolError` unless `address` names the open phase and this phase asks `sender` to report."""
        if Event.RECEIVE not in NEXT_STAGE[self.stage]:
            raise RemoteProtocolError(
                f"no round is open; the last one was round {self.round_number}. Wait for the next round.",
                code="phase-closed",
            )
        if address != self.address:
            raise RemoteProtocolError(
                f"the report is for {address}, but {self.address} is open. Fetch the inbox and report again.",
                code="phase-closed",
            )
        if sender not in self._inbox:
            raise RemoteProtocolError(
                "the open phase does not ask this device for a report. Wait for the next phase.", code="not-asked"
            )

    def check(self, sender: Name, address: Address, message: Any) -> None:
        """Raise `RemoteProtocolError` if `receive` would refuse this report; store nothing."""
        self.check_asked(sender, address)
        if sender in self._reports:
            raise RemoteProtocolError(
                "this device has already reported in this phase. Wait for the next phase.", code="reported"
            )
        self.side.check(address, sender, message)

    def receive(self, sender: Name, address: Address, message: Any) -> None:
        """Check a report and store it until its phase closes. Step S6 of docs/data-flow.md."""
        self.check(sender, address, message)
        self._reports[sender] = message

    def keep(self, sender: Name, address: Address, value: Any) -> None:
        """Record that `sender` has reported; in `reported`, store `value` instead of the report.

        The caller has checked the report and stored it elsewhere, and must pass it to `close_phase`. Nothing happens if
        the open phase does not ask the device for this report.
        """
        if self.stage is Stage.OPEN and address == self.address and sender in self._inbox:
            self._reports[sender] = value

    def drop(self, sender: Name) -> None:
        """Remove a device from the open phase: its message in the inbox, and its report if there is one."""
        self._reports.pop(sender, None)
        self._inbox = {name: message for name, message in self._inbox.items() if name != sender}

    def close_phase(
        self,
        reports: Iterable[tuple[Name, Any]] | None = None,
        sums: Iterable[tuple[Mapping[Name, bytes], WordArray]] = (),
    ) -> None:
        """Close the open phase with `reports`, by default those passed to `receive`. Step S7 of docs/data-flow.md.

        `reports` must be sorted by the devices' names. If the protocol needs only the sum of some reports
        (`ServerSide.addend`), `sums` holds pairs (`Addend.kept` by the name of the device, sum of their integers), and
        `reports` holds the reports of all other devices.
        """
        self._next_stage(Event.CLOSE_PHASE)
        if reports is None:
            reports = sorted(self._reports.items(), key=lambda entry: _order(entry[0]))
        for kept, total in sums:
            self.side.take_sum(self.address, kept, total)
        outcome = self.side.close(self.address, _checked_order(reports))
        if isinstance(outcome, RoundOver):
            self.stage, self._inbox, self._reports = self._next_stage(Event.END_ROUND), {}, {}
        elif isinstance(outcome, NextAttempt):
            self._next_attempt(outcome)
        else:
            self._phase, self._inbox, self._reports = self._phase + 1, outcome, {}

    def begin_again(self, members: Collection[Name]) -> None:
        """Open the next attempt of this round, because too few devices reported in the first phase of the open one.

        `members` are the devices that may take part in the next attempt; the protocol chooses among them.
        """
        self._next_stage(Event.CLOSE_PHASE)
        reason = "too few devices reported in its first phase."
        self._next_attempt(NextAttempt(reason, self.side.choose_members(members)))

    def resume_round(self, attempt: int = 1) -> None:
        """Open the first phase of this attempt of the next round, to restore a server that stopped during the attempt.

        The attempt asks all devices that were given to the constructor or, later, to `replace_members`. Afterwards the
        caller must close again the phases that were closed before the server stopped.
        """
        self._next_stage(Event.START_ROUND)
        self._open_attempt(self.round_number + 1, attempt, self._members)

    def _next_attempt(self, failure: NextAttempt) -> None:
        if self._most_attempts is not None and self._attempt >= self._most_attempts:
            raise LocalProtocolError(
                f"round {self.round_number} failed {self._attempt} times, so the simulation stops. The last time:"
                f" {failure.reason} Simulate more devices, or fewer that drop out or are hostile."
            )
        self.failure = failure
        self._open_attempt(self.round_number, self._attempt + 1, failure.members)

    # Keeping state ---------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Return the arrays, by name, that `restore` needs to continue between two rounds.

        The arrays do not contain the members. Raise `LocalProtocolError` if a round is open.
        """
        if self.stage is not Stage.IDLE:
            raise LocalProtocolError("the state must be read while no round is open. Close all phases first.")
        return {**self.side.state, "round_number": np.array(self.round_number)}

    def state_before(self) -> State:
        """Return the state that `restore` and `resume_round` need to open this attempt again.

        It is the state before this round, except that it includes which devices earlier attempts of the round found
        faulty. Raise `LocalProtocolError` after the attempt's first phase.
        """
        if self.stage is not Stage.OPEN or self._phase:
            raise LocalProtocolError("the initial state of an attempt must be read while its first phase is open.")
        return {**self.side.state, "round_number": np.array(self.round_number - 1)}

    def restore(self, state: State) -> None:
        """Continue from a state that `state` or `state_before` returned; no round is open afterwards."""
        self.side.restore({name: array for name, array in state.items() if name != "round_number"})
        self.round_number = int(state["round_number"])
        self.stage, self._inbox, self._reports = Stage.IDLE, {}, {}

    # Transitions -----------------------------------------------------------------------------------------------

    def _next_stage(self, event: Event) -> Stage:
        """Return the stage after `event`; raise `LocalProtocolError` if the current stage does not allow the event."""
        try:
            return NEXT_STAGE[self.stage][event]
        except KeyError:
            raise LocalProtocolError(f"a server that is {self.stage.value} cannot {event.value} now.") from None


def _checked_order(reports: Iterable[tuple[Name, Any]]) -> Iterator[tuple[Name, Any]]:
    last: Name | None = None
    for name, report in reports:
        if last is not None and _order(last) >= _order(name):
            raise LocalProtocolError("reports must be given in the order of their senders' names, each sender once.")
        last = name
        yield name, report


def _order(name: Name) -> tuple[bool, Name]:
    return isinstance(name, str), name
