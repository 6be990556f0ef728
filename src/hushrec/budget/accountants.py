"""Privacy accountants, which add up the privacy cost of events. An accountant keeps totals, not the events.

Each accountant has one unit, which says what its cost is about, such as `selection` or `table`. It refuses an event
that it cannot price. `ACCOUNTANTS` has the accountant of each unit, including those of plug-ins.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Self

from hushrec.budget import events
from hushrec.budget.events import Event
from hushrec.budget.gaussian import block_mu_squared, block_rho, epsilon_at_distance, epsilon_of_mu, zcdp_epsilon
from hushrec.errors import UnknownEvent
from hushrec.plugins import Registry


class Accountant(ABC):
    """The total privacy cost of all events of one unit, such as `selection`.

    Subclasses are dataclasses whose fields are the totals: numbers that are not negative.
    """

    unit: ClassVar[str]
    measure: ClassVar[str] = "epsilon"  # name of the quantity that the person's limit bounds
    needs_limit: ClassVar[bool] = True  # whether the ledger refuses every event until the person has set a limit
    is_secret: ClassVar[bool] = False  # whether the totals depend on the ratings; error messages then omit them
    may_be_infinite: ClassVar[bool] = False  # whether a person may set the limit to inf, for runs without a guarantee

    @abstractmethod
    def compose(self, event: Any) -> None:
        """Add the cost of one event; raise `UnknownEvent` for an event that this accountant cannot price."""

    @abstractmethod
    def charged(self) -> float:
        """Return the total cost that the ledger compares with the person's limit."""

    def spent(self) -> float:
        """Return the cost of all releases so far; `charged` also includes later releases that are paid in advance."""
        return self.charged()

    def copy(self) -> Self:
        return replace(self)  # type: ignore[type-var]

    def is_sound(self) -> bool:
        """Return whether the totals have the declared types, are not negative and, unless `may_be_infinite`, finite."""
        totals = [(getattr(self, total.name), total.type) for total in fields(self)]  # type: ignore[arg-type]
        return all(
            type(number) is kind and number >= 0 and (number < math.inf or self.may_be_infinite)
            for number, kind in totals
        )


@dataclass(slots=True, repr=False)
class SelectionAccountant(Accountant):
    """The total cost, as epsilon, of the item selections of all rounds (protocol `sdcf`).

    The epsilon is at profile level: it holds for any two profiles with the same number h of ratings or, with a profile
    cap H, for any two profiles of up to H ratings. A draw of permanent bits has budget epsilon_p and begins a permanent
    epoch; a round's selection has budget epsilon_i. Every selection is drawn from the permanent bits alone, so all
    selections of one epoch together cost at most min(Σ epsilon_i, epsilon_p). The costs of epochs add up
    (docs/proofs.md).

    epsilon_p is computed for two profiles that differ in 2h bits. If 2h exceeds the number of items m, they differ in
    only 2(m − h) bits, and the true cost is lower.

    The fields `closed_…` are totals of earlier permanent epochs; the fields `epoch_…` are of the current one.
    `permanent_draws` counts the draws of permanent bits, `capped_draws` the draws with a profile cap, and `rounds` the
    selections sent.
    """

    unit: ClassVar[str] = "selection"

    permanent_draws: int = 0
    rounds: int = 0
    capped_draws: int = 0
    closed_committed: float = 0.0  # `charged()` of the earlier epochs: Σ epsilon_p
    closed_spent: float = 0.0  # `spent()` of the earlier epochs
    closed_item_level: float = 0.0  # `item_level()` of the earlier epochs
    epoch_epsilon: float = 0.0  # epsilon_p of the current epoch
    epoch_sent: float = 0.0  # Σ epsilon_i of the current epoch
    epoch_protected: int = 1  # H of the current epoch, or h without a profile cap

    def compose(self, event: Event) -> None:
        if type(event) is events.SelectionSent:
            if not self.permanent_draws:
                raise UnknownEvent(
                    "a SelectionSent must follow the PermanentDraw whose bits it uses. Charge the PermanentDraw first."
                )
            self.rounds += 1
            self.epoch_sent += event.epsilon
        elif type(event) is events.PermanentDraw:
            self.closed_spent, self.closed_item_level = self.spent(), self.item_level()
            self.closed_committed = self.charged()
            self.epoch_sent = 0.0
            self.permanent_draws += 1
            self.capped_draws += event.capped
            self.epoch_epsilon, self.epoch_protected = event.epsilon, event.n_protected
        else:
            raise _cannot_price(self, event)

    def charged(self) -> float:
        """Return Σ epsilon_p over all draws of permanent bits, each of which pays in advance for its selections."""
        return self.closed_committed + self.epoch_epsilon

    def is_sound(self) -> bool:
        return (
            Accountant.is_sound(self)
            and self.capped_draws <= self.permanent_draws
            and self.epoch_protected >= 1
            and self.closed_spent <= self.closed_committed
            and (self.permanent_draws > 0) == (self.epoch_epsilon > 0)
            and (self.permanent_draws > 0 or self.rounds == 0)
        )

    def spent(self) -> float:
        """Return the cost of the selections so far: the sum over permanent epochs of min(Σ epsilon_i, epsilon_p).

        epsilon_p is the budget of the epoch's permanent bits, and epsilon_i that of each selection drawn from them.
        """
        return self.closed_spent + min(self.epoch_sent, self.epoch_epsilon)

    def item_level(self) -> float:
        """Return the cost of the selections so far at item level: for one rating replaced by another.

        It is the sum over permanent epochs of the epoch's cost (see `spent`), divided by the number of ratings or, if
        there is one, by the profile cap.
        """
        return self.closed_item_level + min(self.epoch_sent, self.epoch_epsilon) / self.epoch_protected


