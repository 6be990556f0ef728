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
    """Return the last `sdcf` report item by item, and what attacks infer from the last reports."""
    budgets, catalogue, report = device.budgets, device.catalogue, sent.uploads[-1].report
    in_unit = {position: float(budgets.to_unit(value)) for position, value in sent.rated.items()}
    best = [catalogue.position_of(suggestion.item) for suggestion in device.recommend(SHOWN)]
    vectors = device.item_vectors()
    assert vectors is not None  # only gradient reports are stored, and they need item vectors
    first, second, *_ = budgets.to_unit(budgets.form_values())
    compared = compare(reading, sent.user_vector, vectors, in_unit, best, float(second - first) / 2)
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
        "bytes": sent.uploads[-1].n_bytes,
        "rows": rows,
        "n_uploads": len(sent.uploads),
        "n_rated": len(sent.rated),
        "of_top": SHOWN,
    }


def table_sent(device: Device) -> list[str] | None:
    """Return sentences on the last masked report and what its sum reveals; None before the first report."""
    last, offer = device.last_charged(), device.offer
    if last is None or offer is None:
        return None
    numbers, smallest = last.message.numbers, offer.terms.rules.smallest
    some = ", ".join(str(number) for number in numbers[:6])
    return [
        f"Round {last.round_number}: {len(numbers):,} integers, such as {some}.",
        "They are your clipped numbers plus noise and masks, and look random to anyone who reads them.",
        f"The server adds up the reports of at least {smallest:,} devices, in which the masks cancel. It sees the sum:",
        "how often each item was rated and how it was liked, with the noise of all devices.",
        "Your budget limits how much this sum can reveal about you.",
    ]
