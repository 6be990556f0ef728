"""What events cost. Each accountant has its own unit and keeps totals, not histories.

An accountant refuses what it cannot price. None of them knows a mechanism. A protocol that releases something of its
own declares an accountant for it in the same way (`@prices`).
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self, TypeVar

from hushrec.budget.events import (
    Event,
    GradientsSent,
    PermanentDraw,
    RatingsPerturbed,
    SelectionSent,
    TablesElsewhere,
    TableSent,
)
from hushrec.budget.gaussian import block_mu_squared, block_rho, epsilon_at_distance, epsilon_of_mu, zcdp_epsilon
from hushrec.errors import ParameterError, UnknownEvent


class Accountant(ABC):
    """Totals in one unit: a dataclass whose fields are numbers that only grow."""

    unit: ClassVar[str]
    measure: ClassVar[str] = "epsilon"  # what its limit is a number of
    needs_limit: ClassVar[bool] = True  # whether nothing may be released before the person has set one
    is_secret: ClassVar[bool] = False  # whether the totals depend on the ratings, so that no sentence may name them

    @abstractmethod
    def compose(self, event: Any) -> None:
        """Add one event; refuse one of another unit."""

    @abstractmethod
    def charged(self) -> float:
        """Return the total that the limit applies to."""

    def spent(self) -> float:
        """Return what was really released so far; it can be less than what is charged."""
        return self.charged()

    def copy(self) -> Self:
        """Return an accountant with the same totals."""
        return replace(self)  # type: ignore[type-var]

    def is_sound(self) -> bool:
        """Return whether every total is of its own type, finite and not negative, and all can belong to one history."""
        totals = [(getattr(self, total.name), total.type) for total in fields(self)]  # type: ignore[arg-type]
        return all(type(number) is kind and 0 <= number < math.inf for number, kind in totals)


ACCOUNTANTS: dict[str, type[Accountant]] = {}  # by unit

Kind = TypeVar("Kind", bound=type[Accountant])


def prices(accountant: Kind) -> Kind:
    """Declare the accountant of a unit."""
    ACCOUNTANTS[accountant.unit] = accountant
    return accountant


@prices
@dataclass(slots=True, repr=False)
class SelectionAccountant(Accountant):
    """Prices which items were selected, over all rounds.

    Unit (profile level): two profiles of the same number h of ratings, calibrated alike; with a public cap H, any
    two profiles of up to H ratings. Every S is drawn from B' alone, so the selections of one permanent epoch
    cost at most min(Σ epsilon_i, epsilon_p); epochs add up (docs/proofs.md).

    When 2h exceeds the number of items m, two profiles differ in 2(m − h) bits only: the bound still holds, and is
    not tight.
    """

    unit: ClassVar[str] = "selection"

    permanent_draws: int = 0
    rounds: int = 0
    capped_draws: int = 0
    closed_committed: float = 0.0  # Σ epsilon_p of earlier epochs
    closed_spent: float = 0.0
    closed_item_level: float = 0.0
    epoch_epsilon: float = 0.0  # epsilon_p of the current epoch
    epoch_sent: float = 0.0  # Σ epsilon_i of the current epoch
    epoch_protected: int = 1

    def compose(self, event: Event) -> None:
        if type(event) is SelectionSent:
            if not self.permanent_draws:
                raise UnknownEvent("a SelectionSent needs an earlier PermanentDraw: it is drawn from those bits.")
            self.rounds += 1
            self.epoch_sent += event.epsilon
        elif type(event) is PermanentDraw:
            self._close_epoch()
            self.permanent_draws += 1
            self.capped_draws += event.capped
            self.epoch_epsilon, self.epoch_protected = event.epsilon, event.n_protected
        else:
            raise _cannot_price(self, event)

    def _close_epoch(self) -> None:
        self.closed_spent, self.closed_item_level = self.spent(), self.item_level()
        self.closed_committed = self.committed()
        self.epoch_sent = 0.0

    def charged(self) -> float:
        """A permanent draw is charged whole when it is made: the selections of its epoch can then never exceed it."""
        return self.committed()

    def is_sound(self) -> bool:
        return (
            Accountant.is_sound(self)
            and self.capped_draws <= self.permanent_draws
            and self.epoch_protected >= 1
            and self.closed_spent <= self.closed_committed
            and (self.permanent_draws > 0) == (self.epoch_epsilon > 0)
            and (self.permanent_draws > 0 or self.rounds == 0)
        )

    def committed(self) -> float:
        """Return what all selections can ever cost with the bits drawn so far: Σ epsilon_p."""
        return self.closed_committed + self.epoch_epsilon

    def spent(self) -> float:
        """Return what the selections sent so far cost: Σ over epochs of min(Σ epsilon_i, epsilon_p)."""
        return self.closed_spent + min(self.epoch_sent, self.epoch_epsilon)

    def item_level(self) -> float:
        """Return the same for one rating replaced by another: each epoch divided by its h, or H."""
        return self.closed_item_level + min(self.epoch_sent, self.epoch_epsilon) / self.epoch_protected


@prices
@dataclass(slots=True, repr=False)
class ValueAccountant(Accountant):
    """Prices the gradient values really sent, against zero gradients: realized zero-concentrated loss, Σ rho."""

    unit: ClassVar[str] = "value"
    measure: ClassVar[str] = "rho"
    needs_limit: ClassVar[bool] = False
    is_secret: ClassVar[bool] = True

    gradients: int = 0
    rho: float = 0.0

    def compose(self, event: Event) -> None:
        if type(event) is not GradientsSent:
            raise _cannot_price(self, event)
        self.gradients += event.n_gradients
        self.rho += event.rho

    def charged(self) -> float:
        return self.rho

    def epsilon(self, delta: float) -> float:
        """Return the epsilon of this loss at `delta`, on the Gaussian's own curve."""
        return gaussian_epsilon(self.rho, delta)


