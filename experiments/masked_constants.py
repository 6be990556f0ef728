"""Every constant of `masked` with model `gp` around its value: validation RMSE of each value that was tried.

    python experiments/masked_constants.py [--data ml-100k] [--epsilon 8,1] [--splits 2] [--devices N] [--only NAME]…

One constant is changed at a time; shares of a plan are scaled to add up to 1 again. Constants that only runs with
audience and factor columns use are measured where the plan has such columns. Kept as
experiments/records/masked-constants.json, by data set and budget; what is there already is not measured again unless
`--only` names it. What lists are sorted by is chosen by `masked_lists.py`, where plans change by `masked_plan.py`.
Limits of work (iterations, grids, the longest profile, the most taste columns) and units are not tuned and not here.
"""

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from changed import RECORDS, Case, constant, keep, nothing, scaled_blocks, setting

from hushrec.data.sources import load
from hushrec.models import item_columns, titles
from hushrec.models.gaussian_process import GaussianProcessPredictor, ItemTable
from hushrec.protocols.masked import posteriors, sums
from hushrec.protocols.masked.gp import plan, server
from hushrec.protocols.masked.gp.constants import CONSTANTS
from hushrec.protocols.masked.plan import AUDIENCE, BIAS, COUNTS, FACTORS, MOMENTS, PRIOR, curvature_of
from hushrec.simulation.tasks import RatingTask

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from people import choose_people

RECORD = RECORDS / "masked-constants.json"
USUAL = "as it is"
CLIPS, SHARES = (0.7, 1.4), (0.6, 1.6)  # times that of the plan
CURVATURES = tuple(map(curvature_of, (AUDIENCE, BIAS, FACTORS)))
Retable = Callable[[ItemTable, Any], ItemTable]


@dataclass(frozen=True)
class Constant:
    """One constant: the value it has, the values that are tried, and whether only runs with columns use it."""

    chosen: str
    tried: dict[str, Any]  # value as shown: a change of the run, or of its table
    columns_only: bool = False
    predicts_only: bool = False  # the values are other tables of the same run


def shown(value: Any) -> str:
    """A value as the table shows it."""
    if isinstance(value, np.ndarray):
        return f"{len(value)} points"
    return str(value) if isinstance(value, tuple) else f"{value:g}"


def of_constants(name: str, *values: float, columns_only: bool = False) -> Constant:
    """A field of `Constants`."""
    tried = {shown(value): constant(name, value) for value in values}
    return Constant(shown(getattr(CONSTANTS, name)), tried, columns_only)


def of_module(owner: Any, name: str, *values: Any, columns_only: bool = False) -> Constant:
    """A constant of a module."""
    tried = {shown(value): setting(owner, name, value) for value in values}
    return Constant(shown(getattr(owner, name)), tried, columns_only)


def of_blocks(names: tuple[str, ...], of: str, factors: tuple[float, ...], *, columns_only: bool = False) -> Constant:
    """Clips or shares of blocks."""
    tried = {f"× {one:g}": scaled_blocks(names, **{of: one}) for one in factors}
    return Constant("× 1", tried, columns_only)


def kernel(name: str, place: int, power: int, *values: float) -> Constant:
    """A number of the kernel that predictions are made with."""
    usual = getattr(CONSTANTS, name)

    def other(value: float) -> Retable:
        factors = np.ones(2)
        factors[place] = (value / usual) ** power
        return lambda table, _: table._replace(kernel=table.kernel * factors)

    return Constant(shown(usual), {shown(value): other(value) for value in values}, predicts_only=True)


def title(name: str, *values: float) -> Constant:
    """A variance of the likeness of titles, by its name in `hushrec.models.titles`."""

    def other(value: float) -> Retable:
        def retabled(table: ItemTable, names: Any) -> ItemTable:
            with patch.object(titles, name, value):
                return table._replace(title_weights=titles.title_rows(names).weights)

        return retabled

    return Constant(shown(getattr(titles, name)), {shown(value): other(value) for value in values}, predicts_only=True)


