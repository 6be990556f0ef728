"""An experiment file: which data, which splits, which curves. Everything is checked before the first run starts.

::

    name = "task1-ml-100k"              # of the folder of records
    title = "…"
    [data]
    set = "ml-100k"                     # a named set, or a path
    scale = "0,10"                      # optional, like columns, duplicates, items_file, implicit, encoding,
    missing = 0                         # skip_rows and missing: how the file is read
    [splits]
    count = 30                          # seeds 0 to 29; a run's own seed is that of its split
    validation = false                  # true: train and measure inside the training part, never on test
    [run]                               # shared by all curves: the settings of `hushrec train`
    factors = 50
    [[curves]]                          # one curve each; lists are multiplied out
    protocol = "sdcf"
    epsilon_i = [4.0, 1.0]

Beyond the settings of `train`, a curve may give `data_weight` (N, instead of the number of ratings), `measure_every`
(rounds between two points of its curve) and `groups` (budgets that differ between people).
"""

import itertools
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hushrec.errors import ParameterError
from hushrec.simulation.settings import Settings

OF_A_PLAN = {"data_weight": float, "measure_every": int}
NOT_IN_A_FILE = ("split_seed", "seed", "patience")  # splits give the seeds, and a curve has all of its rounds
KINDS: dict[type, str] = {str: "a text", bool: "true or false", int: "a whole number", float: "a number"}


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataTable(_Table):
    """Where the ratings come from, and how the file is read: the settings of `hushrec.data.load`."""

    set: str
    columns: str | None = None
    scale: str | None = None
    duplicates: str | None = None
    items_file: str | None = None
    implicit: bool | None = None
    encoding: str | None = None
    skip_rows: int | None = None
    missing: str | float | None = None

    @property
    def reading(self) -> dict[str, Any]:
        """The settings of `load` that are given."""
        return self.model_dump(exclude_none=True, exclude={"set"})


class SplitTable(_Table):
    """Seeds of the splits: `count` of them from `first` on; `validation` measures inside their training parts."""

    count: int = Field(ge=1)
    first: int = Field(default=0, ge=0)
    validation: bool = False


class GroupTable(_Table):
    """A share of the people with budgets of their own."""

    share: float = Field(gt=0, le=1)
    epsilon_i: float = Field(gt=0, allow_inf_nan=False)
    epsilon_g: float = Field(ge=0)


class Experiment(_Table):
    """The file, checked."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    data: DataTable
    splits: SplitTable
    run: dict[str, Any] = {}
    curves: list[dict[str, Any]] = Field(min_length=1)


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
        for key, value in table.items():
            _check_value(f"{path}: ", f"{place}.{key}", key, value)
    return experiment


def _kinds() -> dict[str, type]:
    """What each key of a run holds: the type of the setting of that name, or of what only experiments may change."""
    hints = get_type_hints(Settings)
    settings = {name: hints[name] for name in hints if name not in NOT_IN_A_FILE}
    return {name: (set(get_args(hint)) - {type(None)} or {hint}).pop() for name, hint in settings.items()} | OF_A_PLAN


def _check_value(file: str, place: str, key: str, value: Any) -> None:
    """One value of the right kind, or a list of such; `groups` is checked where it is built."""
    kinds = _kinds()
    if key == "groups":
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value) or not value:
            raise ParameterError(f"{file}{place} must be a list of tables, one for each group.")
        return
    if key not in kinds:
        raise ParameterError(f"{file}unknown key {place}.")
    if value == []:
        raise ParameterError(f"{file}{place} must not be an empty list.")
    for entry in value if isinstance(value, list) else [value]:
        number = kinds[key] is float and isinstance(entry, int | float) and not isinstance(entry, bool)
        if not (type(entry) is kinds[key] or number) or entry != entry:  # only NaN differs from itself
            raise ParameterError(f"{file}{place} must be {KINDS[kinds[key]]}, got {entry!r}.")


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown key {key}."
    if first["type"] == "missing":
        return f"key {key} is missing."
    return f"{key}: {first['msg']}."


def make_plans(experiment: Experiment, *, n_splits: int | None = None) -> list[Plan]:
    """Every run of the experiment, curve by curve within a split."""
    first = experiment.splits.first
    seeds = range(first, first + min(experiment.splits.count, n_splits or experiment.splits.count))
    curves = [
        (number, chosen)
        for number, curve in enumerate(experiment.curves)
        for chosen in _multiplied({**experiment.run, **curve})
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
    own = {name: value for name, value in chosen.items() if name not in (*OF_A_PLAN, "groups", *unset)}
    _check_plan(f"curves[{number}]", chosen)
    try:
        groups = tuple(GroupTable(**group) for group in chosen.get("groups", []))
        return Plan(Settings(**own, split_seed=seed, seed=seed), number, groups=groups, **special)
    except ValidationError as error:
        raise ParameterError(f"curves[{number}].groups: {_first_problem(error)}") from None
    except ParameterError as error:
        raise ParameterError(f"curves[{number}]: {error}") from None


def _check_plan(place: str, chosen: dict[str, Any]) -> None:
    """What only an experiment may change, and what goes with it."""
    if chosen.get("measure_every", 1) < 1:
        raise ParameterError(f"{place}.measure_every must be at least 1, got {chosen['measure_every']}.")
    if not 0 < chosen.get("data_weight", 1) < math.inf:
        raise ParameterError(f"{place}.data_weight must be positive and finite, got {chosen['data_weight']}.")
    if chosen.get("epoch_rounds", 1) < 1:
        raise ParameterError(f"{place}.epoch_rounds must be at least 1, got {chosen['epoch_rounds']}.")
    if "groups" not in chosen:
        return
    if chosen.get("protocol", "sdcf") != "sdcf" or {"epsilon_i", "epsilon_g", "epsilon_p", "profile_cap"} & set(chosen):
        raise ParameterError(f"{place}.groups is for protocol sdcf, and budgets are given in the groups alone.")
    if chosen.get("model", "mf") != "mf" or any("epsilon_g" not in group for group in chosen["groups"]):
        raise ParameterError(f"{place}.groups is for model mf, and each group needs epsilon_g.")
