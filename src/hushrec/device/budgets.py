"""A person's privacy budgets and rating scale, and the check that a run stays within the budgets."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy.typing as npt

from hushrec.arrays import FloatArray
from hushrec.budget.events import as_number
from hushrec.budget.ledger import Ledger
from hushrec.errors import BudgetExceeded, ParameterError
from hushrec.messages import Offer
from hushrec.offers import personal_options, protocol_of
from hushrec.protocols import PROTOCOLS, default_protocol, find_protocol
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.scale import form_values, from_unit, to_unit

_SLACK = 1 + 1e-9  # tolerance for rounding in sums of floats
SELECTION = ("epsilon_i", "epsilon_p", "epsilon_g")  # a person's options of `sdcf`, which selects items to report


@dataclass(frozen=True)
class Budgets:
    """A person's privacy budgets and the scale of their ratings, checked.

    For protocol `masked`, `epsilon` is the most that one run may cost this person, and `least_cohort` is the smallest
    number of devices that a sum may cover. `epsilon_i`, `epsilon_p` and `epsilon_g` are for `sdcf` (docs/notation.md),
    and so is `max_value_rho`, the most that the gradient values may cost, in ρ of zero-concentrated differential
    privacy; None sets no limit. `scale` is the lowest and the highest rating.

    A protocol other than these two may need options of its own: `options` maps their names to values. `limits` maps a
    unit of the ledger to the most that all runs together may cost in that unit. It overrides `epsilon_p` as the limit
    of unit `selection`, and `max_value_rho` as that of unit `value`.
    """

    epsilon: float = 8.0
    least_cohort: int = 3
    epsilon_i: float = 4.0
    epsilon_p: float = None  # type: ignore[assignment]  # 2 · epsilon_i unless it is given
    epsilon_g: float = 4.0
    max_value_rho: float | None = None
    scale: tuple[float, float] = (1.0, 5.0)
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("epsilon", "epsilon_i", "epsilon_p", "epsilon_g"):
            given = getattr(self, name)
            object.__setattr__(self, name, given if given is None else as_number(name, given))
        object.__setattr__(self, "epsilon_p", self.selecting().selection_limit)
        if self.max_value_rho is not None:
            object.__setattr__(self, "max_value_rho", as_number("max_value_rho", self.max_value_rho))
        object.__setattr__(self, "scale", _as_scale(self.scale))
        if self.epsilon_g == math.inf:
            raise ParameterError("epsilon_g must be finite, got inf. Give a number such as 4.")
        if not 0 <= self.epsilon < math.inf:
            raise ParameterError(
                f"epsilon must be finite and not negative, got {self.epsilon:g}. Give a number such as 8."
            )
        self.new_ledger()  # checks max_value_rho

    def selecting(self) -> Any:
        """Return protocol `sdcf` with these budgets; raise `ParameterError` for an invalid budget."""
        protocol = next(
            one for one in PROTOCOLS.values() if set(SELECTION) <= {o.name for o in one.options if o.personal}
        )
        return protocol.configure({name: getattr(self, name) for name in SELECTION}, protocol.models[0])

    def before_joining(self, ledger: Ledger) -> list[ConfiguredProtocol]:
        """Return the protocols, configured with these budgets, whose runs this device may join; the default first.

        If earlier runs have spent budget, return only the protocols that charge the ledger in the same unit.
        """
        limited = [one for one in PROTOCOLS.values() if one.unit is not None]
        spent = [one for one in limited if ledger[str(one.unit)].charged() > 0]
        first = find_protocol(default_protocol(None))
        chosen = spent or [first, *(one for one in limited if one is not first)]
        return [one.configure(self.options_for(one.name, one.models[0]), one.models[0]) for one in chosen]

    def new_ledger(self) -> Ledger:
        """Return an empty ledger with this person's limits. By default they let `sdcf` draw permanent bits once."""
        return Ledger(**{"selection": self.epsilon_p, "value": self.max_value_rho, **self.limits})

    def options_for(self, protocol: str, model: str) -> dict[str, Any]:
        """Return the values of those options of a protocol and model that each person chooses, by option name.

        Raise `ParameterError` if one of the options has no value.
        """
        chosen = {name: getattr(self, name) for name in (*SELECTION, "least_cohort")}
        chosen |= {"own_epsilon": self.epsilon, **self.options}
        wanted = personal_options(protocol, model)
        for name in wanted:
            if name not in chosen:
                raise ParameterError(f"{name} of protocol {protocol} must be set. Give its value in `Budgets.options`.")
        return {name: option.checked(chosen[name]) for name, option in wanted.items()}

    def protocol_for(self, offer: Offer) -> ConfiguredProtocol:
        """Return the protocol of an offered run, configured with this person's options."""
        return protocol_of(offer, self.options_for(offer.protocol, offer.model))

    def form_values(self) -> FloatArray:
        """Return the ratings that the form of the device page offers, ascending, on this person's scale."""
        return form_values(*self.scale)

    def to_unit(self, values: npt.ArrayLike) -> FloatArray:
        """Map this person's ratings to the scale 1 to 5, on which models work."""
        return to_unit(values, *self.scale)

    def from_unit(self, values: FloatArray) -> FloatArray:
        """Map predictions from the scale 1 to 5 to this person's scale."""
        return from_unit(values, *self.scale)


def _as_scale(scale: Any) -> tuple[float, float]:
    try:
        low, high = (as_number("scale", end) for end in scale)
    except (TypeError, ValueError):
        raise ParameterError("scale must be two numbers, low and high, as in (1, 5).") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ParameterError(
            f"scale must be two finite numbers, low < high, got {low:g},{high:g}. Give for example 1,5."
        )
    return low, high


def allow_run(protocol: ConfiguredProtocol, terms: Any, ledger: Ledger, spent: Mapping[str, float]) -> None:
    """Make the ledger's limits cover the largest cost of this run, which a person accepts by joining.

    A limit that is too low is increased if no earlier run has spent budget. Otherwise `BudgetExceeded` is raised, with
    the ε that the person must allow first. `spent` is what this run has already cost, by unit.
    """
    for unit, cost in protocol.joining_costs(terms).items():
        earlier, limit = ledger[unit].charged() - spent.get(unit, 0.0), ledger.limit(unit) or 0.0
        needed = max(earlier, 0.0) + cost
        if needed <= limit * _SLACK:
            continue
        if earlier > cost * (_SLACK - 1):
            allowed, raised = protocol.ledger_statement(ledger)["limit"], Ledger.from_record(ledger.to_record())
            raised.raise_limit(unit, needed)
            epsilon = math.ceil(100 * protocol.ledger_statement(raised)["limit"] / _SLACK) / 100
            raise _not_allowed(allowed, epsilon, what="earlier runs and this run together need")
        ledger.raise_limit(unit, needed)


@contextlib.contextmanager
def consent(what: str) -> Iterator[None]:
    """Return a context manager that adds the person's limit, and how to raise it, to a `BudgetExceeded` raised in it.

    The new message begins with `what`, such as "the next report needs". An error that does not say how much budget is
    needed passes unchanged.
    """
    try:
        yield
    except BudgetExceeded as error:
        if error.needed is None:
            raise
        raise _not_allowed(error.limit, error.needed, what=what) from None


def _not_allowed(limit: float, needed: float, *, what: str) -> BudgetExceeded:
    return BudgetExceeded(
        f"{what} a limit of epsilon {needed:.12g}, but the person's limit is {limit:.4g}. "
        f"Raise it with `hushrec device budget --raise-to {needed:.12g}`.",
        limit=limit,
        needed=needed,
    )
