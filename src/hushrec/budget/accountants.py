"""Privacy accountants, which add up the cost of events. Each one has its own unit, and keeps totals instead of events.

An accountant refuses an event that it cannot price, and does not depend on the mechanism that caused the event. A
protocol with events of its own registers an accountant for their unit with `@prices`.
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
    """The total privacy cost in one unit; subclasses are dataclasses whose fields are numbers that never decrease."""

    unit: ClassVar[str]
    measure: ClassVar[str] = "epsilon"  # the quantity that the limit bounds
    needs_limit: ClassVar[bool] = True  # whether the ledger refuses every event until the person has set a limit
    is_secret: ClassVar[bool] = False  # whether the totals depend on the ratings, and must not appear in a message

    @abstractmethod
    def compose(self, event: Any) -> None:
        """Add the cost of one event; raise `UnknownEvent` for an event that this accountant cannot price."""

    @abstractmethod
    def charged(self) -> float:
        """Return the total that the limit applies to."""

    def spent(self) -> float:
        """Return the cost of what was released so far, which can be less than the charged total."""
        return self.charged()

    def copy(self) -> Self:
        """Return an accountant with the same totals."""
        return replace(self)  # type: ignore[type-var]

    def is_sound(self) -> bool:
        """Return whether every total has its declared type, is finite and not negative, and fits the other totals."""
        totals = [(getattr(self, total.name), total.type) for total in fields(self)]  # type: ignore[arg-type]
        return all(type(number) is kind and 0 <= number < math.inf for number, kind in totals)


ACCOUNTANTS: dict[str, type[Accountant]] = {}  # by unit

Kind = TypeVar("Kind", bound=type[Accountant])


def prices(accountant: Kind) -> Kind:
    """Register an accountant class for its unit (a class decorator)."""
    ACCOUNTANTS[accountant.unit] = accountant
    return accountant


@prices
@dataclass(slots=True, repr=False)
class SelectionAccountant(Accountant):
    """The total cost of the item selections of all rounds (protocol sdcf).

    Unit (profile level): the epsilon between two profiles of the same number h of ratings, with the same calibration;
    with a public cap H, between any two profiles of up to H ratings. Every selection S is drawn from the permanent bits
    B' alone, so the selections of one permanent epoch cost at most min(Σ epsilon_i, epsilon_p). The costs of epochs add
    up (docs/proofs.md).

    If 2h exceeds the number of items m, two profiles differ in only 2(m − h) bits: the bound holds, but is not tight.
    """

    unit: ClassVar[str] = "selection"

    permanent_draws: int = 0
    rounds: int = 0
    capped_draws: int = 0
    closed_committed: float = 0.0  # `committed()` of the earlier epochs: Σ epsilon_p
    closed_spent: float = 0.0  # `spent()` of the earlier epochs
    closed_item_level: float = 0.0  # `item_level()` of the earlier epochs
    epoch_epsilon: float = 0.0  # epsilon_p of the current epoch
    epoch_sent: float = 0.0  # Σ epsilon_i of the current epoch
    epoch_protected: int = 1  # h or H of the current epoch

    def compose(self, event: Event) -> None:
        if type(event) is SelectionSent:
            if not self.permanent_draws:
                raise UnknownEvent(
                    "a SelectionSent must follow a PermanentDraw, whose bits it is drawn from. Charge that first."
                )
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
        """Return Σ epsilon_p: each permanent draw is charged in full, so its selections can never exceed the charge."""
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
        """Return the largest cost of any selections from the permanent bits drawn so far: Σ epsilon_p."""
        return self.closed_committed + self.epoch_epsilon

    def spent(self) -> float:
        """Return the cost of the selections sent so far: Σ over epochs of min(Σ epsilon_i, epsilon_p)."""
        return self.closed_spent + min(self.epoch_sent, self.epoch_epsilon)

    def item_level(self) -> float:
        """Return the cost for one rating replaced by another: Σ over epochs of cost / number of protected ratings."""
        return self.closed_item_level + min(self.epoch_sent, self.epoch_epsilon) / self.epoch_protected


@prices
@dataclass(slots=True, repr=False)
class ValueAccountant(Accountant):
    """The total cost of the gradient values sent, compared with zero gradients: the realized Σ rho of zCDP.

    zCDP is zero-concentrated differential privacy. The total depends on the ratings and is not a guarantee.
    """

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
        """Return the epsilon at `delta` of a Gaussian mechanism with this total rho."""
        return gaussian_epsilon(self.rho, delta)


@prices
@dataclass(slots=True, repr=False)
class RatingAccountant(Accountant):
    """The total cost of noisy rating values (protocol isgld). Unit: the value of one rating, but not its existence."""

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
    """The total cost of masked tables. Unit: one person's whole profile, compared with a device that sends zeros.

    The total is Σ μ² over all tables, which is exact for Gaussian mechanisms even if a table depends on earlier sums.
    `rho` is the total in zero-concentrated differential privacy. `distance` is the statistical distance of the discrete
    noise from the Gaussian noise that μ² assumes.
    """

    unit: ClassVar[str] = "table"
    measure: ClassVar[str] = "mu_squared"

    tables: int = 0  # sent by this device
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
        """Return ε at `delta` of all tables sent so far, for one profile against a device that sends zeros."""
        return self._epsilon(math.sqrt(self.mu_squared), delta)

    def replaced_epsilon(self, delta: float) -> float:
        """Return ε at `delta` for one profile replaced by another: the tables differ by a norm of up to 2Δ."""
        return self._epsilon(2 * math.sqrt(self.mu_squared), delta)

    def zcdp_epsilon(self, delta: float) -> float:
        """Return ε at `delta` by zero-concentrated differential privacy.

        The result is larger than that of `epsilon`, and needs no theorem that is not published.
        """
        return epsilon_at_distance(lambda kept: zcdp_epsilon(self.rho, kept), delta, self.distance)

    def _epsilon(self, mu: float, delta: float) -> float:
        return epsilon_at_distance(lambda kept: epsilon_of_mu(mu, kept), delta, self.distance)


def gaussian_epsilon(rho: float, delta: float) -> float:
    """Return the smallest epsilon at `delta` of a Gaussian mechanism with rho = μ²/2 in zero-concentrated privacy."""
    if not (0 <= rho < math.inf and 0 < delta < 1):
        raise ParameterError(f"rho must be finite and not negative, and delta must be in (0, 1), got delta {delta}.")
    return epsilon_of_mu(math.sqrt(2 * rho), delta)


def _cannot_price(accountant: object, event: object) -> UnknownEvent:
    return UnknownEvent(f"a {type(accountant).__name__} cannot price a {type(event).__name__}.")
