"""The scores by which lists of recommendations are sorted.

Models of user and item vectors do not know how certain their predictions are. Sorted by raw predictions, lists would
fill up with items that have only a few ratings. Therefore the prediction for an item with few ratings is shrunk toward
the person's own mean rating (`evaluate.shrink`). The number of ratings per item is assumed to be public, like a shop's
sales figures; no gradient protocol sends it to devices. Predictions of a model that knows its uncertainty
(`Predictor.deviations`) are not shrunk.
"""

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.evaluate import shrink
from hushrec.models.predictor import Predictor
from hushrec.scale import HIGHEST, LOWEST

STRENGTH = 100.0  # weight of the person's own mean, in ratings (docs/decisions/0014-support-of-lists.md)
LIKED = 4.0  # the lowest rating that counts as liked, on the scale 1 to 5: the upper quarter of any scale


def list_scores(
    predictor: Predictor, users: IntArray, own_means: FloatArray, support: FloatArray, strength: float = STRENGTH
) -> FloatArray:
    """Return the scores by which the lists of `users` are sorted, `(len(users), n_items)`, on the scale 1 to 5.

    `own_means` holds the mean rating of every user (NaN without ratings), and `support` the number of ratings per item.
    `strength` is the weight of the user's mean, as a number of ratings; 0 turns the shrinking off.
    """
    scores = predictor.scores(users)
    if strength == 0 or predictor.deviations(int(users[0])) is not None:
        return scores
    center = own_means[users]
    return shrink(scores, np.where(np.isnan(center), (LOWEST + HIGHEST) / 2, center), support, strength)
