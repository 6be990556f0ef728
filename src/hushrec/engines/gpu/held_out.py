"""Held-out ratings of a batch of runs as tensors, and their metrics: rating errors, and ranks of held-out items."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hushrec.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class HeldOut:
    """Held-out ratings as tensors, one row per split; run number b of a batch is measured on row `splits[b]`."""

    users: Tensor  # (n_splits, n_tests), like `items` and `values`
    items: Tensor
    values: Tensor  # on the scale 1 to 5
    splits: Tensor  # (n_runs,)


def rating_errors(tests: HeldOut, user_vectors: Tensor, item_vectors: Tensor) -> FloatArray:
    """Return each run's RMSE and mean absolute error on its held-out ratings (from 1 to 5), `(n_runs, 2)`."""
    rows = []
    for run, split in enumerate(tests.splits.tolist()):
        u, v = user_vectors[run][tests.users[split]], item_vectors[run][tests.items[split]]
        error = (tests.values[split] - (u * v).sum(-1)).double()
        rows.append([float((error**2).mean().sqrt()), float(error.abs().mean())])
    return np.array(rows)


def held_out_ranks(
    users: Tensor, items: Tensor, is_rated: Tensor, user_vectors: Tensor, item_vectors: Tensor
) -> IntArray:
    """Return how each held-out item ranks in one run among the items without a training rating, `(3, n_tests)`.

    Item `items[t]` is held out from user `users[t]`; `is_rated` `(n_users, n_items)` marks the training ratings. Among
    the user's items without a training rating, the rows count the items with a higher score than the held-out item, the
    other items with an equal score, and all items but the held-out one.
    """
    scores = user_vectors[users] @ item_vectors.T
    own = scores.gather(1, items[:, None])
    rated = is_rated[users]
    scores.masked_fill_(rated, -torch.inf)
    above, tied = (scores > own).sum(1), (scores == own).sum(1) - 1
    others = item_vectors.shape[0] - rated.sum(1) - 1
    return np.asarray(torch.stack([above, tied, others]).cpu().numpy())
