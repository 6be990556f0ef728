"""The device side of the gradient protocols: computes one report of item gradients per round.

This is Algorithm 1 of [SDCF]. Only the report leaves the device; the user vector, the permanent bits and the random
draws stay there.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.calibrate import SelectionProbabilities
from hushrec.budget.events import Event, GradientsSent, RatingsPerturbed, SelectionSent, gradient_rho
from hushrec.errors import LocalProtocolError, RemoteProtocolError
from hushrec.mechanisms.langevin import langevin_noise
from hushrec.messages import Address
from hushrec.models.bpr import PairwiseRanking
from hushrec.models.mf import MatrixFactorization
from hushrec.models.predictor import Arrays, likeness_between
from hushrec.protocols.gradient.fit import fit_user_vector
from hushrec.protocols.gradient.messages import GradientReport, ItemVectors, Terms
from hushrec.protocols.gradient.plausible import check_item_vectors
from hushrec.protocols.gradient.selection import PermanentChoice
from hushrec.protocols.parties import DeviceSide, Private, Report, State
from hushrec.randomness import Purpose, Randomness, RandomStream

if TYPE_CHECKING:
    from hushrec.protocols.gradient.protocols import GradientProtocol

NO_PARTNERS: IntArray = np.empty(0, dtype=np.int64)
NO_PARTNERS.flags.writeable = False
MOST_LOST_DRAWS = 100_000  # the most draws of permanent bits by a copy of its store that a device charges to itself


@dataclass(frozen=True, eq=False)
class Draws:
    """The random draws of one device in one round. They never leave the device.

    Model `bpr` learns from pairs of a rated and an unrated item. The partner of an item is the other item of its pair.
    Other models have no partners.
    """

    selected: IntArray = field(repr=False)  # (n_selected,), ascending
    fake_errors: FloatArray = field(repr=False)  # one per unrated selected item, in the order of `selected`
    gradient_noise: FloatArray = field(repr=False)  # (n_selected, item_width)
    user_noise: FloatArray = field(repr=False)  # (user_width,)
    user_partners: IntArray = field(default_factory=lambda: NO_PARTNERS, repr=False)  # (n_rated,) of the rated items
    selected_partners: IntArray = field(default_factory=lambda: NO_PARTNERS, repr=False)  # (n_selected,) of `selected`


def _noise_state(state: State, n_items: int) -> State:
    """Return a copy of the arrays about noise in the private state of an `isgld` device, extended to `n_items` items.

    `noisy_ratings` has the ratings to which noise was added, and `noisy_values` the results. Both have one entry per
    item, NaN for items without noise. `noise_draws` is the number of times that noise was drawn.
    """
    found: State = {"noise_draws": state.get("noise_draws", np.array(0))}
    for name in ("noisy_ratings", "noisy_values"):
        found[name] = np.full(n_items, np.nan)
        found[name][: len(state.get(name, ()))] = state.get(name, ())
    return found


class GradientDevice(DeviceSide):
    """The computations of a device in a gradient protocol, under the terms that it accepted."""

    most_shown = 50  # the number of reports that the attack on the person's page uses

    def __init__(self, protocol: "GradientProtocol", terms: Terms, model: MatrixFactorization) -> None:
        selects = protocol.selection is not None
        if selects != (terms.reports_per_client is not None):
            raise RemoteProtocolError(
                f"terms of protocol {protocol.name} must {'' if selects else 'not '}contain reports_per_client."
                " The device does not join."
            )
        if (model.name, model.n_factors, model.n_side_rows) != (terms.model, terms.n_factors, terms.n_side_rows):
            raise RemoteProtocolError(
                f"terms must be for model {model.name} with n_factors {model.n_factors} and n_side_rows"
                f" {model.n_side_rows}, got {terms.model}, {terms.n_factors} and {terms.n_side_rows}."
                " The device does not join."
            )
        if (len(terms.user_regularization), len(terms.item_regularization)) != (model.user_width, model.item_width):
            raise RemoteProtocolError(
                f"user_regularization and item_regularization must have {model.user_width} and {model.item_width}"
                f" numbers, got {len(terms.user_regularization)} and {len(terms.item_regularization)}."
                " The device does not join."
            )
        self._protocol, self._terms, self._model = protocol, terms, model

    def new_state(self, randomness: Randomness) -> State:
        return {
            "user_vector": self._model.initial_vectors(1, rng=randomness.stream(Purpose.USER_VECTOR))[0],
            **permanent_state(None, -1),
            "n_items": np.array(self._terms.n_items),
            **({} if self._protocol.rating_epsilon is None else _noise_state({}, self._terms.n_items)),
        }

    def n_items(self, state: State) -> int:
        """Return the largest number of items that the server has announced so far; the catalogue never shrinks."""
        return max(int(state["n_items"]), self._terms.n_items)

    def check_takes_part(self, private: Private) -> None:
        """Raise `LocalProtocolError` if the person has rated no item or, where unrated items are needed, every item.

        Without ratings, all fake errors would be equal, which would reveal that there are no ratings. Unrated items are
        needed by `sdcf` without a profile cap, which hides the rated items among them, and by model `bpr` for its
        pairs.
        """
        n_rated = np.array(len(private.items))
        if not self._protocol.can_take_part(n_rated, self.n_items(private.state), self._model):
            raise LocalProtocolError(
                "this device cannot report: it has rated none of the server's items, or it has no unrated items left."
                " Rate an item, or remove a rating."
            )

    def stored_values(
        self, items: IntArray, values: FloatArray, private: Private
    ) -> tuple[FloatArray, State, list[Event]]:
        """Return the values to train on for new ratings, the new state, and the events to charge.

        `isgld` adds Laplace noise here. The state stores each rating with its noisy value, so that noise is drawn only
        once for a rating, even if the rating is removed and added again. Noise for another rating of the same item
        costs ε again.
        """
        state, epsilon = private.state, self._protocol.rating_epsilon
        if epsilon is None:
            return values, state, []
        noise = _noise_state(state, self.n_items(state))
        ratings, noisy, draws = noise["noisy_ratings"], noise["noisy_values"], int(noise["noise_draws"])
        is_new = ratings[items] != values
        if not is_new.any():
            return noisy[items], state, []
        costs = draws == 0 or not np.isnan(ratings[items[is_new]]).all()
        rng = private.randomness.stream(Purpose.RATING_NOISE, draws)
        noisy[items[is_new]] = self._protocol.training_values(values[is_new], rng=rng)
        ratings[items[is_new]] = values[is_new]
        noise["noise_draws"] = np.array(draws + 1)
        return noisy[items], {**state, **noise}, [RatingsPerturbed(epsilon)] if costs else []

    def report(self, private: Private, address: Address, message: Any) -> Report:
        """Return the gradient report and the new user vector: steps S2 to S5 and S8 of docs/data-flow.md.

        `message` has the item vectors of the round.
        """
        self._check(private, address, message)
        return _DeviceRound(self._protocol, self._model, private, message).report()

    def published(self, message: Any) -> Arrays | None:
        return {"item_vectors": message.item_vectors} if isinstance(message, ItemVectors) else None

    def check_public(self, public: Arrays) -> None:
        vectors = public.get("item_vectors")
        if vectors is None or vectors.ndim != 2 or len(vectors) < self._terms.n_items + self._terms.n_side_rows:
            raise RemoteProtocolError(
                f"the public table must have item_vectors with one row for each of {self._terms.n_items} items and"
                f" {self._terms.n_side_rows} further rows. The device refuses the table."
            )
        self._check_vectors(vectors)

    def popularity(self, public: Arrays) -> FloatArray:
        """Return the popularity of each item, `(n_items,)`: v v̄ᵀ for its vector v and the mean item vector v̄."""
        vectors = np.asarray(public["item_vectors"][: self._terms.n_items], dtype=np.float64)
        return np.asarray(vectors @ vectors.mean(axis=0))

    def likeness(self, private: Private, public: Arrays, items: IntArray, others: IntArray) -> FloatArray:
        table = np.asarray(public["item_vectors"], dtype=np.float64)
        vectors, found = table[: len(table) - self._terms.n_side_rows], np.zeros((len(items), len(others)))
        known = others < len(vectors)  # items that joined after this table have no vector yet
        found[:, known] = likeness_between(vectors, items, others[known])
        return found

    def spent(self, state: State) -> dict[str, float]:
        """Return the cost of the permanent bits in use, under the unit `selection`; empty if none were drawn."""
        return {} if permanent_from(state) is None else self._protocol.joining_costs(self._terms)

    def begin_again(self, private: Private, reported: int) -> tuple[State, list[Event]]:
        """Return the new state of a device that joins the run again with a new key, and the events to charge first.

        The new state has no permanent bits, so that the next round draws new ones. `reported` is the last round in
        which another copy of this device's store may have reported; 0 if there is no such copy. The copy may have drawn
        permanent bits in each permanent epoch after the one in this device's state, up to the epoch of `reported`. The
        events charge these draws. Raise `RemoteProtocolError` if there are more than `MOST_LOST_DRAWS`. The new state
        has the number of the last epoch that is charged, so that a second call charges no draw again.
        """
        selection = self._protocol.selection
        if selection is None:
            return private.state, []
        if not reported:
            return {**private.state, **permanent_state(None, -1)}, []
        charged, last = int(private.state["permanent_epoch"]), self._terms.epoch(reported)
        lost = last - charged
        if lost > MOST_LOST_DRAWS:
            raise RemoteProtocolError(
                f"the server must not claim that this device has reported in more than {MOST_LOST_DRAWS:,} permanent"
                f" epochs of which its store has no record, got {lost:,}. The device does not join the run again."
            )
        draw = selection.permanent_draw(len(private.items))
        state = {**private.state, **permanent_state(None, -1), "permanent_epoch": np.array(max(charged, last))}
        return state, [draw] * max(0, lost)

    def predict(self, private: Private, public: Arrays) -> FloatArray:
        """Return the predicted rating or score of every item, `(n_items,)`.

        Model `mf` predicts with a user vector fitted to the person's ratings, other models with the trained one.
        """
        if self._model.name != "mf":
            return self.trained_predictions(public, private.state)
        table = public["item_vectors"]
        known = private.items < len(table)
        return self._model.predict(fit_user_vector(private.values[known], table[private.items[known]], table), table)

    def trained_predictions(self, public: Arrays, state: State) -> FloatArray:
        """Return the predictions with the user vector that the rounds trained, `(n_items,)`."""
        vector = np.asarray(state["user_vector"], dtype=np.float64)
        return self._model.predict(vector, self._model.item_rows(public["item_vectors"]))

    def _check(self, private: Private, address: Address, announcement: Any) -> None:
        """Raise `RemoteProtocolError` if the announcement breaks the accepted terms or has implausible item vectors."""
        if not isinstance(announcement, ItemVectors) or announcement.round_number != address.round_number:
            raise RemoteProtocolError(
                f"the announcement of round {address.round_number} must have the item vectors of this round, but does"
                " not. The device sends no report."
            )
        n_items = self.n_items(private.state)
        accepted = self._terms if n_items == self._terms.n_items else replace(self._terms, n_items=n_items)
        if not announcement.terms.agrees_with(accepted):
            raise RemoteProtocolError(
                "the terms of an announcement must be those that this device accepted, but they differ. The device"
                " sends no report."
            )
        if address.attempt != 1:
            raise RemoteProtocolError(
                f"attempt must be 1 in protocol {self._protocol.name}, got {address.attempt}. The device sends no"
                " report."
            )
        self._check_vectors(announcement.item_vectors)

    def _check_vectors(self, vectors: FloatArray) -> None:
        if vectors.shape[1] != self._model.item_width:
            raise RemoteProtocolError(
                f"item_vectors must have {self._model.item_width} numbers each, got {vectors.shape[1]}. The device"
                " sends no report."
            )
        check_item_vectors(vectors, len(vectors) - self._terms.n_side_rows)


class _DeviceRound:
    """The computation of one device's report in one round, from its private data and the announcement."""

    def __init__(
        self, protocol: "GradientProtocol", model: MatrixFactorization, private: Private, announcement: ItemVectors
    ) -> None:
        self._protocol, self._model = protocol, model
        self._private, self._items = private, private.items
        self._user_vector = np.asarray(private.state["user_vector"], dtype=np.float64)
        self._table, self._terms = announcement.item_vectors, announcement.terms
        self._max_norm = announcement.max_report_norm
        self._round = announcement.round_number
        self._step_size = self._terms.step_size(self._round)

    def report(self) -> Report:
        model, terms, step_size = self._model, self._terms, self._step_size
        permanent, events = self._permanent_choice()
        rows = model.item_rows(self._table)
        partners, own_rows = NO_PARTNERS, rows[self._items]
        if model.learns_from_pairs:
            partners = self._unrated(self._stream(Purpose.USER_PAIRS).random(len(self._items)))
            own_rows = own_rows - rows[partners]
        own_errors = model.errors(self._private.values, model.predict(self._user_vector, own_rows))
        draws = self._draw(permanent, own_errors, partners)
        errors = self._selected_errors(draws, own_errors, rows)
        gradients = step_size * model.item_gradients(
            errors,
            self._user_vector,
            self._table[draws.selected],
            terms.item_regularization,
            data_weight=terms.data_weight,
        )
        user_step = step_size * model.user_gradient(
            own_errors, self._user_vector, own_rows, terms.user_regularization, data_weight=terms.data_weight
        )
        priced = self._values_sent(errors)
        gradients = scaled_down(gradients + draws.gradient_noise, self._max_norm)
        report = GradientReport(self._round, draws.selected, gradients)
        state = {
            **self._private.state,
            "user_vector": self._user_vector + user_step + draws.user_noise,
            **permanent_state(permanent, terms.epoch(self._round)),
            "n_items": np.array(terms.n_items),
        }
        shown = {"item_vectors": self._table[draws.selected].astype("<f4"), "user_vector": self._user_vector}
        return Report(report, state, (*events, priced), shown if len(draws.selected) else None)

    def _values_sent(self, errors: FloatArray) -> Event:
        sent_values = np.outer(errors, self._model.direction(self._user_vector))
        rho = gradient_rho(self._step_size * self._terms.data_weight * sent_values, self._step_size)
        if not rho < math.inf:
            raise RemoteProtocolError(
                f"gradients of round {self._round} must be finite, but they overflow with step {self._terms.step:g} and"
                f" data_weight {self._terms.data_weight:g} of the terms. The device sends no report."
            )
        return GradientsSent(len(errors), rho)

    def _permanent_choice(self) -> tuple[PermanentChoice | None, Sequence[Event]]:
        """Return the permanent bits of this permanent epoch, stored or newly drawn, and the events to charge."""
        selection, terms = self._protocol.selection, self._terms
        if selection is None:
            return None, ()
        sent = SelectionSent(selection.epsilon_i)
        rng = self._stream(Purpose.PERMANENT_BITS)
        standing = permanent_from(self._private.state)
        if standing is not None and terms.epoch(self._round) == int(self._private.state["permanent_epoch"]):
            return standing.extended(terms.n_items, rng=rng), [sent]
        drawn, event = selection.draw_permanent(self._items, terms, rng=rng)
        return drawn, [event, sent]

    def _stream(self, purpose: Purpose) -> RandomStream:
        return self._private.randomness.stream(purpose, self._round)

    def _draw(self, permanent: PermanentChoice | None, own_errors: FloatArray, partners: IntArray) -> Draws:
        """Draw the selected items, fake errors, partners and noise of this round, each from its own random stream.

        `own_errors` are the errors of the rated items, from which fake errors are calibrated. `partners` are the
        partners of the rated items, or empty for a model without pairs.
        """
        selected = self._items
        if permanent is not None:
            rng = self._stream(Purpose.SELECTION)
            selected = permanent.select_items(rng=rng)
            if len(selected) > self._terms.most_items:  # a random subset reveals no more than the whole
                selected = np.sort(selected[np.argsort(rng.random(len(selected)))[: self._terms.most_items]])
        fakes, selected_partners = np.empty(0), NO_PARTNERS
        if not self._model.learns_from_pairs:
            n_fakes = int(np.count_nonzero(~self._find(selected)[0]))
            fakes = self._protocol.fake_errors(n_fakes, own_errors, rng=self._stream(Purpose.FAKE_ERRORS))
        elif permanent is not None:
            selected_partners = self._pair_selected(selected)
        else:
            selected, selected_partners = self._both_ends(partners)
        shape = (len(selected), self._model.item_width)
        noise = langevin_noise(shape, self._step_size, rng=self._stream(Purpose.GRADIENT_NOISE))
        # Departs from Algorithm 1 in form only: the mean of h noises N(0, η) is one N(0, η / h).
        user_noise = langevin_noise(
            (self._model.user_width,), self._step_size / len(self._items), rng=self._stream(Purpose.USER_NOISE)
        )
        return Draws(selected, fakes, noise, user_noise, partners, selected_partners)

    def _selected_errors(self, draws: Draws, own_errors: FloatArray, rows: FloatArray) -> FloatArray:
        """Return the error of each selected item: its own error if the item is rated, else a fake one.

        Model `bpr` has no fake errors; it computes each error from the pair of the selected item and its partner.
        `own_errors` are the errors of the rated items. `rows` has the public numbers of each item from which the model
        predicts (`item_rows`).
        """
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
        """Return whether each item is rated, and its index among the rated items (meaningless for unrated items)."""
        position = np.searchsorted(self._items, items)
        position[position == len(self._items)] = 0
        return self._items[position] == items, position

    def _unrated(self, uniform: FloatArray) -> IntArray:
        """Map uniform numbers in [0, 1) to unrated items, each equally likely.

        With h of m items rated, a number x gives the unrated item of rank k = ⌊(m − h) x⌋, counted from 0. Let items be
        the rated items, ascending. Before items[i] come items[i] − i unrated items, so the result is k plus the number
        of indices i with items[i] − i ≤ k.
        """
        rank = np.floor(uniform * (self._terms.n_items - len(self._items))).astype(np.int64)
        return rank + np.searchsorted(self._items - np.arange(len(self._items)), rank, side="right")

    def _pair_selected(self, selected: IntArray) -> IntArray:
        """Draw a partner for each selected item: an unrated item if the selected one is rated, else a rated item."""
        uniform = self._stream(Purpose.SELECTED_PAIRS).random(len(selected))
        rated = self._items[np.floor(uniform * len(self._items)).astype(np.int64)]
        return np.where(self._find(selected)[0], self._unrated(uniform), rated)

    def _both_ends(self, partners: IntArray) -> tuple[IntArray, IntArray]:
        """Return the items of all pairs of this round, in ascending order, and the partner of each item.

        `partners` has the unrated item of each rated item's pair. An unrated item in several pairs appears once, with
        the first of its rated partners.
        """
        drawn, first = np.unique(partners, return_index=True)
        items = np.concatenate([self._items, drawn])
        others = np.concatenate([partners, self._items[first]])
        order = np.argsort(items)
        return items[order], others[order]


