"""The class through which the masked protocol uses model `gp`."""

from collections.abc import Mapping

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.gaussian_process import GaussianProcessPredictor, Ratings, list_scores
from hushrec.models.gp import ItemTable
from hushrec.models.item_columns import ItemColumns
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked.constants import CONSTANTS
from hushrec.protocols.masked.device import round_entries
from hushrec.protocols.masked.encoding import Entries
from hushrec.protocols.masked.evaluation import Held
from hushrec.protocols.masked.fleet_size import fleet_sentence
from hushrec.protocols.masked.learning import Learning
from hushrec.protocols.masked.plan import Block, Plan, choose_plan, knows_attributes
from hushrec.protocols.masked.price import PricedPlan
from hushrec.protocols.masked.server import GpLearner
from hushrec.protocols.masked.table import PublicTable

RIDGE = 1.0
PLAIN_COLUMNS = 3  # columns that every run has: quality, log-popularity and 1


class GpLearning(Learning):
    """The `Learning` of model `gp`, which learns about the items and about the distribution of people's tastes."""

    table, learner, item_table, predicting = PublicTable, GpLearner, ItemTable, GaussianProcessPredictor
    order = (
        "The list is sorted by how many people rated an item and by how your prediction differs from the average one,"
        " not by the predicted rating alone."
    )

    def choose_plan(self, devices: int, mu: float) -> Plan:
        return choose_plan(devices, self.columns.n_items, self.columns.taste.shape[1], mu)

    def _entries(
        self, blocks: Mapping[str, Block], table: PublicTable, items: IntArray, values: FloatArray, held: Held
    ) -> dict[str, Entries]:
        return round_entries(blocks, table, self.columns.taste, items, values, held)

    def predictor(self, table: PublicTable, ratings: Ratings, *, final: bool) -> GaussianProcessPredictor:
        return GaussianProcessPredictor(item_table(table, self.columns, final=final), ratings)

    predicts_new_items = True

    def with_new_items(self, published: Arrays) -> Arrays:
        has_more = self.columns.n_items > len(published["offsets"])
        return with_new_items(published, self.columns.taste) if has_more else published

    def rank(self, published: Arrays, predictions: FloatArray) -> FloatArray:
        return list_scores(predictions, published["log_counts"], published["offsets"])

    @staticmethod
    def expectation(priced: PricedPlan, n_devices: float) -> str:
        return fleet_sentence(priced.epsilon, n_devices, knows_attributes=knows_attributes(priced.plan))


def item_table(table: PublicTable, columns: ItemColumns, *, final: bool) -> ItemTable:
    """Return the arrays that predictions need, from a public table and the public columns of the items.

    The kernel is the prior covariance of a person's ratings of two items. After the last round (`final`) it is the sum
    of a part that is linear in the item rows, a part for near rows, and a part for similar titles. Before that, it is
    the linear part alone, which is fast and accurate enough to follow training. If the catalogue has no titles and no
    attributes, and no columns were learned, the part for near rows is always left out, because equal popularity does
    not make two items similar.
    """
    titles = columns.titles
    starts = titles.starts if final else np.zeros_like(titles.starts)
    can_be_alike = len(titles.columns) > 0 or table.rows.shape[1] > PLAIN_COLUMNS
    amplitude = CONSTANTS.kernel_amplitude if final and can_be_alike else 0.0
    return ItemTable(
        offsets=table.offsets,
        rows=table.rows,
        variances=table.variances,
        effect_variances=table.variances - CONSTANTS.noise,
        log_counts=table.log_counts,
        kernel=np.array([amplitude, table.length_squared[0]]),
        title_starts=starts,
        title_columns=titles.columns,
        title_weights=np.asarray(titles.weights, dtype=np.float64),
    )


def with_new_items(published: Arrays, taste: FloatArray) -> Arrays:
    """Return the arrays of the public table with rows for items that joined the catalogue after the run began.

    A weighted ridge regression predicts the offset, row and log-popularity of an item from its `taste` columns, the
    public attributes that a person may like or dislike. It is fitted to the known items, which come first, with weight
    n_j/(n_j + 20) for an item with n_j ratings and a ridge of 1. A new item gets the predictions. Its
    entry of `variances` is larger than the variance of a rating by the weighted mean squared error of the regression
    for the offsets of known items. All of this is computed from public numbers.
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
        "variances": np.full(new, CONSTANTS.noise + doubt),
        "weights": np.zeros(new),
        "factor_weights": np.zeros(new),
    }
    return {**published, **{name: np.concatenate([published[name], added]) for name, added in more.items()}}
