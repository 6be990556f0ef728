"""The public side: item vectors, and one round of reports at a time. No I/O.

Algorithm 2 of [SDCF] as a state machine:

    PUBLISHED ──StartRound──▶ OPEN ──DeadlinePassed, or all finished──▶ SUMMED ──PublishItems──▶ PUBLISHED

A clock reaches the server as the message `DeadlinePassed`. Reports are added up in the order of the senders'
names, so that the order of arrival changes no bit, and forgotten when the round closes. Whatever is
refused leaves the server exactly as it was.
"""

import enum
from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.messages import Finished, GradientReport, ItemVectors, Terms
from hushrec.models.mf import MatrixFactorization

ClientName = int | str

# In units of the round's step: it would take an error of 100 and a user vector of norm 2.5.
LARGEST_GRADIENT = 250.0


@dataclass(frozen=True)
class StartRound:
    """Open the next round."""


@dataclass(frozen=True)
class DeadlinePassed:
    """Wait no longer for those who have not finished."""


@dataclass(frozen=True)
class PublishItems:
    """Move the item vectors and make them public."""


class Phase(enum.Enum):
    """Where the current round stands."""

    PUBLISHED = "published"
    OPEN = "open"
    SUMMED = "summed"


NEXT_PHASE: dict[Phase, dict[type, Phase]] = {
    Phase.PUBLISHED: {StartRound: Phase.OPEN},
    Phase.OPEN: {GradientReport: Phase.OPEN, Finished: Phase.OPEN, DeadlinePassed: Phase.SUMMED},
    Phase.SUMMED: {PublishItems: Phase.PUBLISHED},
}


