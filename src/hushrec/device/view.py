"""The content of the device page: search results, ratings, recommendations with reasons, and sent reports."""

from typing import Any

import numpy as np

from hushrec.device.device import Device, Sent
from hushrec.device.inference import BELIEVED, SHOWN, Reading, compare

MOST_FOUND = 12  # search results per request
MOST_REASONS = 2


def search(device: Device, text: str, first: int) -> dict[str, Any]:
    """Return search results from number `first` on, with the person's ratings, and the number of all results."""
    found, rated = device.search(text, count=MOST_FOUND, first=first), device.ratings()
    items = [{"item": item, "title": title, "rating": rated.get(item)} for item, title in found.items]
    return {"count": found.count, "items": items}


def ratings(device: Device) -> list[dict[str, Any]]:
    """Return this person's ratings, sorted by title."""
    catalogue = device.catalogue
    entries = [
        {"item": item, "title": catalogue.title_of(item), "rating": value, "is_known": item in catalogue}
        for item, value in device.ratings().items()
    ]
    return sorted(entries, key=lambda entry: str(entry["title"]))


def recommendations(device: Device, count: int = SHOWN) -> list[dict[str, Any]]:
    """Return the recommended items, each with the most similar items among those that the person likes."""
    suggestions, rated = device.recommend(count), device.ratings()
    reasons = device.reasons([suggestion.item for suggestion in suggestions], MOST_REASONS)
    return [
        vars(suggestion)
        | {"reasons": [{"title": device.catalogue.title_of(item), "rating": rated[item]} for item in items]}
        for suggestion, items in zip(suggestions, reasons, strict=True)
    ]


def sent(device: Device, sent: Sent, reading: Reading) -> dict[str, Any]:
    """Return the items and numbers of the last gradient report, and what attacks infer from the stored reports."""
    budgets, catalogue, last = device.budgets, device.catalogue, sent.reports[-1]
    report = last.report
    in_unit = {position: float(budgets.to_unit(value)) for position, value in sent.rated.items()}
    best = [catalogue.position_of(suggestion.item) for suggestion in device.recommend(SHOWN)]
    vectors = device.item_vectors()
    assert vectors is not None  # only reports with item vectors are attacked
    first, second, *_ = budgets.to_unit(budgets.form_values())
    compared = compare(reading, last.arrays["user_vector"], vectors, in_unit, best, float(second - first) / 2)
    places = np.searchsorted(reading.items, report.items)
    guessed = budgets.from_unit(reading.ratings[places])
    rows = [
        {
            "title": catalogue.title_at(int(position)),
            "numbers": report.gradients[n].tolist(),
            "belief": float(reading.beliefs[places[n]]),
            "guess": float(guessed[n]) if reading.beliefs[places[n]] > BELIEVED else None,
            "rating": sent.rated.get(int(position)),
        }
        for n, position in enumerate(report.items)
    ]
    return vars(compared) | {
        "round": report.round_number,
        "waiting": sent.is_waiting,
        "bytes": last.n_bytes,
        "rows": rows,
        "n_reports": len(sent.reports),
        "n_rated": len(sent.rated),
        "of_top": SHOWN,
    }
