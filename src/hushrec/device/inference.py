"""What a server can read off this device's uploads: the audit's attacks, run here and held against the truth.

Nothing of it leaves the device. The attacks come from outside (`hushrec.audit` in the command line), so that a
device does not depend on the audit.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.device.kept import Upload
from hushrec.protocols.gradient.messages import Terms

SHOWN = 10
BELIEVED = 0.5  # above it, a server that has to decide says "rated"


class Reading(Protocol):
    """What the attacks say."""

    @property
    def direction(self) -> FloatArray: ...  # of the user vector, length 1

    @property
    def items(self) -> IntArray: ...  # all that were reported, rising

    @property
    def beliefs(self) -> FloatArray: ...  # that each of them is rated

    @property
    def ratings(self) -> FloatArray: ...  # likeliest rating of each, from 1 to 5


# Of the terms, the protocol with this person's budgets, the uploads, and the ratings that can be given, from 1 to 5.
Attack = Callable[[Terms, Any, Sequence[Upload], FloatArray], Reading]


@dataclass(frozen=True, repr=False)
class Comparison:
    """How right the attacks are. Must never leave the device."""

    cosine: float  # between the guessed and the true direction of taste
    same_top: int  # of the person's SHOWN best unrated items, how many are among the server's guess
    public_top: int  # the same for what anybody can guess from the public item vectors, without any upload
    n_seen: int  # items reported in these rounds
    n_believed: int  # of them, those that the server would call rated
    n_right: int  # of those, the ones that are
    n_exact: int  # of those, the ones whose rating it knows: no other of the form is nearer


def compare(
    reading: Reading,
    user_vector: FloatArray,
    item_vectors: FloatArray,
    rated: dict[int, float],
    best: Collection[int],
    reach: float,
) -> Comparison:
    """Hold what the attacks say against what only this device knows.

    `user_vector` is that of the last report, `rated` is on the scale 1 to 5, `best` are the items that are recommended,
    `reach` is half the distance between two ratings of the form.
    """
    norm = float(np.linalg.norm(user_vector))
    directions = (reading.direction, _public_direction(item_vectors))
    guess, public = (_best(item_vectors @ direction, rated) for direction in directions)
    believed = reading.items[reading.beliefs > BELIEVED].tolist()
    guessed = dict(zip(reading.items.tolist(), reading.ratings.tolist(), strict=True))
    right = [item for item in believed if item in rated]
    return Comparison(
        cosine=abs(float(reading.direction @ user_vector)) / norm if norm else 0.0,
        same_top=len(guess & set(best)),
        public_top=len(public & set(best)),
        n_seen=len(reading.items),
        n_believed=len(believed),
        n_right=len(right),
        n_exact=sum(abs(guessed[item] - rated[item]) < reach for item in right),
    )


def _public_direction(item_vectors: FloatArray) -> FloatArray:
    """What everybody likes: w with V w nearest to one constant, (VᵀV) w = Vᵀ1."""
    return np.asarray(np.linalg.lstsq(item_vectors.T @ item_vectors, item_vectors.sum(axis=0))[0])


def _best(scores: FloatArray, rated: Collection[int]) -> set[int]:
    scores = scores.copy()
    scores[list(rated)] = -np.inf
    return set(np.argpartition(-scores, min(SHOWN, len(scores)) - 1)[:SHOWN].tolist())