class Server:
    """Keeps item vectors; holds the reports of one open round, and never more.

    `max_gradient_norm` bounds every row of a report; by default it stops the absurd, not the malicious.
    """

    def __init__(
        self,
        terms: Terms,
        model: MatrixFactorization,
        item_vectors: FloatArray,
        clients: Collection[ClientName],
        *,
        round_number: int = 0,
        max_gradient_norm: float | None = None,
    ) -> None:
        shape = (terms.n_items + model.n_side_rows, model.item_width)
        if item_vectors.shape != shape:
            raise ParameterError(f"item vectors must have shape {shape}, got {item_vectors.shape}.")
        _check_finite(item_vectors)
        self._terms = terms
        self._model = model
        self._item_vectors = np.array(item_vectors, dtype=np.float64)
        self._clients = set(clients)
        self._round_number = round_number
        self._max_gradient_norm = max_gradient_norm
        self._phase = Phase.PUBLISHED
        self._reports: dict[ClientName, GradientReport] = {}
        self._finished: set[ClientName] = set()
        self._announcement: ItemVectors | None = None
        self._sums = np.empty((0, 0))
        self._counts: IntArray = np.empty(0, dtype=np.int64)

    def __repr__(self) -> str:
        return f"Server({self._phase.value}, round {self._round_number}, {len(self._finished)} finished)"

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def terms(self) -> Terms:
        return self._terms

    @property
    def round_number(self) -> int:
        """The open round, or the last one."""
        return self._round_number

    @property
    def item_vectors(self) -> FloatArray:
        """`(n_items + n_side_rows, item_width)`, public."""
        return self._item_vectors

    @property
    def announcement(self) -> ItemVectors:
        """What devices download in the open round."""
        self._require(GradientReport)
        assert self._announcement is not None
        return self._announcement

    # Between rounds --------------------------------------------------------------------------------------------

    def enrol(self, client: ClientName) -> None:
        """Lets a client take part from the next round on."""
        self._require(StartRound)
        self._clients.add(client)

    def append_items(self, new_vectors: FloatArray) -> None:
        """Adds items at the end of the catalogue; none is ever taken out."""
        self._require(StartRound)
        if new_vectors.ndim != 2 or new_vectors.shape[1] != self._model.item_width:
            raise ParameterError(f"new item vectors must have {self._model.item_width} numbers each.")
        if self._model.n_side_rows:
            raise ParameterError(f"model {self._model.name} knows the attributes of its items: none can join a run.")
        _check_finite(new_vectors)
        self._item_vectors = np.concatenate([self._item_vectors, new_vectors])
        self._terms = self._terms.with_items(len(self._item_vectors))

    def start_round(self) -> ItemVectors:
        """Opens the next round and returns what every device downloads."""
        self._require(StartRound)
        if self._round_number >= self._terms.max_rounds:
            raise LocalProtocolError(f"all {self._terms.max_rounds} rounds of the terms are over.")
        self._announcement = ItemVectors(self._terms, self._round_number + 1, self._item_vectors)
        self._round_number += 1
        self._phase = Phase.OPEN
        return self._announcement

    # In a round ------------------------------------------------------------------------------------------------

    def receive(self, sender: ClientName, message: GradientReport | Finished) -> None:
        """Step 6 of docs/data-flow.md: checks one message and keeps it until the round closes."""
        self.check(sender, message)
        if isinstance(message, GradientReport):
            self._reports[sender] = message
        else:
            self._finished.add(sender)
            if self._finished == self._clients:
                self._close_round()

    def check(self, sender: ClientName, message: GradientReport | Finished) -> None:
        """Refuses what `receive` would refuse, and keeps nothing."""
        if type(message) not in NEXT_PHASE[self._phase]:
            raise RemoteProtocolError(
                f"no round is open; the last was round {self._round_number}. Wait for the next one.", status_hint=409
            )
        if sender not in self._clients:
            raise RemoteProtocolError("this sender is not enrolled.", status_hint=403)
        if message.round_number != self._round_number:
            raise RemoteProtocolError(
                f"report is for round {message.round_number}, but the open round is {self._round_number}."
                " Fetch the item vectors and report again.",
                status_hint=409,
            )
        if sender in self._finished:
            raise RemoteProtocolError("this sender has finished the round already.", status_hint=409)
        if isinstance(message, GradientReport):
            self._check_report(sender, message)

    def deadline_passed(self) -> None:
        """Closes the round with what has arrived."""
        self._require(DeadlinePassed)
        self._close_round()

    def publish(self) -> FloatArray:
        """Step 7 of docs/data-flow.md: moves each item by the mean of its reports, and returns the new vectors."""
        self._require(PublishItems)
        prior = self._terms.step_size(self._round_number) * self._terms.item_regularization
        self._item_vectors = self._model.move_items(self._item_vectors, self._sums, self._counts, prior)
        self._phase = Phase.PUBLISHED
        return self._item_vectors

    # Inside ----------------------------------------------------------------------------------------------------

    def _require(self, message: type) -> None:
        if message not in NEXT_PHASE[self._phase]:
            raise LocalProtocolError(f"a server whose round is {self._phase.value} cannot do {message.__name__} now.")

    def _check_report(self, sender: ClientName, report: GradientReport) -> None:
        if sender in self._reports:
            raise RemoteProtocolError("this sender has reported in this round already.", status_hint=409)
        if np.any(report.items[-1:] >= self._terms.n_items):
            raise RemoteProtocolError(f"a report must name items below {self._terms.n_items}.", status_hint=422)
        if report.gradients.shape[1] != self._model.item_width:
            raise RemoteProtocolError(f"gradients must have {self._model.item_width} numbers each.", status_hint=422)
        largest = self._largest_gradient()
        if np.any(np.linalg.norm(report.gradients, axis=1) > largest):
            raise RemoteProtocolError(f"gradients must have norms up to {largest:g} in this round.", status_hint=422)

    def _largest_gradient(self) -> float:
        if self._max_gradient_norm is not None:
            return self._max_gradient_norm
        return LARGEST_GRADIENT * self._terms.step_size(self._round_number) * self._terms.data_weight

    def _close_round(self) -> None:
        self._sums = np.zeros((self._terms.n_items, self._model.item_width))
        self._counts = np.zeros(self._terms.n_items, dtype=np.int64)
        for sender in sorted(self._reports, key=_order):
            report = self._reports[sender]
            self._sums[report.items] += report.gradients  # each item stands once in a report
            self._counts[report.items] += 1
        self._reports.clear()
        self._finished.clear()
        self._phase = Phase.SUMMED


def _check_finite(vectors: FloatArray) -> None:
    if not np.all(np.isfinite(vectors)):
        raise ParameterError("item vectors must be finite numbers.")


def _order(name: ClientName) -> tuple[bool, ClientName]:
    return isinstance(name, str), name
