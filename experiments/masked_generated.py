"""Rules of model `gp` and `audience` for data unlike MovieLens, chosen on validation parts of generated ratings.

    python experiments/masked_generated.py [--part levels]…

Every set is drawn by `draw_ratings`. A value of a rule is compared with others on validation parts of the training
data, never on a test part. Parts:

- levels: the residual variance of ratings with two, three and four levels, times that of `residual_variance`.
- columns: `LARGEST_TASTE`, the bound on the initial variance of taste columns, for items with many numbers and flags
  that people's tastes depend on, or do not.
- deviations: `USUAL_SCATTER`, the weight of the model's own variances in the deviation of a prediction; by the mean of
  −log density, and the share of ratings within one deviation. inf leaves the variances as they are.
- long catalogues: `LONG_CATALOGUE`, the devices · μ per item below which model `audience` counts only; by AUC.

The result is kept as experiments/records/masked-generated.json, part by part.
"""

import argparse
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import polars as pl
from changed import Case, constant, nothing, setting, train_all_rounds

import hushrec
from hushrec.arrays import FloatArray, IntArray
from hushrec.budget.gaussian import run_mu
from hushrec.models import gp
from hushrec.protocols.masked.audience import plan as audience_plan
from hushrec.protocols.masked.gp import server
from hushrec.simulation.settings import Settings

RECORD = Path(__file__).parent / "records" / "masked-generated.json"
EPSILONS, SPLITS = (1.0, 8.0, math.inf), 2
SHAPES = ((300, 200, 20), (800, 300, 30), (2000, 400, 40))  # people, items, mean number of ratings of a person
LEVELS, FACTORS = (2, 3, 4), (0.25, 0.5, 0.7, 1.0, 1.4, 2.0)
OWN_NOISES = (0.6, 1.0)  # deviation of the part of a rating that nothing explains; that of the rest is about 0.9
BOUNDS = (0.15, 0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.7, math.inf)  # on MovieLens, taste columns have 0.14
COLUMNS = {  # useful numbers, other numbers, useful flags, whether flags are one text column of categories
    "no columns": (0, 0, 0, False),
    "20 useless numbers": (0, 20, 0, False),
    "10 useless numbers": (0, 10, 0, False),
    "5 useful numbers": (5, 0, 0, False),
    "3 useful numbers of 10": (3, 7, 0, False),
    "5 useful numbers of 20": (5, 15, 0, False),
    "40 useful flags as numbers": (0, 0, 40, False),
    "20 useful flags as numbers, 10 useless numbers": (0, 10, 20, False),
    "40 useful categories": (0, 0, 40, True),
    "15 useful categories, 3 useless numbers": (0, 3, 15, True),
}
COLUMN_SHAPES = ((400, 1500, 40), (800, 400, 30))
SCATTERS, MOST_PEOPLE = (1.0, 2.0, 5.0, 10.0, 20.0, math.inf), 200
SCATTERED = {  # factor of opinions, their noise, the middle of the scale, and the scale
    "likes and dislikes": (0.5, 0.8, 0.5, "0,1"),
    "three levels": (0.5, 0.8, 1.2, "0,2"),
    "1 to 5, noise 0.2": (1.0, 0.2, 3.4, "1,5"),
    "1 to 5, noise 0.6": (1.0, 0.6, 3.4, "1,5"),
    "1 to 5, noise 1.5": (1.0, 1.5, 3.4, "1,5"),
    "1 to 5, noise 3": (1.0, 3.0, 3.4, "1,5"),
    "0 to 100, mostly 70 to 82": (2.0, 0.6, 76.0, "0,100"),
}
SCATTER_MEANS = (12, 40)  # mean number of ratings of a person
PLANS = {"counts only": math.inf, "audiences": 0.0}  # LONG_CATALOGUE with which every run has this plan
CATALOGUES = ((300, 500, 20), (300, 2000, 20), (300, 5000, 20), (1000, 2000, 15), (1000, 5000, 30))
FADING_EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)


def draw_pairs(rng: np.random.Generator, people: int, items: int, mean: float) -> tuple[IntArray, IntArray]:
    """Draw who rates what: profiles of log-normal length, and items of Zipf popularity."""
    popularity = rng.permutation(1 / np.arange(1, items + 1) ** 0.9)
    lengths = np.clip(rng.lognormal(math.log(mean) - 0.25, 0.7, people), 1, 0.8 * items).astype(int)
    chance = popularity / popularity.sum()
    rated = [rng.choice(items, length, replace=False, p=chance) for length in lengths]
    return np.repeat(np.arange(people), lengths), np.concatenate(rated)


