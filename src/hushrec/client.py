"""The private side: one person's ratings, vector, permanent bits and ledger. No I/O.

Algorithm 1 of [SDCF] as a state machine. In each round a client

    receives the item vectors      IDLE     → READY
    makes its report               READY    → REPORTED
    finishes, and updates u        REPORTED → IDLE

What leaves is what `make_report` and `finish` return, and nothing else. The ledger is charged before a report
exists; when it refuses, nothing has changed and nothing was sent. The server is held to the terms that
were accepted at the start: it may not raise what it asks, repeat a round, or shrink the list of items.
"""

import dataclasses
import enum
import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.calibrate import SelectionProbabilities
from hushrec.budget.events import Event, GradientsSent, SelectionSent, gradient_rho
from hushrec.budget.ledger import Ledger
from hushrec.errors import LocalProtocolError, ParameterError, RemoteProtocolError
from hushrec.mechanisms.langevin import langevin_noise
from hushrec.messages import Finished, GradientReport, ItemVectors, Terms
from hushrec.models.bpr import PairwiseRanking
from hushrec.models.mf import MatrixFactorization
from hushrec.protocols.gradient.protocols import HIGHEST, LOWEST, NOBODY, Draws, GradientProtocol
from hushrec.protocols.gradient.selection import PermanentChoice
from hushrec.randomness import Purpose, Randomness, RandomStream

# A server that sends item vectors of absurd length reads ratings off the errors: v = 0 makes e = r.
LARGEST_ITEM_NORM = 100.0
SMALLEST_ITEM_NORM = 0.01
SMALL_SHARE = 0.01  # of the items may be smaller than that


def plausible_norms(norms: FloatArray) -> bool:
    """Whether item vectors have lengths that an honest server's have."""
    return bool(norms.max() <= LARGEST_ITEM_NORM and np.mean(norms < SMALLEST_ITEM_NORM) <= SMALL_SHARE)


PrivateState = dict[str, npt.NDArray[np.generic]]


class Phase(enum.Enum):
    """Where a client stands in its round."""

    IDLE = "idle"  # between rounds
    READY = "ready"  # has this round's item vectors
    REPORTED = "reported"  # the report exists; "finished" does not yet


NEXT_PHASE: dict[Phase, dict[type, Phase]] = {
    Phase.IDLE: {ItemVectors: Phase.READY},
    Phase.READY: {GradientReport: Phase.REPORTED},
    Phase.REPORTED: {Finished: Phase.IDLE},
}


