"""Reads run folders into studies: the runs on one data set, grouped by setting, several seeds side by side."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hushrec.errors import RunError
from hushrec.protocols import find_protocol
from hushrec.records import find_experiments, read_records
from hushrec.simulation.results import read_record

# Measures in the order of preference; True where larger is better.
MEASURES = {"rmse": False, "auc": True}


@dataclass(frozen=True)
class Curve:
    """A measure by round: over several seeds the mean, the lowest and the highest."""

    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    deviation: list[float]  # 0 for one seed


@dataclass(frozen=True)
class BudgetGroup:
    """The people of one budget among several in one training; `measure` names their own error in the metrics."""

    name: str
    measure: str


@dataclass(frozen=True)
class Setting:
    """All runs of one protocol with one budget; `curve` is None for what was only compared with."""

    label: str
    protocol: str
    private: bool
    protects: str
    unit: str
    not_covered: tuple[str, ...]
    metrics: dict[str, list[float]]  # one number per seed
    curve: Curve | None
    n_rounds: int
    levels: dict[str, float]  # the budget's ε by name: epsilon, epsilon_i, epsilon_g
    clamped: bool = False
    groups: tuple[BudgetGroup, ...] = ()  # where budgets differ between people
    n_diverged: int = 0  # of its runs; where there is one, the metrics are those of the others and mean nothing

    def mean(self, measure: str) -> float:
        return statistics.fmean(self.metrics[measure])

    def spread(self, measure: str) -> float:
        """The standard deviation over the seeds; 0 for one."""
        values = self.metrics[measure]
        return statistics.stdev(values) if len(values) > 1 else 0.0


@dataclass(frozen=True)
class Study:
    """One data set and what is predicted: its settings, and the non-personal baselines on the same splits."""

    dataset: str
    model: str
    users: int
    items: int
    n_train: int
    n_test: int
    measure: str
    settings: list[Setting]  # all of whose runs ended well
    diverged: list[Setting]  # the others
    baselines: dict[str, dict[str, list[float]]]
    of_lists: dict[str, dict[str, list[float]]]  # baselines that make lists and predict no ratings
    peers: dict[str, dict[str, list[float]]]  # other libraries' personal models, not private, on the same splits
    title: str | None = None  # of an experiment
    part: str = "test"  # what was measured on: "validation" where the test part was not looked at

    @property
    def larger_is_better(self) -> bool:
        return MEASURES[self.measure]

    def baseline(self, name: str) -> float:
        return statistics.fmean(self.baselines[name][self.measure])

    @property
    def best_baseline(self) -> str:
        choose = max if self.larger_is_better else min
        return choose(self.baselines, key=self.baseline)

    def beats(self, setting: Setting) -> bool:
        """Whether a setting is better than the best of what needs no personal model."""
        gain = setting.mean(self.measure) - self.baseline(self.best_baseline)
        return gain > 0 if self.larger_is_better else gain < 0


def read_studies(folders: Iterable[str | Path]) -> list[Study]:
    """Every run in or below the folders, as studies in the order in which they were met; an experiment is one."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for path, record in _all_records(folders):
        try:
            predicted = tuple(record["baselines"])  # ratings and rankings have different ones
            key = (record.get("experiment"), record["dataset"], record["data"].get("checksum"), predicted)
            groups.setdefault(key, []).append(record)
            make_study([record])  # a damaged record is refused here, by its folder
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path} is damaged: {type(error).__name__} while reading it.") from None
    return [make_study(records) for records in groups.values()]


