"""A person's privacy budgets and rating scale, and the check that a run stays within the budgets."""

import contextlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from hushrec.budget.events import as_number
from hushrec.budget.ledger import Ledger
from hushrec.errors import BudgetExceeded, LocalProtocolError, ParameterError, require
from hushrec.json_values import from_json, to_json
from hushrec.messages import Offer
from hushrec.offers import personal_options, protocol_of
from hushrec.options import Option
from hushrec.protocols import PROTOCOLS, by_usual, find_protocol
from hushrec.protocols.configured import ConfiguredProtocol
from hushrec.scale import Scale

_SLACK = 1 + 1e-9  # tolerance for rounding in sums of floats


@dataclass(frozen=True)
class Budgets:
    """A person's privacy budgets and the scale of their ratings. The constructor checks all values.

    `options` maps the name of a protocol to the options that the person chose for it, by name. A protocol without an
    entry has its usual options (`Protocol.usual`); if `usual` is None, the person must choose options before joining.
    `limits` maps a unit of the ledger to the most that all runs together may cost in that unit; a unit without a limit
    gets one when the device joins a run. `scale` is the lowest and the highest rating.
    """

    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict, repr=False)
    limits: Mapping[str, float] = field(default_factory=dict, repr=False)
    scale: tuple[float, float] = (1.0, 5.0)

    def __post_init__(self) -> None:
        checked = {name: _checked(name, given) for name, given in self.options.items()}
        object.__setattr__(self, "options", checked)
        object.__setattr__(self, "limits", from_json(Ledger(**self.limits).to_record()["limits"]))
        object.__setattr__(self, "scale", _as_scale(self.scale))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> Self:
        """Return the budgets from a stored record, of the present version or of an earlier one.

        Earlier versions stored the options of all protocols in one dict, under the names that a person uses
        (`Option.device_name`).
        """
        limits = from_json(record.get("limits", {}))
        if record.keys() <= {"options", "limits", "scale"}:
            options = {name: from_json(chosen) for name, chosen in record.get("options", {}).items()}
            return cls(**{**record, "options": options, "limits": limits})
        given = {**record, **record.get("options", {})}
        scale = given.pop("scale", (1.0, 5.0))
        if given.get("max_value_rho") is not None:
            limits.setdefault("value", given["max_value_rho"])
        known = {name for protocol in PROTOCOLS.values() for name in protocol.personal_options()}
        chosen = {name: value for name, value in given.items() if name in known and value is not None}
        return cls(limits=limits, scale=scale)._with(chosen, None)

    def to_record(self) -> dict[str, Any]:
        """Return the budgets as JSON values, for the device's own store."""
        record: dict[str, Any] = to_json(vars(self))
        return record

    def choosing(self, given: Mapping[str, Any], protocol: str | None = None) -> Self:
        """Return these budgets with further options of `protocol` chosen; None as a value undoes an earlier choice.

        The names in `given` may be `Option.device_name`, which a person uses, or `Option.name`. Without `protocol`,
        each option is for the first protocol that has it; the default protocol comes first (`by_usual`). Raise
        `ParameterError` for an option that no such protocol has, for an impossible value, or if `protocol` is given
        without an option.
        """
        if protocol is not None and not given:
            names = ", ".join(find_protocol(protocol).personal_options()) or "it has none that a person chooses"
            raise ParameterError(
                f"protocol {protocol} must be given together with one of its options ({names}), but none was given."
                " Give an option, or leave protocol out."
            )
        for name, value in given.items():
            option = _find_option(name, protocol)[1]
            if value is not None and option.least is not None:
                number = replace(option, name=name).checked(value)
                require(number >= option.least, name, f"at least {option.least}", value)
        return self._with(given, protocol)

    def _with(self, given: Mapping[str, Any], protocol: str | None) -> Self:
        """Do what `choosing` does, but accept values below `Option.least`, because earlier versions stored some."""
        options = {name: dict(chosen) for name, chosen in self.options.items()}
        for name, value in given.items():
            owner, option = _find_option(name, protocol)
            options.setdefault(owner, {})[option.name] = value
        kept = {name: {key: value for key, value in own.items() if value is not None} for name, own in options.items()}
        return replace(self, options={name: own for name, own in kept.items() if own})

    def chosen(self, protocol: str) -> dict[str, Any] | None:
        """Return the person's options of a protocol by name; an option that they did not choose has its usual value.

        Return None if the person must choose options first: the protocol has no usual options, and they chose none.
        """
        declared = find_protocol(protocol)
        if protocol not in self.options and declared.usual is None and declared.personal_options():
            return None
        return {**(declared.usual or {}), **self.options.get(protocol, {})}

    def options_for(self, protocol: str, model: str) -> dict[str, Any]:
        """Return the options that `chosen` returns, without those that do not apply to the model.

        Raise `ParameterError` if the person must choose options of the protocol first.
        """
        chosen = self.chosen(protocol)
        if chosen is None:
            names = list(find_protocol(protocol).personal_options())
            raise ParameterError(
                f"options of protocol {protocol} must be chosen by the person before joining ({', '.join(names)})."
                f" Choose them with `hushrec device budget --protocol {protocol} --{names[0].replace('_', '-')} VALUE`."
            )
        return {name: chosen[name] for name in personal_options(protocol, model) if name in chosen}

    def configured(self, protocol: str) -> ConfiguredProtocol:
        """Return a protocol with this person's options; all other options have their defaults."""
        return _configured(protocol, self.options_for(protocol, find_protocol(protocol).models[0]))

    def protocols(self) -> list[ConfiguredProtocol]:
        """Return the protocols whose runs this device may join, with the person's options; the default one first."""
        return [self.configured(one.name) for one in by_usual() if one.is_private and self.chosen(one.name) is not None]

    def by_protocol(self) -> dict[str, dict[str, Any]]:
        """Return the person's options of each of `protocols`, by the protocol's name.

        The options have the names that a person uses (`Option.device_name`). An option that the person did not choose
        has its default.
        """
        found = {}
        for protocol in self.protocols():
            values, options = protocol.chosen_options(), find_protocol(protocol.name).personal_options()
            found[protocol.name] = {name: values.get(option.name) for name, option in options.items()}
        return found

    def before_joining(self, ledger: Ledger) -> list[ConfiguredProtocol]:
        """Return those of `protocols()` in whose unit the ledger has a cost; if there are none, return all of them."""
        found = self.protocols()
        return [one for one in found if (unit := find_protocol(one.name).unit) and ledger[unit].charged() > 0] or found

    def protocol_for(self, offer: Offer) -> ConfiguredProtocol:
        """Return the protocol of an offered run, configured with this person's options."""
        return protocol_of(offer, self.options_for(offer.protocol, offer.model))

    @property
    def mapping(self) -> Scale:
        """The object that maps this person's ratings to the scale 1 to 5, on which models work, and back."""
        return Scale(*self.scale)


