"""Ratings that anybody may see, beside those that stay on devices: of volunteers, of critics, of an open set."""

import dataclasses

import numpy as np

from hushrec.arrays import PublicRatings
from hushrec.data.ratings import Ratings
from hushrec.errors import DataError


def with_public(ratings: Ratings, others: Ratings) -> Ratings:
    """Return the ratings with those of others as public ones, on the scale 1 to 5.

    Their people are taken for others than the users, whatever their ids. Items must be of the catalogue: which items a
    run is over is settled before anybody rates.
    """
    if ratings.scale is None or others.values is None or others.scale is None:
        raise DataError("public ratings must have values, and belong to ratings with values. Leave public out.")
    known = ratings.item_ids if ratings.catalogue is None else ratings.catalogue.ids
    place_of = {item: place for place, item in enumerate(known)}
    places = np.array([place_of.get(item, -1) for item in others.item_ids], dtype=np.int64)
    items = places[others.items]
    unknown = int(np.count_nonzero(items < 0))
    if unknown:
        raise DataError(
            f"items of public ratings must be among the {len(known)} of the catalogue; {unknown} of"
            f" {others.n_ratings} public ratings are of others. Leave them out, or list their items in an items file."
        )
    order = np.lexsort((items, others.users))
    counts = np.bincount(others.users, minlength=others.n_users)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    public = PublicRatings(starts, items[order], others.scale.to_unit(others.values[order]))
    return dataclasses.replace(ratings, public=public)
