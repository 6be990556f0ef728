"""Studies, read from run folders: all runs on one data set, grouped by setting, with each metric once per seed.

A setting is everything that defines a run except its data and seeds, such as a protocol with a budget.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hushrec.errors import RunError
from hushrec.experiment_records import find_experiments, read_records
from hushrec.protocols import find_protocol
from hushrec.report.labels import command_of, shape_of, told_apart
from hushrec.simulation.results import read_record

SHARED_SETTINGS = ("model", "split_seed", "seed", "engine", "patience", "factors", "rounds", "order", "attributes")

# Measures in the order of preference; True where larger is better.
MEASURES = {"rmse": False, "auc": True}


@dataclass(frozen=True)
class Curve:
    """A metric by round: its mean, lowest and highest value, and standard deviation over the seeds."""

    rounds: list[int]
    mean: list[float]
    low: list[float]
    high: list[float]
    deviation: list[float]  # 0 for one seed


@dataclass(frozen=True)
class Setting:
    """All runs that differ only in their seeds: one protocol with one budget."""

    label: str
    protocol: str
    private: bool
    protects: str  # what the budget protects
    unit: str
    not_covered: tuple[str, ...]
    metrics: dict[str, list[float]]  # by name: one number per seed, without the runs that diverged
    curve: Curve | None  # None for a protocol that only served as a comparison
    budgets: dict[str, float]  # the budget by name: epsilon, and the options that the protocol shows in its label
    clamped: bool = False  # whether noisy ratings were clipped to the scale (option `clamp`)
    # If people have different budgets: each budget in words, and the name of the metric of the people who have it.
    groups: dict[str, str] = field(default_factory=dict)
    n_diverged: int = 0  # number of runs that diverged
    command: str | None = None  # the command that repeats the first run

    def mean(self, measure: str) -> float:
        return statistics.fmean(self.metrics[measure])

    def spread(self, measure: str) -> float:
        """Return the standard deviation of a metric over the seeds, or 0 for one seed."""
        return spread(self.metrics[measure])


@dataclass(frozen=True)
class Study:
    """All runs on one data set, grouped by setting, with the non-personal baselines on the same splits."""

    dataset: str
    model: str
    users: int
    items: int
    n_train: int
    n_test: int
    measure: str  # the main metric
    settings: list[Setting]  # those of which no run diverged
    diverged: list[Setting]  # those of which at least one run diverged
    baselines: dict[str, dict[str, list[float]]]  # by baseline and metric: one number per split
    of_lists: dict[str, dict[str, list[float]]]  # baselines that only rank items, so that they lack `measure`
    peers: dict[str, dict[str, list[float]]]  # personal models of other libraries, not private, on the same splits
    title: str | None = None  # title of the experiment
    part: str = "test"  # the part of the data that was measured: "test" or "validation"
    seeds: list[int] = field(default_factory=list)  # seeds of the splits
    made_by: str = ""  # version, date and machine of the runs, as far as the records have them

    @property
    def facts(self) -> str:
        """The sizes of the data set and of its parts, and the models, in one line."""
        return (
            f"{self.users:,} people, {self.items:,} items, {self.n_train:,} ratings to train, {self.n_test:,} to"
            f" {'test' if self.part == 'test' else 'validate'}, {self.model}"
        )

    @property
    def larger_is_better(self) -> bool:
        return MEASURES[self.measure]

    def baseline(self, name: str) -> float:
        return statistics.fmean(self.baselines[name][self.measure])

    @property
    def best_baseline(self) -> str:
        choose = max if self.larger_is_better else min
        return choose(self.baselines, key=self.baseline)

    def gain(self, setting: Setting) -> float:
        """Return by how much a setting is better than the best baseline; negative if it is worse."""
        difference = setting.mean(self.measure) - self.baseline(self.best_baseline)
        return difference if self.larger_is_better else -difference

    def beats(self, setting: Setting) -> bool:
        return self.gain(setting) > 0


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation of the values, or 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def read_studies(folders: Iterable[str | Path]) -> list[Study]:
    """Return the studies of all runs in or below the folders, in the order in which they are found.

    Each experiment is one study. Other runs are grouped by data set, and by whether they predict ratings or rankings.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for path, record in _all_records(folders):
        try:
            predicted = tuple(_shared_baselines(record))  # ratings and rankings have different baselines
            key = (record.get("experiment"), record["dataset"], record["data"].get("checksum"), predicted)
            groups.setdefault(key, []).append(record)
            make_study([record])  # raises if the record is damaged
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RunError(f"{path} is damaged: {type(error).__name__} while reading it. Repeat the run.") from None
    return [make_study(records) for records in groups.values()]


