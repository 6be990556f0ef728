"""Public ratings, for example of volunteers, critics or an open data set, as an addition to private ratings."""

import dataclasses

import numpy as np

from hushrec.arrays import PublicRatings
from hushrec.data.ratings import Ratings
from hushrec.errors import DataError


def with_public(ratings: Ratings, others: Ratings) -> Ratings:
    """Return `ratings` with `others` as its public ratings, mapped to the scale 1 to 5.

    The people in `others` are treated as different from the users, even if their ids are equal. All items of `others`
    must be in the catalogue of `ratings`, because the items of a run must not depend on ratings. Without a catalogue,
    they must be among the items of `ratings`.
    """
    if ratings.scale is None or others.values is None or others.scale is None:
        raise DataError("public must be given only if both data sets have ratings with values. Leave it out.")
    known = ratings.item_ids if ratings.catalogue is None else ratings.catalogue.ids
    place_of = {item: place for place, item in enumerate(known)}
    places = np.array([place_of.get(item, -1) for item in others.item_ids], dtype=np.int64)
    items = places[others.items]
    unknown = int(np.count_nonzero(items < 0))
    if unknown:
        raise DataError(
            f"public must hold ratings of catalogue items only, but {unknown} of its {others.n_ratings} ratings are of"
            f" items outside the catalogue of {len(known)} items. Remove these ratings, or add their items to the items"
            " file."
        )
    order = np.lexsort((items, others.users))
    counts = np.bincount(others.users, minlength=others.n_users)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    public = PublicRatings(starts, items[order], others.scale.to_unit(others.values[order]))
    return dataclasses.replace(ratings, public=public)
