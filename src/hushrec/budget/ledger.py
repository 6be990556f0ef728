"""The person's own book of what was released, asked *before* anything is sent.

A ledger enforces the budget of the selection, records the price of the gradient values and of noisy rating
values (enforced where a limit is given), and says in words what its numbers cover and what they do not.
"""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from hushrec.budget.accountants import RatingAccountant, SelectionAccountant, ValueAccountant
from hushrec.budget.events import Event, GradientsSent, PermanentDraw, RatingsPerturbed, SelectionSent, as_number
from hushrec.errors import BudgetExceeded, LedgerError, ParameterError, UnknownEvent

RECORD_VERSION = 1
_SLACK = 1 + 1e-12  # so that 0.1 + 0.1 + 0.1 fits into a limit of 0.3

_UNIT_OWN = "which items were selected, over all rounds: two profiles with the same number of ratings"
_UNIT_CAPPED = "which items were selected, over all rounds: any two profiles of up to the public cap"
_NOT_COVERED_VALUES = "the gradient values: value_rho is their realized loss, not a guarantee"
_NOT_COVERED_COUNT = "how many items are rated: it can be read off the selections"
_NOT_COVERED_PARTICIPATION = "that this device takes part, and when"
_NOT_COVERED_EXISTENCE = "which items are rated: noisy rating values hide the value of a rating only"


