"""The privacy ledger of a device, which is charged *before* anything is sent.

A ledger has one accountant for each unit, such as `selection` or `table`. It enforces the limits that the person has
set, by unit. In a unit without a limit, it refuses every event if the accountant has `needs_limit`, and otherwise only
records the cost.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from hushrec.budget.accountants import ACCOUNTANTS, Accountant
from hushrec.budget.events import Event, as_number
from hushrec.errors import BudgetExceeded, LedgerError, ParameterError, UnknownEvent, require
from hushrec.json_values import from_json, to_json

RECORD_VERSION = 2
_SLACK = 1 + 1e-12  # so that 0.1 + 0.1 + 0.1 fits into a limit of 0.3


class Ledger:
    """The privacy cost of one device's releases, and the person's limits by unit, as in `Ledger(selection=8.0)`."""

    def __init__(self, **limits: float | None) -> None:
        self._limits = {unit: _checked_limit(unit, limit) for unit, limit in limits.items() if limit is not None}
        self._accountants: dict[str, Accountant] = {}

    def __repr__(self) -> str:
        return f"Ledger({', '.join(f'{unit}={limit:g}' for unit, limit in self._limits.items())})"

    def __getitem__(self, unit: str) -> Any:
        """Return the accountant of a unit. Its totals are private and must stay on the device."""
        return self._accountants.get(unit) or _accountant_of(unit)()

    def limit(self, unit: str) -> float | None:
        """Return the limit of a unit, or None if the person has set none."""
        return self._limits.get(unit)

    def charge(self, events: Iterable[Event]) -> None:
        """Add the cost of all events, or raise `BudgetExceeded` and add none. Call this before sending anything."""
        self._accountants |= self._after(events)

    def can_pay(self, events: Iterable[Event]) -> bool:
        """Return whether `charge` would accept these events, without charging them."""
        try:
            self._after(events)
        except BudgetExceeded:
            return False
        return True

    def _after(self, events: Iterable[Event]) -> dict[str, Accountant]:
        """Return copies of the accountants that price these events, by unit, with the cost of the events added.

        Raise `BudgetExceeded` if a new total is above its limit.
        """
        after: dict[str, Accountant] = {}
        for event in events:
            unit = getattr(event, "unit", None)
            if not isinstance(unit, str):
                raise UnknownEvent(f"a ledger cannot price a {type(event).__name__}: an event must have a unit.")
            after.setdefault(unit, self[unit].copy()).compose(event)
        for unit, accountant in after.items():
            self._check(unit, self[unit].charged(), accountant)
        return after

    def _check(self, unit: str, before: float, after: Accountant) -> None:
        limit = self._limits.get(unit, 0.0 if after.needs_limit else math.inf)
        if after.charged() <= limit * _SLACK:
            return
        measure = after.measure
        costs = f"spent {measure} {before:.6g} of {limit:.6g}, the next step costs {after.charged() - before:.6g}"
        shown = f"the limit is {measure} {limit:.6g}" if after.is_secret else costs
        raise BudgetExceeded(
            f"{unit} budget would be exceeded: {shown}. Stop reporting or raise {limit_name(unit)}.",
            limit=limit,
            needed=None if after.is_secret else after.charged(),
        )

    def raise_limit(self, unit: str, limit: float) -> None:
        """Raise the limit of a unit, or set its first limit; raise `ParameterError` if the limit would become lower."""
        limit, current = _checked_limit(unit, limit), self._limits.get(unit, 0.0)
        if limit < current:
            raise ParameterError(f"{limit_name(unit)} must not be lowered: the limit is {current:g}, got {limit:g}.")
        self._limits[unit] = limit

    def set_limit(self, unit: str, limit: float | None) -> None:
        """Set or remove the limit of a unit in which nothing has been spent; raise `LedgerError` otherwise."""
        if self[unit].charged():
            raise LedgerError(
                f"{limit_name(unit)} must be raised, not set, because the ledger already has a cost in this unit."
            )
        self._limits.pop(unit, None)
        if limit is not None:
            self._limits[unit] = _checked_limit(unit, limit)

    def to_record(self) -> dict[str, Any]:
        """Return the limits and totals as plain numbers, for the device's own store. The totals are private."""
        totals = {unit: to_json(asdict(accountant)) for unit, accountant in self._accountants.items()}  # type: ignore[call-overload]
        return {"version": RECORD_VERSION, "limits": to_json(self._limits), "totals": totals}

    @classmethod
    def from_record(cls, record: object) -> "Ledger":
        """Return the ledger that `to_record` stored in this record; raise `LedgerError` if the record is damaged."""
        if isinstance(record, Mapping) and record.get("version") == 1:
            record = _from_version_1(record)
        if not isinstance(record, Mapping) or record.get("version") != RECORD_VERSION:
            raise LedgerError(
                f"the ledger record must have version 1 or {RECORD_VERSION}, got another version or none. Restore the"
                " store from a backup."
            )
        try:
            ledger = cls(**from_json(record["limits"]))
            for unit, totals in record["totals"].items():
                accountant = ACCOUNTANTS[unit]
                ledger._accountants[unit] = accountant(**_as_stored(accountant, totals))
            sound = ledger.to_record() == record and all(one.is_sound() for one in ledger._accountants.values())
        except (AttributeError, KeyError, TypeError, OverflowError, ParameterError, UnknownEvent):
            sound = False
        if not sound:
            raise LedgerError("the ledger record is damaged. Restore the store from a backup.")
        return ledger


def limit_name(unit: str) -> str:
    """Return the name of a unit's limit for error messages, such as `max_selection_epsilon`."""
    return f"max_{unit}_{_accountant_of(unit).measure}"


def _accountant_of(unit: str) -> type[Accountant]:
    if unit not in ACCOUNTANTS:
        raise UnknownEvent(f"unit must be one of {', '.join(ACCOUNTANTS)}, got {unit}.")
    return ACCOUNTANTS[unit]


def _from_version_1(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a record of version 1 in the form of the current version, or {} if the record is damaged.

    Version 1 had three units, and stored their limits under the names that `limit_name` returns.
    """
    try:
        limits = {unit: record[limit_name(unit)] for unit in ("selection", "value", "rating")}
        totals = {unit: record[unit] for unit in limits if any(record[unit].values())}
    except (KeyError, AttributeError):
        return {}
    known = {unit: limit for unit, limit in limits.items() if limit is not None}
    return {"version": RECORD_VERSION, "limits": known, "totals": totals}


def _as_stored(accountant: type[Accountant], stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return stored totals as arguments of the accountant's class; integers in float fields are converted to floats."""
    floats = {total.name for total in fields(accountant) if total.type is float}  # type: ignore[arg-type]
    found = from_json(stored)
    return {name: float(value) if name in floats and type(value) is int else value for name, value in found.items()}


def _checked_limit(unit: str, value: float) -> float:
    name = limit_name(unit)
    limit = as_number(name, value)
    is_finite = limit < math.inf or _accountant_of(unit).may_be_infinite
    require(limit >= 0 and is_finite, name, "finite and not negative", limit)
    return limit