def _find_option(name: str, protocol: str | None) -> tuple[str, Option]:
    """Return the name of a protocol and its option called `name`; raise `ParameterError` if there is no such option.

    Search `protocol` only, or if it is None, all protocols in the order of `by_usual`.
    """
    among = by_usual() if protocol is None else [find_protocol(protocol)]
    for declared in among:
        for known, option in declared.personal_options().items():
            if name in (known, option.name):
                return declared.name, option
    names = ", ".join(dict.fromkeys(known for declared in among for known in declared.personal_options()))
    raise ParameterError(f"{name} must be an option that a person chooses ({names or 'there are none'}).")


def _checked(protocol: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options by the protocol's own names; raise `ParameterError` if a value is impossible."""
    if protocol not in PROTOCOLS:  # a plug-in that was removed
        return dict(given)
    declared, found = find_protocol(protocol), {}
    for name, value in given.items():
        option = _find_option(name, protocol)[1]
        found[option.name] = as_number(name, value) if option.kind is float else option.checked(value)
        is_possible = option.kind is not float or option.may_be_infinite or math.isfinite(found[option.name])
        require(is_possible, name, "finite", found[option.name])
    _configured(protocol, {**(declared.usual or {}), **found})
    return found


def _configured(name: str, options: Mapping[str, Any]) -> ConfiguredProtocol:
    protocol = find_protocol(name)
    configured: ConfiguredProtocol = protocol.configure(options, protocol.models[0])
    return configured


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


def check_ratings(ratings: Mapping[str, float], scale: tuple[float, float]) -> None:
    """Raise `ParameterError` unless all ratings are on the scale of the person's store."""
    low, high = scale
    if not all(low <= value <= high for value in ratings.values()):
        raise ParameterError(
            f"ratings must be numbers from {low:g} to {high:g}, the scale of this store. Correct the ratings,"
            " or make a store with their scale."
        )


def allow_run(protocol: ConfiguredProtocol, terms: Any, ledger: Ledger, spent: Mapping[str, float]) -> None:
    """Raise the ledger's limits to the largest cost of this run, to which the person agrees by joining.

    If a limit is too low, raise `BudgetExceeded` with the ε that the person must allow first, in two cases: an earlier
    run has spent budget, or the protocol has no personal options, with which the person could have limited the cost.
    `spent` maps a unit of the ledger to what this run has already cost in it. Raise `LocalProtocolError` if the
    protocol has no personal options and does not say what the run costs.
    """
    costs, has_options = protocol.joining_costs(terms), bool(find_protocol(protocol.name).personal_options())
    if not costs and not has_options:
        raise LocalProtocolError(
            f"a run of protocol {protocol.name} must have a cost to which the person can agree, but the protocol"
            " declares neither `joining_costs` nor personal options. Ask the author of its package."
        )
    for unit, cost in costs.items():
        if ledger.limit(unit) == math.inf:
            continue
        earlier, limit = ledger[unit].charged() - spent.get(unit, 0.0), ledger.limit(unit) or 0.0
        needed = max(earlier, 0.0) + cost
        if needed <= limit * _SLACK:
            continue
        if not has_options or earlier > (cost * (_SLACK - 1) if cost < math.inf else 0.0):
            raised = Ledger.from_record(ledger.to_record())
            raised.raise_limit(unit, needed)
            allowed = protocol.ledger_statement(ledger).limit or 0.0
            wanted = protocol.ledger_statement(raised).limit or needed
            rounded = math.ceil(100 * wanted / _SLACK) / 100 if wanted < math.inf else wanted
            what = "earlier runs and this run together need" if earlier > 0 else f"this run of {protocol.name} needs"
            raise _not_allowed(
                allowed, rounded, what=what, option="" if has_options else f"--protocol {protocol.name} "
            )
        ledger.raise_limit(unit, needed)


@contextlib.contextmanager
def consent(what: str) -> Iterator[None]:
    """Return a context manager that replaces a `BudgetExceeded` of its block by one that advises the person.

    Its message begins with `what`, such as "the next report needs", and says the limit and how to raise it. An error
    that does not say how much budget is needed passes unchanged.
    """
    try:
        yield
    except BudgetExceeded as error:
        if error.needed is None:
            raise
        raise _not_allowed(error.limit, error.needed, what=what) from None


def _not_allowed(limit: float, needed: float, *, what: str, option: str = "") -> BudgetExceeded:
    return BudgetExceeded(
        f"{what} a limit of epsilon {needed:.12g}, but the person's limit is {limit:.4g}. "
        f"Raise it with `hushrec device budget {option}--raise-to {needed:.12g}`.",
        limit=limit,
        needed=needed,
    )
