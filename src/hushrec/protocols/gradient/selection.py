"""The selection of the items that a device reports: the two-stage randomized response of [SDCF] and its budgets."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.calibrate import SelectionProbabilities, calibrate_selection
from hushrec.budget.events import PermanentDraw
from hushrec.errors import require
from hushrec.mechanisms.randomized_response import instantaneous_items, permanent_bits
from hushrec.protocols.gradient.messages import Terms
from hushrec.randomness import RandomStream


@dataclass(frozen=True, eq=False)
class PermanentChoice:
    """The permanent bits of a device and its selection probabilities, for one permanent epoch; both are private."""

    bits: npt.NDArray[np.bool_] = field(repr=False)  # (n_items,)
    probabilities: SelectionProbabilities[float] = field(repr=False)

    def select_items(self, *, rng: RandomStream) -> IntArray:
        """Draw the items to report in one round; return them in ascending order."""
        zero, one = self.probabilities.prob_send_zero, self.probabilities.prob_send_one
        return instantaneous_items(self.bits, zero, one, rng=rng)

    def extended(self, n_items: int, *, rng: RandomStream) -> "PermanentChoice":
        """Return these permanent bits, with random bits appended for items that have joined the catalogue.

        The appended bits are drawn as those of unrated items, even if the person has already rated a new item.
        """
        if len(self.bits) >= n_items:
            return self
        nothing: IntArray = np.empty(0, dtype=np.int64)
        more = permanent_bits(nothing, n_items - len(self.bits), self.probabilities.prob_randomize, rng=rng)
        return PermanentChoice(np.concatenate([self.bits, more]), self.probabilities)


@dataclass(frozen=True)
class Selection:
    """The privacy budgets of one device's item selections: `epsilon_i` per round, `epsilon_p` per permanent epoch.

    With a `profile_cap` the probabilities are calibrated for this public number of ratings instead of the person's own.
    """

    epsilon_i: float
    epsilon_p: float
    profile_cap: int | None = None

    def __post_init__(self) -> None:
        for name, epsilon in (("epsilon_i", self.epsilon_i), ("epsilon_p", self.epsilon_p)):
            require(0 < epsilon < math.inf, name, "positive and finite", epsilon, "Choose a value such as 4.")
        require(self.profile_cap is None or self.profile_cap >= 1, "profile_cap", "at least 1", self.profile_cap)

    def calibrated_for(self, n_rated: int) -> int:
        """Return the number of ratings for which the selection is calibrated: the profile cap, or else `n_rated`."""
        return n_rated if self.profile_cap is None else self.profile_cap

    def calibrate(self, n_rated: int, n_items: int, reports_per_client: float) -> SelectionProbabilities[float]:
        """Return the selection probabilities of a device that has rated `n_rated` of `n_items` items.

        Raise `ImpossibleBudget` if no probabilities exist for these budgets.
        """
        h = self.calibrated_for(n_rated)
        return calibrate_selection(h, n_items, reports_per_client, self.epsilon_i, self.epsilon_p)

    def permanent_draw(self, n_rated: int) -> PermanentDraw:
        """Return the event that charges a device with `n_rated` ratings for one draw of permanent bits."""
        return PermanentDraw(self.epsilon_p, self.calibrated_for(n_rated), capped=self.profile_cap is not None)

    def spent(self, terms: Terms, rounds: int) -> float:
        """Return the ε of the selections of `rounds` rounds.

        It is the sum of min(T ε_I, ε_P) over the permanent epochs, where T is the number of rounds of an epoch.
        """
        length = terms.epoch_rounds or max(rounds, 1)
        full, last = divmod(rounds, length)
        whole = min(length * self.epsilon_i, self.epsilon_p)
        return full * whole + min(last * self.epsilon_i, self.epsilon_p)

    def draw_permanent(
        self, rated: IntArray, terms: Terms, *, rng: RandomStream
    ) -> tuple[PermanentChoice, PermanentDraw]:
        """Draw new permanent bits; return them and the event to charge.

        If more items are rated than the profile cap allows, a random subset of them counts as rated.
        """
        assert terms.reports_per_client is not None
        event = self.permanent_draw(len(rated))
        probabilities = self.calibrate(len(rated), terms.n_items, terms.reports_per_client)
        if len(rated) > event.n_protected:
            order = np.argsort(rng.random(len(rated)))
            rated = np.sort(rated[order[: event.n_protected]])
        bits = permanent_bits(rated, terms.n_items, probabilities.prob_randomize, rng=rng)
        return PermanentChoice(bits, probabilities), event


def calibrate_devices(
    selections: Sequence[Selection], rated_counts: IntArray, n_items: int, reports_per_client: float
) -> SelectionProbabilities[FloatArray]:
    """Return the selection probabilities of all devices, as arrays of shape `(n_devices,)`.

    `selections` has one entry for each device, or a single entry for all. Raise `ParameterError` for a profile cap that
    is too large, and `ImpossibleBudget` if no probabilities exist for the budgets of a device.
    """
    for cap in {own.profile_cap for own in selections}:
        require(cap is None or cap < n_items, "profile_cap", f"below the number of items, {n_items}", cap)
    each = list(selections) * len(rated_counts) if len(selections) == 1 else selections
    return calibrate_selection(
        np.array([own.calibrated_for(int(count)) for own, count in zip(each, rated_counts, strict=True)]),
        n_items,
        reports_per_client,
        np.array([own.epsilon_i for own in selections]),
        np.array([own.epsilon_p for own in selections]),
    )
