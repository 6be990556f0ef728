"""What the person's page shows: titles to search, ratings, recommendations with reasons, what left. Computed here."""

import itertools
import unicodedata
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.device.device import Device
from hushrec.device.inference import BELIEVED, SHOWN, Reading, compare
from hushrec.device.kept import Upload
from hushrec.models.predictor import likeness_between

MOST_FOUND = 12
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
        average = float(np.mean(list(rated.values()))) if rated else 0.0
        liked = [item for item, value in rated.items() if value >= average]
        alike = likeness_between(
            vectors, [self._position[s.item] for s in suggestions], [self._position[item] for item in liked]
        )
        found = []
        for suggestion, row in zip(suggestions, alike, strict=True):
            best = [n for n in np.argsort(-row)[:MOST_REASONS] if row[n] > 0]
            reasons = [{"title": self.title_of(liked[n]), "rating": rated[liked[n]]} for n in best]
            found.append(vars(suggestion) | {"reasons": reasons})
        return found

    def sent(self, uploads: list[Upload], user_vector: FloatArray, reading: Reading) -> dict[str, Any]:
        """The very items and numbers of the last report, beside what a server can read off it and those before."""
        session, report = self.device._session, uploads[-1].report
        rated = self.device._store.rated_positions(self.n_items)
        in_unit = {position: session.budgets.to_unit(value) for position, value in rated.items()}
        compared = compare(reading, user_vector, session.item_vectors(), in_unit)
        places = np.searchsorted(reading.items, report.items)
        guessed = session.budgets.from_unit(reading.ratings[places])
        rows = [
            {
                "title": self._catalogue[position][1],
                "numbers": report.gradients[n].tolist(),
                "belief": float(reading.beliefs[places[n]]),
                "guess": float(guessed[n]) if reading.beliefs[places[n]] > BELIEVED else None,
                "rating": rated.get(int(position)),
            }
            for n, position in enumerate(report.items)
        ]
        return vars(compared) | {
            "round": report.round_number,
            "waiting": self.device._store.get("outbox") is not None,
            "bytes": uploads[-1].n_bytes,
            "rows": rows,
            "n_uploads": len(uploads),
            "n_rated": len(rated),
            "of_top": SHOWN,
        }
