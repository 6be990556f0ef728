"""The messages of the gradient protocols `plain`, `isgld` and `sdcf`.

The server sends `Terms` when a device joins, and `ItemVectors` in each round. A device sends a `GradientReport` in each
round.
"""

import math
from dataclasses import dataclass, field, fields
from typing import Annotated

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import ParameterError, RemoteProtocolError, require
from hushrec.messages import LARGEST_TABLE, Row, Table, check_whole, crosses, freeze

REPORT = "report"  # the only phase of a round
LARGEST_REGULARIZATION = 1e6


@crosses("gradient.terms", largest=200_000)
@dataclass(frozen=True, eq=False, kw_only=True)
class Terms:
    """The terms of a run of a gradient protocol, which every device accepts when it joins.

    A device refuses messages that break the terms. `data_weight`, N, multiplies the data term of every gradient, error
    times vector. In `plain` and `isgld`, N is the number of ratings of all people. A server on the network cannot count
    them: it assumes that each expected device has rated a twentieth of the items. In `sdcf`, N is the number of devices
    times `reports_per_client`. `n_side_rows` is the number of further rows in the array of item vectors, after the rows
    of the items: model `fm` has one for each attribute column and one for the global bias, other models have none.
    """

    model: str
    n_factors: int
    n_items: int
    n_side_rows: int = 0
    reports_per_client: float | None  # z, the mean number of items in a report; None in `plain` and `isgld`
    data_weight: float  # N
    step: float  # η₀ N
    decay: float  # γ of η_t = η₀ / t^γ
    max_rounds: int
    epoch_rounds: int | None  # number of rounds after which the permanent bits are drawn anew; None: never
    user_regularization: Annotated[FloatArray, Row] = field(repr=False)  # diagonal of Λ_u
    item_regularization: Annotated[FloatArray, Row] = field(repr=False)  # diagonal of Λ_v

    def __post_init__(self) -> None:
        check_whole(self, "n_items", "n_factors", "n_side_rows", "max_rounds", "epoch_rounds")
        require(1 <= self.n_items <= 10**8, "n_items", "from 1 to 100000000", self.n_items)
        require(1 <= self.n_factors <= 10**4, "n_factors", "from 1 to 10000", self.n_factors)
        require(0 <= self.n_side_rows <= 10**6, "n_side_rows", "from 0 to 1000000", self.n_side_rows)
        require(self.max_rounds >= 1, "max_rounds", "at least 1", self.max_rounds)
        require(self.epoch_rounds is None or self.epoch_rounds >= 1, "epoch_rounds", "at least 1", self.epoch_rounds)
        require(0 < self.step < math.inf, "step", "positive and finite", self.step)
        require(0 < self.data_weight < math.inf, "data_weight", "positive and finite", self.data_weight)
        require(0 <= self.decay <= 10, "decay", "from 0 to 10", self.decay)
        z, must = self.reports_per_client, f"above 0 and below the number of items, {self.n_items}"
        require(z is None or 0 < z < self.n_items, "reports_per_client", must, z)
        for name in ("user_regularization", "item_regularization"):
            freeze(self, name, np.floating)
            diagonal = getattr(self, name)
            if diagonal.ndim != 1 or not np.all((diagonal >= 0) & (diagonal <= LARGEST_REGULARIZATION)):
                raise ParameterError(
                    f"{name} must be a one-dimensional array of numbers from 0 to {LARGEST_REGULARIZATION:g}, but is"
                    " not."
                )

    def step_size(self, round_number: int) -> float:
        """Return the step size of round t, counted from 1: η₀ / t^γ with η₀ = step / N ([SDCF], section 2.3)."""
        return self.step / self.data_weight * math.pow(round_number, -self.decay)

    @property
    def most_items(self) -> int:
        """The largest number of items in a report: z + 6 √z + 12, rounded up, for z = `reports_per_client`.

        It is never above the number of items, and equal to that number if z is None. A selection includes each item
        independently and has at most z items on average. By Bernstein's inequality, it has more than z + 6 √z + 12
        items with probability below exp(−18).
        """
        z = self.reports_per_client
        return self.n_items if z is None else min(self.n_items, math.ceil(z + 6 * math.sqrt(z) + 12))

    def epoch(self, round_number: int) -> int:
        """Return the number of the permanent epoch that contains a round; epochs count from 0, rounds from 1."""
        return 0 if self.epoch_rounds is None else (round_number - 1) // self.epoch_rounds

    def agrees_with(self, accepted: "Terms") -> bool:
        """Return whether these terms equal the accepted ones, except that `n_items` may be larger."""
        others = [entry.name for entry in fields(self) if entry.name != "n_items"]
        same = all(np.array_equal(getattr(self, name), getattr(accepted, name)) for name in others)
        return same and self.n_items >= accepted.n_items


@crosses("gradient.item-vectors", largest=LARGEST_TABLE + 200_000)
@dataclass(frozen=True, eq=False)
class ItemVectors:
    """The server's announcement of a round: the terms, the round number and the current item vectors."""

    terms: Terms
    round_number: int
    item_vectors: Annotated[FloatArray, Table] = field(repr=False)  # (n_items + n_side_rows, item_width)
    max_report_norm: float | None = None  # a device scales a longer report down to this joint norm; None: no limit

    def __post_init__(self) -> None:
        check_whole(self, "round_number")
        if not 1 <= self.round_number <= self.terms.max_rounds:
            raise RemoteProtocolError(
                f"round_number must be from 1 to max_rounds = {self.terms.max_rounds}, got {self.round_number}."
            )
        freeze(self, "item_vectors", np.floating)
        n_rows = self.terms.n_items + self.terms.n_side_rows
        if self.item_vectors.ndim != 2 or len(self.item_vectors) != n_rows:
            raise RemoteProtocolError(
                f"item_vectors must be a two-dimensional array of {n_rows} rows, got shape {self.item_vectors.shape}."
            )
        if not np.all(np.isfinite(self.item_vectors)):
            raise RemoteProtocolError("item_vectors must be finite numbers, got NaN or infinity.")
        if self.max_report_norm is not None and not 0 < self.max_report_norm < math.inf:
            raise RemoteProtocolError(f"max_report_norm must be positive and finite, got {self.max_report_norm:g}.")


@crosses("gradient.report", largest=LARGEST_TABLE)
@dataclass(frozen=True, eq=False)
class GradientReport:
    """A device's report in one round: the items that it selected, possibly none, and a gradient for each of them."""

    round_number: int
    items: Annotated[IntArray, Row] = field(repr=False)  # (n_selected,), ascending
    gradients: Annotated[FloatArray, Table] = field(repr=False)  # (n_selected, item_width)

    def __post_init__(self) -> None:
        check_whole(self, "round_number")
        freeze(self, "items", np.integer)
        freeze(self, "gradients", np.floating)
        if self.items.ndim != 1 or self.gradients.ndim != 2 or len(self.items) != len(self.gradients):
            raise RemoteProtocolError(
                "gradients must be a two-dimensional array with one row for each entry of items,"
                f" got shapes {self.gradients.shape} and {self.items.shape}."
            )
        if np.any(np.diff(self.items) <= 0) or np.any(self.items[:1] < 0):
            raise RemoteProtocolError("items of a report must be ascending, distinct and not negative, but are not.")
        if not np.all(np.isfinite(self.gradients)):
            raise RemoteProtocolError("gradients must be finite numbers, got NaN or infinity.")
