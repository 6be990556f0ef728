"""Lists of items for one person: what they are sorted by, and how good they are on held-out likes.

A model of vectors is as sure of an item that one person rated as of one that hundreds did, and sorted by its bare
predictions a list is full of the former. So the prediction of each item is drawn toward the person's own mean where few
ratings support it (`evaluate.shrink`). The number of ratings per item is taken as public, as a shop knows its sales: no
gradient protocol tells it to a device. A model that knows how sure it is (`Predictor.deviations`) sorts by itself.
"""

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.evaluate import shrink
from hushrec.models.predictor import Predictor
from hushrec.scale import HIGHEST, LOWEST

STRENGTH = 100.0  # ratings that a person's own mean weighs as much as (docs/decisions/0014-support-of-lists.md)
LIKED = 4.0  # the lowest held-out rating that counts as liked, on the scale 1 to 5: the upper quarter of any scale


def list_scores(
    predictor: Predictor, users: IntArray, own_means: FloatArray, support: FloatArray, strength: float = STRENGTH
) -> FloatArray:
    """Return what the lists of some users are sorted by, `(len(users), n_items)`, on the scale 1 to 5.

    `own_means` has one mean rating per user, NaN without ratings; `support` the number of ratings per item.
    """
    scores = predictor.scores(users)
    if strength == 0 or predictor.deviations(int(users[0])) is not None:
        return scores
    center = own_means[users]
    return shrink(scores, np.where(np.isnan(center), (LOWEST + HIGHEST) / 2, center), support, strength)