def scaled_down(gradients: FloatArray, max_norm: float | None) -> FloatArray:
    """Return the gradients of a report, all multiplied by one factor if their joint norm is above `max_norm`.

    The gradients already contain their noise, so that scaling is post-processing and costs no budget.
    """
    norm = float(np.linalg.norm(gradients))
    return gradients if max_norm is None or norm <= max_norm else gradients * (max_norm / norm)


def permanent_state(permanent: PermanentChoice | None, epoch: int) -> State:
    """Return the arrays that store the permanent bits, their probabilities and the number of their permanent epoch.

    Without permanent bits (None), the first two arrays are empty, and the number is −1.
    """
    if permanent is None:
        bits, probabilities, epoch = np.empty(0, dtype=np.bool_), np.empty(0), -1
    else:
        bits, probabilities = permanent.bits, np.array(astuple(permanent.probabilities))
    return {"permanent_bits": bits, "probabilities": probabilities, "permanent_epoch": np.array(epoch)}


def permanent_from(state: State) -> PermanentChoice | None:
    """Return the permanent bits that `permanent_state` stored in this state; None if there are none."""
    if not len(state["permanent_bits"]):
        return None
    probabilities = SelectionProbabilities(*(float(value) for value in state["probabilities"].tolist()))
    return PermanentChoice(state["permanent_bits"].astype(np.bool_), probabilities)
