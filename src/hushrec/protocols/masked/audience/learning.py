"""The class through which the masked protocol uses model `audience`."""

from collections.abc import Sequence

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.audience import ItemTable
from hushrec.models.audience_predictor import AudiencePredictor
from hushrec.models.gaussian_process import Ratings
from hushrec.protocols.masked.audience.entries import EntryArrays, audience_entries
from hushrec.protocols.masked.audience.plan import choose_plan
from hushrec.protocols.masked.audience.server import AudienceLearner
from hushrec.protocols.masked.audience.table import DESCRIPTION_SHAPE, RANKING_SHAPE, AudienceTable
from hushrec.protocols.masked.evaluation import Held
from hushrec.protocols.masked.learning import Learning
from hushrec.protocols.masked.plan import Plan


class AudienceLearning(Learning):
    """The functions of model `audience` that devices, server and engines call, from its plan to its predictor."""

    table, learner, item_table, predicting = AudienceTable, AudienceLearner, ItemTable, AudiencePredictor

    def choose_plan(self, devices: int, mu: float) -> Plan:
        return choose_plan(devices, self.columns.n_items, self.columns.taste.shape[1], mu)

    def entry_arrays(self, table: AudienceTable) -> EntryArrays:
        return EntryArrays(table.columns, table.count_weights, table.weights, table.description)

    def _entries(
        self, clips: FloatArray, table: EntryArrays, items: IntArray, values: FloatArray, held: Held
    ) -> Sequence[FloatArray]:
        found: Sequence[FloatArray] = audience_entries(items, table, clips)
        return found

    def predictor(self, table: AudienceTable, ratings: Ratings, *, final: bool) -> AudiencePredictor:
        return AudiencePredictor(
            ItemTable(
                log_counts=table.log_counts,
                counts=table.counts,
                audiences=table.audiences,
                description_rows=table.rows,
                description_base=table.base,
                description_slope=table.slope,
                description_shape=DESCRIPTION_SHAPE,
                places=table.places,
                crowd=table.crowd,
                features=table.features,
                ranking_shape=RANKING_SHAPE,
            ),
            ratings,
        )