class Client:
    """One person's device. Ratings are on the scale 1 to 5; `ledger` outlives the client."""

    def __init__(
        self,
        terms: Terms,
        model: MatrixFactorization,
        protocol: GradientProtocol,
        *,
        randomness: Randomness,
        ledger: Ledger,
    ) -> None:
        selects = protocol.selection is not None
        if selects != (terms.reports_per_client is not None):
            raise RemoteProtocolError(
                f"terms of protocol {protocol.name} must {'' if selects else 'not '}name reports_per_client."
            )
        if (model.name, model.n_factors, model.n_side_rows) != (terms.model, terms.n_factors, terms.n_side_rows):
            raise RemoteProtocolError(f"terms are for another model: {terms.model} with {terms.n_factors} factors.")
        if (len(terms.user_regularization), len(terms.item_regularization)) != (model.user_width, model.item_width):
            raise RemoteProtocolError(
                f"terms must have {model.user_width} and {model.item_width} numbers of regularization."
            )
        self._terms = terms
        self._model = model
        self._protocol = protocol
        self._randomness = randomness
        self.ledger = ledger
        self._phase = Phase.IDLE
        self._last_round = 0
        self._items: IntArray = np.empty(0, dtype=np.int64)  # rated items, rising
        self._ever_rated: IntArray = np.empty(0, dtype=np.int64)
        self._rating_batches = 0
        self._values = np.empty(0)  # what is trained on: the ratings, or perturbed ones
        self._user_vector: FloatArray = model.initial_vectors(1, rng=randomness.stream(Purpose.USER_VECTOR))[0]
        self._permanent: PermanentChoice | None = None
        self._permanent_epoch = -1
        self._announcement: ItemVectors | None = None
        self._pending_user_vector: FloatArray | None = None
        self._last_draws: Draws | None = None

    def __repr__(self) -> str:
        return f"Client({self._protocol.name}, {self._phase.value}, round {self._last_round})"

    @property
    def phase(self) -> Phase:
        return self._phase

    @property
    def last_round(self) -> int:
        """The last round that this client took part in."""
        return self._last_round

    @property
    def takes_part(self) -> bool:
        """A client without ratings stays out: its fakes would all be alike and announce it.

        So does one that rated everything where pairs of rated and unrated items, or unrated items to hide among, are
        needed: there are none.
        """
        n_rated = np.array(len(self._items))
        return bool(self._protocol.can_take_part(n_rated, self._terms.n_items, self._model))

    @property
    def _private_draws(self) -> Draws:
        """This client's random choices of its last round, for engines that record them. Must never leave the device."""
        if self._last_draws is None:
            raise LocalProtocolError("a client has no draws before its first round.")
        return self._last_draws

    @property
    def _rated_items(self) -> IntArray:
        """Must never leave the device."""
        return self._items

    @property
    def _private_user_vector(self) -> FloatArray:
        """Must never leave the device."""
        return self._user_vector

    # Ratings ---------------------------------------------------------------------------------------------------

    def add_ratings(self, items: IntArray, values: FloatArray) -> None:
        """Step 1 of docs/data-flow.md. Stores ratings, replacing earlier ones of the same items.

        They train the user vector at once; the permanent bits stay as they are until the next epoch, because a
        single bit that changes would prove a rating.
        """
        values = np.asarray(values, dtype=np.float64)
        if len(items) and not np.issubdtype(np.asarray(items).dtype, np.integer):
            raise ParameterError("rated items must be whole numbers: their places in the catalogue.")
        items = np.asarray(items, dtype=np.int64)
        if items.shape != values.shape or items.ndim != 1 or len(np.unique(items)) != len(items):
            raise ParameterError("ratings must come as one value per item, each item once.")
        if np.any(items < 0) or np.any(items >= self._terms.n_items):
            raise ParameterError(f"a rated item must be one of the {self._terms.n_items} of the catalogue.")
        if not np.all((values >= LOWEST) & (values <= HIGHEST)):
            raise ParameterError(f"ratings must be numbers from {LOWEST:g} to {HIGHEST:g}, mapped to that scale first.")
        if len(self._ever_rated) == 0 or np.isin(items, self._ever_rated).any():
            self.ledger.charge(self._protocol.perturbation_events())  # a value that is drawn again is paid again
        self._ever_rated = np.union1d(self._ever_rated, items)
        rng = self._randomness.stream(Purpose.RATING_NOISE, self._rating_batches)  # never the same noise twice
        self._rating_batches += 1
        values = self._protocol.training_values(values, rng=rng)
        keep = ~np.isin(self._items, items)
        items, values = np.concatenate([self._items[keep], items]), np.concatenate([self._values[keep], values])
        order = np.argsort(items)
        self._items, self._values = items[order], values[order]

    def remove_rating(self, item: int) -> None:
        """Forgets one rating; what was sent stays sent."""
        keep = self._items != item
        if keep.all():
            raise ParameterError("there is no rating of that item to remove.")
        self._items, self._values = self._items[keep], self._values[keep]

    # One round -------------------------------------------------------------------------------------------------

    def answer(self, announcement: ItemVectors, draws: Draws | None = None) -> Iterator[GradientReport | Finished]:
        """A whole round: every message that this client sends, in order."""
        self.receive(announcement)
        report = self.make_report(draws)
        if report is not None:
            yield report
        yield self.finish()

    def receive(self, announcement: ItemVectors) -> None:
        """Checks what the server announces against what was accepted, and takes it as this round's."""
        self._require(ItemVectors)
        self._check(announcement)
        self._announcement = announcement
        self._phase = Phase.READY

    def make_report(self, draws: Draws | None = None) -> GradientReport | None:
        """Steps 2 to 5 of docs/data-flow.md. None when no item was selected: then only "finished" is sent.

        Charges the ledger first, with everything that this round releases.
        """
        self._require(GradientReport)
        self._check_takes_part()
        assert self._announcement is not None
        table, terms, round_number = self._announcement.item_vectors, self._announcement.terms, self._round
        step_size = terms.step_size(round_number)
        permanent, events = self._permanent_choice()
        rows = self._model.item_rows(table)
        partners = self._draw_partners() if draws is None else draws.user_partners
        own_rows = rows[self._items] - rows[partners] if self._model.learns_from_pairs else rows[self._items]
        own_errors = self._model.errors(self._values, self._model.predict(self._user_vector, own_rows))
        if draws is None:
            draws = self._draw(permanent, own_errors, partners, step_size)
        errors = self._selected_errors(draws, own_errors, rows)
        gradients = step_size * self._model.item_gradients(
            errors,
            self._user_vector,
            table[draws.selected],
            terms.item_regularization,
            data_weight=terms.data_weight,
        )
        user_step = step_size * self._model.user_gradient(
            own_errors, self._user_vector, own_rows, terms.user_regularization, data_weight=terms.data_weight
        )
        sent_values = np.outer(errors, self._model.direction(self._user_vector))
        rho = gradient_rho(step_size * terms.data_weight * sent_values, step_size)
        if not rho < math.inf:
            raise RemoteProtocolError("the announced step makes gradients beyond all bounds. Do not answer it.")
        sent = GradientsSent(len(errors), rho)
        selection = self._protocol.selection
        events += [] if selection is None else [SelectionSent(selection.epsilon_i)]
        self.ledger.charge([*events, sent])  # refuses before anything changes

        if permanent is not self._permanent:
            self._permanent, self._permanent_epoch = permanent, terms.epoch(round_number)
        self._terms = terms
        self._last_round = round_number
        self._last_draws = draws
        self._pending_user_vector = self._user_vector + user_step + draws.user_noise
        self._phase = Phase.REPORTED
        if len(draws.selected) == 0:
            return None
        return GradientReport(round_number, draws.selected, gradients + draws.gradient_noise)

    def finish(self) -> Finished:
        """Step 8 of docs/data-flow.md: updates the user vector, with the item vectors of the round's start."""
        self._require(Finished)
        assert self._pending_user_vector is not None
        self._user_vector, self._pending_user_vector = self._pending_user_vector, None
        self._announcement = None
        self._phase = Phase.IDLE
        return Finished(self._last_round)

    def predict(self, item_vectors: FloatArray, user_vector: FloatArray | None = None) -> FloatArray:
        """Return predictions for all items, on the scale 1 to 5 but not bound to it. Must never leave the device.

        They are those of the user vector that the rounds trained, unless another one is given.
        """
        vector = self._user_vector if user_vector is None else user_vector
        return self._model.predict(vector, self._model.item_rows(item_vectors))

    def recommend(self, item_vectors: FloatArray, count: int, user_vector: FloatArray | None = None) -> IntArray:
        """Return the unrated items with the highest predictions, best first. Computed here; nothing is sent."""
        if count < 1 or len(item_vectors) < self._terms.n_items:
            raise ParameterError(
                f"recommend needs a count of at least 1 and vectors of all {self._terms.n_items} items,"
                f" got {count} and {len(item_vectors)}."
            )
        scores = self.predict(item_vectors, user_vector)
        scores[self._items] = -np.inf
        count = min(count, len(scores) - len(self._items))
        if count == 0:
            return np.empty(0, dtype=np.int64)
        near = np.flatnonzero(scores >= np.partition(scores, -count)[-count])  # all of them, and ties with the last
        return near[np.argsort(-scores[near], kind="stable")][:count].astype(np.int64)

    # Keeping state ---------------------------------------------------------------------------------------------

    def private_state(self) -> PrivateState:
        """What a device must store between rounds besides ratings and ledger. Must never leave the device."""
        if self._phase is not Phase.IDLE:
            raise LocalProtocolError("the state of a client can be taken between rounds only.")
        permanent = self._permanent
        return {
            "user_vector": self._user_vector,
            "permanent_bits": np.empty(0, dtype=np.bool_) if permanent is None else permanent.bits,
            "probabilities": np.empty(0)
            if permanent is None
            else np.array(dataclasses.astuple(permanent.probabilities)),
            "permanent_epoch": np.array(self._permanent_epoch),
            "last_round": np.array(self._last_round),
            "n_items": np.array(self._terms.n_items),
        }

    def restore_private_state(self, state: PrivateState) -> None:
        """Continues where `private_state` left off; the ledger and the ratings are given apart."""
        self._user_vector = np.asarray(state["user_vector"], dtype=np.float64)
        if len(state["permanent_bits"]):
            probabilities = SelectionProbabilities(*(float(value) for value in state["probabilities"].tolist()))
            self._permanent = PermanentChoice(state["permanent_bits"].astype(np.bool_), probabilities)
        self._permanent_epoch = int(state["permanent_epoch"])
        self._last_round = int(state["last_round"])
        self._terms = self._terms.with_items(max(int(state["n_items"]), self._terms.n_items))

    # Inside ----------------------------------------------------------------------------------------------------

    @property
    def _round(self) -> int:
        assert self._announcement is not None
        return self._announcement.round_number

    def _require(self, message: type) -> None:
        if message not in NEXT_PHASE[self._phase]:
            raise LocalProtocolError(f"a client that is {self._phase.value} cannot handle {message.__name__} now.")

    def _check_takes_part(self) -> None:
        if not self.takes_part:
            raise LocalProtocolError("a client without ratings, or without unrated items to hide among, stays out.")

    def _check(self, announcement: ItemVectors) -> None:
        self._check_takes_part()
        if not announcement.terms.agrees_with(self._terms):
            raise RemoteProtocolError("the announcement breaks the terms that this device accepted. Do not answer it.")
        if announcement.round_number <= self._last_round:
            raise RemoteProtocolError(
                f"rounds must rise: round {announcement.round_number} was announced after round {self._last_round}."
            )
        vectors = announcement.item_vectors
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))
        if vectors.shape[1] != self._model.item_width or norms.max() > LARGEST_ITEM_NORM:
            raise RemoteProtocolError(
                f"item vectors must have {self._model.item_width} numbers each and norms up to {LARGEST_ITEM_NORM:g}."
            )
        if not plausible_norms(norms[: announcement.terms.n_items]):
            raise RemoteProtocolError(
                f"item vectors must have norms of at least {SMALLEST_ITEM_NORM:g}, but for {SMALL_SHARE:.0%} of them:"
                " near zero, errors are ratings."
            )

    def _permanent_choice(self) -> tuple[PermanentChoice | None, list[Event]]:
        """The permanent bits of this round's epoch: those that stand, or a new draw and what it costs."""
        assert self._announcement is not None
        terms = self._announcement.terms
        rng = self._randomness.stream(Purpose.PERMANENT_BITS, self._round)
        if self._permanent is not None and terms.epoch(self._round) == self._permanent_epoch:
            if len(self._permanent.bits) < terms.n_items:
                return self._permanent.extended(terms.n_items, rng=rng), []
            return self._permanent, []
        selection = self._protocol.selection
        return (None, []) if selection is None else selection.draw_permanent(self._items, terms, rng=rng)

    def _stream(self, purpose: Purpose) -> RandomStream:
        return self._randomness.stream(purpose, self._round)

    def _draw_partners(self) -> IntArray:
        """For each rated item an unrated one, uniform and new each round, where the model learns from pairs."""
        if not self._model.learns_from_pairs:
            return NOBODY
        return self._unrated(self._stream(Purpose.USER_PAIRS).random(len(self._items)))

    def _draw(
        self, permanent: PermanentChoice | None, own_errors: FloatArray, partners: IntArray, step_size: float
    ) -> Draws:
        """All other random choices of this round, each from its own stream."""
        selected = self._items
        if permanent is not None:
            selected = permanent.select_items(rng=self._stream(Purpose.SELECTION))
        fakes, selected_partners = np.empty(0), NOBODY
        if not self._model.learns_from_pairs:
            n_fakes = int(np.count_nonzero(~self._find(selected)[0]))
            fakes = self._protocol.fake_errors(n_fakes, own_errors, rng=self._stream(Purpose.FAKE_ERRORS))
        elif permanent is not None:
            selected_partners = self._pair_selected(selected)
        else:
            selected, selected_partners = self._both_ends(partners)
        shape = (len(selected), self._model.item_width)
        noise = langevin_noise(shape, step_size, rng=self._stream(Purpose.GRADIENT_NOISE))
        # Departs from Algorithm 1 in form only: the mean of h noises N(0, η) is one N(0, η / h).
        user_noise = langevin_noise(
            (self._model.user_width,), step_size / len(self._items), rng=self._stream(Purpose.USER_NOISE)
        )
        return Draws(selected, fakes, noise, user_noise, partners, selected_partners)

    def _selected_errors(self, draws: Draws, own_errors: FloatArray, rows: FloatArray) -> FloatArray:
        """The real error of each selected item that is rated, a fake one for each that is not; or that of its pair."""
        is_rated, position = self._find(draws.selected)
        if isinstance(self._model, PairwiseRanking):
            return self._model.selected_errors(
                is_rated, self._user_vector, rows[draws.selected], rows[draws.selected_partners]
            )
        errors = np.empty(len(draws.selected))
        errors[is_rated] = own_errors[position[is_rated]]
        errors[~is_rated] = draws.fake_errors
        return errors

    def _find(self, items: IntArray) -> tuple[npt.NDArray[np.bool_], IntArray]:
        """Which of these items are rated, and where among the rated ones."""
        position = np.searchsorted(self._items, items)
        position[position == len(self._items)] = 0
        return self._items[position] == items, position

    def _unrated(self, uniform: FloatArray) -> IntArray:
        """An unrated item for each number in [0, 1): the k-th of the m − h, k = ⌊(m − h) · number⌋.

        `items[i] − i` unrated items lie below rated item i, so that the k-th has k plus as many rated ones below it
        as there are i with items[i] − i ≤ k.
        """
        assert self._announcement is not None
        rank = np.floor(uniform * (self._announcement.terms.n_items - len(self._items))).astype(np.int64)
        return rank + np.searchsorted(self._items - np.arange(len(self._items)), rank, side="right")

    def _pair_selected(self, selected: IntArray) -> IntArray:
        """A random unrated partner for each selected item that is rated, a random rated one for each that is not."""
        uniform = self._stream(Purpose.SELECTED_PAIRS).random(len(selected))
        rated = self._items[np.floor(uniform * len(self._items)).astype(np.int64)]
        return np.where(self._find(selected)[0], self._unrated(uniform), rated)

    def _both_ends(self, partners: IntArray) -> tuple[IntArray, IntArray]:
        """Every item of this round's own pairs, and the other end of its pair; one met twice keeps its first pair."""
        drawn, first = np.unique(partners, return_index=True)
        items = np.concatenate([self._items, drawn])
        others = np.concatenate([partners, self._items[first]])
        order = np.argsort(items)
        return items[order], others[order]
