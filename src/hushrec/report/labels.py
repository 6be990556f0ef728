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
SAID_BY_EXPERIMENTS = {"data_weight", "groups"}  # settings that an experiment names in its own label


def shape_of(record: Record) -> Record:
    """Return a run's settings by name, without budgets and seeds; settings missing in the record are left out."""
    given = {**(record.get("config") or {}), **(record.get("settings") or {})}
    in_label = {name for protocol in PROTOCOLS.values() for name in protocol.wording.in_label}
    elsewhere = in_label | SAID_BY_EXPERIMENTS | NOT_A_SETTING
    shape = {name: value for name, value in given.items() if name not in elsewhere}
    names = ("model", "factors", "step", "order", "at_least", "engine", "patience")
    shape |= {name: record[name] for name in names if record.get(name) is not None}
    if record.get("patience") is None:  # with early stopping, each run has its own number of rounds
        shape["rounds"] = record["rounds"]
    return shape


def told_apart(labels: Sequence[str], shapes: Sequence[Record]) -> list[str]:
    """Return distinct labels: equal ones are extended by the settings in which their runs differ, or by a number.

    `shapes` has what `shape_of` returned for each label's run.
    """
    made = [
        label + _differences(shape, [other for name, other in zip(labels, shapes, strict=True) if name == label])
        for label, shape in zip(labels, shapes, strict=True)
    ]
    return [label if made.count(label) == 1 else f"{label} ({place + 1})" for place, label in enumerate(made)]


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
    """Return the command that repeats a run, or None if the record has no settings."""
    if record.get("experiment"):
        return f"hushrec experiment experiments/{record['experiment']}.toml"
    if "settings" not in record:
        return None
    options = [
        [f"--{name.replace('_', '-')}", *([] if value is True else [f"{value}"])]
        for name, value in record["settings"].items()
        if value is not False
    ]
    return shlex.join(["hushrec", "train", str(record["dataset"]), *(word for option in options for word in option)])
