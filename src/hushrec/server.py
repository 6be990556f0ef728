"""The public side: who may say what when, in which round, attempt and phase. No I/O.

    IDLE ──StartRound──▶ OPEN ──PhaseClosed──▶ OPEN (next phase)
                              ──AttemptFailed──▶ OPEN (first phase, next attempt)
                              ──RoundEnded──▶ IDLE

What is computed from the reports is the protocol's (`ServerSide`). A clock reaches the server as a call of
`close_phase`. Reports are taken in the order of the senders' names, so that the order of arrival changes no bit.
Whatever is refused leaves the server exactly as it was. Between rounds `state` is all of it; an open round is made
again from the reports that were stored (`resume_round`).
"""

import enum
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from hushrec.arrays import WordArray
from hushrec.errors import LocalProtocolError, RemoteProtocolError
from hushrec.messages import Address
from hushrec.protocols.parties import Inbox, Name, NextAttempt, RoundOver, ServerSide, State

MOST_ATTEMPTS = 10  # of one simulated round: one that needs more will not end


class Stage(enum.Enum):
    """Whether a phase is open."""

    IDLE = "idle"
    OPEN = "open"


class Event(enum.Enum):
    """What moves a server from one stage to another."""

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
    """One run: its members, the open round, and the protocol's side that computes with the reports."""

    def __init__(
        self,
        side: ServerSide,
        members: Collection[Name],
        *,
        round_number: int = 0,
        most_attempts: int | None = MOST_ATTEMPTS,
    ) -> None:
        self.side = side
        self._most_attempts = most_attempts  # None: an operator watches, and sees how many there were
        self._members = set(members)
        self._round_number = round_number
        self._stage = Stage.IDLE
        self._attempt = 0
        self._phase = 0  # its number in `side.phases`
        self._inbox: Inbox = {}
        self._reports: dict[Name, Any] = {}

    def __repr__(self) -> str:
        return f"Server({self._stage.value}, round {self._round_number}, {len(self._reports)} reports)"

    @property
    def stage(self) -> Stage:
        return self._stage

    @property
    def round_number(self) -> int:
        """The open round, or the last one."""
        return self._round_number

    @property
    def address(self) -> Address:
        """Round, attempt and phase that messages of the open phase carry."""
        if self._stage is not Stage.OPEN:
            raise LocalProtocolError("no round is open.")
        return Address(self._round_number, self._attempt, self.side.phases[self._phase])

    @property
    def reported(self) -> Mapping[Name, Any]:
        """The reports of the open phase that are here, or what `keep` was given in their place."""
        return self._reports

    @property
    def asked(self) -> AbstractSet[Name]:
        """Whom the open phase asks, whether they have reported or not."""
        return self._inbox.keys()

    def inbox(self, name: Name) -> Any | None:
        """What the open phase asks of this device; None where it asks nothing, or the report is here."""
        if self._stage is not Stage.OPEN or name in self._reports:
            return None
        return self._inbox.get(name)

    def enrol(self, name: Name) -> None:
        """Let a device take part from the next round on."""
        self._move(Event.ENROL)
        self._members.add(name)

    def replace_members(self, names: Collection[Name]) -> None:
        """Let these devices, and no others, take part from the next round on."""
        self._move(Event.ENROL)
        self._members = set(names)

    # A round ---------------------------------------------------------------------------------------------------

    def start_round(self) -> None:
        """Open the first phase of the next round."""
        self._next_stage(Event.START_ROUND)
        last = self.side.terms.max_rounds
        if self._round_number >= last:
            raise LocalProtocolError(f"all {last} rounds of the terms are over.")
        self._open_round(self.side.choose_members(self._members))

    def _open_round(self, members: Collection[Name]) -> None:
        inbox = self.side.open(self._round_number + 1, 1, members)
        self._round_number, self._attempt, self._phase = self._round_number + 1, 1, 0
        self._inbox, self._reports = inbox, {}
        self._move(Event.START_ROUND)

    def check_place(self, sender: Name, address: Address) -> None:
        """Refuse a message of a device that the open phase does not ask, whatever the message holds."""
        if Event.RECEIVE not in NEXT_STAGE[self._stage]:
            raise RemoteProtocolError(
                f"no round is open; the last was round {self._round_number}. Wait for the next one.",
                code="phase-closed",
            )
        if address != self.address:
            raise RemoteProtocolError(
                f"the report is for {address}, but {self.address} is open. Fetch the inbox and report again.",
                code="phase-closed",
            )
        if sender not in self._inbox:
            raise RemoteProtocolError("the open phase asks nothing of this device.", code="not-asked")

    def check(self, sender: Name, address: Address, message: Any) -> None:
        """Refuse what `receive` would refuse, and keep nothing."""
        self.check_place(sender, address)
        if sender in self._reports:
            raise RemoteProtocolError("this device has reported in this phase already.", code="reported")
        self.side.check(address, sender, message)

    def receive(self, sender: Name, address: Address, message: Any) -> None:
        """Step 6 of docs/data-flow.md: check one message and keep it until its phase closes."""
        self.check(sender, address, message)
        self._reports[sender] = message
        self._move(Event.RECEIVE)

    def keep(self, sender: Name, address: Address, kept: Any) -> None:
        """Note that a report which was checked is stored elsewhere: `kept` stands for it in `reported`.

        Whoever stores reports gives them to `close_phase`, so that they are not all in memory at once.
        """
        if self._stage is Stage.OPEN and address == self.address and sender in self._inbox:
            self._reports[sender] = kept
            self._move(Event.RECEIVE)

    def drop(self, sender: Name) -> None:
        """Forget a device in the open phase: its report, if there is one, and that it was asked."""
        self._reports.pop(sender, None)
        self._inbox = {name: message for name, message in self._inbox.items() if name != sender}

    def close_phase(
        self,
        reports: Iterable[tuple[Name, Any]] | None = None,
        sums: Iterable[tuple[Collection[Name], WordArray]] = (),
    ) -> None:
        """Step 7 of docs/data-flow.md: end the open phase with the reports that are here, or with those given.

        Given reports come in the order of the senders' names; `sums` stand for the reports of their senders, where the
        protocol needs no more than the sum (`ServerSide.addend`). The protocol then opens the next phase, ends the
        round, or asks for another attempt.
        """
        self._next_stage(Event.CLOSE_PHASE)
        if reports is None:
            reports = sorted(self._reports.items(), key=lambda entry: _order(entry[0]))
        for senders, total in sums:
            self.side.take_sum(self.address, senders, total)
        outcome = self.side.close(self.address, _checked_order(reports))
        if isinstance(outcome, RoundOver):
            self._inbox, self._reports = {}, {}
            self._move(Event.END_ROUND)
        elif isinstance(outcome, NextAttempt):
            self._try_again(outcome)
        else:
            self._phase, self._inbox, self._reports = self._phase + 1, outcome, {}
            self._move(Event.CLOSE_PHASE)

    def begin_again(self, members: Collection[Name]) -> None:
        """Open the first phase of the round once more, as another attempt, for these devices: too few others came."""
        self._next_stage(Event.CLOSE_PHASE)
        self._try_again(NextAttempt("too few devices came to its first phase.", self.side.choose_members(members)))

    def resume_round(
        self,
        closed: Sequence[Iterable[tuple[Name, Any]]] = (),
        *,
        attempt: int = 1,
        members: Collection[Name] | None = None,
    ) -> None:
        """Open the next round where it stood: in this attempt, of these members, after these phases were closed.

        `closed` has the reports of each phase that was closed.
        """
        asked = self._members if members is None else members
        self._open_round(asked)
        if attempt > 1:
            self._attempt, self._inbox = attempt, self.side.open(self._round_number, attempt, asked)
        for reports in closed:
            self.close_phase(reports)

    def _try_again(self, outcome: NextAttempt) -> None:
        if self._most_attempts is not None and self._attempt >= self._most_attempts:
            raise LocalProtocolError(f"round {self._round_number} failed {self._attempt} times: {outcome.reason}")
        inbox = self.side.open(self._round_number, self._attempt + 1, outcome.members)
        self._attempt, self._phase, self._inbox, self._reports = self._attempt + 1, 0, inbox, {}
        self._move(Event.CLOSE_PHASE)

    # Keeping state ---------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Everything that the rounds to come depend on, between two rounds."""
        if self._stage is not Stage.IDLE:
            raise LocalProtocolError("a round is open: some devices have answered it, and some have not.")
        return {**self.side.state, "round_number": np.array(self._round_number)}

    def state_before(self) -> State:
        """What the open round began with, and what its attempts have found out about devices since."""
        if self._stage is not Stage.OPEN or self._phase:
            raise LocalProtocolError("only an attempt that has just begun can be described by what was before it.")
        return {**self.side.state, "round_number": np.array(self._round_number - 1)}

    def restore(self, state: State) -> None:
        """Continue where `state` left off."""
        self.side.restore({name: array for name, array in state.items() if name != "round_number"})
        self._round_number = int(state["round_number"])
        self._stage, self._inbox, self._reports = Stage.IDLE, {}, {}

    # Inside ----------------------------------------------------------------------------------------------------

    def _next_stage(self, event: Event) -> Stage:
        try:
            return NEXT_STAGE[self._stage][event]
        except KeyError:
            raise LocalProtocolError(f"a server that is {self._stage.value} cannot {event.value} now.") from None

    def _move(self, event: Event) -> None:
        self._stage = self._next_stage(event)


def _checked_order(reports: Iterable[tuple[Name, Any]]) -> Iterator[tuple[Name, Any]]:
    """Yield the reports unchanged; refuse them where names do not rise."""
    last: Name | None = None
    for name, report in reports:
        if last is not None and _order(last) >= _order(name):
            raise LocalProtocolError("reports must be given in the order of their senders' names, each once.")
        last = name
        yield name, report


def _order(name: Name) -> tuple[bool, Name]:
    return isinstance(name, str), name