SWEPT: dict[str, Constant] = {
    **{f"clip of {name}": of_blocks((name,), "clip", CLIPS) for name in (COUNTS, BIAS, PRIOR)},
    **{f"share of {name}": of_blocks((name,), "share", SHARES) for name in (COUNTS, BIAS, PRIOR)},
    "clip of curvature": of_blocks(CURVATURES, "clip", (0.35, 3.0)),
    "share of curvature": of_blocks(CURVATURES, "share", (0.5, 2.5)),
    **{
        f"{of} of {name}": of_blocks((name,), of, factors, columns_only=True)
        for name in (MOMENTS, AUDIENCE, FACTORS)
        for of, factors in (("clip", CLIPS), ("share", SHARES))
    },
    "AUDIENCE_COLUMNS": of_module(plan, "AUDIENCE_COLUMNS", 5, 9, columns_only=True),
    "FACTOR_COLUMNS": of_module(plan, "FACTOR_COLUMNS", 4, 7, columns_only=True),
    "FACTOR_ROUNDS": of_module(plan, "FACTOR_ROUNDS", 1, 3, columns_only=True),
    "centre": of_constants("centre", 3.2, 3.8),
    "noise": of_constants("noise", 0.65, 0.95),
    "taste_variance": of_constants("taste_variance", 0.05, 0.15),
    "level_variance": of_constants("level_variance", 0.15, 0.4),
    "column_spread": of_constants("column_spread", 0.2, 0.45),
    "factor_variance": of_constants("factor_variance", 0.05, 0.2, columns_only=True),
    "weight_offset": of_constants("weight_offset", 10.0, 40.0),
    "weight_power": of_constants("weight_power", 0.15, 0.35),
    "rare_count": of_constants("rare_count", 25.0, 100.0, columns_only=True),
    "profile_spread": of_constants("profile_spread", 2.8, 5.6, columns_only=True),
    "profile_offset": of_constants("profile_offset", 2.5, 10.0, columns_only=True),
    "usual_log_profile": of_constants("usual_log_profile", 3.8, 4.8, columns_only=True),
    "audience_limit": of_constants("audience_limit", 1.2, 2.2, columns_only=True),
    "factor_limit": of_constants("factor_limit", 1.1, 2.1, columns_only=True),
    "over_relaxation": of_constants("over_relaxation", 1.4, 2.8),
    "kernel_amplitude": kernel("kernel_amplitude", 0, 1, 0.08, 0.18),
    "kernel_length": kernel("kernel_length", 1, 2, 0.45, 0.8),
    "WORD_VARIANCE": title("WORD_VARIANCE", 0.1, 0.22),
    "SERIES_VARIANCE": title("SERIES_VARIANCE", 0.17, 0.37),
    "SMALLEST_COUNT": of_module(posteriors, "SMALLEST_COUNT", 0.2, 0.5),
    "COUNT_RIDGE": of_module(posteriors, "COUNT_RIDGE", 4.0, 25.0),
    "INTERCEPT_RIDGE": of_module(posteriors, "INTERCEPT_RIDGE", 0.03, 0.3),
    "USUAL_RIDGE": of_module(posteriors, "USUAL_RIDGE", 30.0, 300.0),
    "USUAL_SPREAD": of_module(posteriors, "USUAL_SPREAD", 0.03, 0.3),
    "SMALLEST_LOG_SPREAD": of_module(posteriors, "SMALLEST_LOG_SPREAD", 0.02, 0.12),
    "CHANGE_LIMITS": of_module(posteriors, "CHANGE_LIMITS", (0.05, 8.0), (0.2, 2.0)),
    "LOUD_NOISE": of_module(posteriors, "LOUD_NOISE", 0.05, 0.2),
    "TYPICAL_PROFILES": of_module(
        posteriors, "TYPICAL_PROFILES", (10, 20, 40, 80, 160), (40, 80, 160, 320, 700), columns_only=True
    ),
    "SMALLEST_DEVIATION": of_module(sums, "SMALLEST_DEVIATION", 0.15, 0.6),
    "ATTRIBUTES_FLOOR": of_module(server, "ATTRIBUTES_FLOOR", 0.01, 0.04, columns_only=True),
    "PROFILE_FLOOR": of_module(server, "PROFILE_FLOOR", 0.025, 0.1, columns_only=True),
    "NUMBER_SPREAD": of_module(item_columns, "NUMBER_SPREAD", 0.6, 1.2),
    "FARTHEST_NUMBER": of_module(item_columns, "FARTHEST_NUMBER", 1.8, 3.5),
    "CURVATURE": of_module(item_columns, "CURVATURE", 0.2, 0.8),
    "KNOTS": of_module(item_columns, "KNOTS", np.linspace(0.02, 0.98, 7), np.linspace(0.02, 0.98, 17)),
}


Run = tuple[RatingTask, GaussianProcessPredictor]


def errors(cases: list[Case], usual: list[Run], one: Constant) -> dict[str, float]:
    """Mean validation RMSE of each value that is tried; `usual` are the runs as they are."""
    found = {}
    for value, other in one.tried.items():
        if one.predicts_only:
            runs = [
                (task, replace(trained, table=other(trained.table, task.ratings.titles))) for task, trained in usual
            ]
        else:
            runs = [case.run(other) for case in cases]
        found[value] = error(runs)
    return found


def error(runs: list[Run]) -> float:
    """Mean validation RMSE, as records keep it."""
    return round(float(np.mean([task.metrics(predictor)["rmse"] for task, predictor in runs])), 5)


def main() -> None:
    """Measure what is not in the record yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--epsilon", default="8,1")
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--devices", type=int, help="so many people, drawn at random, take part")
    parser.add_argument("--only", action="append", choices=list(SWEPT))
    parser.add_argument("--columns-only", action="store_true", help="constants that only runs with columns use")
    chosen = parser.parse_args()
    ratings = load(chosen.data)
    if chosen.devices:
        drawn = np.random.default_rng(0).permutation(ratings.n_users)[: chosen.devices]
        ratings = choose_people(ratings, np.isin(np.arange(ratings.n_users), drawn))
    for epsilon in map(float, chosen.epsilon.split(",")):
        cell = f"{chosen.data}, epsilon {epsilon:g}"
        cases = [Case(ratings, epsilon, split) for split in range(chosen.splits)]
        about = cases[0].about(chosen.splits)
        known = json.loads(RECORD.read_text("utf-8")).get(cell, {}).get("rmse", {}) if RECORD.exists() else {}
        usual = [case.run(nothing) for case in cases]
        keep(RECORD, cell, about, {USUAL: error(usual)})
        for name in chosen.only or [name for name in SWEPT if name not in known]:
            one = SWEPT[name]
            if (one.columns_only and not cases[0].has_columns()) or (chosen.columns_only and not one.columns_only):
                continue
            found = {"chosen": one.chosen, "tried": errors(cases, usual, one)}
            print(cell, name, found, flush=True)
            keep(RECORD, cell, about, {name: found})


if __name__ == "__main__":
    main()