class Ledger:
    """Totals of one device; `charge` is all or nothing."""

    def __init__(
        self,
        *,
        max_selection_epsilon: float,
        max_value_rho: float | None = None,
        max_rating_epsilon: float | None = None,
    ) -> None:
        self.max_selection_epsilon = _limit("max_selection_epsilon", max_selection_epsilon)
        self.max_value_rho = None if max_value_rho is None else _limit("max_value_rho", max_value_rho)
        self.max_rating_epsilon = (
            None if max_rating_epsilon is None else _limit("max_rating_epsilon", max_rating_epsilon)
        )
        self._selection = SelectionAccountant()
        self._value = ValueAccountant()
        self._rating = RatingAccountant()

    def __repr__(self) -> str:
        return f"Ledger(max_selection_epsilon={self.max_selection_epsilon:g})"

    def charge(self, events: Sequence[Event]) -> None:
        """Add these events, or raise `BudgetExceeded` and change nothing. Call it before sending.

        The selection is charged when its bits are drawn: a permanent draw commits its whole epsilon_p, which the
        selections of its epoch can then never exceed.
        """
        selection, value, rating = self._selection.copy(), self._value.copy(), self._rating.copy()
        for event in events:
            kind = type(event)
            if kind is SelectionSent or kind is PermanentDraw:
                selection.compose(event)
            elif kind is GradientsSent:
                value.compose(event)
            elif kind is RatingsPerturbed:
                rating.compose(event)
            else:
                raise UnknownEvent(f"a ledger cannot price a {kind.__name__}.")
        _check("epsilon", self._selection.committed(), selection.committed(), self.max_selection_epsilon, "selection")
        _check("rho", self._value.spent(), value.spent(), self.max_value_rho, "value")
        _check("epsilon", self._rating.spent(), rating.spent(), self.max_rating_epsilon, "rating")
        self._selection, self._value, self._rating = selection, value, rating

    @property
    def value_rho(self) -> float:
        """Realized loss of the gradient values sent so far. It tells about the ratings: it stays on the device."""
        return self._value.spent()

    def raise_limit(self, max_selection_epsilon: float) -> None:
        """The person allows more: needed before every further draw of permanent bits. It never goes down."""
        max_selection_epsilon = _limit("max_selection_epsilon", max_selection_epsilon)
        if max_selection_epsilon < self.max_selection_epsilon:
            raise ParameterError(
                f"max_selection_epsilon can only be raised: it is {self.max_selection_epsilon:g}, "
                f"got {max_selection_epsilon:g}."
            )
        self.max_selection_epsilon = max_selection_epsilon

    def statement(self) -> dict[str, Any]:
        """What was spent, in which unit, and what that does not cover. For the person: it stays on the device."""
        selection = self._selection
        capped = selection.permanent_draws > 0 and selection.capped_draws == selection.permanent_draws
        return {
            "unit": _UNIT_CAPPED if capped else _UNIT_OWN,
            "committed": selection.committed(),
            "spent": selection.spent(),
            "limit": self.max_selection_epsilon,
            "item_level": selection.item_level(),
            "rounds": selection.rounds,
            "permanent_draws": selection.permanent_draws,
            "capped": capped,
            "value_rho": self.value_rho,
            "rating_epsilon": self._rating.spent(),
            "not_covered": self._not_covered(capped),
        }

    def _not_covered(self, capped: bool) -> list[str]:
        sentences = [_NOT_COVERED_VALUES]
        if not capped:
            sentences.append(_NOT_COVERED_COUNT)
        if self._rating.perturbations:
            sentences.append(_NOT_COVERED_EXISTENCE)
        return [*sentences, _NOT_COVERED_PARTICIPATION]

    def to_record(self) -> dict[str, Any]:
        """Everything as plain numbers, for the device's own store. It holds private counts: it never leaves."""
        return {
            "version": RECORD_VERSION,
            "max_selection_epsilon": self.max_selection_epsilon,
            "max_value_rho": self.max_value_rho,
            "max_rating_epsilon": self.max_rating_epsilon,
            "selection": dataclasses.asdict(self._selection),
            "value": dataclasses.asdict(self._value),
            "rating": dataclasses.asdict(self._rating),
        }

    @classmethod
    def from_record(cls, record: object) -> "Ledger":
        """The ledger that `to_record` wrote. A record that is damaged, or of another version, is refused."""
        if not isinstance(record, Mapping) or record.get("version") != RECORD_VERSION:
            raise LedgerError(f"a ledger record must have version {RECORD_VERSION}. Restore it from a backup.")
        try:
            ledger = cls(
                max_selection_epsilon=record["max_selection_epsilon"],
                max_value_rho=record["max_value_rho"],
                max_rating_epsilon=record["max_rating_epsilon"],
            )
            ledger._selection = SelectionAccountant(**_totals(SelectionAccountant, record["selection"]))
            ledger._value = ValueAccountant(**_totals(ValueAccountant, record["value"]))
            ledger._rating = RatingAccountant(**_totals(RatingAccountant, record["rating"]))
            sound = ledger.to_record() == record and ledger._is_sound()
        except (AttributeError, KeyError, TypeError, OverflowError, ParameterError):
            sound = False
        if not sound:
            raise LedgerError("the ledger record is damaged. Restore it from a backup, or pay for new bits.")
        return ledger

    def _is_sound(self) -> bool:
        """Every total is of its own type, finite and not negative, and the totals can belong to one history."""
        selection = self._selection
        for accountant in (selection, self._value, self._rating):
            for total in dataclasses.fields(accountant):
                number = getattr(accountant, total.name)
                if type(number) is not total.type or not 0 <= number < math.inf:
                    return False
        return (
            selection.capped_draws <= selection.permanent_draws
            and selection.epoch_protected >= 1
            and selection.closed_spent <= selection.closed_committed
            and (selection.permanent_draws > 0) == (selection.epoch_epsilon > 0)
            and (selection.permanent_draws > 0 or selection.rounds == 0)
        )


def _totals(accountant: type, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored totals with whole numbers as floats where floats belong: 8 and 8.0 are the same total."""
    floats = {total.name for total in dataclasses.fields(accountant) if total.type is float}
    return {name: float(value) if name in floats and type(value) is int else value for name, value in stored.items()}


def _limit(name: str, value: float) -> float:
    limit = as_number(name, value)
    if not 0 <= limit < math.inf:
        raise ParameterError(f"{name} must be finite and not negative, got {limit}.")
    return limit


def _check(unit: str, before: float, after: float, limit: float | None, what: str) -> None:
    if limit is not None and after > limit * _SLACK:
        # What gradient values cost depends on the ratings, so the sentence says it for the other budgets alone.
        sums = "" if what == "value" else f"spent {unit} {before:.6g} of {limit:.6g}, this costs {after - before:.6g}"
        raise BudgetExceeded(
            f"{what} budget would be exceeded: {sums or f'the limit is {unit} {limit:.6g}'}. "
            f"Stop reporting or raise max_{what}_{unit}."
        )
