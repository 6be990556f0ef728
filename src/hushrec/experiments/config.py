"""An experiment file: which data, which splits, which curves. Everything is checked before the first run starts.

::

    name = "task1-ml-100k"              # of the folder of records
    title = "…"
    [data]
    set = "ml-100k"                     # a named set, or a path
    [splits]
    count = 30                          # seeds 0 to 29; a run's own seed is that of its split
    validation = false                  # true: train and measure inside the training part, never on test
    [run]                               # shared by all curves: the settings of `hushrec train`
    factors = 50
    [[curves]]                          # one curve each; lists are multiplied out
    protocol = "sdcf"
    epsilon_i = [4.0, 1.0]
    [tuning]                            # optional: chosen on a validation part of the training data
    step = [0.2, 0.4]

Beyond the settings of `train`, a curve may give `data_weight` (N, instead of the number of ratings), `measure_every`
(rounds between two points of its curve) and `groups` (budgets that differ between people).
"""

import itertools
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hushrec.errors import ParameterError
from hushrec.training import Settings

OF_A_PLAN = ("data_weight", "measure_every", "groups")
OF_A_RUN = tuple(entry.name for entry in fields(Settings) if entry.name not in ("split_seed", "seed"))


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataTable(_Table):
    """Where the ratings come from."""

    set: str


class SplitTable(_Table):
    """Seeds of the splits: `count` of them from `first` on; `validation` measures inside their training parts."""

    count: int = Field(ge=1)
    first: int = Field(default=0, ge=0)
    validation: bool = False


class GroupTable(_Table):
    """A share of the people with budgets of their own."""

    share: float = Field(gt=0, le=1)
    epsilon_i: float
    epsilon_g: float | None = None


class TuningTable(_Table):
    """Steps to choose from, by the error on a validation part of the first split's training data."""

    step: list[float] = Field(min_length=2)
    share: float = Field(default=0.2, gt=0, lt=1)


class Experiment(_Table):
    """The file, checked."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    data: DataTable
    splits: SplitTable
    run: dict[str, Any] = {}
    curves: list[dict[str, Any]] = Field(min_length=1)
    tuning: TuningTable | None = None


@dataclass(frozen=True)
class Plan:
    """One run: its settings, and what only experiments may change."""

    settings: Settings
    curve: int  # its number in the file, for messages
    data_weight: float | None = None
    measure_every: int = 1
    groups: tuple[GroupTable, ...] = ()
    validation: bool = False  # measured on a validation part of the training data; the test part is not looked at


def read_experiment(path: str | Path) -> Experiment:
    """Reads and checks a file; a refusal names the key."""
    try:
        content = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ParameterError(f"{path} cannot be read ({error.strerror}).") from None
    except ValueError as error:
        raise ParameterError(f"{path} must be TOML: {error}.") from None
    try:
        experiment = Experiment(**content)
    except ValidationError as error:
        raise ParameterError(f"{path}: {_first_problem(error)}") from None
    for place, table in [("run", experiment.run), *((f"curves[{n}]", c) for n, c in enumerate(experiment.curves))]:
        for key in table:
            if key not in OF_A_RUN + OF_A_PLAN:
                raise ParameterError(f"{path}: unknown key {place}.{key}.")
    return experiment


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key {key}."
    if first["type"] == "missing":
        return f"key {key} is missing."
    return f"{key}: {first['msg']}."


def make_plans(experiment: Experiment, *, n_splits: int | None = None, step: float | None = None) -> list[Plan]:
    """Every run of the experiment, curve by curve within a split; `step` is what tuning chose."""
    first = experiment.splits.first
    seeds = range(first, first + min(experiment.splits.count, n_splits or experiment.splits.count))
    curves = [
        (number, chosen)
        for number, curve in enumerate(experiment.curves)
        for chosen in _multiplied({**experiment.run, **curve} | ({} if step is None else {"step": step}))
    ]
    plans = [_plan(number, chosen, seed) for seed in seeds for number, chosen in curves]
    return [replace(plan, validation=experiment.splits.validation) for plan in plans]


def _multiplied(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """All combinations of the entries of lists; `groups` is one value."""
    names = list(table)
    lists = [table[name] if isinstance(table[name], list) and name != "groups" else [table[name]] for name in names]
    for values in itertools.product(*lists):
        yield dict(zip(names, values, strict=True))


def _plan(number: int, chosen: dict[str, Any], seed: int) -> Plan:
    special = {name: chosen[name] for name in ("data_weight", "measure_every") if name in chosen}
    unset = {name for name, value in chosen.items() if name == "clamp" and value is False}
    own = {name: value for name, value in chosen.items() if name not in (*OF_A_PLAN, *unset)}
    try:
        groups = tuple(GroupTable(**group) for group in chosen.get("groups", []))
        return Plan(Settings(**own, split_seed=seed, seed=seed), number, groups=groups, **special)
    except ValidationError as error:
        raise ParameterError(f"curves[{number}].groups: {_first_problem(error)}") from None
    except (ParameterError, TypeError) as error:
        raise ParameterError(f"curves[{number}]: {error}") from None
