"""Records of an experiment on disk: `runs.parquet` has one row per run, `experiment.json` what several runs share.

In memory each record has the form of `train --json`, so that report pages treat single runs and experiments alike.
On disk a budget is stored once per setting and a baseline once per split, so that hundreds of curves take less than a
megabyte.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from hushrec.errors import RunError
from hushrec.files import replacing

FORMAT = 1
Record = dict[str, Any]


@dataclass(frozen=True, eq=False)
class Shared:
    """The data that several runs of an experiment share."""

    about: Record  # name, title, config, dataset, data, versions, machine
    settings: list[Record]  # label, model, protocol, engine, rounds, factors, step, budget, … of every setting
    splits: dict[int, Record]  # train, test, cold_users, cold_items, baselines of every split seed


def write_records(folder: str | Path, shared: Shared, rows: list[Record]) -> None:
    """Write `runs.parquet` and `experiment.json` to a folder, which is created if necessary.

    Each row describes one run, with the keys "setting" (a position in `shared.settings`), "split_seed", "seed",
    "metrics", "curve", "seconds", "bytes_per_client_round" and "value_rho" (median and maximum over people of the
    measured privacy loss ρ). The row of a run that diverged has empty metrics, and the error message as "diverged".
    """
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    named = [{**_named(shared.settings[row["setting"]]), **_flat(row)} for row in rows]
    pl.DataFrame(named, infer_schema_length=None).with_columns(
        pl.col("curve_rounds").cast(pl.List(pl.Int32)), pl.col("curve_values").cast(pl.List(pl.Float32))
    ).write_parquet(path / "runs.parquet", compression="zstd")
    splits = {str(seed): entry for seed, entry in shared.splits.items()}
    content = {"format": FORMAT, **shared.about, "settings": shared.settings, "splits": splits}
    with replacing(path / "experiment.json") as file:
        file.write(f"{json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)}\n".encode())


# Columns of `runs.parquet` that describe a run's setting, for other programs; `experiment.json` has all settings.
SETTING = ("label", "model", "protocol", "engine", "rounds", "factors", "step")
BUDGET = ("epsilon", "delta", "epsilon_i", "epsilon_p", "epsilon_g", "profile_cap")
PLAIN = ("setting", "split_seed", "seed", "seconds", "bytes_per_client_round", "diverged")  # stored as they are


def _named(setting: Record) -> Record:
    budget = setting["budget"]
    numbers = {name: None if budget.get(name) is None else float(budget[name]) for name in BUDGET}
    named = {name: setting.get(name) for name in SETTING}
    return named | numbers | {"clamp": bool(budget.get("clamp")), "unit": budget["unit"]}


def _flat(row: Record) -> Record:
    headline = next((name for point in row["curve"] for name in point if name != "round"), None)
    return {
        **{name: row[name] for name in PLAIN if name in row},
        **{f"metric_{name}": value for name, value in row["metrics"].items()},
        "value_rho_median": row["value_rho"]["median"],
        "value_rho_max": row["value_rho"]["max"],
        "headline": headline,
        "curve_rounds": [point["round"] for point in row["curve"]],
        "curve_values": [point[headline] for point in row["curve"]],
    }


def group_metric(epsilon_i: float, epsilon_g: float) -> str:
    """Return the name of the metric that is the RMSE of the people with these two budgets.

    A run in which people have different budgets has one of these metrics per group of people with the same budgets.
    """
    return f"rmse_at_epsilon_{epsilon_i:g}_{epsilon_g:g}"


def is_experiment(folder: str | Path) -> bool:
    """Return whether a folder contains the records of an experiment."""
    return (Path(folder) / "experiment.json").is_file()


def find_experiments(folder: str | Path) -> list[Path]:
    """Return the folder if it has the records of an experiment, otherwise all folders with such records below it."""
    if is_experiment(folder):
        return [Path(folder)]
    return sorted(file.parent for file in Path(folder).rglob("experiment.json"))


def read_records(folder: str | Path) -> list[Record]:
    """Return one record per run in the form of `train --json`.

    Each record also has the entry "peers": the metrics of other libraries on the same split, from the folder's file
    `peers.json`. Without that file, the entry is empty.
    """
    shared, rows = read_stored(folder)
    about = {name: shared.about[name] for name in ("dataset", "title", "versions", "machine")}
    about["experiment"] = shared.about["name"]
    path = Path(folder) / "peers.json"  # {split seed: {library: {metric: value}}}
    peers = json.loads(path.read_text("utf-8"))["splits"] if path.is_file() else {}
    return [_full(row, shared, about) | {"peers": peers.get(str(row["split_seed"]), {})} for row in rows]


def read_stored(folder: str | Path) -> tuple[Shared, list[Record]]:
    """Return the arguments `shared` and `rows` of `write_records`; raise `RunError` if the files are damaged."""
    path = Path(folder)
    try:
        content = json.loads((path / "experiment.json").read_text("utf-8"))
        if content.pop("format") != FORMAT:
            raise RunError(
                f"{path}/experiment.json must have format {FORMAT}, but another version wrote it."
                " Run the experiment again."
            )
        splits = {int(seed): entry for seed, entry in content.pop("splits").items()}
        shared = Shared(settings=content.pop("settings"), splits=splits, about=content)
        return shared, [_deep(row) for row in pl.read_parquet(path / "runs.parquet").to_dicts()]
    except (OSError, ValueError, KeyError, TypeError, pl.exceptions.PolarsError) as error:
        raise RunError(
            f"{path} must hold a readable experiment.json and runs.parquet ({type(error).__name__})."
            " Run the experiment again."
        ) from None


def _deep(row: Record) -> Record:
    metrics = {name.removeprefix("metric_"): value for name, value in row.items() if name.startswith("metric_")}
    curve = [
        {"round": number, row["headline"]: value}
        for number, value in zip(row["curve_rounds"], row["curve_values"], strict=True)
    ]
    return {
        **{name: row[name] for name in PLAIN if name in row},
        "metrics": {name: value for name, value in metrics.items() if value is not None},
        "curve": curve,
        "value_rho": {"median": row["value_rho_median"], "max": row["value_rho_max"]},
    }


def _full(row: Record, shared: Shared, about: Record) -> Record:
    setting, split = shared.settings[row["setting"]], shared.splits[row["split_seed"]]
    parts = {name: split[name] for name in ("train", "test", "cold_users", "cold_items")}
    budget = dict(setting["budget"])
    if "value_rho" in budget:  # measured during the run, with protocols that send gradients
        budget["value_rho"] = {"unit": budget["value_rho"]["unit"], **row["value_rho"]}
    own = {name: value for name, value in row.items() if name != "value_rho"}
    return {
        **about,
        **{name: value for name, value in setting.items() if name != "budget"},
        **own,
        "baselines": split["baselines"],
        "comparisons": {},
        "budget": budget,
        "data": {**shared.about["data"], **parts},
        "seconds_per_round": row["seconds"] / setting["rounds"],
        "interrupted": False,
    }
