"""What a model brings to the masked protocol: a plan, a device's part of a round, the server's, and predictions."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

from hushrec.arrays import FloatArray, IntArray
from hushrec.models.gaussian_process import Ratings
from hushrec.models.item_columns import ItemColumns
from hushrec.models.predictor import Arrays, Predictor
from hushrec.options import imported
from hushrec.protocols.masked.device import Entries
from hushrec.protocols.masked.evaluation import NO_RATINGS, Held
from hushrec.protocols.masked.learner import Learner
from hushrec.protocols.masked.plan import Block, Plan
from hushrec.protocols.masked.price import PricedPlan

LEARNINGS = {
    "gp": "hushrec.protocols.masked.gp_learning:GpLearning",
    "audience": "hushrec.protocols.masked.audience.learning:AudienceLearning",
}


class Learning(ABC):
    """What the protocol, its devices, its server and its engines need to know of one model."""

    order: ClassVar[str | None] = None  # how lists are sorted, in one sentence, where not by the predictions alone

    def __init__(self, columns: ItemColumns) -> None:
        self.columns = columns

    @abstractmethod
    def choose_plan(self, devices: int, mu: float) -> Plan:
        """Return the plan for this many devices at the budget μ: public numbers only."""

    @abstractmethod
    def make_learner(self, plan: Plan, devices: int) -> Learner[Any]:
        """Return the learner that the server has before the first round."""

    @abstractmethod
    def table_from(self, published: Arrays) -> Any:
        """Return the public table in what a server published; refuse one that no honest server has."""

    @abstractmethod
    def entries(
        self, blocks: Sequence[Block], table: Any, items: IntArray, values: FloatArray, held: Held = NO_RATINGS
    ) -> list[Entries]:
        """Return what a device puts into each block of a round, before clipping. Private.

        `held` are ratings that only an evaluation block is made of.
        """

    @abstractmethod
    def predictor(self, table: Any, ratings: Ratings, *, final: bool) -> Predictor:
        """Return everybody's predictions from a public table; `final` is that of the finished run."""

    predicts_new_items: ClassVar[bool] = False  # whether attributes alone say what an item is like

    def with_new_items(self, published: Arrays) -> Arrays:
        """Return a public table with a row for each item of the catalogue that joined after the run was made."""
        return published

    def rank(self, published: Arrays, predictions: FloatArray) -> FloatArray:
        """Return what a person's list is sorted by, from their predictions for all items."""
        return predictions

    @staticmethod
    def expectation(priced: PricedPlan, n_devices: float) -> str | None:
        """Return one sentence about the accuracy to expect with `n_devices`; None where it was not measured."""
        return None

    @staticmethod
    @abstractmethod
    def predictor_from(arrays: Arrays, ratings: Ratings) -> Predictor:
        """Return the predictor that `Predictor.arrays` described."""


def find_learning(model: str) -> type[Learning]:
    """Return the class of the model of that name."""
    found: type[Learning] = imported(LEARNINGS[model])
    return found


def learning_of(model: Any) -> Learning:
    """Return the learning of a model, with its public item columns."""
    return find_learning(model.name)(model.columns)
