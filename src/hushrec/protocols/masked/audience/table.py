"""The public table of a masked run with model `audience`."""

from dataclasses import dataclass, field

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import RemoteProtocolError
from hushrec.models.audience import Description
from hushrec.protocols.masked.audience import constants
from hushrec.protocols.masked.table import check_shapes, freeze_entries


@dataclass(frozen=True, eq=False, kw_only=True)
class AudienceArrays:
    """The arrays that the server has learned about the items and publishes.

    A *description* of a person with h items is a vector of K numbers: base + slope · (log h − 4.3) + Σ p_j / (h + 5),
    summed over the person's items j. It is scaled down to norm 2 √K if it is longer. The audience of an item is the
    mean description of the people who chose the item. `models.audience` has the formula for scores. The names of these
    fields are part of the wire format.
    """

    columns: FloatArray = field(repr=False)  # numbers about each item for the next moments block, (n_items, W)
    asked_rows: FloatArray = field(repr=False)  # p_j of the description in the next audience block, (n_items, K)
    asked_base: FloatArray = field(repr=False)  # base of that description, (K,)
    asked_slope: FloatArray = field(repr=False)  # slope of that description, (K,)
    rows: FloatArray = field(repr=False)  # p_j of the description that `audiences` are means of, (n_items, K')
    base: FloatArray = field(repr=False)  # base of that description, (K',)
    slope: FloatArray = field(repr=False)  # slope of that description, (K',)
    audiences: FloatArray = field(repr=False)  # mean description of the people who chose the item, (n_items, K')
    counts: FloatArray = field(repr=False)  # expected number of people who chose the item, (n_items,)
    log_counts: FloatArray = field(repr=False)  # expected logarithm of that number, (n_items,)
    places: FloatArray = field(repr=False)  # coordinates, in which similar items are near each other, (L, n_items)
    crowd: FloatArray = field(repr=False)  # density, at the item's coordinates, of everybody's items, (n_items,)
    features: FloatArray = field(repr=False)  # features from which a person's preference is computed, (R, n_items)


@dataclass(frozen=True, eq=False, kw_only=True)
class AudienceTable(AudienceArrays):
    """The public table of model `audience`: the learned arrays, and the item weights of the next round.

    A device refuses a table with a non-finite or too large entry, a negative weight, or a `crowd` that is not positive:
    computations could fail on such a table, and a failure could reveal something about the person's items.
    """

    count_weights: FloatArray = field(repr=False)  # by which devices multiply rows of count blocks, (n_items,)
    weights: FloatArray = field(repr=False)  # by which devices multiply rows of audience blocks, (n_items,)

    def __post_init__(self) -> None:
        freeze_entries(self)
        if not np.all(self.crowd > 0):
            raise RemoteProtocolError(
                "the array crowd of a public table must be positive for every item. Devices refuse the table."
            )
        for name in ("count_weights", "weights"):
            if not np.all(getattr(self, name) >= 0):
                raise RemoteProtocolError(f"{name} of a public table must not be negative. Devices refuse the table.")
        n_items, asked, width = len(self.weights), len(self.asked_base), len(self.base)
        per_item = ("count_weights", "weights", "counts", "log_counts", "crowd")
        expected: dict[str, tuple[int, ...]] = dict.fromkeys(per_item, (n_items,))
        expected |= {"columns": (n_items, self.columns.shape[-1]), "places": (len(self.places), n_items)}
        expected |= {"features": (len(self.features), n_items)}
        expected |= {"asked_rows": (n_items, asked), "asked_slope": (asked,)}
        expected |= {"rows": (n_items, width), "audiences": (n_items, width), "slope": (width,)}
        check_shapes(self, expected)

    @property
    def n_items(self) -> int:
        return len(self.weights)

    @property
    def description(self) -> Description:
        """The parameters of the descriptions that the next audience block adds up."""
        return Description(self.asked_rows, self.asked_base, self.asked_slope, DESCRIPTION_SHAPE)


DESCRIPTION_SHAPE = np.array([constants.PROFILE_OFFSET, constants.USUAL_LOG_PROFILE, constants.DESCRIPTION_LIMIT])
RANKING_SHAPE = np.array(
    [constants.AUDIENCE_WEIGHT, constants.DENSITY_WEIGHT, constants.PREFERENCE_WEIGHT, constants.CROWD_ITEMS]
)
for _shape in (DESCRIPTION_SHAPE, RANKING_SHAPE):
    _shape.flags.writeable = False
