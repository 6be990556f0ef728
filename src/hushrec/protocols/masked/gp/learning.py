"""The class through which the masked protocol uses model `gp`."""

from collections.abc import Sequence

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.gaussian_process import PLAIN_COLUMNS, GaussianProcessPredictor, Ratings, list_scores
from hushrec.models.gp import ItemTable
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked.evaluation import Held
from hushrec.protocols.masked.gp.constants import CONSTANTS, residual_variance
from hushrec.protocols.masked.gp.entries import EntryArrays, gp_entries
from hushrec.protocols.masked.gp.fleet_size import fleet_sentence
from hushrec.protocols.masked.gp.plan import choose_plan, knows_attributes, taste_length
from hushrec.protocols.masked.gp.server import GpLearner
from hushrec.protocols.masked.gp.table import PublicTable
from hushrec.protocols.masked.learning import Learning
from hushrec.protocols.masked.plan import Plan, Round
from hushrec.protocols.masked.price import PricedPlan
from hushrec.protocols.masked.table import check_shapes

RIDGE = 1.0


class GpLearning(Learning):
    """The functions of model `gp` that devices, server and engines call, from its plan to its predictor."""

    table, learner, item_table, predicting = PublicTable, GpLearner, ItemTable, GaussianProcessPredictor
    order = (
        "The list is sorted by how many people rated an item and by how your prediction differs from the average one,"
        " not by the predicted rating alone."
    )

    @property
    def _noise(self) -> float:
        """The variance of a rating, given taste and item."""
        return residual_variance(self.columns.rating_levels)

    def choose_plan(self, devices: int, mu: float) -> Plan:
        columns = self.columns
        return choose_plan(devices, columns.n_items, columns.taste.shape[1], mu, columns.ratings_per_person)

    def table_from(self, published: Arrays) -> PublicTable:
        table: PublicTable = super().table_from(published)
        check_shapes(table, {"description_centre": (self.columns.taste.shape[1] + 1,)})  # compiled code relies on it
        return table

    def table_shapes(self, rounds: Sequence[Round]) -> dict[str, tuple[int, ...]]:
        return {"rows": (self.columns.n_items, taste_length(self.columns.taste.shape[1], rounds[:-1]))}

    def entry_arrays(self, table: PublicTable) -> EntryArrays:
        shape = (
            CONSTANTS.profile_spread,
            CONSTANTS.profile_offset,
            CONSTANTS.usual_log_profile,
            CONSTANTS.audience_limit,
            CONSTANTS.factor_limit,
            self._noise / CONSTANTS.level_variance,
        )
        own = {name: value for name, value in vars(table).items() if name in EntryArrays._fields}
        more = {"precisions": 1 / table.variances, "taste_columns": self.columns.taste, "shape": np.array(shape)}
        return EntryArrays(**own, **more)

    def _entries(
        self, clips: FloatArray, table: EntryArrays, items: IntArray, values: FloatArray, held: Held
    ) -> Sequence[FloatArray]:
        found: Sequence[FloatArray] = gp_entries(items, values, *held, table, clips)
        return found

    def predictor(self, table: PublicTable, ratings: Ratings, *, final: bool) -> GaussianProcessPredictor:
        """Return the predictor for the people with these ratings; `final` is True after the last round.

        The kernel is the prior covariance of a person's ratings of two items. After the last round it is the sum of a
        part that is linear in the item rows, a part for items with near rows, and a part for items with similar titles.
        Before that, it is the linear part alone, which is fast and accurate enough to follow training. If the catalogue
        has no titles and no attributes, and no columns were learned, the part for near rows is always left out, because
        equal popularity does not make two items similar.
        """
        titles = self.columns.titles
        has_near_part = final and (len(titles.columns) > 0 or table.rows.shape[1] > PLAIN_COLUMNS)
        items = ItemTable(
            offsets=table.offsets,
            rows=table.rows,
            variances=table.variances,
            log_counts=table.log_counts,
            kernel=np.array([CONSTANTS.kernel_amplitude if has_near_part else 0.0, table.length_squared[0]]),
            title_starts=titles.starts if final else np.zeros_like(titles.starts),
            title_columns=titles.columns,
            title_weights=np.asarray(titles.weights, dtype=np.float64),
        )
        return GaussianProcessPredictor(items, ratings)

    predicts_new_items = True

    def with_new_items(self, published: Arrays) -> Arrays:
        has_more = self.columns.n_items > len(published["offsets"])
        return with_new_items(published, self.columns.taste, self._noise) if has_more else published

    def rank(self, published: Arrays, predictions: FloatArray) -> FloatArray:
        return list_scores(predictions, published["log_counts"], published["offsets"])

    @staticmethod
    def expectation(priced: PricedPlan, n_devices: float) -> str:
        return fleet_sentence(priced.epsilon, n_devices, knows_attributes=knows_attributes(priced.plan))


def with_new_items(published: Arrays, taste: FloatArray, noise: float = CONSTANTS.noise) -> Arrays:
    """Return the arrays of the public table with rows for items that joined the catalogue after the run began.

    A weighted ridge regression predicts the offset, row and log-popularity of an item from its `taste` columns, the
    public attributes that a person may like or dislike. It is fitted to the known items, which come first, with weight
    n_j/(n_j + 20) for an item with n_j ratings and a ridge of 1. A new item gets the predictions. Its entry of
    `variances` is `noise`, the variance of a rating, plus the weighted mean squared error of the regression for the
    offsets of known items. All of this is computed from public numbers.
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
        "variances": np.full(new, noise + doubt),
        "weights": np.zeros(new),
        "factor_weights": np.zeros(new),
    }
    return {**published, **{name: np.concatenate([published[name], added]) for name, added in more.items()}}
