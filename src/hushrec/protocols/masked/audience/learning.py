"""The class through which the masked protocol uses model `audience`."""

from collections.abc import Mapping

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.audience import ItemTable
from hushrec.models.audience_predictor import AudiencePredictor
from hushrec.models.gaussian_process import Ratings
from hushrec.protocols.masked.audience.device import round_entries
from hushrec.protocols.masked.audience.plan import choose_plan
from hushrec.protocols.masked.audience.server import AudienceLearner
from hushrec.protocols.masked.audience.table import DESCRIPTION_SHAPE, RANKING_SHAPE, AudienceTable
from hushrec.protocols.masked.encoding import Entries
from hushrec.protocols.masked.evaluation import Held
from hushrec.protocols.masked.learning import Learning
from hushrec.protocols.masked.plan import Block, Plan


class AudienceLearning(Learning):
    """The `Learning` of model `audience`, which learns the popularity and the audience of each item."""

    table, learner, item_table, predicting = AudienceTable, AudienceLearner, ItemTable, AudiencePredictor

    def choose_plan(self, devices: int, mu: float) -> Plan:
        return choose_plan(devices, self.columns.n_items, self.columns.taste.shape[1], mu)

    def _entries(
        self, blocks: Mapping[str, Block], table: AudienceTable, items: IntArray, values: FloatArray, held: Held
    ) -> dict[str, Entries]:
        return round_entries(blocks, table, items)

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
