"""The class through which the masked protocol uses model `gp`."""

from collections.abc import Sequence

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.gaussian_process import GaussianProcessPredictor, ItemTable, Ratings, list_scores
from hushrec.models.item_columns import ItemColumns
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked.constants import CONSTANTS
from hushrec.protocols.masked.device import Entries, round_entries
from hushrec.protocols.masked.evaluation import NO_RATINGS, Held
from hushrec.protocols.masked.fleet_size import fleet_sentence
from hushrec.protocols.masked.learning import Learning
from hushrec.protocols.masked.new_items import with_new_items
from hushrec.protocols.masked.plan import Block, Plan, choose_plan, knows_attributes
from hushrec.protocols.masked.price import PricedPlan
from hushrec.protocols.masked.server import GpLearner
from hushrec.protocols.masked.table import PublicTable, table_in

PLAIN_COLUMNS = 3  # columns that every run has: quality, log-popularity and 1


class GpLearning(Learning):
    """The `Learning` of model `gp`, which learns about the items and about the distribution of people's tastes."""

    order = (
        "The list is sorted by how many people rated an item and by how your prediction differs from the average one,"
        " not by the predicted rating alone."
    )

    def choose_plan(self, devices: int, mu: float) -> Plan:
        return choose_plan(devices, self.columns.n_items, self.columns.taste.shape[1], mu)

    def make_learner(self, plan: Plan, devices: int) -> GpLearner:
        return GpLearner(self.columns, plan, devices)

    def table_from(self, published: Arrays) -> PublicTable:
        return table_in(PublicTable, published)

    def entries(
        self, blocks: Sequence[Block], table: PublicTable, items: IntArray, values: FloatArray, held: Held = NO_RATINGS
    ) -> list[Entries]:
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

    @staticmethod
    def predictor_from(arrays: Arrays, ratings: Ratings) -> GaussianProcessPredictor:
        return GaussianProcessPredictor(ItemTable(*(arrays[name] for name in ItemTable._fields)), ratings)


def item_table(table: PublicTable, columns: ItemColumns, *, final: bool) -> ItemTable:
    """Return the arrays that predictions need, from a public table and the public columns of the items.

    With `final` False, before the last round, the kernel of two items has only its linear part, the product of their
    rows, which is fast and accurate enough to follow training. A catalogue without titles, attributes and learned
    columns has only the linear part as well, because quality and popularity alone do not make items similar.
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
