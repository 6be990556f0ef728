"""`Learning`, the interface through which the masked protocol uses a model."""

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
    """The functions of one model that devices, the server and the engines of the masked protocol call.

    They are the plan of rounds, the entries of a device's blocks, the server's learner, and predictions.
    """

    order: ClassVar[str | None] = None  # one sentence on how lists are sorted, if not by the predictions alone

    def __init__(self, columns: ItemColumns) -> None:
        self.columns = columns

    @abstractmethod
    def choose_plan(self, devices: int, mu: float) -> Plan:
        """Return the plan of a run for this number of devices at the budget μ; it depends on public numbers only."""

    @abstractmethod
    def make_learner(self, plan: Plan, devices: int) -> Learner[Any]:
        """Return the learner of the server before the first round, for a run with this number of devices."""

    @abstractmethod
    def table_from(self, published: Arrays) -> Any:
        """Return the public table from its arrays; raise `RemoteProtocolError` if they are missing or impossible."""

    @abstractmethod
    def entries(
        self, blocks: Sequence[Block], table: Any, items: IntArray, values: FloatArray, held: Held = NO_RATINGS
    ) -> list[Entries]:
        """Return a device's entries for each block of a round, before clipping and noise. They are private.

        `values` are the person's ratings of `items`. `held` has the held-out ratings, which are not in `values`;
        only an evaluation block uses them.
        """

    @abstractmethod
    def predictor(self, table: Any, ratings: Ratings, *, final: bool) -> Predictor:
        """Return the predictor for the people with these ratings, from a public table.

        `final` is True after the last round.
        """

    predicts_new_items: ClassVar[bool] = False  # whether the model can predict items from their attributes alone

    def with_new_items(self, published: Arrays) -> Arrays:
        """Return the arrays of the public table with a row added for each item that joined after the run began.

        A model that cannot predict new items returns `published`, the arrays without these rows.
        """
        return published

    def rank(self, published: Arrays, predictions: FloatArray) -> FloatArray:
        """Return the score of every item by which a person's list is sorted, from the predictions for all items.

        `published` has the arrays of the public table.
        """
        return predictions

    @staticmethod
    def expectation(priced: PricedPlan, n_devices: float) -> str | None:
        """Return a sentence about the accuracy to expect with `n_devices` devices; None if it was not measured."""
        return None

    @staticmethod
    @abstractmethod
    def predictor_from(arrays: Arrays, ratings: Ratings) -> Predictor:
        """Return the predictor from arrays that `Predictor.arrays` returned, for the people with these ratings."""


def find_learning(model: str) -> type[Learning]:
    """Return the `Learning` subclass of the model called `model`."""
    found: type[Learning] = imported(LEARNINGS[model])
    return found


def learning_of(model: Any) -> Learning:
    """Return the `Learning` of this model, with the model's public item columns."""
    return find_learning(model.name)(model.columns)
