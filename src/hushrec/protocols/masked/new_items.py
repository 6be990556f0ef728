"""Items that joined the catalogue after a run of model `gp` was made: guessed from their attributes.

A finished table says what items with such attributes are like. Its offsets, rows and log-popularity are regressed on
the taste columns of the items that the run knows, each item weighing n_j/(n_j + 20), with a ridge of 1; a new item gets
what the regression says, and the variance that it leaves as doubt about its own effect. All of it is public: devices
compute it themselves, and nobody is asked anything.
"""

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked.constants import CONSTANTS

RIDGE = 1.0


def with_new_items(published: Arrays, taste: FloatArray) -> Arrays:
    """Return a public table with one more row for each item that only `taste`, `(n_items, n_taste)`, has."""
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
