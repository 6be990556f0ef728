"""The server's catalogue in memory, for quick searches by title."""

import itertools
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass


def folded(text: str) -> str:
    """Return the text in lower case and without accents, for searching."""
    parts = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in parts if not unicodedata.combining(letter)).casefold()


@dataclass(frozen=True)
class Found:
    """One page of search results."""

    count: int  # number of results on all pages together
    items: list[tuple[str, str]]  # (id, title)


class Catalogue:
    """A searchable catalogue: the ids and titles of items by position."""

    def __init__(self, entries: Sequence[tuple[str, str]]) -> None:
        self._entries = entries
        self._folded = [folded(title) for _, title in entries]
        self._positions = {item: position for position, (item, _) in enumerate(entries)}

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, item: object) -> bool:
        return item in self._positions

    def title_of(self, item: str) -> str:
        """Return the title of an item, or its id if the item is not in the catalogue."""
        return self._entries[self._positions[item]][1] if item in self._positions else item

    def title_at(self, position: int) -> str:
        return self._entries[position][1]

    def position_of(self, item: str) -> int:
        return self._positions[item]

    def search(self, text: str, *, count: int, first: int = 0) -> Found:
        """Return up to `count` items whose titles contain every word of the text, from result number `first` on.

        Results are numbered from 0. Titles that begin with the text come first. Case and accents do not matter.
        """
        words = folded(text).split()
        found = list(range(len(self)))
        for word in words:
            found = [n for n in found if word in self._folded[n]]
        whole = " ".join(words)
        beginning = (n for n in found if self._folded[n].startswith(whole))
        others = (n for n in found if not self._folded[n].startswith(whole))
        shown = itertools.islice(itertools.chain(beginning, others), first, first + count)
        return Found(len(found), [self._entries[n] for n in shown])

    def listed(self, positions: Sequence[int]) -> Found:
        """Return a page of results with the items at these positions; its `count` is the size of the catalogue."""
        return Found(len(self), [self._entries[n] for n in positions])
