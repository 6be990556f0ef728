"""The options that models and protocols declare; settings, the command line and experiment files are built from them.

A declaration does not import the implementation, so that `hushrec --help` stays fast.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pkgutil import resolve_name
from typing import Any

from hushrec.errors import ParameterError

KINDS: dict[type, str] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Option:
    """A declared option of a model or a protocol: its name, type, help text and default."""

    name: str
    kind: type
    help: str
    default: Any = None
    default_text: str | None = None  # words for a default that is computed; `default` is then None
    models: tuple[str, ...] = ()  # the models that use the option; empty: all models
    personal: bool = False  # whether each person chooses a value, which is never sent; else a run has one for everybody
    may_be_infinite: bool = False  # whether a person may set this personal option to inf
    least: int | None = None  # the smallest value to which a person may set this personal option
    is_simulated: bool = False  # whether only simulations use this option, so that a server must not set it
    device_name: str | None = None  # name of this personal option on devices; None: `name`

    @property
    def described_default(self) -> str | None:
        """The default as `--help` shows it; None for a flag, and for an option without a default."""
        if self.default_text is not None or self.default is None or self.kind is bool:
            return self.default_text
        return f"{self.default:g}" if self.kind is float else str(self.default)

    def checked(self, value: Any) -> Any:
        """Return `value` converted to this option's type; raise `ParameterError` if that is not possible.

        Only numbers are converted, and only if their value stays the same: an int option returns 4 for 4.0.
        """
        if self.kind in (bool, str):
            if isinstance(value, self.kind):
                return value
        elif not isinstance(value, bool | str):
            try:
                number = float(value)
            except (TypeError, ValueError):
                number = math.nan
            if self.kind is float and not math.isnan(number):
                return number
            if self.kind is int and number.is_integer():
                return int(value)
        raise ParameterError(f"{self.name} must be {KINDS[self.kind]}, got {value!r}.")


def with_defaults(options: Iterable[Option], given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of these options by name: the given value, or else the option's default."""
    return {option.name: given.get(option.name, option.default) for option in options}


imported = resolve_name  # imports and returns the object that a declaration names as `module:name`
