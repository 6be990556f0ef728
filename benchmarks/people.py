"""Parts of a data set's people, for benchmarks that hold some of them out."""

from dataclasses import replace
from typing import Any

import numpy as np


def choose_people(ratings: Any, chosen: np.ndarray) -> Any:
    """The ratings of the users that are `chosen`, `(n_users,)` of truth values; the items stay as they are."""
    kept = ratings.rows(np.flatnonzero(chosen[ratings.users]))
    users, rows = np.unique(kept.users, return_inverse=True)
    return replace(kept, user_ids=[ratings.user_ids[user] for user in users], users=rows)
