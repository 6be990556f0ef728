"""The selection of the items that a device reports: the two-stage randomized response of [SDCF] and its budgets.

Letters: h = number of rated items, H = public cap on it, m = n_items, z = reports_per_client, T = rounds.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.calibrate import SelectionProbabilities, calibrate_selection
from hushrec.budget.events import Event, PermanentDraw
from hushrec.errors import ParameterError
from hushrec.mechanisms.randomized_response import instantaneous_items, permanent_bits
from hushrec.protocols.gradient.messages import Terms
from hushrec.randomness import RandomStream

EPSILON_P_FACTOR = 2  # the default is ε_P = 2 ε_I, the smallest value that works for every profile


@dataclass(frozen=True, eq=False)
class PermanentChoice:
    """The permanent bits B' of a device and its selection probabilities, for one permanent epoch. Private."""

    bits: npt.NDArray[np.bool_] = field(repr=False)  # (n_items,)
    probabilities: SelectionProbabilities[float] = field(repr=False)

    def select_items(self, *, rng: RandomStream) -> IntArray:
        """Draw the items to report in one round, in ascending order."""
        chances = self.probabilities
        return instantaneous_items(self.bits, chances.prob_send_zero, chances.prob_send_one, rng=rng)

    def extended(self, n_items: int, *, rng: RandomStream) -> "PermanentChoice":
        """Return the same permanent bits with new bits appended for items that joined the catalogue."""
        nothing: IntArray = np.empty(0, dtype=np.int64)
        more = permanent_bits(nothing, n_items - len(self.bits), self.probabilities.prob_randomize, rng=rng)
        return PermanentChoice(np.concatenate([self.bits, more]), self.probabilities)


@dataclass(frozen=True)
class Selection:
    """The budgets of one device's selections.

    With a `profile_cap` the probabilities are calibrated from this public number of ratings instead of the device's
    own, so that the selections do not depend on how many items a person rated.
    """

    epsilon_i: float
    epsilon_p: float
    profile_cap: int | None = None

    @classmethod
    def checked(cls, epsilon_i: float, epsilon_p: float | None, profile_cap: int | None = None) -> "Selection":
        """Return a `Selection` with `epsilon_p` 2 · `epsilon_i` if None; raise `ParameterError` for bad values."""
        made = cls(epsilon_i, EPSILON_P_FACTOR * epsilon_i if epsilon_p is None else epsilon_p, profile_cap)
        for name in ("epsilon_i", "epsilon_p"):
            if not 0 < getattr(made, name) < math.inf:
                raise ParameterError(f"{name} must be positive and finite, got {getattr(made, name)}.")
        if profile_cap is not None and profile_cap < 1:
            raise ParameterError(f"profile_cap must be at least 1, got {profile_cap}.")
        return made

    def n_protected(self, n_rated: int) -> int:
        """Return the number of ratings that f, p and q are calibrated from: the public cap, or else `n_rated`."""
        return n_rated if self.profile_cap is None else self.profile_cap

    def spent(self, terms: Terms, rounds: int) -> float:
        """Return the cost of the selections of `rounds` rounds: min(T ε_I, ε_P) per permanent epoch of T rounds."""
        length = terms.epoch_rounds or max(rounds, 1)
        full, last = divmod(rounds, length)
        whole = min(length * self.epsilon_i, self.epsilon_p)
        return full * whole + min(last * self.epsilon_i, self.epsilon_p)

    def draw_permanent(
        self, rated: IntArray, terms: Terms, *, rng: RandomStream
    ) -> tuple[PermanentChoice, list[Event]]:
        """Return newly drawn permanent bits B', and the budget event of drawing them.

        Theorems 1 and 2 give f, p and q. With a cap, only `profile_cap` of the rated items, chosen at random, are used.
        """
        assert terms.reports_per_client is not None
        n_protected = self.n_protected(len(rated))
        if len(rated) > n_protected:
            order = np.argsort(rng.random(len(rated)))
            rated = np.sort(rated[order[:n_protected]])
        probabilities = calibrate_selection(
            n_protected, terms.n_items, terms.reports_per_client, self.epsilon_i, self.epsilon_p
        )
        bits = permanent_bits(rated, terms.n_items, probabilities.prob_randomize, rng=rng)
        event = PermanentDraw(self.epsilon_p, n_protected, capped=self.profile_cap is not None)
        return PermanentChoice(bits, probabilities), [event]


def calibrate_devices(
    selections: Sequence[Selection], rated_counts: IntArray, n_items: int, reports_per_client: float
) -> SelectionProbabilities[FloatArray]:
    """Return f, p*, q*, p and q of every device, `(n_devices,)` each.

    `selections` has one entry for all devices, or one for each. Raises `ParameterError` if a budget is impossible for
    some device.
    """
    for cap in {own.profile_cap for own in selections}:
        if cap is not None and cap >= n_items:
            raise ParameterError(f"profile_cap must be below the number of items, {n_items}, got {cap}.")
    each = list(selections) * len(rated_counts) if len(selections) == 1 else selections
    return calibrate_selection(
        np.array([own.n_protected(int(count)) for own, count in zip(each, rated_counts, strict=True)]),
        n_items,
        reports_per_client,
        np.array([own.epsilon_i for own in selections]),
        np.array([own.epsilon_p for own in selections]),
    )