@prices
@dataclass(slots=True, repr=False)
class RatingAccountant(Accountant):
    """Prices noisy rating values (ISGLD). Unit: the value of one rating; that it exists is not covered."""

    unit: ClassVar[str] = "rating"
    needs_limit: ClassVar[bool] = False

    perturbations: int = 0
    total: float = 0.0

    def compose(self, event: Event) -> None:
        if type(event) is not RatingsPerturbed:
            raise _cannot_price(self, event)
        self.perturbations += 1
        self.total += event.epsilon

    def charged(self) -> float:
        return self.total


@prices
@dataclass(slots=True, repr=False)
class TableAccountant(Accountant):
    """Prices masked tables. Unit: one person's whole profile against a device that sends zeros, over all tables.

    Costs are Σ μ², exact for Gaussian mechanisms also when a table depends on earlier sums; `rho` is the
    zero-concentrated loss of the same tables and `distance` what separates their noise from its Gaussian stand-in.
    """

    unit: ClassVar[str] = "table"
    measure: ClassVar[str] = "mu_squared"

    tables: int = 0
    mu_squared: float = 0.0
    rho: float = 0.0
    distance: float = 0.0

    def compose(self, event: Event) -> None:
        if type(event) is TablesElsewhere:
            self.mu_squared += event.mu_squared
            self.rho += event.mu_squared / 2
            self.distance += event.distance
            return
        if type(event) is not TableSent:
            raise _cannot_price(self, event)
        self.tables += 1
        for block in event.blocks:
            self.mu_squared += block_mu_squared(block.norm_squared, block.share_variance, block.honest)
            self.rho += block_rho(block.norm_squared, block.share_variance, block.honest)
            self.distance += block.distance

    def charged(self) -> float:
        return self.mu_squared

    def epsilon(self, delta: float) -> float:
        """Return ε at `delta` of all tables sent so far: one profile against a device that sends zeros."""
        return self._epsilon(math.sqrt(self.mu_squared), delta)

    def replaced_epsilon(self, delta: float) -> float:
        """Return ε for one profile replaced by another, or one rating changed: the norm moves by up to 2Δ."""
        return self._epsilon(2 * math.sqrt(self.mu_squared), delta)

    def zcdp_epsilon(self, delta: float) -> float:
        """Return the same ε by zero-concentrated privacy: larger, and proven by published theorems alone."""
        return epsilon_at_distance(lambda kept: zcdp_epsilon(self.rho, kept), delta, self.distance)

    def _epsilon(self, mu: float, delta: float) -> float:
        return epsilon_at_distance(lambda kept: epsilon_of_mu(mu, kept), delta, self.distance)


def gaussian_epsilon(rho: float, delta: float) -> float:
    """Return the smallest epsilon for which a Gaussian mechanism of zero-concentrated loss rho = μ²/2 is private."""
    if not (0 <= rho < math.inf and 0 < delta < 1):
        raise ParameterError(f"rho must be finite and not negative and delta in (0, 1), got delta {delta}.")
    return epsilon_of_mu(math.sqrt(2 * rho), delta)


def _cannot_price(accountant: object, event: object) -> UnknownEvent:
    return UnknownEvent(f"a {type(accountant).__name__} cannot price a {type(event).__name__}.")
