"""Runs of `masked` with model `gp` in which one thing is changed, on validation parts of the training data.

What `masked_constants.py` and `masked_tried.py` share. A change alters one function or constant of the library for the
length of a run: everything else, the random draws included, is the same, so that two runs differ by the change alone.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from hushrec.budget.gaussian import run_mu
from hushrec.data.splits import Split
from hushrec.models.gaussian_process import GaussianProcessPredictor
from hushrec.protocols.masked.gp import learning as gp_learning
from hushrec.protocols.masked.gp import plan
from hushrec.protocols.masked.gp.constants import CONSTANTS
from hushrec.protocols.masked.plan import FACTORS, Block, Plan, make_plan
from hushrec.simulation.settings import Settings
from hushrec.simulation.tasks import RatingTask

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from measure import train_all_rounds

RECORDS = Path(__file__).parent / "records"
Change = Callable[[ExitStack], None]


@dataclass(frozen=True)
class Case:
    """What is measured: one validation part at one budget, or the part of it that belongs to `people` of them."""

    ratings: Any
    epsilon: float
    split: int
    people: int | None = None
    options: dict[str, Any] = field(default_factory=dict)  # of the protocol

    def task(self) -> RatingTask:
        """The training part without its validation ratings, and those."""
        settings = self.settings()
        task = settings.make_task(self.ratings).validation(self.split)
        if self.people is None:
            return task
        chosen = np.random.default_rng(self.split).permutation(self.ratings.n_users)[: self.people]
        rows = task.split.test
        return replace(task, split=Split(task.split.train, rows[np.isin(self.ratings.users[rows], chosen)]))

    def about(self, splits: int) -> dict[str, int]:
        """Whose ratings were measured on, and how many took part where those are more, for a record."""
        devices = self.ratings.n_users
        people = self.people or devices
        return {"splits": splits, "people": people} | ({"devices": devices} if people < devices else {})

    def settings(self) -> Settings:
        """The defaults, at this budget."""
        return Settings(protocol="masked", epsilon=self.epsilon, split_seed=self.split, seed=self.split, **self.options)

    def has_columns(self) -> bool:
        """Whether the plan has audience and factor columns."""
        chosen = plan.choose_plan(self.ratings.n_users, self.ratings.n_items, 1, run_mu(self.epsilon, 1e-6))
        return any(block.name == FACTORS for block in chosen.blocks)

    def run(self, change: Change) -> tuple[RatingTask, GaussianProcessPredictor]:
        """Train with a change, and return what was measured on and what predicts."""
        with ExitStack() as stack:
            change(stack)
            task = self.task()
            predictor = train_all_rounds(task, self.settings()).predictor()
        assert isinstance(predictor, GaussianProcessPredictor)
        return task, predictor


def nothing(stack: ExitStack) -> None:
    """The run as it is."""


def setting(owner: Any, name: str, value: Any) -> Change:
    """Another value of a module's constant, or another function."""
    return lambda stack: stack.enter_context(patch.object(owner, name, value))


def constant(name: str, value: float) -> Change:
    """Another value of one of `Constants`."""

    @contextmanager
    def changed() -> Iterator[None]:
        usual = getattr(CONSTANTS, name)
        object.__setattr__(CONSTANTS, name, value)
        try:
            yield
        finally:
            object.__setattr__(CONSTANTS, name, usual)

    return lambda stack: stack.enter_context(changed())


def replanned(change: Callable[[Block, bool], Block], rounds_more: int = 0) -> Change:
    """Another plan: `change` gets each block and whether it is the last of its name; the last round may be repeated."""

    def chosen(*numbers: Any) -> Plan:
        usual = plan.choose_plan(*numbers)
        last = {block.name: number for number, one in enumerate(usual.rounds) for block in one.blocks}
        rounds = [
            [change(block, last[block.name] == number) for block in one.blocks]
            for number, one in enumerate(usual.rounds)
        ]
        return make_plan([*rounds, *[rounds[-1]] * rounds_more])

    return setting(gp_learning, "choose_plan", chosen)


def scaled_blocks(names: tuple[str, ...], clip: float = 1.0, share: float = 1.0) -> Change:
    """Blocks of these names with clip and share times factors; the others give up, or get, the budget."""

    def scaled(block: Block, _: bool) -> Block:
        if block.name not in names:
            return block
        return Block(block.name, block.shape, block.clip * clip, block.share * share)

    return replanned(scaled)


def keep(path: Path, cell: str, about: dict[str, Any], found: dict[str, Any]) -> None:
    """Add what was found to a cell of a record; what the cell has of other changes stays."""
    record = json.loads(path.read_text("utf-8")) if path.exists() else {}
    own = record.setdefault(cell, {})
    own |= about
    own["rmse"] = own.get("rmse", {}) | found
    path.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")
