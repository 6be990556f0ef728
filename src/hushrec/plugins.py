"""Plug-ins: protocols, models, accountants, attacks and data sources of other packages, found by entry points.

A package registers a plug-in as an entry point in one of these groups. The entry point's name is the plug-in's name,
and its object must be:

    [project.entry-points."hushrec.protocols"]   a `Protocol` declaration
    [project.entry-points."hushrec.models"]      a `ModelDeclaration`
    [project.entry-points."hushrec.accountants"] an `Accountant` class; the entry point's name is its unit
    [project.entry-points."hushrec.attacks"]     an `Attack`
    [project.entry-points."hushrec.sources"]     a function that returns `Ratings`

The code of a plug-in runs in every process that uses hushrec, including servers and devices. Install only plug-ins that
you trust, as with any Python package.
"""

import warnings
from collections import UserDict
from collections.abc import Callable, Collection, Iterable
from functools import cached_property
from typing import Any, TypeVar

Entry = TypeVar("Entry")


class Registry(UserDict[str, Entry]):
    """A dict of all entries of one kind, such as `models`, by name: hushrec's `own` entries, and those of plug-ins.

    Plug-ins are loaded at the first access, because their modules import hushrec, which must be complete by then. After
    that, every entry is replaced by `adapt(entry)`.
    """

    def __init__(self, kind: str, own: Iterable[tuple[str, Entry]], adapt: Callable[[Entry], Entry] | None = None):
        self._kind, self._own, self._adapt = kind, dict(own), adapt

    @cached_property
    def data(self) -> dict[str, Entry]:  # type: ignore[override]
        """All entries by name; `UserDict` reads this attribute."""
        self.data = self._own  # a plug-in may read this registry while it is loaded
        found = self._own | plugins(self._kind, self._own)
        return found if self._adapt is None else {name: self._adapt(entry) for name, entry in found.items()}


def plugins(kind: str, taken: Collection[str] = ()) -> dict[str, Any]:
    """Load the plug-ins of a kind, such as `models`; return them by name.

    A plug-in is left out with a warning if it cannot be loaded, if its name is in `taken`, or if an earlier plug-in has
    the same name.
    """
    from importlib.metadata import entry_points  # slow to import

    offered: dict[str, Any] = {}
    for entry in entry_points(group=f"hushrec.{kind}"):
        if entry.name in taken or entry.name in offered:
            wrong = f"is ignored: {kind} already contain {entry.name}. Rename its entry point."
            warnings.warn(f"plug-in {entry.value} {wrong}", RuntimeWarning, stacklevel=2)
            continue
        try:
            offered[entry.name] = entry.load()
        except Exception as error:  # an error in a plug-in must not stop the others
            wrong = f"({entry.name} of {kind}) cannot be loaded: {type(error).__name__}: {error}"
            warnings.warn(f"plug-in {entry.value} {wrong}", RuntimeWarning, stacklevel=2)
    return offered
