"""A data source: made-up ratings of two camps of people, each of which likes the items that the other dislikes."""

import numpy as np

from hushrec.data import Ratings, Scale


def two_camps(people: int = 60, items: int = 20, seed: int = 0) -> Ratings:
    """Return made-up ratings: everybody rates half of the items, 4 or 5 in their own camp and 1 or 2 in the other."""
    rng = np.random.default_rng(seed)
    rows = [
        (person, item, (4 if person % 2 == item % 2 else 1) + rng.integers(2))
        for person in range(people)
        for item in rng.permutation(items)[: items // 2]
    ]
    who, what, values = (np.array(column) for column in zip(*rows, strict=True))
    names = [f"p{person}" for person in range(people)], [f"i{item}" for item in range(items)]
    return Ratings("two-camps", *names, who, what, values.astype(np.float64), Scale(1, 5))
