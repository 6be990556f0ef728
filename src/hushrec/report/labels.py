"""Distinct labels for settings with the same protocol and budget, and the command that repeats a run."""

import shlex
from collections.abc import Sequence
from typing import Any

from hushrec.protocols import PROTOCOLS

Record = dict[str, Any]

WORDS = {
    "model": "{}",
    "factors": "K={:g}",
    "rounds": "{:g} rounds",
    "step": "step {:g}",
    "epsilon_p": "ε_P={:g}",
    "reports_per_client": "z={:g}",
    "epoch_rounds": "new bits every {:g} rounds",
    "at_least": "from {:g} up",
    "order": "order {:g}",
    "patience": "patience {:g}",
    "engine": "{}",
}
NOT_A_SETTING = {"model", "protocol", "seed", "split_seed", "measure_every", "validation", "final"}
IN_LABELS_OF_EXPERIMENTS = {"data_weight", "groups"}


def shape_of(record: Record) -> Record:
    """Return the settings of a run by name, without its seeds, and without protocol and budget.

    Protocol and budget are left out because the run's label shows them.
    """
    given = {**(record.get("config") or {}), **(record.get("settings") or {})}
    in_label = {name for protocol in PROTOCOLS.values() for name in protocol.wording.in_label}
    elsewhere = in_label | IN_LABELS_OF_EXPERIMENTS | NOT_A_SETTING
    shape = {name: value for name, value in given.items() if name not in elsewhere}
    names = ("model", "factors", "step", "order", "at_least", "engine", "patience")
    shape |= {name: record[name] for name in names if record.get(name) is not None}
    if record.get("patience") is None:  # with early stopping, each run has its own number of rounds
        shape["rounds"] = record["rounds"]
    return shape


def distinct_labels(labels: Sequence[str], shapes: Sequence[Record]) -> list[str]:
    """Return the labels, made distinct: equal labels get the settings in which their runs differ, or else a number.

    `shapes` has the result of `shape_of` for the run of each label.
    """
    made = [
        label + _differences(shape, [other for name, other in zip(labels, shapes, strict=True) if name == label])
        for label, shape in zip(labels, shapes, strict=True)
    ]
    return [label if made.count(label) == 1 else f"{label} ({number})" for number, label in enumerate(made, start=1)]


def _differences(shape: Record, group: Sequence[Record]) -> str:
    """Return in words the settings in which a run differs from the `group` of runs with the same label."""
    names = [name for name in {**WORDS, **shape} if len({repr(other.get(name)) for other in group}) > 1]
    return "".join(f", {_in_words(name, shape[name])}" for name in names if name in shape)


def _in_words(name: str, value: Any) -> str:
    try:
        return WORDS[name].format(value)
    except (KeyError, ValueError):
        words = name.replace("_", " ")
        return words if value is True else f"{words} {value}"


def command_of(record: Record) -> str | None:
    """Return the command that repeats a run or, if the run belongs to an experiment, the whole experiment.

    The result is None if the record names neither settings nor an experiment, or if the data was a table in memory.
    """
    if record.get("experiment"):
        return f"hushrec experiment experiments/{record['experiment']}.toml"
    reading = record.get("reading", {"source": record["dataset"]})
    if "settings" not in record or reading is None:
        return None
    options = {name: value for name, value in {**reading, **record["settings"]}.items() if name != "source"}
    command = f"hushrec train {shlex.quote(str(reading['source']))} {as_options(options)}"
    return command if "reading" in record else f"{command}  # the options for reading the data are not recorded"


def as_options(values: Record) -> str:
    """Return options for the command line, such as `--items films.csv --implicit`; `values` maps names to values."""
    words = [
        [f"--{name.replace('_', '-')}", *([] if value is True else [f"{value}"])]
        for name, value in values.items()
        if value is not False
    ]
    return shlex.join(word for option in words for word in option)


def shared_reading(records: Sequence[Record]) -> Record:
    """Return those options for reading the data that are equal in all runs, by name.

    The data's source (file or name) and the option `data_dir` are left out.
    """
    first, *others = [record.get("reading") or {} for record in records]
    return {
        name: value
        for name, value in first.items()
        if name not in ("source", "data_dir") and all(other.get(name) == value for other in others)
    }
