"""Options that a model or a protocol declares. Settings, the command line and experiment files accept what is declared.

Declarations import nothing heavy, so that `hushrec --help` stays quick.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from hushrec.errors import ParameterError

KINDS: dict[type, str] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


@dataclass(frozen=True)
class Option:
    """One option: its name in settings and files, what it holds, and what stands for it when it is not given.

    `default_text` describes a default that is computed; `default` is None then. With `models`, only those use it. A
    `personal` option is chosen by each person, and no message has a place for it; others are the same for a whole run.
    """

    name: str
    kind: type
    help: str
    default: Any = None
    default_text: str | None = None
    models: tuple[str, ...] = ()
    personal: bool = False

    @property
    def described_default(self) -> str | None:
        """The default as `--help` shows it; None for an option that is simply absent."""
        if self.default_text is not None or self.default is None or self.kind is bool:
            return self.default_text
        return f"{self.default:g}" if self.kind is float else str(self.default)

    def checked(self, value: Any) -> Any:
        """The value as this option holds it, so that 4 and 4.0 are the same; refused where it is of another kind."""
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
    """Return every one of these options by name: what was given, or its default."""
    return {option.name: given.get(option.name, option.default) for option in options}


def imported(place: str) -> Any:
    """Return the object at `module:name`, imported now: how a light declaration names what does the work."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)
