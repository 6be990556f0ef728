"""Cold start of items: rows of the public table for items that joined the catalogue after a run of model `gp` began.

A weighted ridge regression predicts the offset, row and log-popularity of an item from its taste columns, the public
attributes that a person may like or dislike. It is fitted to the known items, with weight n_j/(n_j + 20) for an item
with n_j ratings and a ridge of 1. A new item gets the predictions, and the residual variance of the offsets as
uncertainty about its effect. The device computes everything from public numbers, without a message.
"""

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked.constants import CONSTANTS

RIDGE = 1.0


def with_new_items(published: Arrays, taste: FloatArray) -> Arrays:
    """Return the arrays of the public table with rows added for new items.

    `published` has the arrays for the known items. `taste` has the public attributes (taste columns) of all items,
    `(n_items, n_taste)`, with the known items first.
    """
    offsets, rows, log_counts = (np.asarray(published[name]) for name in ("offsets", "rows", "log_counts"))
    known, new = len(offsets), len(taste) - len(offsets)
    columns = np.concatenate([np.ones((len(taste), 1)), taste], axis=1)
    targets = np.concatenate([offsets[:, None], log_counts[:, None], rows], axis=1)
    counts = np.exp(log_counts)
    weights = counts / (counts + CONSTANTS.weight_offset)
    weighted = columns[:known] * weights[:, None]
    ridge = RIDGE * np.eye(columns.shape[1])
    ridge[0, 0] = 0
    found = np.linalg.solve(weighted.T @ columns[:known] + ridge, weighted.T @ targets)
    left = offsets - columns[:known] @ found[:, 0]
    guessed, doubt = columns[known:] @ found, float(np.average(left**2, weights=weights))
    more = {
        "offsets": guessed[:, 0],
        "log_counts": guessed[:, 1],
        "rows": guessed[:, 2:],
        "variances": np.full(new, CONSTANTS.noise + doubt),
        "weights": np.zeros(new),
        "factor_weights": np.zeros(new),
    }
    return {**published, **{name: np.concatenate([published[name], added]) for name, added in more.items()}}
