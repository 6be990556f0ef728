"""Plug-ins: protocols, models, attacks and data sources of other packages, found through their entry points.

A package registers a plug-in as an entry point in one of these groups. The entry point's name is the plug-in's name,
and its object must be:

    [project.entry-points."hushrec.protocols"]   a `Protocol` declaration
    [project.entry-points."hushrec.models"]      a `ModelDeclaration`
    [project.entry-points."hushrec.attacks"]     an `Attack`
    [project.entry-points."hushrec.sources"]     a function that returns `Ratings`

The code of a plug-in runs in every process that uses hushrec, including servers and devices. Install only plug-ins that
you trust, as with any Python package.
"""

import warnings
from collections import UserDict
from collections.abc import Callable, Collection, Iterable
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Entry = TypeVar("Entry")


class Registry(UserDict[str, Entry]):
    """A dict from names to the entries of one kind: hushrec's own and, from the first access on, those of plug-ins.

    Plug-ins are loaded only at the first access, because their modules import hushrec, which must be complete by then.
    `adapt` is applied once to every entry, after the plug-ins are loaded.
    """

    def __init__(self, kind: str, own: Iterable[tuple[str, Entry]], adapt: Callable[[Entry], Entry] | None = None):
        self._kind, self._own, self._adapt = kind, dict(own), adapt

    @cached_property
    def data(self) -> dict[str, Entry]:  # type: ignore[override]
        """The entries, in which `UserDict` looks up names."""
        self.data = self._own  # a plug-in may read this registry while it is loaded
        found = self._own | plugins(self._kind, self._own)
        return found if self._adapt is None else {name: self._adapt(entry) for name, entry in found.items()}


@cache
def _found() -> dict[str, list["EntryPoint"]]:
    """Return hushrec's entry points by kind; cached, because this reads the metadata of all installed packages."""
    from importlib.metadata import entry_points

    kinds = ("protocols", "models", "attacks", "sources")
    return {kind: list(entry_points(group=f"hushrec.{kind}")) for kind in kinds}


def plugins(kind: str, taken: Collection[str] = ()) -> dict[str, Any]:
    """Load the plug-ins of a kind, such as `models`; return them by name.

    A plug-in is left out with a warning if it cannot be loaded, or if its name is in `taken` or used by an earlier
    plug-in.
    """
    offered: dict[str, Any] = {}
    for entry in _found()[kind]:
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
