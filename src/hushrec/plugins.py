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
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Entry = TypeVar("Entry")


class Registry(MutableMapping[str, Entry]):
    """A mapping from names to the entries of one kind: hushrec's own and, from the first access on, those of plug-ins.

    Plug-ins are loaded only at the first access, because their modules import hushrec, which must be complete by then.
    `adapt` is applied once to every entry, after the plug-ins are loaded.
    """

    def __init__(self, kind: str, own: Iterable[tuple[str, Entry]], adapt: Callable[[Entry], Entry] | None = None):
        self._own, self._kind, self._adapt, self._complete = dict(own), kind, adapt, False

    def _entries(self) -> dict[str, Entry]:
        if not self._complete:
            self._complete = True  # first, because a plug-in may read this registry while it is loaded
            self._own |= plugins(self._kind, self._own.keys())
            if self._adapt is not None:
                self._own = {name: self._adapt(entry) for name, entry in self._own.items()}
        return self._own

    def __getitem__(self, name: str) -> Entry:
        return self._entries()[name]

    def __setitem__(self, name: str, entry: Entry) -> None:
        self._entries()[name] = entry

    def __delitem__(self, name: str) -> None:
        del self._entries()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries())

    def __len__(self) -> int:
        return len(self._entries())


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
            _warn(f"plug-in {entry.value} is ignored: {kind} already contain {entry.name}. Rename its entry point.")
            continue
        try:
            offered[entry.name] = entry.load()
        except Exception as error:  # an error in a plug-in must not stop the others
            _warn(f"plug-in {entry.value} ({entry.name} of {kind}) cannot be loaded: {type(error).__name__}: {error}")
    return offered


def _warn(sentence: str) -> None:
    warnings.warn(sentence, RuntimeWarning, stacklevel=3)
