"""What the person's page shows: titles to search, ratings, recommendations with reasons, what left. Computed here."""

import itertools
import unicodedata
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hushrec.device.device import Device
from hushrec.device.inference import SHOWN, Attack, infer
from hushrec.randomness import FloatArray

MOST_FOUND = 30
MOST_REASONS = 2


def folded(text: str) -> str:
    """Without case and accents, to search in."""
    parts = unicodedata.normalize("NFKD", text)
    return "".join(letter for letter in parts if not unicodedata.combining(letter)).casefold()


@dataclass(eq=False, repr=False)
class View:
    """Keeps the catalogue ready to be searched; `device` is asked for everything that can change."""

    device: Device
    _catalogue: list[tuple[str, str]] = field(default_factory=list)
    _folded: list[str] = field(default_factory=list)
    _position: dict[str, int] = field(default_factory=dict)

    def refresh(self) -> None:
        """Reads the catalogue again."""
        self._catalogue = self.device._store.catalogue()
        self._folded = [folded(title) for _, title in self._catalogue]
        self._position = {item: n for n, (item, _) in enumerate(self._catalogue)}

    @property
    def n_items(self) -> int:
        return len(self._catalogue)

    def title_of(self, item: str) -> str:
        return self._catalogue[self._position[item]][1] if item in self._position else item

    def knows(self, item: str) -> bool:
        return item in self._position

    def search(self, text: str) -> dict[str, Any]:
        """Titles that hold every word; those that begin with the text come first."""
        words = folded(text).split()
        found = list(range(self.n_items))
        for word in words:
            found = [n for n in found if word in self._folded[n]]
        whole = " ".join(words)
        first = [n for n in found if self._folded[n].startswith(whole)][:MOST_FOUND]
        if len(first) < MOST_FOUND:
            others = (n for n in found if not self._folded[n].startswith(whole))
            first += itertools.islice(others, MOST_FOUND - len(first))
        rated = self.device._store.ratings()
        items = [{"item": self._catalogue[n][0], "title": self._catalogue[n][1]} for n in first]
        return {"count": len(found), "items": [entry | {"rating": rated.get(entry["item"])} for entry in items]}

    def ratings(self) -> list[dict[str, Any]]:
        """What this person rated, by title."""
        rated = self.device._store.ratings()
        entries = [{"item": item, "title": self.title_of(item), "rating": rated[item]} for item in rated]
        return sorted(entries, key=lambda entry: str(entry["title"]))

    def recommendations(self, count: int = SHOWN) -> list[dict[str, Any]]:
        """The best unrated items, each with the liked items that it is most like."""
        vectors = self.device._session.item_vectors()
        suggestions = self.device.recommend(count)
        rated = {item: value for item, value in self.device._store.ratings().items() if item in self._position}
        liked = [item for item, value in rated.items() if value >= np.mean(list(rated.values()))]
        alike = likeness_between(
            vectors, [self._position[s.item] for s in suggestions], [self._position[item] for item in liked]
        )
        found = []
        for suggestion, row in zip(suggestions, alike, strict=True):
            best = [n for n in np.argsort(-row)[:MOST_REASONS] if row[n] > 0]
            reasons = [{"title": self.title_of(liked[n]), "rating": rated[liked[n]]} for n in best]
            found.append(vars(suggestion) | {"reasons": reasons})
        return found

    def last_answer(self, attack: Attack) -> dict[str, Any] | None:
        """The very items and numbers of the last report, beside what a server can read off them."""
        last = self.device._session.last_answer()
        if last is None:
            return None
        answered, report, user_vector = last
        rated = self.device._store.ratings()
        positions = [self._position[item] for item in rated if item in self._position]
        seen = infer(attack, answered, report, user_vector, positions)
        rows = []
        for n, position in enumerate(report.items):
            item, title = self._catalogue[position]
            row = {"title": title, "rating": rated.get(item), "numbers": report.gradients[n].tolist()}
            rows.append(row | {"amplitude": float(seen.amplitudes[n]), "stands_out": bool(seen.stands_out[n])})
        return {
            "round": report.round_number,
            "waiting": self.device._store.get("outbox") is not None,
            "bytes": len(self.device._store.get("last_answer") or b""),
            "rows": rows,
            "n_rated": int(seen.is_rated.sum()),
            "n_stands_out": int(seen.stands_out.sum()),
            "n_right": int((seen.stands_out & seen.is_rated).sum()),
            "cosine": seen.cosine,
            "same_top": seen.same_top,
            "of_top": SHOWN,
        }


def likeness_between(vectors: FloatArray, items: list[int], others: list[int]) -> FloatArray:
    """Cosines of item vectors off the mean of all, `(len(items), len(others))`: the reasons of `Result.explain`."""
    mean = vectors.mean(axis=0)
    units = []
    for rows in (vectors[items] - mean, vectors[others] - mean):
        norms = np.linalg.norm(rows, axis=1)
        units.append(rows / np.where(norms > 0, norms, 1)[:, None])
    return np.asarray(units[0] @ units[1].T)