def _all_records(folders: Iterable[str | Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in map(Path, folders):
        experiments = find_experiments(folder)
        for experiment in experiments:
            yield from ((experiment, record) for record in read_records(experiment))
        if not experiments:
            measured = [(path / "run.json", record) for path, record in _run_records(folder) if not record.get("final")]
            if not measured:
                raise RunError(
                    f"{folder} holds runs of `train --final` alone: nothing was held out to compare them by."
                )
            yield from measured


def _run_records(folder: Path) -> Iterator[tuple[Path, dict[str, Any]]]:
    yield from ((path, read_record(path)) for path in find_runs([folder]))


def find_runs(folders: Iterable[str | Path]) -> list[Path]:
    """The run folders among and below the given ones, each once."""
    found: dict[Path, None] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise RunError(f"{folder} must be a folder with runs in it, made by `hushrec train --out`; there is none.")
        files = [folder / "run.json"] if (folder / "run.json").is_file() else sorted(folder.rglob("run.json"))
        if not files:
            raise RunError(f"{folder} holds no run: expected a run.json in it or below, made by `hushrec train --out`.")
        found |= dict.fromkeys(file.parent for file in files)
    return list(found)


def make_study(records: Sequence[dict[str, Any]]) -> Study:
    """Group runs that predict the same on one data set by everything but their seeds."""
    first = records[0]
    by_setting: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        by_setting.setdefault(_setting_key(record), []).append(record)
    settings = _told_apart([(_make_setting(group), group[0]) for group in by_setting.values()])
    settings += _compared(records, {setting.label for setting in settings})
    data = first["data"]
    measure = next(name for name in MEASURES if any(name in table for table in first["baselines"].values()))
    baselines = _baselines(records)
    return Study(
        dataset=str(first["dataset"]),
        model=", ".join(dict.fromkeys(str(record["model"]) for record in records)),
        users=int(data["users"]),
        items=int(data["items"]),
        n_train=int(data["train"]),
        n_test=int(data["test"]),
        measure=measure,
        settings=[setting for setting in settings if not setting.n_diverged],
        diverged=[setting for setting in settings if setting.n_diverged],
        baselines={name: table for name, table in baselines.items() if measure in table},
        of_lists={name: table for name, table in baselines.items() if measure not in table},
        peers=_peers(records),
        title=first.get("title"),
        part="validation" if (first.get("config") or {}).get("validation") else "test",
    )


def _baselines(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Measures of each baseline, one number per split."""
    splits = list({record["split_seed"]: record["baselines"] for record in records}.values())
    return {
        name: {measure: [float(split[name][measure]) for split in splits] for measure in table}
        for name, table in splits[0].items()
    }


def _peers(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Measures of each peer, one number per split that it was run on."""
    found: dict[str, dict[str, list[float]]] = {}
    for peers in {record["split_seed"]: record.get("peers", {}) for record in records}.values():
        for name, numbers in peers.items():
            for measure, value in numbers.items():
                found.setdefault(name, {}).setdefault(measure, []).append(float(value))
    return found


def _setting_key(record: dict[str, Any]) -> str:
    budget = record["budget"]
    shape = [record[name] for name in ("model", "protocol", "engine", "rounds", "factors")] + [record.get("step")]
    chosen = [budget.get(name) for name in ("epsilon", "epsilon_i", "epsilon_p", "epsilon_g", "profile_cap", "clamp")]
    return repr([*shape, *chosen, budget.get("reports_per_client") if budget.get("profile_cap") else None])


def _make_setting(group: list[dict[str, Any]]) -> Setting:
    first = group[0]
    ended = [record for record in group if not record.get("diverged")]
    shared = (
        [name for name in ended[0]["metrics"] if all(name in record["metrics"] for record in ended)] if ended else []
    )
    metrics = {name: [float(record["metrics"][name]) for record in ended] for name in shared}
    curve = _make_curve(ended) if ended else None
    setting = _setting(first["protocol"], first["budget"], metrics, curve, int(first["rounds"]))
    setting = replace(setting, n_diverged=len(group) - len(ended))
    config = first.get("config") or {}
    if "data_weight" in config:
        return replace(setting, label=str(first["label"]))
    if "groups" in config:
        groups = tuple(_budget_group(entry) for entry in config["groups"])
        protects = f"which items: each their own ε, at most {float(first['budget']['epsilon']):g}, profile-level"
        return replace(setting, label=str(first["label"]), levels={}, groups=groups, protects=protects)
    return setting


def _budget_group(entry: dict[str, Any]) -> BudgetGroup:
    epsilon_i, epsilon_g = float(entry["epsilon_i"]), float(entry["epsilon_g"])
    return BudgetGroup(f"ε_I={epsilon_i:g}, ε_g={epsilon_g:g}", f"rmse_at_epsilon_{epsilon_i:g}_{epsilon_g:g}")


def _told_apart(settings: list[tuple[Setting, dict[str, Any]]]) -> list[Setting]:
    """Settings of the same label that differ in their step say so."""
    labels = [setting.label for setting, _ in settings]
    return [
        replace(setting, label=f"{setting.label}, step {float(first['step']):g}")
        if labels.count(setting.label) > 1 and first.get("step") is not None
        else setting
        for setting, first in settings
    ]


def _compared(records: Sequence[dict[str, Any]], taken: set[str]) -> list[Setting]:
    """What single runs were set beside, where it has no run of its own here."""
    found: dict[str, Setting] = {}
    for record in records:
        for protocol, entry in record.get("comparisons", {}).items():
            metrics = {name: [float(entry[name])] for name in record["metrics"] if entry.get(name) is not None}
            setting = _setting(protocol, entry["budget"], metrics, None, int(record["rounds"]))
            setting = replace(setting, n_diverged=int("diverged" in entry))
            if setting.label not in taken:
                found.setdefault(setting.label, setting)
    return list(found.values())


def _setting(
    protocol: str, budget: dict[str, Any], metrics: dict[str, list[float]], curve: Curve | None, n_rounds: int
) -> Setting:
    wording = find_protocol(protocol).wording
    return Setting(
        label=wording.label(budget),
        protocol=str(protocol),
        private=float(budget["epsilon"]) != float("inf"),
        protects=wording.protects(budget),
        unit=str(budget["unit"]),
        not_covered=tuple(map(str, budget["not_covered"])),
        metrics=metrics,
        curve=curve,
        n_rounds=n_rounds,
        levels={
            name: float(budget[name]) for name in ("epsilon", "epsilon_i", "epsilon_g") if budget.get(name) is not None
        },
        clamped=bool(budget.get("clamp")),
    )


def _make_curve(group: list[dict[str, Any]]) -> Curve:
    """The measure of every round that all seeds reached."""
    curves = [record["curve"] for record in group]
    measure = next(name for name in MEASURES if name in group[0]["metrics"])
    length = min(map(len, curves))
    by_round = [[float(curve[position][measure]) for curve in curves] for position in range(length)]
    rounds = [int(point["round"]) for point in curves[0][:length]]
    return Curve(
        rounds,
        [statistics.fmean(row) for row in by_round],
        list(map(min, by_round)),
        list(map(max, by_round)),
        [statistics.stdev(row) if len(row) > 1 else 0.0 for row in by_round],
    )
