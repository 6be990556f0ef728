"""`Learner`, the base class of the objects with which a masked server learns a model from noisy sums."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Generic, TypeVar

import numpy as np

from hushrec.arrays import FloatArray
from hushrec.errors import ParameterError
from hushrec.models.item_columns import ItemColumns
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked.encoding import DecodedSum
from hushrec.protocols.masked.evaluation import Measured, measured
from hushrec.protocols.masked.plan import EVALUATION, Block, Plan

LearnedT = TypeVar("LearnedT")


class Learner(ABC, Generic[LearnedT]):
    """An object with which a masked server learns one model from the noisy sums of each round.

    `learned` is a frozen dataclass of public arrays; its field `counts` has the estimated number of ratings of each
    item. `table` makes the public table from it.
    """

    learned: LearnedT

    def __init__(self, columns: ItemColumns, plan: Plan, devices: int) -> None:
        self.item_columns, self.plan, self.devices = columns, plan, devices
        self.round_number = 0  # number of rounds learned from so far
        self.measured: list[Measured] = []  # accuracy, from each evaluation block so far
        self.learned = self._start()

    @abstractmethod
    def _start(self) -> LearnedT:
        """Return the value of `learned` before the first round."""

    @abstractmethod
    def table(self) -> Any:
        """Return the public table for the next round or, after the last round, the final public table."""

    @abstractmethod
    def _learn(self, sums: Mapping[str, DecodedSum], survivors: int) -> LearnedT:
        """Return the value of `learned` after one more round, from that round's sums over `survivors` devices."""

    def learn(self, sums: Mapping[str, DecodedSum], survivors: int) -> None:
        """Update `learned` with the sums of one more round, by block name, over `survivors` devices."""
        if self.round_number == 0:
            self.devices = max(self.devices, survivors)  # several cohorts have more devices than the terms expect
        if EVALUATION in sums:  # measures the table that devices had in this round
            self.measured.append(measured(sums[EVALUATION], self.round_number))
        self.learned = self._learn(sums, survivors)
        self.round_number += 1

    @abstractmethod
    def item_weights(self, name: str) -> FloatArray:
        """Return the weight by which devices multiply each item's row in the next item block `name`, `(n_items,)`."""

    def surprise(self, sums: Mapping[str, DecodedSum], survivors: int) -> float:
        """Return how large the sums of the next round are, relative to the largest plausible size.

        The result is at most 1 if all devices are honest. `sums` has the decoded sums by block name, over `survivors`
        devices. The base class has no such test and returns 0.
        """
        return 0.0

    def block(self, name: str) -> Block:
        """Return the block called `name` in the plan of the next round."""
        return next(block for block in self.plan.rounds[self.round_number].blocks if block.name == name)

    def state(self) -> Arrays:
        """Return all arrays that `restore` needs to continue between two rounds, by name."""
        learned: Any = self.learned
        return {entry.name: getattr(learned, entry.name) for entry in fields(learned)} | {
            "round_number": np.array(self.round_number),
            "devices": np.array(self.devices),
            "measured": np.array(self.measured, dtype=np.float64).reshape(-1, len(Measured._fields)),
        }

    def restore(self, state: Arrays) -> None:
        """Continue from arrays that `state` returned; raise `ParameterError` if they have another number of items."""
        learned: Any = self.learned
        kept = {entry.name: np.asarray(state[entry.name], np.float64) for entry in fields(learned)}
        if len(kept["counts"]) != self.item_columns.n_items:
            raise ParameterError(
                f"state must have {self.item_columns.n_items} items, the size of the catalogue, got"
                f" {len(kept['counts'])}."
            )
        self.learned, self.round_number = type(learned)(**kept), int(state["round_number"])
        self.devices = int(state["devices"])
        self.measured = [Measured(*row) for row in state["measured"].tolist()]