@dataclass(slots=True, repr=False)
class ValueAccountant(Accountant):
    """The total privacy loss of the gradient values sent: Σ rho, in zero-concentrated differential privacy (zCDP).

    Each rho compares the gradients of one report with zero gradients. It depends on the ratings, and is not a
    guarantee.
    """

    unit: ClassVar[str] = "value"
    measure: ClassVar[str] = "rho"
    needs_limit: ClassVar[bool] = False
    is_secret: ClassVar[bool] = True

    gradients: int = 0  # number of gradients sent
    rho: float = 0.0

    def compose(self, event: Event) -> None:
        if type(event) is not events.GradientsSent:
            raise _cannot_price(self, event)
        self.gradients += event.n_gradients
        self.rho += event.rho

    def charged(self) -> float:
        return self.rho


@dataclass(slots=True, repr=False)
class RatingAccountant(Accountant):
    """The total cost, as epsilon, of noisy rating values (protocol `isgld`).

    The epsilon protects the value of one rating, but not the fact that the rating exists.
    """

    unit: ClassVar[str] = "rating"
    needs_limit: ClassVar[bool] = False

    perturbations: int = 0  # number of times that noise was added to the ratings
    total: float = 0.0  # Σ epsilon

    def compose(self, event: Event) -> None:
        if type(event) is not events.RatingsPerturbed:
            raise _cannot_price(self, event)
        self.perturbations += 1
        self.total += event.epsilon

    def charged(self) -> float:
        return self.total


@dataclass(slots=True, repr=False)
class TableAccountant(Accountant):
    """The total cost of a device's masked tables, between a whole profile and a device that sends zeros.

    `mu_squared` is Σ μ² of Gaussian differential privacy over all tables. For Gaussian noise, this sum is exact, even
    if a table depends on earlier sums. `rho` is the total in zero-concentrated differential privacy. `distance` is the
    statistical distance of the discrete noise from the Gaussian noise that μ² assumes.
    """

    unit: ClassVar[str] = "table"
    measure: ClassVar[str] = "mu_squared"
    may_be_infinite: ClassVar[bool] = True  # in a run without noise

    tables: int = 0  # number of tables that this device sent, not a copy of its store
    mu_squared: float = 0.0
    rho: float = 0.0
    distance: float = 0.0

    def compose(self, event: Event) -> None:
        if type(event) is events.TablesElsewhere:
            self.mu_squared += event.mu_squared
            self.rho += event.mu_squared / 2
            self.distance += event.distance
            return
        if type(event) is not events.TableSent:
            raise _cannot_price(self, event)
        self.tables += 1
        for block in event.blocks:
            self.mu_squared += block_mu_squared(block.norm_squared, block.share_variance, block.honest)
            self.rho += block_rho(block.norm_squared, block.share_variance, block.honest)
            self.distance += block.distance

    def charged(self) -> float:
        return self.mu_squared

    def epsilon(self, delta: float) -> float:
        """Return ε at `delta` of all tables sent so far, between a person's profile and a device that sends zeros."""
        return self._epsilon(math.sqrt(self.mu_squared), delta)

    def replaced_epsilon(self, delta: float) -> float:
        """Return ε at `delta` of all tables sent so far, between any two profiles.

        A table has a norm of at most Δ, from which μ is computed. The tables of two profiles differ by up to 2Δ, which
        doubles μ.
        """
        return self._epsilon(2 * math.sqrt(self.mu_squared), delta)

    def zcdp_epsilon(self, delta: float) -> float:
        """Return ε at `delta` of all tables sent so far, computed from `rho`.

        It follows from published theorems alone, whereas the proof of `epsilon` is partly this project's own
        (docs/proofs.md). It is usually larger than `epsilon`.
        """
        return epsilon_at_distance(lambda kept: zcdp_epsilon(self.rho, kept), delta, self.distance)

    def _epsilon(self, mu: float, delta: float) -> float:
        return epsilon_at_distance(lambda kept: epsilon_of_mu(mu, kept), delta, self.distance)


ACCOUNTANTS: Registry[type[Accountant]] = Registry(
    "accountants",
    ((one.unit, one) for one in (SelectionAccountant, ValueAccountant, RatingAccountant, TableAccountant)),
)


def _cannot_price(accountant: object, event: object) -> UnknownEvent:
    return UnknownEvent(f"a {type(accountant).__name__} cannot price a {type(event).__name__}.")
