"""Studies, read from run folders: all runs on one data set, grouped by setting, with each metric once per seed.

A setting is everything that defines a run except its data and seeds, such as a protocol with a budget.
"""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hushrec.errors import RunError
from hushrec.evaluate import LARGER_IS_BETTER, gain
from hushrec.experiment_records import find_experiments, group_metric, read_records
from hushrec.protocols import find_protocol
from hushrec.report.labels import as_options, command_of, distinct_labels, shape_of, shared_reading
from hushrec.simulation.results import read_record

SHARED_SETTINGS = ("model", "split_seed", "seed", "engine", "patience", "factors", "rounds", "order", "attributes")


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
    """All runs that differ only in their seeds: one protocol with one budget.

    If the people in a run have different budgets, `groups` maps each of these budgets, in words, to the name of a
    metric: the RMSE of the people with this budget.
    """

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
    groups: dict[str, str] = field(default_factory=dict)
    n_diverged: int = 0  # number of runs that diverged
    command: str | None = None  # the command that repeats the first run

    def mean(self, measure: str) -> float:
        return statistics.fmean(self.metrics[measure])


@dataclass(frozen=True)
class Study:
    """All runs on one data set, grouped by setting, with the non-personal baselines on the same splits."""

    dataset: str  # its name, and the options with which it was read
    model: str
    facts: str  # the sizes of the data set and of its parts, and the models, in words
    measure: str  # the main metric
    settings: list[Setting]  # settings of which no run diverged
    diverged: list[Setting]  # settings of which at least one run diverged
    baselines: dict[str, dict[str, list[float]]]  # by baseline and metric: one number per split
    of_lists: dict[str, dict[str, list[float]]]  # baselines that only rank items, so that they lack `measure`
    peers: dict[str, dict[str, list[float]]]  # personal models of other libraries, not private, on the same splits
    title: str | None = None  # title of the experiment
    part: str = "test"  # the part of the data that was measured: "test" or "validation"
    seeds: list[int] = field(default_factory=list)  # seeds of the splits
    made_by: str = ""  # version, date and machine of the runs, as far as the records have them

    @property
    def larger_is_better(self) -> bool:
        return LARGER_IS_BETTER[self.measure]

    def baseline(self, name: str) -> float:
        return statistics.fmean(self.baselines[name][self.measure])

    @property
    def best_baseline(self) -> str:
        choose = max if self.larger_is_better else min
        return choose(self.baselines, key=self.baseline)

    def gain(self, setting: Setting) -> float:
        """Return by how much a setting is better than the best baseline; negative if it is worse."""
        return gain(setting.mean(self.measure), self.baseline(self.best_baseline), self.measure)

    def beats(self, setting: Setting) -> bool:
        return self.gain(setting) > 0


def spread(values: Sequence[float]) -> float:
    """Return the standard deviation of the values, or 0 for one value."""
    return statistics.stdev(values) if len(values) > 1 else 0.0


def read_studies(folders: Iterable[str | Path]) -> list[Study]:
    """Return the studies of all runs in or below the folders, in the order in which they are found.

    Each experiment is one study. Other runs are grouped by data set with its items file, and by whether they predict
    ratings or rankings.
    """
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for path, record in _all_records(folders):
        try:
            predicted = tuple(_shared_baselines(record))  # ratings and rankings have different baselines
            data, items = record["data"], (record.get("reading") or {}).get("items")  # the checksum is without items
            told_apart = (data.get("checksum"), data.get("unlisted"), items)
            key = (record.get("experiment"), record["dataset"], told_apart, predicted)
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
    data = {name: int(first["data"][name]) for name in ("users", "items", "train", "test")}
    model = ", ".join(dict.fromkeys(str(record["model"]) for record in records))
    is_validation = (first.get("config") or {}).get("validation")
    measure = next(name for name in LARGER_IS_BETTER if any(name in table for table in first["baselines"].values()))
    baselines = _by_name({record["split_seed"]: _shared_baselines(record) for record in records})
    return Study(
        dataset=" ".join(filter(None, [str(first["dataset"]), as_options(shared_reading(records))])),
        model=model,
        facts=f"{data['users']:,} people, {data['items']:,} items, {data['train']:,} ratings to train, "
        f"{data['test']:,} to {'validate' if is_validation else 'test'}, {model}",
        measure=measure,
        settings=[setting for setting in settings if not setting.n_diverged],
        diverged=[setting for setting in settings if setting.n_diverged],
        baselines={name: table for name, table in baselines.items() if measure in table},
        of_lists={name: table for name, table in baselines.items() if measure not in table},
        peers=_by_name({record["split_seed"]: record.get("peers", {}) for record in records}),
        title=first.get("title"),
        seeds=sorted({int(record["split_seed"]) for record in records}),
        made_by=_made_by(records),
        part="validation" if is_validation else "test",
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


def _by_name(splits: dict[int, dict[str, dict[str, float]]]) -> dict[str, dict[str, list[float]]]:
    """Return the metrics of baselines or peers by name, with one number per split.

    `splits` has the metrics by the seed of the split, then by name of the baseline or peer.
    """
    found: dict[str, dict[str, list[float]]] = {}
    for models in splits.values():
        for name, numbers in models.items():
            for measure, value in numbers.items():
                found.setdefault(name, {}).setdefault(measure, []).append(float(value))
    return found


def _shared_baselines(record: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Return, by name, the metrics of those baselines that are the same for all runs on one split.

    For a model that predicts ratings, the baseline `private_popularity` is left out: it ranks items by the noisy counts
    that a run released, which differ between runs.
    """
    return {
        name: table for name, table in record["baselines"].items() if name != "private_popularity" or "auc" in table
    }


def _setting_key(record: dict[str, Any]) -> str:
    budget = record["budget"]
    chosen = [budget.get(name) for name in _in_budget(record["protocol"])]
    special = [(record.get("config") or {}).get(name) for name in ("data_weight", "groups")]
    return repr([record["protocol"], *chosen, *special, sorted(shape_of(record).items())])


def _in_budget(protocol: str) -> list[str]:
    """Return the names of those entries of a budget, such as "epsilon", that tell settings of this protocol apart."""
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
    groups = {f"ε_I={own:g}, ε_g={fake:g}": group_metric(own, fake) for own, fake in pairs}
    protects = f"which items: each their own ε, at most {float(budget['epsilon']):g}, profile-level"
    return replace(setting, budgets={}, groups=groups, protects=protects)


def _all_settings(records: Sequence[dict[str, Any]]) -> list[Setting]:
    """Return every setting that was run, then the settings that only served as comparisons, with distinct labels."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in [*records, *_compared(records, {_setting_key(record) for record in records})]:
        groups.setdefault(_setting_key(record), []).append(record)
    settings = [_make_setting(group) for group in groups.values()]
    shapes = [shape_of(group[0]) for group in groups.values()]
    labels = distinct_labels([setting.label for setting in settings], shapes)
    return [replace(setting, label=label) for setting, label in zip(settings, labels, strict=True)]


def _compared(records: Sequence[dict[str, Any]], run_keys: set[str]) -> list[dict[str, Any]]:
    """Return a record without a curve for each comparison: a protocol that a run trained besides its own.

    `run_keys` has the `_setting_key` of every run. A comparison with one of these keys is left out, because its setting
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
            if _setting_key(beside) not in run_keys:
                found.append(beside)
    return found


def _make_curve(group: list[dict[str, Any]]) -> Curve:
    """Return the curve over all runs of one setting, up to the last round that every run reached."""
    curves = [record["curve"] for record in group]
    measure = next(name for name in LARGER_IS_BETTER if name in group[0]["metrics"])
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
