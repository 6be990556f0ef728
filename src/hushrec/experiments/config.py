"""Experiment files: the data, the splits and the curves. Everything is checked before the first run starts.

::

    name = "task1-ml-100k"              # name of the folder of records
    title = "…"
    [data]
    set = "ml-100k"                     # a named data set, or a path
    scale = "0,10"                      # optional, like every option of `hushrec.data.load`
    [splits]
    count = 30                          # seeds 0 to 29; each run uses the seed of its split
    validation = false                  # true: train and measure within the training part, never on the test part
    [run]                               # settings of `hushrec train` that all curves share
    factors = 50
    [[curves]]                          # a list gives one curve per entry; several lists, one per combination
    protocol = "sdcf"
    epsilon_i = [4.0, 1.0]

Besides the settings of `train`, a curve may set `data_weight` (the weight N of the data term), `measure_every` (rounds
between two points of the curve) and `groups` (groups of people with different budgets).
"""

import itertools
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from hushrec.errors import ParameterError
from hushrec.options import KINDS
from hushrec.simulation.settings import COMMON, Settings, declared_options

OF_A_PLAN = {"data_weight": float, "measure_every": int}
NOT_IN_A_FILE = ("split_seed", "seed", "patience", "final")  # [splits] gives the seeds; a curve runs all its rounds


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class DataTable(_Table):
    """The table `[data]`: the data set, and options of `hushrec.data.load` that say how to read it."""

    set: str
    columns: str | None = None
    scale: str | None = None
    duplicates: str | None = None
    items: str | None = None
    implicit: bool | None = None
    encoding: str | None = None
    skip_rows: int | None = None
    missing: str | float | None = None
    public: str | None = None

    @property
    def reading(self) -> dict[str, Any]:
        return self.model_dump(exclude_none=True, exclude={"set"})


class SplitTable(_Table):
    """The table `[splits]`: `count` splits with the seeds `first`, `first` + 1, …

    With `validation`, runs train and measure within the training part of each split, never on the test part.
    """

    count: int = Field(ge=1)
    first: int = Field(default=0, ge=0)
    validation: bool = False


class GroupTable(_Table):
    """A group of people with the same budgets; `share` is the fraction of all people in it."""

    share: float = Field(gt=0, le=1)
    epsilon_i: float = Field(gt=0, allow_inf_nan=False)
    epsilon_g: float = Field(ge=0)