def _all_records(folders: Iterable[str | Path]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for folder in map(Path, folders):
        experiments = find_experiments(folder)
        for experiment in experiments:
            yield from ((experiment, record) for record in read_records(experiment))
        if not experiments:
            records = [(path / "run.json", read_record(path)) for path in _find_runs(folder)]
            measured = [(file, record) for file, record in records if not record.get("final")]
            if not measured:
                raise RunError(
                    f"{folder} must hold a run with a test part, but holds only runs of `train --final`. Train without"
                    " --final."
                )
            yield from measured


def _find_runs(folder: Path) -> list[Path]:
    """Return the folder if it holds a run, otherwise all run folders below it; raise `RunError` if there is none."""
    if not folder.is_dir():
        raise RunError(
            f"{folder} must be a folder with runs, but does not exist. Give a folder that `hushrec train --out` wrote."
        )
    files = [folder / "run.json"] if (folder / "run.json").is_file() else sorted(folder.rglob("run.json"))
    if not files:
        raise RunError(
            f"{folder} must hold a run, but has no file run.json. Give a folder that `hushrec train --out` wrote."
        )
    return [file.parent for file in files]


def make_study(records: Sequence[dict[str, Any]]) -> Study:
    """Return the study of runs on one data set; runs that differ only in their seeds belong to one setting."""
    first = records[0]
    settings = _all_settings(records)
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
        seeds=sorted({int(record["split_seed"]) for record in records}),
        made_by=_made_by(records),
        part="validation" if (first.get("config") or {}).get("validation") else "test",
    )


