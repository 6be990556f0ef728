"""What the events of `events` cost. Each accountant has its own unit and keeps totals, not histories.

An accountant refuses what it cannot price. None of them knows a mechanism.
"""

import math
from dataclasses import dataclass

from hushrec.budget.events import Event, GradientsSent, PermanentDraw, RatingsPerturbed, SelectionSent, TableSent
from hushrec.budget.gaussian import block_mu_squared, block_rho, epsilon_at_distance, epsilon_of_mu, zcdp_epsilon
from hushrec.errors import ParameterError, UnknownEvent


@dataclass(slots=True, repr=False)
class SelectionAccountant:
    """Prices which items were selected, over all rounds.

    Unit (profile level): two profiles of the same number h of ratings, calibrated alike; with a public cap H, any
    two profiles of up to H ratings. Every S is drawn from B' alone, so the selections of one permanent epoch
    cost at most min(Σ epsilon_i, epsilon_p); epochs add up (docs/proofs.md).

    When 2h exceeds the number of items m, two profiles differ in 2(m − h) bits only: the bound still holds, and is
    not tight.
    """

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

    def committed(self) -> float:
        """What all selections can ever cost with the bits drawn so far: Σ epsilon_p."""
        return self.closed_committed + self.epoch_epsilon

    def spent(self) -> float:
        """What the selections sent so far cost: Σ over epochs of min(Σ epsilon_i, epsilon_p)."""
        return self.closed_spent + min(self.epoch_sent, self.epoch_epsilon)

    def item_level(self) -> float:
        """The same for one rating replaced by another: each epoch divided by its h, or H."""
        return self.closed_item_level + min(self.epoch_sent, self.epoch_epsilon) / self.epoch_protected

    def copy(self) -> "SelectionAccountant":
        return SelectionAccountant(
            self.permanent_draws,
            self.rounds,
            self.capped_draws,
            self.closed_committed,
            self.closed_spent,
            self.closed_item_level,
            self.epoch_epsilon,
            self.epoch_sent,
            self.epoch_protected,
        )


@dataclass(slots=True, repr=False)
class ValueAccountant:
    """Prices the gradient values really sent, against zero gradients: realized zero-concentrated loss, Σ rho."""

    gradients: int = 0
    rho: float = 0.0

    def compose(self, event: Event) -> None:
        if type(event) is not GradientsSent:
            raise _cannot_price(self, event)
        self.gradients += event.n_gradients
        self.rho += event.rho

    def spent(self) -> float:
        return self.rho

    def epsilon(self, delta: float) -> float:
        """The epsilon of this loss at `delta`, on the Gaussian's own curve."""
        return gaussian_epsilon(self.rho, delta)

    def copy(self) -> "ValueAccountant":
        return ValueAccountant(self.gradients, self.rho)


@dataclass(slots=True, repr=False)
class RatingAccountant:
    """Prices noisy rating values (ISGLD). Unit: the value of one rating; that it exists is not covered."""

    perturbations: int = 0
    total: float = 0.0

    def compose(self, event: Event) -> None:
        if type(event) is not RatingsPerturbed:
            raise _cannot_price(self, event)
        self.perturbations += 1
        self.total += event.epsilon

    def spent(self) -> float:
        return self.total

    def copy(self) -> "RatingAccountant":
        return RatingAccountant(self.perturbations, self.total)


@dataclass(slots=True, repr=False)
class TableAccountant:
    """Prices masked tables. Unit: one person's whole profile against a device that sends zeros, over all tables.

    Costs are Σ μ², exact for Gaussian mechanisms also when a table depends on earlier sums; `rho` is the
    zero-concentrated loss of the same tables and `distance` what separates their noise from its Gaussian stand-in.
    """

    tables: int = 0
    mu_squared: float = 0.0
    rho: float = 0.0
    distance: float = 0.0

    def compose(self, event: Event) -> None:
        if type(event) is not TableSent:
            raise _cannot_price(self, event)
        self.tables += 1
        for block in event.blocks:
            self.mu_squared += block_mu_squared(block.norm_squared, block.share_variance, block.honest)
            self.rho += block_rho(block.norm_squared, block.share_variance, block.honest)
            self.distance += block.distance

    def spent(self) -> float:
        return self.mu_squared

    def epsilon(self, delta: float) -> float:
        """The profile against zeros: what the tables sent so far cost at `delta`."""
        return self._epsilon(math.sqrt(self.mu_squared), delta)

    def replaced_epsilon(self, delta: float) -> float:
        """One profile replaced by another, or one rating added, removed or changed: the norm moves by up to 2Δ."""
        return self._epsilon(2 * math.sqrt(self.mu_squared), delta)

    def zcdp_epsilon(self, delta: float) -> float:
        """The profile against zeros by zero-concentrated privacy alone: larger, from published theorems only."""
        return epsilon_at_distance(lambda kept: zcdp_epsilon(self.rho, kept), delta, self.distance)

    def _epsilon(self, mu: float, delta: float) -> float:
        return epsilon_at_distance(lambda kept: epsilon_of_mu(mu, kept), delta, self.distance)

    def copy(self) -> "TableAccountant":
        return TableAccountant(self.tables, self.mu_squared, self.rho, self.distance)


def gaussian_epsilon(rho: float, delta: float) -> float:
    """Return the smallest epsilon for which a Gaussian mechanism of zero-concentrated loss rho = μ²/2 is private."""
    if not (0 <= rho < math.inf and 0 < delta < 1):
        raise ParameterError(f"rho must be finite and not negative and delta in (0, 1), got delta {delta}.")
    return epsilon_of_mu(math.sqrt(2 * rho), delta)


def _cannot_price(accountant: object, event: object) -> UnknownEvent:
    return UnknownEvent(f"a {type(accountant).__name__} cannot price a {type(event).__name__}.")
