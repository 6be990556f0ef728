"""What a server can infer from this device's `sdcf` reports: attacks run on the device, and what they get right.

The results never leave the device. The attack is an argument (the command line passes one from `hushrec.audit`), so
that this package does not import `hushrec.audit`.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.device.device import Device, Sent
from hushrec.device.store import ShownReport

SHOWN = 10  # items in a list of recommendations
BELIEVED = 0.5  # the probability above which a server guesses "rated"


class Reading(Protocol):
    """The results of the attacks on one device's reports."""

    @property
    def direction(self) -> FloatArray: ...  # the guessed user vector, normalized to length 1

    @property
    def items(self) -> IntArray: ...  # all reported items, ascending

    @property
    def beliefs(self) -> FloatArray: ...  # for each reported item, the probability that it is rated

    @property
    def ratings(self) -> FloatArray: ...  # for each reported item, its most likely rating, from 1 to 5


# Arguments: the terms, the protocol with this person's budgets, the reports, and the possible ratings, from 1 to 5.
Attack = Callable[[Any, Any, Sequence[ShownReport], FloatArray], Reading]


def describe(device: Device, sent: Sent, reading: Reading) -> dict[str, Any]:
    """Return what the page shows about the `sdcf` reports of this device. Must never leave the device.

    `rows` has each item of the last report with its gradient, the attacks' guess and the person's rating. `round`,
    `waiting` (no receipt yet) and `bytes` describe the last report. `n_reports` is the number of stored reports,
    `n_rated` that of ratings, and `of_top` that of recommendations. The other entries are those of `compare`.
    """
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
    return compared | {
        "round": report.round_number,
        "waiting": sent.is_waiting,
        "bytes": last.n_bytes,
        "rows": rows,
        "n_reports": len(sent.reports),
        "n_rated": len(sent.rated),
        "of_top": SHOWN,
    }


def compare(
    reading: Reading,
    user_vector: FloatArray,
    item_vectors: FloatArray,
    rated: dict[int, float],
    best: Collection[int],
    reach: float,
) -> dict[str, float]:
    """Return the accuracy of the attacks, measured against the person's own data. Must never leave the device.

    `user_vector` is the vector from which the last report was made. `rated` holds the ratings by the item's position
    in the catalogue, on the scale 1 to 5. `best` are the positions of the recommended items. `reach` is half the
    distance between two ratings of the page's form: a guess within `reach` of the rating counts as exact.
    """
    norm = float(np.linalg.norm(user_vector))
    directions = (reading.direction, _public_direction(item_vectors))
    guess, public = (_best(item_vectors @ direction, rated) for direction in directions)
    believed = reading.items[reading.beliefs > BELIEVED].tolist()
    guessed = dict(zip(reading.items.tolist(), reading.ratings.tolist(), strict=True))
    right = [item for item in believed if item in rated]
    return {
        "cosine": abs(float(reading.direction @ user_vector)) / norm if norm else 0.0,  # absolute, with the user vector
        "same_top": len(guess & set(best)),  # recommendations that the server's guess of the user vector ranks best too
        "public_top": len(public & set(best)),  # the same for a guess from the public item vectors alone
        "n_seen": len(reading.items),  # items in all reports
        "n_believed": len(believed),  # of these, items that the attacks take for rated
        "n_right": len(right),  # of these, items that are rated
        "n_exact": sum(abs(guessed[item] - rated[item]) < reach for item in right),  # of these, with the right rating
    }


def _public_direction(item_vectors: FloatArray) -> FloatArray:
    """Return a guess of a user vector, the same for every person: the least-squares solution w of V w = 1.

    V are the item vectors. No report is used.
    """
    return np.asarray(np.linalg.lstsq(item_vectors.T @ item_vectors, item_vectors.sum(axis=0))[0])


def _best(scores: FloatArray, rated: Collection[int]) -> set[int]:
    scores = scores.copy()
    scores[list(rated)] = -np.inf
    return set(np.argpartition(-scores, min(SHOWN, len(scores)) - 1)[:SHOWN].tolist())