def draw_opinions(
    rng: np.random.Generator, users: IntArray, items: IntArray, noise: float, columns: FloatArray | None = None
) -> FloatArray:
    """Draw what people think of items: level, item effect, taste for hidden columns and for `columns`, and noise."""
    n_users, n_items = int(users.max()) + 1, int(items.max()) + 1
    tastes, hidden = rng.normal(size=(n_users, 4)), rng.normal(size=(n_items, 4))
    opinions = 0.4 * rng.normal(size=n_users)[users] + 0.4 * rng.normal(size=n_items)[items]
    opinions += 0.3 * (tastes[users] * hidden[items]).sum(axis=1)
    if columns is not None:
        opinions += (0.5 * rng.normal(size=(n_users, columns.shape[1]))[users] * columns[items]).sum(axis=1)
    return np.asarray(opinions + noise * rng.normal(size=len(users)))


def in_levels(opinions: FloatArray, levels: int) -> FloatArray:
    """Return ratings of this number of levels, 0, 1, …: opinions around a middle that is above the scale's."""
    steps = (opinions + 0.6 + 2.0) / 4.0 * (levels - 1)  # opinions from −2 to 2 fill the scale
    return np.asarray(np.clip(np.rint(steps), 0, levels - 1))


def load_table(users: IntArray, items: IntArray, values: FloatArray, scale: str, columns: pl.DataFrame | None) -> Any:
    """Return the data set of these ratings, and of an items file with `columns`."""
    table = pl.DataFrame({"user": users, "item": items, "rating": values})
    return hushrec.data.load(table, scale=scale, items=columns)


def mean_error(cases: list[Case], change: Callable[[Any], None]) -> float:
    """Return the mean RMSE on validation parts with a change, on the file's scale."""
    errors = [task.metrics(predictor)["rmse"] for task, predictor in (case.run(change) for case in cases)]
    return round(float(np.mean(errors)), 4)


def compare_levels() -> dict[str, Any]:
    """Residual variances for few levels: factors of that of the rule; and the bias model, which is not private."""
    found: dict[str, Any] = {}
    for levels, shape, noise in itertools.product(LEVELS, SHAPES, OWN_NOISES):
        rng = np.random.default_rng(levels)
        users, items = draw_pairs(rng, *shape)
        values = in_levels(draw_opinions(rng, users, items, noise), levels)
        ratings = load_table(users, items, values, f"0,{levels - 1}", None)
        for epsilon in EPSILONS:
            cases = [Case(ratings, epsilon, split) for split in range(SPLITS)]
            row = {f"{factor:g}": mean_error(cases, constant("noise", 0.8 * factor)) for factor in FACTORS}
            row["bias"] = round(float(np.mean([case.task().baselines()["bias"]["rmse"] for case in cases])), 4)
            name = f"{levels} levels, {shape[0]} people, {shape[1]} items, noise {noise:g}, epsilon {epsilon:g}"
            found[name] = row
            print(name, row, flush=True)
    return found


def draw_items(
    rng: np.random.Generator, items: int, useful: int, useless: int, flags: int, as_text: bool
) -> tuple[FloatArray, pl.DataFrame]:
    """Draw public columns of items; return those that tastes depend on, `(items, useful + flags)`, and the items file.

    An item has each flag with probability 0.08. With `as_text`, the flags are the categories of one text column.
    """
    numbers, marks = rng.normal(size=(items, useful + useless)), rng.random((items, flags)) < 0.08
    table: dict[str, Any] = {"id": [str(item) for item in range(items)]}
    table |= {f"number{k}": numbers[:, k].round(3) for k in range(useful + useless)}
    if as_text:
        table["kind"] = ["|".join(f"kind{k}" for k in np.flatnonzero(row)) or None for row in marks]
    else:
        table |= {f"flag{k}": marks[:, k].astype(int) for k in range(flags)}
    loud = 0.6 * numbers[:, :useful] / max(math.sqrt(useful), 1)  # tastes for all useful numbers: deviation 0.3
    return np.concatenate([loud, marks], axis=1), pl.DataFrame(table)


def compare_columns() -> dict[str, Any]:
    """Bounds on the initial variance of taste columns; and two models that are not private."""
    found: dict[str, Any] = {}
    for (name, kinds), (people, items, mean) in itertools.product(COLUMNS.items(), COLUMN_SHAPES):
        rng = np.random.default_rng(51)
        users, rated = draw_pairs(rng, people, items, mean)
        columns, table = draw_items(rng, items, *kinds)
        opinions = draw_opinions(rng, users, rated, 0.6, columns)
        ratings = load_table(users, rated, np.clip(np.rint(3.6 + opinions), 1, 5), "1,5", table)
        for epsilon in EPSILONS:
            cases = [Case(ratings, epsilon, split) for split in range(SPLITS)]
            row = {f"{bound:g}": mean_error(cases, setting(server, "LARGEST_TASTE", bound)) for bound in BOUNDS}
            for baseline in ("bias", "user_mean"):
                errors = [case.task().baselines()[baseline]["rmse"] for case in cases]
                row[baseline] = round(float(np.mean(errors)), 4)
            found[f"{name}, {people} people, {items} items, epsilon {epsilon:g}"] = row
            print(name, people, items, epsilon, row, flush=True)
    return found


