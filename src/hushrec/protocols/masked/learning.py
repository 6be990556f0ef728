"""The interface between a model and the masked protocol: plan, device entries, server learner and predictions."""

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
    """The functions of one model that the masked protocol, its devices, its server and its engines call."""

    order: ClassVar[str | None] = None  # one sentence on how lists are sorted, if not by the predictions alone

    def __init__(self, columns: ItemColumns) -> None:
        self.columns = columns

    @abstractmethod
    def choose_plan(self, devices: int, mu: float) -> Plan:
        """Return the plan for this number of devices at the budget μ; it depends on public numbers only."""

    @abstractmethod
    def make_learner(self, plan: Plan, devices: int) -> Learner[Any]:
        """Return the server's learner, before the first round."""

    @abstractmethod
    def table_from(self, published: Arrays) -> Any:
        """Return the public table from a server's arrays; raise `RemoteProtocolError` for an impossible one."""

    @abstractmethod
    def entries(
        self, blocks: Sequence[Block], table: Any, items: IntArray, values: FloatArray, held: Held = NO_RATINGS
    ) -> list[Entries]:
        """Return a device's entries of each block of a round, before clipping. Private.

        `held` are the held-out ratings, which only an evaluation block uses.
        """

    @abstractmethod
    def predictor(self, table: Any, ratings: Ratings, *, final: bool) -> Predictor:
        """Return the predictor for these people's ratings under a public table; `final` after the last round."""

    predicts_new_items: ClassVar[bool] = False  # whether the model can predict items from their attributes alone

    def with_new_items(self, published: Arrays) -> Arrays:
        """Return the public table with a row added for each item that joined the catalogue after the run began."""
        return published

    def rank(self, published: Arrays, predictions: FloatArray) -> FloatArray:
        """Return the scores that a person's list is sorted by, from the predictions for all items."""
        return predictions

    @staticmethod
    def expectation(priced: PricedPlan, n_devices: float) -> str | None:
        """Return one sentence about the accuracy to expect with `n_devices` devices; None if it was never measured."""
        return None

    @staticmethod
    @abstractmethod
    def predictor_from(arrays: Arrays, ratings: Ratings) -> Predictor:
        """Return the predictor rebuilt from the arrays of `Predictor.arrays`."""


def find_learning(model: str) -> type[Learning]:
    """Return the `Learning` subclass of the model called `model`."""
    found: type[Learning] = imported(LEARNINGS[model])
    return found


def learning_of(model: Any) -> Learning:
    """Return the `Learning` of a model, with the model's public item columns."""
    return find_learning(model.name)(model.columns)
