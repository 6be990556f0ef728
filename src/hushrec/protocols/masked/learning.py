"""Base classes of the models in the masked protocol.

A `Learner` learns one model on the server. A `Learning` has all other functions of the model, and makes the learner.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import fields
from statistics import fmean
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np

from hushrec.arrays import FloatArray, IntArray
from hushrec.errors import ParameterError, RemoteProtocolError
from hushrec.models.gaussian_process import Ratings
from hushrec.models.item_columns import ItemColumns
from hushrec.models.predictor import Arrays, Predictor
from hushrec.options import imported
from hushrec.protocols.masked.blocks import KINDS
from hushrec.protocols.masked.encoding import DecodedSum, Entries, mean_sums
from hushrec.protocols.masked.evaluation import NO_RATINGS, Held, Measured, measured
from hushrec.protocols.masked.plan import EVALUATION, ITEM_BLOCKS, Block, Plan, Round
from hushrec.protocols.masked.price import PricedPlan
from hushrec.protocols.masked.table import check_shapes, table_in
from hushrec.scale import HIGHEST, LOWEST

LEARNINGS = {
    "gp": "hushrec.protocols.masked.gp.learning:GpLearning",
    "audience": "hushrec.protocols.masked.audience.learning:AudienceLearning",
}
USUAL_RATINGS = 50  # number of ratings of a made-up profile
UNFIT = "the public table must fit the blocks of the round, but it does not. The device sends no report."
LearnedT = TypeVar("LearnedT")


class Learner(ABC, Generic[LearnedT]):
    """An object with which a masked server learns one model from the noisy sums of each round.

    `learned` is a frozen dataclass of public arrays; its field `counts` has the estimated number of ratings of each
    item. `table` makes the public table from it.
    """

    learned: LearnedT

    def __init__(self, columns: ItemColumns, plan: Plan, devices: int) -> None:
        self.item_columns, self.plan, self.devices = columns, plan, devices
        self.round_number = 0  # number of rounds so far
        self._group: list[tuple[Mapping[str, DecodedSum], int]] = []  # sums and survivors of the open group's rounds
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
        """Take the sums of one more round, by block name, over `survivors` devices; update `learned` after each group.

        A group of rounds is learned from as one round: from the mean of its sums, over the mean number of survivors.
        """
        self._group.append((sums, survivors))
        repeats = self.plan.repeats
        if len(self._group) == repeats:
            sums, survivors = mean_sums([own for own, _ in self._group]), round(fmean(n for _, n in self._group))
            before = self.round_number + 1 - repeats
            if before == 0:
                self.devices = max(self.devices, survivors)  # several cohorts have more devices than the terms expect
            if EVALUATION in sums:  # measures the table that devices had in this group
                self.measured.append(measured(sums[EVALUATION], before))
            self.learned, self._group = self._learn(sums, survivors), []
        self.round_number += 1

    @abstractmethod
    def item_weights(self, name: str) -> FloatArray:
        """Return the weight by which devices multiply each item's row in the next item block `name`, `(n_items,)`."""

    def surprise(self, sums: Mapping[str, DecodedSum], survivors: int) -> float:
        """Return how large these sums are, relative to the largest plausible size; call this before `learn`.

        The result is at most 1 if all devices are honest. `sums` has the decoded sums by block name, over `survivors`
        devices. The base class has no such test and returns 0.
        """
        return 0.0

    def block(self, name: str) -> Block:
        return next(block for block in self.plan.rounds[self.round_number].blocks if block.name == name)

    def state(self) -> Arrays:
        """Return all arrays, by name, that `restore` needs to continue after the rounds so far."""
        learned: Any = self.learned
        return {entry.name: getattr(learned, entry.name) for entry in fields(learned)} | {
            "round_number": np.array(self.round_number),
            "devices": np.array(self.devices),
            "measured": np.array(self.measured, dtype=np.float64).reshape(-1, len(Measured._fields)),
            "group_survivors": np.array([survivors for _, survivors in self._group], dtype=np.int64),
            **{
                f"group_{number}_{name}": np.append(own.values, own[1:])
                for number, (sums, _) in enumerate(self._group)
                for name, own in sums.items()
            },
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
        self._group = []
        in_group = state.get("group_survivors", np.empty(0, np.int64))  # earlier versions did not save it
        for number, survivors in enumerate(in_group.tolist()):
            blocks = self.plan.rounds[self.round_number - 1].blocks
            rows = {block.name: state[f"group_{number}_{block.name}"] for block in blocks}
            self._group.append(({name: DecodedSum(row[:-2], *row[-2:]) for name, row in rows.items()}, survivors))


def check_profile(items: IntArray, values: FloatArray, n_items: int) -> None:
    """Raise `ParameterError` unless items are distinct, ascending, in the catalogue, and rated from 1 to 5."""
    if len(items) != len(values) or np.any(np.diff(items) <= 0):
        raise ParameterError("items of a profile must be distinct and in ascending order, with one rating each.")
    if len(items) and not (items[0] >= 0 and items[-1] < n_items):
        raise ParameterError(f"items of a profile must be at least 0 and below n_items = {n_items}.")
    if not np.all((values >= LOWEST) & (values <= HIGHEST)):
        raise ParameterError(f"values of a profile must be ratings from {LOWEST:g} to {HIGHEST:g}.")


def _made_up_profile(n_items: int) -> tuple[IntArray, FloatArray]:
    """Return a public profile: up to `USUAL_RATINGS` items, from the first to the last, all rated `HIGHEST`."""
    items = np.unique(np.linspace(0, n_items - 1, USUAL_RATINGS, dtype=np.int64))
    return items, np.full(len(items), HIGHEST)


def _with_positions(name: str, items: IntArray, entries: FloatArray) -> Entries:
    """Return the `Entries` of the block called `name`; in an item block, their positions are the rows of `items`."""
    if name not in ITEM_BLOCKS:
        return Entries(entries)
    width = len(entries) // len(items)
    return Entries(entries, (items[:, None] * width + np.arange(width)).ravel())


class Learning(ABC):
    """The functions of one model that devices, the server and the engines of the masked protocol call.

    They make the plan of rounds, the entries of a device's blocks, the server's learner and the predictor.
    """

    table: ClassVar[type[Any]]  # class of the public table
    learner: ClassVar[type[Learner[Any]]]  # class of the server's learner
    item_table: ClassVar[type[Any]]  # named tuple class of the arrays that the predictor needs
    predicting: ClassVar[type[Any]]  # class of the predictor
    order: ClassVar[str | None] = None  # how recommendations are sorted, one sentence; None: by the predictions

    def __init__(self, columns: ItemColumns) -> None:
        self.columns = columns

    @abstractmethod
    def choose_plan(self, devices: int, mu: float) -> Plan:
        """Return the plan of a run for this number of devices at the budget μ; it depends on public numbers only."""

    def make_learner(self, plan: Plan, devices: int) -> Learner[Any]:
        """Return the learner of the server before the first round, for a run with this number of devices."""
        return self.learner(self.columns, plan, devices)

    def table_from(self, published: Arrays) -> Any:
        """Return the public table from its arrays; raise `RemoteProtocolError` if they are missing or impossible."""
        return table_in(self.table, published)

    def entries(
        self, blocks: Sequence[Block], table: Any, items: IntArray, values: FloatArray, held: Held = NO_RATINGS
    ) -> list[Entries]:
        """Return a device's entries for each block, in the order of `blocks`, before clipping and noise.

        They are private. `items` and `values` are the person's ratings without the held-out ones. `held` has the
        held-out ratings, which only an evaluation block uses. A person without ratings gets exact zeros, at the
        positions of a made-up profile. The entries of that profile are computed and discarded, because otherwise the
        server could see from the time of the report that a device sends zeros.
        """
        check_profile(items, values, table.n_items)
        if self.columns.n_items != table.n_items:
            raise RemoteProtocolError(
                f"the public table must have one row for each of {self.columns.n_items} items, got {table.n_items}."
            )
        if len(items) == 0:
            made_up = self.entries(blocks, table, *_made_up_profile(table.n_items))
            return [Entries(np.zeros_like(own.values), own.positions) for own in made_up]
        clips = np.zeros(len(KINDS))
        for block in blocks:
            clips[KINDS.index(block.name)] = block.clip
        found = self._entries(clips, self.entry_arrays(table), items, values, held)
        return [_with_positions(block.name, items, found[KINDS.index(block.name)]) for block in blocks]

    def check_fits(self, rounds: Sequence[Round], table: Any) -> None:
        """Raise `RemoteProtocolError` if a public table does not fit the present round, the last of `rounds`.

        With a table that does not fit, a device might fail only if it has rated certain items, and the server would
        see that it failed. So the check computes the entries of a made-up profile, which has the first and the last
        item, and requires that they end exactly where each block ends. The check also compares the shapes of arrays
        with `table_shapes`: a table with more columns than the server can have learned would keep a device busy for
        seconds.
        """
        check_shapes(table, self.table_shapes(rounds))
        blocks = rounds[-1].blocks
        try:
            found = self.entries(blocks, table, *NO_RATINGS)
            ends = [len(own.values) if own.positions is None else int(own.positions[-1]) + 1 for own in found]
        except Exception as error:  # whatever a malicious server has made to fail
            raise RemoteProtocolError(UNFIT) from error
        if ends != [block.size for block in blocks]:
            raise RemoteProtocolError(UNFIT)

    def table_shapes(self, rounds: Sequence[Round]) -> dict[str, tuple[int, ...]]:
        """Return the shapes, by name, of those arrays of the public table that the sizes of blocks do not determine.

        `rounds` are the first rounds of the plan, up to the round in which devices use the table. The base class has no
        such array.
        """
        return {}

    @abstractmethod
    def entry_arrays(self, table: Any) -> Any:
        """Return the `EntryArrays` of the model: what `_entries` needs of the public table."""

    @abstractmethod
    def _entries(
        self, clips: FloatArray, table: Any, items: IntArray, values: FloatArray, held: Held
    ) -> Sequence[FloatArray]:
        """Return a person's entries of each kind of block in `KINDS`. The person must have at least one rating.

        `table` is the public table, with the arrays listed in `EntryArrays`. `clips` has the clip of each kind of
        block, and 0 for a kind that the round does not have. `held` has the person's held-out ratings.
        """

    @abstractmethod
    def predictor(self, table: Any, ratings: Ratings, *, final: bool) -> Predictor:
        """Return the predictor for the people with these ratings; `final` is True after the last round."""

    predicts_new_items: ClassVar[bool] = False  # whether the model can predict items from their attributes alone

    def with_new_items(self, published: Arrays) -> Arrays:
        """Return the arrays of the public table with a row added for each item that joined after the run began.

        A model that cannot predict new items returns `published`, the arrays without these rows.
        """
        return published

    def rank(self, published: Arrays, predictions: FloatArray) -> FloatArray:
        """Return the score by which each item is sorted in a person's list, from the predictions for all items."""
        return predictions

    @staticmethod
    def expectation(priced: PricedPlan, n_devices: float) -> str | None:
        """Return a sentence about the accuracy to expect with `n_devices` devices; None if it was not measured."""
        return None

    @classmethod
    def predictor_from(cls, arrays: Arrays, ratings: Ratings) -> Predictor:
        """Return the predictor from arrays that `Predictor.arrays` returned, for the people with these ratings."""
        made: Predictor = cls.predicting(cls.item_table(*(arrays[name] for name in cls.item_table._fields)), ratings)
        return made


def find_learning(model: str) -> type[Learning]:
    """Return the `Learning` subclass of the model called `model`."""
    found: type[Learning] = imported(LEARNINGS[model])
    return found


def learning_of(model: Any) -> Learning:
    """Return the `Learning` of this model, with the model's public item columns."""
    return find_learning(model.name)(model.columns)
