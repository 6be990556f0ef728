"""The public table of a masked run with model `audience`."""

from dataclasses import dataclass, field

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import RemoteProtocolError
from hushrec.models.audience import Description
from hushrec.protocols.masked.audience import constants
from hushrec.protocols.masked.table import check_shapes, freeze_entries


@dataclass(frozen=True, eq=False)
class AudienceTable:
    """The public table of model `audience`: the parameters of the next round, and the arrays that scores need.

    The letters are those of the formulas in `models.audience`.

    A device refuses a table with a non-finite or too large entry, a negative weight, or a `crowd` that is not positive:
    computations could fail on such a table, and a failure could reveal something about the person's items.
    """

    columns: FloatArray = field(repr=False)  # the next moments block is about these, (n_items, W)
    count_weights: FloatArray = field(repr=False)  # ω_j of count blocks, (n_items,)
    weights: FloatArray = field(repr=False)  # ω_j of audience blocks, (n_items,)
    asked_rows: FloatArray = field(repr=False)  # p_j of the description for the next audience block, (n_items, K)
    asked_base: FloatArray = field(repr=False)  # (K,)
    asked_slope: FloatArray = field(repr=False)  # (K,)
    rows: FloatArray = field(repr=False)  # p_j of the description that `audiences` are means of, (n_items, K')
    base: FloatArray = field(repr=False)  # (K',)
    slope: FloatArray = field(repr=False)  # (K',)
    audiences: FloatArray = field(repr=False)  # a_j, (n_items, K')
    counts: FloatArray = field(repr=False)  # E n_j, (n_items,)
    log_counts: FloatArray = field(repr=False)  # E log n_j, (n_items,)
    places: FloatArray = field(repr=False)  # x_j as columns, from which similarity is computed, (L, n_items)
    crowd: FloatArray = field(repr=False)  # g_j, the density of everybody's items at j, (n_items,)
    features: FloatArray = field(repr=False)  # y_j as columns, the features of a person's preference, (R, n_items)

    def __post_init__(self) -> None:
        freeze_entries(self)
        if not np.all(self.crowd > 0):
            raise RemoteProtocolError("crowd of a public table must be positive for every item. Devices refuse it.")
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
    def asked(self) -> Description:
        """The parameters with which a device describes its person in the next audience block."""
        return Description(self.asked_rows, self.asked_base, self.asked_slope, _SHAPE)

    @property
    def description(self) -> Description:
        """The parameters with which scores describe a person; `audiences` are means of such descriptions."""
        return Description(self.rows, self.base, self.slope, _SHAPE)


_SHAPE = np.array([constants.PROFILE_OFFSET, constants.USUAL_LOG_PROFILE, constants.DESCRIPTION_LIMIT])
_SHAPE.flags.writeable = False
RANKING_SHAPE = np.array(
    [constants.AUDIENCE_WEIGHT, constants.DENSITY_WEIGHT, constants.PREFERENCE_WEIGHT, constants.CROWD_ITEMS]
)
RANKING_SHAPE.flags.writeable = False
