"""The server of a masked run, whatever the model: it learns from one round after the other, and can be kept."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, Generic, TypeVar

import numpy as np

from hushrec.errors import ParameterError
from hushrec.models.item_columns import ItemColumns
from hushrec.models.predictor import Arrays
from hushrec.protocols.masked.encoding import DecodedSum
from hushrec.protocols.masked.evaluation import Measured, measured
from hushrec.protocols.masked.plan import EVALUATION, Block, Plan

LearnedT = TypeVar("LearnedT")


class Learner(ABC, Generic[LearnedT]):
    """Learns from one round after the other. It never sees a sum without noise.

    `learned` is a frozen dataclass of arrays, all of them public; its field `counts` has one number per item.
    """

    learned: LearnedT

    def __init__(self, columns: ItemColumns, plan: Plan, devices: int) -> None:
        self.item_columns, self.plan, self.devices = columns, plan, devices
        self.round_number = 0  # the last one that was learned from
        self.measured: list[Measured] = []  # accuracy after each round that an evaluation block was about
        self.learned = self._start()

    @abstractmethod
    def _start(self) -> LearnedT:
        """Return what is known before the first round."""

    @abstractmethod
    def table(self) -> Any:
        """Return the public table for the next round, or of the finished run."""

    @abstractmethod
    def _learn(self, sums: Mapping[str, DecodedSum], survivors: int) -> LearnedT:
        """Return what is known after the noisy sums of the next round."""

    def learn(self, sums: Mapping[str, DecodedSum], survivors: int) -> None:
        """Learn from the noisy sums of the next round, by the names of its blocks, over so many devices."""
        if self.round_number == 0:
            self.devices = max(self.devices, survivors)  # several cohorts are more than one sum holds
        if EVALUATION in sums:  # of the table that devices had in this round
            self.measured.append(measured(sums[EVALUATION], self.round_number))
        self.learned = self._learn(sums, survivors)
        self.round_number += 1

    def surprise(self, sums: Mapping[str, DecodedSum], survivors: int) -> float:
        """Return how far the sums of the next round are from what honest devices make: at most 1 for those."""
        return 0.0

    def block(self, name: str) -> Block:
        """Return the block of that name of the next round."""
        return next(block for block in self.plan.rounds[self.round_number].blocks if block.name == name)

    def state(self) -> Arrays:
        """Return everything that was learned, by name: all that a restart needs between rounds."""
        learned: Any = self.learned
        return {entry.name: getattr(learned, entry.name) for entry in fields(learned)} | {
            "round_number": np.array(self.round_number),
            "devices": np.array(self.devices),
            "measured": np.array(self.measured, dtype=np.float64).reshape(-1, len(Measured._fields)),
        }

    def restore(self, state: Arrays) -> None:
        """Continue from what `state` was."""
        learned: Any = self.learned
        kept = {entry.name: np.asarray(state[entry.name], np.float64) for entry in fields(learned)}
        if len(kept["counts"]) != self.item_columns.n_items:
            raise ParameterError("this state is of another catalogue.")
        self.learned, self.round_number = type(learned)(**kept), int(state["round_number"])
        self.devices = int(state["devices"])
        self.measured = [Measured(*row) for row in state["measured"].tolist()]