def _made_by(records: Sequence[dict[str, Any]]) -> str:
    """Return the versions, dates and machines of the runs in words, as far as the records have them."""
    written = [record["written"] for record in records if "written" in record]
    known = {one["hushrec"] for one in written} | {record.get("versions", {}).get("hushrec") for record in records}
    versions = sorted(one for one in known if one)
    dates = sorted({one["date"] for one in written})
    parts = [f"hushrec {', '.join(versions)}"] if versions else []
    parts += [dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"] if dates else []
    parts += sorted({str(record["machine"]) for record in records if "machine" in record})
    return "; ".join(parts)


def _baselines(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    splits = list({record["split_seed"]: _shared_baselines(record) for record in records}.values())
    return {
        name: {measure: [float(split[name][measure]) for split in splits] for measure in table}
        for name, table in splits[0].items()
    }


def _shared_baselines(record: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return the metrics of the baselines, by name, that are the same for all runs on one split.

    The baseline `private_popularity` ranks items by noisy counts that a run released. For a model that predicts ratings
    it is left out, because every run has its own noise.
    """
    return {
        name: table for name, table in record["baselines"].items() if name != "private_popularity" or "auc" in table
    }


def _peers(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """Return the metrics of each peer (a model of another library) by name, with one number per split it was run on."""
    found: dict[str, dict[str, list[float]]] = {}
    for peers in {record["split_seed"]: record.get("peers", {}) for record in records}.values():
        for name, numbers in peers.items():
            for measure, value in numbers.items():
                found.setdefault(name, {}).setdefault(measure, []).append(float(value))
    return found


def _setting_key(record: dict[str, Any]) -> str:
    budget = record["budget"]
    chosen = [budget.get(name) for name in _in_budget(record["protocol"])]
    special = [(record.get("config") or {}).get(name) for name in ("data_weight", "groups")]
    return repr([record["protocol"], *chosen, *special, sorted(shape_of(record).items())])


def _in_budget(protocol: str) -> list[str]:
    """Return the names of the entries of a record's budget, such as "epsilon", in which settings can differ."""
    return list(dict.fromkeys(["epsilon", *find_protocol(protocol).wording.in_label]))


def _make_setting(group: list[dict[str, Any]]) -> Setting:
    first = group[0]
    protocol, budget, config = first["protocol"], first["budget"], first.get("config") or {}
    ended = [record for record in group if not record.get("diverged")]
    shared = [name for name in ended[0]["metrics"] if all(name in one["metrics"] for one in ended)] if ended else []
    was_run = first["curve"] is not None
    wording = find_protocol(protocol).wording
    named = {name: budget[name] for name in _in_budget(protocol) if budget.get(name) is not None}
    setting = Setting(
        label=str(first["label"]) if {"data_weight", "groups"} & config.keys() else wording.label(budget),
        protocol=str(protocol),
        private=float(budget["epsilon"]) != float("inf"),
        protects=wording.protects(budget),
        unit=str(budget["unit"]),
        not_covered=tuple(map(str, budget["not_covered"])),
        metrics={name: [float(record["metrics"][name]) for record in ended] for name in shared},
        curve=_make_curve(ended) if ended and was_run else None,
        budgets={name: float(value) for name, value in named.items() if not isinstance(value, bool)},
        clamped=bool(budget.get("clamp")),
        n_diverged=len(group) - len(ended),
        command=command_of(first) if was_run else None,
    )
    if "groups" not in config or "data_weight" in config:
        return setting
    pairs = [(float(entry["epsilon_i"]), float(entry["epsilon_g"])) for entry in config["groups"]]
    groups = {f"ε_I={own:g}, ε_g={fake:g}": f"rmse_at_epsilon_{own:g}_{fake:g}" for own, fake in pairs}
    protects = f"which items: each their own ε, at most {float(budget['epsilon']):g}, profile-level"
    return replace(setting, budgets={}, groups=groups, protects=protects)


def _all_settings(records: Sequence[dict[str, Any]]) -> list[Setting]:
    """Return every setting that was run, then those that only served as comparisons, with distinct labels."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in [*records, *_compared(records, {_setting_key(record) for record in records})]:
        groups.setdefault(_setting_key(record), []).append(record)
    settings = [_make_setting(group) for group in groups.values()]
    shapes = [shape_of(group[0]) for group in groups.values()]
    labels = told_apart([setting.label for setting in settings], shapes)
    return [replace(setting, label=label) for setting, label in zip(settings, labels, strict=True)]


def _compared(records: Sequence[dict[str, Any]], taken: set[str]) -> list[dict[str, Any]]:
    """Return a record without a curve for each comparison: a protocol that a run trained besides its own.

    `taken` has the `_setting_key` of every run. A comparison with one of these keys is left out, because its setting
    was also run by itself.
    """
    found = []
    for record in records:
        for protocol, entry in record.get("comparisons", {}).items():
            own = {name: value for name, value in (record.get("settings") or {}).items() if name in SHARED_SETTINGS}
            beside = {
                **record,
                "protocol": protocol,
                "budget": entry["budget"],
                "step": entry.get("step", record.get("step")),
                "settings": own | {"protocol": protocol},
                "metrics": {name: entry[name] for name in record["metrics"] if entry.get(name) is not None},
                "curve": None,
                "diverged": entry.get("diverged"),
            }
            if _setting_key(beside) not in taken:
                found.append(beside)
    return found


def _make_curve(group: list[dict[str, Any]]) -> Curve:
    """Return the curve over runs of one setting, up to the last round that all of them reached."""
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
        [spread(row) for row in by_round],
    )