class Experiment(_Table):
    """The content of an experiment file, with checked keys and types."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]*$")
    title: str
    data: DataTable
    splits: SplitTable
    run: dict[str, Any] = {}
    curves: list[dict[str, Any]] = Field(min_length=1)


@dataclass(frozen=True)
class Plan:
    """One run of an experiment: its settings, and the options that only experiments have."""

    settings: Settings
    curve: int  # position of its table [[curves]] in the file, from 0, for error messages
    data_weight: float | None = None  # the weight N of the data term; None: the protocol computes it
    measure_every: int = 1  # rounds between two measurements
    groups: tuple[GroupTable, ...] = ()  # groups of people with different budgets; (): all have the same
    validation: bool = False  # measure on a validation part of the training data; the test part is not used


def read_experiment(path: str | Path) -> Experiment:
    """Read and check an experiment file; raise `ParameterError`, which names the first wrong key."""
    try:
        content = tomllib.loads(Path(path).read_text("utf-8"))
    except OSError as error:
        raise ParameterError(f"{path} must be a readable file ({error.strerror}). Check the path.") from None
    except ValueError as error:
        raise ParameterError(f"{path} must be valid TOML: {error}. Correct it.") from None
    try:
        experiment = Experiment(**content)
    except ValidationError as error:
        raise ParameterError(f"{path}: {_first_problem(error)}") from None
    curves = {f"curves[{number}]": curve for number, curve in enumerate(experiment.curves)}
    for name, table in {"run": experiment.run, **curves}.items():
        for key, value in table.items():
            _check_value(f"{path}: {name}.{key}", key, value)
    return experiment


def _check_value(location: str, key: str, value: Any) -> None:
    """Raise `ParameterError` unless `value`, or every entry if it is a list, has the type of `key`.

    The value of `groups` must be a list of tables. `location` is the name of the value in error messages.
    """
    if key == "groups":
        if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value) or not value:
            raise ParameterError(
                f"{location} must be a list of tables with share, epsilon_i and epsilon_g, one for each group."
            )
        return
    options = [*(option for option in COMMON if option.name not in NOT_IN_A_FILE), *declared_options().values()]
    kinds = {option.name: option.kind for option in options} | OF_A_PLAN
    if key not in kinds:
        raise ParameterError(f"{location} must be a known setting of a run, but is unknown. Correct or remove it.")
    if value == []:
        raise ParameterError(f"{location} must not be an empty list. Give a value, or remove the key.")
    for entry in value if isinstance(value, list) else [value]:
        number = kinds[key] is float and isinstance(entry, int | float) and not isinstance(entry, bool)
        if not (type(entry) is kinds[key] or number) or entry != entry:  # only NaN differs from itself
            raise ParameterError(f"{location} must be {KINDS[kinds[key]]}, got {entry!r}.")


def _first_problem(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"{key} must be a known key, but is unknown. Correct or remove it."
    if first["type"] == "missing":
        return f"{key} must be given, but is missing."
    return f"{key}: {first['msg']}."


def make_plans(experiment: Experiment, *, n_splits: int | None = None) -> list[Plan]:
    """Return the plans of all curves on the first split, then on the second split, and so on, up to `n_splits`."""
    first = experiment.splits.first
    seeds = range(first, first + min(experiment.splits.count, n_splits or experiment.splits.count))
    curves = [
        (number, chosen)
        for number, curve in enumerate(experiment.curves)
        for chosen in _multiplied({**experiment.run, **curve})
    ]
    return [_plan(number, chosen, seed, experiment.splits.validation) for seed in seeds for number, chosen in curves]


def _multiplied(table: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield one table for each combination of entries of the lists in `table`; `groups` is treated as one value."""
    names = list(table)
    lists = [table[name] if isinstance(table[name], list) and name != "groups" else [table[name]] for name in names]
    for values in itertools.product(*lists):
        yield dict(zip(names, values, strict=True))


def _plan(number: int, chosen: dict[str, Any], seed: int, validation: bool) -> Plan:
    location = f"curves[{number}]"
    if chosen.get("measure_every", 1) < 1:
        raise ParameterError(f"{location}.measure_every must be at least 1, got {chosen['measure_every']}.")
    if not 0 < chosen.get("data_weight", 1) < math.inf:
        raise ParameterError(f"{location}.data_weight must be positive and finite, got {chosen['data_weight']}.")
    special = {name: chosen[name] for name in OF_A_PLAN if name in chosen}
    own = {name: value for name, value in chosen.items() if name not in (*OF_A_PLAN, "groups")}
    try:
        settings = Settings(**own, split_seed=seed, seed=seed)
    except ParameterError as error:
        raise ParameterError(f"{location}: {error}") from None
    return Plan(settings, number, groups=_groups(location, settings, chosen), validation=validation, **special)


def _groups(location: str, settings: Settings, chosen: dict[str, Any]) -> tuple[GroupTable, ...]:
    """Return the groups of people that a curve (one setting of an experiment) defines, or () if it defines none.

    All people of a group have the same budgets. Raise `ParameterError` if protocol and model do not have both options
    `epsilon_i` and `epsilon_g`, or if the curve sets `epsilon_i`, `epsilon_g`, `epsilon_p` or `profile_cap` outside
    its groups. Error messages begin with `location`.
    """
    if "groups" not in chosen:
        return ()
    budgets = set(GroupTable.model_fields) - {"share"}
    if not budgets <= settings.options.keys() or (budgets | {"epsilon_p", "profile_cap"}) & settings.given.keys():
        raise ParameterError(
            f"{location}.groups needs a protocol and a model with the options {' and '.join(sorted(budgets))}, and no"
            " epsilon_i, epsilon_g, epsilon_p or profile_cap in the curve itself. Remove groups, or these keys."
        )
    try:
        return tuple(GroupTable(**group) for group in chosen["groups"])
    except ValidationError as error:
        raise ParameterError(f"{location}.groups: {_first_problem(error)}") from None