def draw_scattered(name: str, mean: int, seed: int) -> Any:
    """Return the data set of `SCATTERED` with this name, of 600 people with `mean` ratings each on average."""
    factor, noise, middle, scale = SCATTERED[name]
    rng = np.random.default_rng(seed)
    users, items = draw_pairs(rng, 600, 300, mean)
    opinions = middle + factor * draw_opinions(rng, users, items, noise)
    return load_table(users, items, np.clip(np.rint(opinions), *map(float, scale.split(","))), scale, None)


def scores_of_deviations(case: Case) -> dict[str, list[float]]:
    """Return the mean −log density and the share within one deviation of validation ratings, by `USUAL_SCATTER`."""
    task, predictor = case.run(nothing)
    rows = task.split.test[task.ratings.users[task.split.test] < MOST_PEOPLE]
    values, found = task.scale.to_unit(task.values), {}
    for usual in SCATTERS:
        squares, variances = [], []
        with patch.object(gp, "USUAL_SCATTER", usual):
            for user in np.unique(task.ratings.users[rows]):
                own = slice(task.profiles.starts[user], task.profiles.starts[user + 1])
                predictions = predictor.of_profile(task.profiles.items[own], task.profiles.values[own])
                wanted = rows[task.ratings.users[rows] == user]
                squares += list((values[wanted] - predictions.predicted[task.ratings.items[wanted]]) ** 2)
                variances += list(predictions.deviations[task.ratings.items[wanted]] ** 2)
        square, variance = np.array(squares), np.array(variances)
        density = 0.5 * np.mean(np.log(2 * np.pi * variance) + square / variance)
        found[f"{usual:g}"] = [round(float(density), 3), round(float(np.mean(square <= variance)), 3)]
    return found


def compare_deviations() -> dict[str, Any]:
    """Weights of the model's own variances, on generated sets and on MovieLens 100K."""
    cells = itertools.product(SCATTERED, SCATTER_MEANS)
    sets = {f"{name}, {mean} ratings per person": draw_scattered(name, mean, 11) for name, mean in cells}
    found: dict[str, Any] = {}
    for name, ratings in (sets | {"ml-100k": hushrec.data.load("ml-100k")}).items():
        for epsilon in EPSILONS:
            found[f"{name}, epsilon {epsilon:g}"] = row = scores_of_deviations(Case(ratings, epsilon, 0))
            print(name, epsilon, row, flush=True)
    return found


def draw_choices(people: int, items: int, mean: int, *, with_kinds: bool) -> Any:
    """Return a one-class set: people choose by popularity, and three times as often among the items of their kind.

    There are six kinds of items and of people. `with_kinds`: the kind of an item is public.
    """
    rng = np.random.default_rng(9)
    popularity = rng.permutation(1 / np.arange(1, items + 1) ** 0.8)
    kinds, own = rng.integers(6, size=items), rng.integers(6, size=people)
    lengths = np.clip(rng.lognormal(math.log(mean) - 0.25, 0.7, people), 3, 0.5 * items).astype(int)
    chosen = []
    for kind, length in zip(own, lengths, strict=True):
        chance = popularity * np.where(kinds == kind, 3.0, 1.0)
        chosen.append(rng.choice(items, length, replace=False, p=chance / chance.sum()))
    table = pl.DataFrame({"user": np.repeat(np.arange(people), lengths), "item": np.concatenate(chosen)})
    known = {"id": [str(item) for item in range(items)]} | ({"kind": [f"k{k}" for k in kinds]} if with_kinds else {})
    return hushrec.data.load(table, items=pl.DataFrame(known))


def compare_catalogues() -> dict[str, Any]:
    """Both plans of long catalogues at small budgets, beside the most popular items by exact counts."""
    found: dict[str, Any] = {}
    for (people, items, mean), with_kinds in itertools.product(CATALOGUES, (False, True)):
        ratings = draw_choices(people, items, mean, with_kinds=with_kinds)
        for epsilon in FADING_EPSILONS:
            row = {"devices · μ per item": round(people * run_mu(epsilon, 1e-6) / items, 4)}
            for name, threshold in PLANS.items():
                with patch.object(audience_plan, "LONG_CATALOGUE", threshold):
                    row[name] = round(float(np.mean([area(ratings, epsilon, split) for split in range(SPLITS)])), 4)
            known = "with" if with_kinds else "without"
            found[f"{people} people, {items} items, {known} kinds, epsilon {epsilon:g}"] = row
            print(people, items, known, epsilon, row, flush=True)
    return found


def area(ratings: Any, epsilon: float, split: int) -> float:
    """Return the AUC of model `audience` on one validation part."""
    settings = Settings(model="audience", epsilon=epsilon, split_seed=split, seed=split)
    task = settings.make_task(ratings).validation(split)
    return float(task.metrics(train_all_rounds(task, settings).predictor())["auc"])


PARTS = {
    "levels": compare_levels,
    "columns": compare_columns,
    "deviations": compare_deviations,
    "long catalogues": compare_catalogues,
}


def main() -> None:
    """Measure the parts that are asked for, or all, and keep them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=list(PARTS))
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    for part in parser.parse_args().part or PARTS:
        record[part] = PARTS[part]()
        RECORD.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
