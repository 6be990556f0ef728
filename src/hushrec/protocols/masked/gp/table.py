"""The public table of a masked run with model `gp`."""

from dataclasses import dataclass, field

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import RemoteProtocolError
from hushrec.protocols.masked.table import check_shapes, freeze_entries


@dataclass(frozen=True, eq=False)
class PublicTable:
    """The public table of model `gp` after the rounds so far, in coordinates in which a taste d has the prior N(0, I).

    A device refuses a table with an entry that is not finite or above `LARGEST_ENTRY`, a negative weight, or a variance
    that is not positive: computations could fail on such a table, and a failure could reveal something about the
    ratings.
    """

    offsets: FloatArray = field(repr=False)  # predicted rating at taste d = 0, (n_items,)
    rows: FloatArray = field(repr=False)  # a prediction is offset + rowᵀd, (n_items, L)
    variances: FloatArray = field(repr=False)  # variance of a rating, given the taste, (n_items,)
    weights: FloatArray = field(repr=False)  # multipliers of the rows in bias and audience blocks, (n_items,)
    factor_weights: FloatArray = field(repr=False)  # the same in factor blocks, (n_items,)
    directions: FloatArray = field(repr=False)  # D, (L, n_factors): factor blocks use the scores Dᵀd
    description_centre: FloatArray = field(repr=False)  # mean description of people, (n_taste + 1,)
    description_map: FloatArray = field(repr=False)  # whitens: mapᵀ(description − centre), (n_taste + 1, n_audience)
    log_counts: FloatArray = field(repr=False)  # expected log number of ratings, for ranking, (n_items,)
    length_squared: FloatArray = field(repr=False)  # squared length scale of the kernel, (1,)

    def __post_init__(self) -> None:
        freeze_entries(self)
        if not (np.all(self.variances > 0) and np.all(self.length_squared > 0)):
            raise RemoteProtocolError(
                "variances and length_squared of a public table must be positive. Devices refuse the table."
            )
        if not (np.all(self.weights >= 0) and np.all(self.factor_weights >= 0)):
            raise RemoteProtocolError(
                "weights and factor_weights of a public table must not be negative. Devices refuse the table."
            )
        n_items, length = self.rows.shape if self.rows.ndim == 2 else (-1, -1)
        check_shapes(
            self,
            {
                **dict.fromkeys(("offsets", "variances", "weights", "factor_weights", "log_counts"), (n_items,)),
                "directions": (length, self.directions.shape[-1]),
                "description_map": (len(self.description_centre), self.description_map.shape[-1]),
                "length_squared": (1,),
            },
        )

    @property
    def n_items(self) -> int:
        return len(self.rows)
