"""What a server can infer from this device's gradient reports: attacks run on the device, and what they get right.

The results never leave the device. The attack is an argument, which the command line takes from `hushrec.audit`: this
package must not import `hushrec.audit`.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.device.device import Device, Sent
from hushrec.protocols.shown import Reading, ShownReport

SHOWN = 10  # items in a list of recommendations
BELIEVED = 0.5  # if an attack gives an item a larger probability of being rated, its guess is "rated"


# Arguments: the terms, the protocol with this person's options, the reports, and all possible ratings on the scale 1
# to 5.
Attack = Callable[[Any, Any, Sequence[ShownReport], FloatArray], Reading]


def describe(device: Device, sent: Sent, reading: Reading) -> dict[str, Any]:
    """Return what the page shows about the gradient reports of this device. Must never leave the device.

    `reading` has what the attacks recovered from the stored reports. The result has the entries of `compare`, and:

    - `rows`: for each item of the last report, its gradient, the attacks' guess and the person's rating;
    - `round`, `waiting` and `bytes`: of the last report, its round, whether it has no receipt yet, and its size;
    - `n_reports` and `n_rated`: the numbers of stored reports and of the person's ratings;
    - `of_top`: the number of best recommendations with which the attacks' guess of this list is compared.
    """
    budgets, catalogue, last = device.budgets, device.catalogue, sent.reports[-1]
    report = last.report
    in_unit = {position: float(budgets.mapping.to_unit(value)) for position, value in sent.rated.items()}
    best = [catalogue.position_of(suggestion.item) for suggestion in device.recommend(SHOWN)]
    assert device.offer is not None  # there is a report
    vectors = device.public_table()["item_vectors"][: device.offer.terms.n_items]
    first, second, *_ = budgets.mapping.to_unit(budgets.mapping.form_values())
    compared = compare(reading, last.arrays["user_vector"], vectors, in_unit, best, float(second - first) / 2)
    places = np.searchsorted(reading.items, report.items)
    guessed = budgets.mapping.from_unit(reading.ratings[places])
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
    """Return how well the attacks did, compared with the person's own data. Must never leave the device.

    `reading` has what the attacks recovered. `user_vector` is the vector from which the last report was made. `rated`
    holds the ratings by the item's position in the catalogue, on the scale 1 to 5. `best` are the positions of the
    recommended items. `reach` is half the distance, on this scale, between two neighbouring ratings that a person can
    give on the device page: a guessed rating that differs by less from the person's rating counts as exact.
    """
    norm = float(np.linalg.norm(user_vector))
    directions = (reading.direction, _public_direction(item_vectors))
    guess, public = (_best(item_vectors @ direction, rated) for direction in directions)
    believed = reading.items[reading.beliefs > BELIEVED].tolist()
    guessed = dict(zip(reading.items.tolist(), reading.ratings.tolist(), strict=True))
    right = [item for item in believed if item in rated]
    return {
        "cosine": abs(float(reading.direction @ user_vector)) / norm if norm else 0.0,  # of direction and user vector
        "same_top": len(guess & set(best)),  # recommendations that are also best by the recovered direction
        "public_top": len(public & set(best)),  # recommendations that are also best by a guess without reports
        "n_seen": len(reading.items),  # different items in the reports
        "n_believed": len(believed),  # of the items in the reports: those that the attacks guess to be rated
        "n_right": len(right),  # of these guesses: those that are right
        "n_exact": sum(abs(guessed[item] - rated[item]) < reach for item in right),  # right, and so is the rating
    }


def _public_direction(item_vectors: FloatArray) -> FloatArray:
    """Return a guess of a user vector for which no report is needed: the w that minimizes ‖V w − 1‖.

    V has the item vectors as rows, and 1 is a vector of ones. So the guess is the same for everybody.
    """
    return np.asarray(np.linalg.lstsq(item_vectors.T @ item_vectors, item_vectors.sum(axis=0))[0])


def _best(scores: FloatArray, rated: Collection[int]) -> set[int]:
    scores = scores.copy()
    scores[list(rated)] = -np.inf
    return set(np.argpartition(-scores, min(SHOWN, len(scores)) - 1)[:SHOWN].tolist())
