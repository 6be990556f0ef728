"""Which plan, and which clip of curvature blocks: the runs that chose both constants of `protocols/masked/gp/plan.py`.

    python experiments/masked_plan.py [--part plans] [--part "curvature clips"] [--part "without noise"] [--part counts]
        [--part "factor columns"] [--part "short profiles"]

RMSE on validation parts of the training data, never on a test part: `LARGE_FLEET`, `MEDIUM_FLEET` and
`SHORT_CATALOGUE`, from which devices · μ² and devices · μ per item on the plan has audience and factor columns;
`FEWEST_FOR_COLUMNS`, the same for the number of devices alone; `CURVATURE_CLIP`; the share of counts where there are
few devices, which decides what their lists are worth (NDCG@10 beside it); the number of factor columns on both
sides of `VAST_FLEET`; and, where people have few ratings, `FEW_RATINGS`, `LONG_PROFILE` and `SHORT_PROFILE`, which
choose the plan and its clips. Kept as experiments/records/masked-plan.json, part by part.
"""

import argparse
import itertools
import json
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from changed import Case, nothing, replanned, train_all_rounds

from hushrec.budget.gaussian import run_mu
from hushrec.data.ratings import Ratings
from hushrec.data.sources import load
from hushrec.protocols.masked.gp import plan
from hushrec.simulation.settings import Settings

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from people import choose_people

PLANS = {"small": math.inf, "large": 0.0}  # LARGE_FLEET and MEDIUM_FLEET with which every fleet has this plan
USUAL_CLIPS = {"SHORT_PROFILE": 1e-9}  # clips do not depend on the number of ratings
BUDGETS = {"ml-100k": (4.0, 8.0, 10.0, 12.0, 16.0), "netflix-10k": (0.5, 1.0, 2.0, 4.0), "ml-1m": (1.0, 2.0, 3.0, 4.0)}
MADE_UP = {  # users, items and ratings of generated sets: few ratings per person, and few items
    "synthetic:users=400,items=60,ratings=10000": (1.0, 4.0, 8.0),
    "synthetic:users=1000,items=100,ratings=30000": (0.5, 1.0, 4.0, 8.0),
    "synthetic:users=5000,items=40,ratings=50000": (0.5, 1.0, 4.0, 8.0),
    "synthetic:users=3000,items=400,ratings=60000": (0.5, 1.0, 2.0, 4.0, 8.0),
    "synthetic:users=5000,items=2000,ratings=100000": (2.0, 4.0, 8.0),
}
CLIPS, CLIP_BUDGETS = (7.0, 20.0, 60.0), (1.0, 8.0)
SIZES = {"ml-100k": (25, 50, 100, 200, 400, 943), "ml-1m": (100, 200, 400)}
FEW, SHARES, DRAWS = (25, 50, 100, 200, 400, 800), (0.19, 0.3, 0.4, 0.5), 3
VAST_BUDGETS, VAST_PEOPLE, FACTOR_COLUMNS = (8.0, 16.0, math.inf), 1500, (4, 5, 6, 8)
PER_PERSON = {"ml-100k": (8, 16, 32), "netflix-10k": (5, 10, 20), "ml-1m": (6, 12, 25, 50)}
SPLITS = {"ml-100k": 3, "netflix-10k": 1, "ml-1m": 1}
RECORD = Path(__file__).parent / "records" / "masked-plan.json"


def error(ratings: Any, splits: int, epsilon: float) -> float:
    """Mean RMSE on the validation parts, with the constants as they stand."""
    found = []
    for split in range(splits):
        settings = Settings(protocol="masked", epsilon=epsilon, split_seed=split, seed=split)
        task = settings.make_task(ratings).validation(split)
        engine = train_all_rounds(task, settings)
        found.append(task.metrics(engine.predictor())["rmse"])
    return round(float(np.mean(found)), 4)


def bias_error(ratings: Any, splits: int) -> float:
    """Mean RMSE of the bias model, which is not private, on the same parts."""
    tasks = [Case(ratings, math.inf, split).task() for split in range(splits)]
    return round(float(np.mean([task.baselines()["bias"]["rmse"] for task in tasks])), 4)


def compare_plans() -> dict[str, Any]:
    """Both plans at the budgets between which the better one changes, on every set."""
    found = {}
    for data, epsilons in (BUDGETS | MADE_UP).items():
        ratings = load(data)
        for epsilon in epsilons:
            per_item = ratings.n_users * run_mu(epsilon, 1e-6) / ratings.n_items
            strength = round(plan.fleet_strength(ratings.n_users, run_mu(epsilon, 1e-6)))
            row: dict[str, float] = {"strength": strength, "devices · μ per item": round(per_item, 2)}
            for name, threshold in PLANS.items():
                with patch.multiple(plan, LARGE_FLEET=threshold, MEDIUM_FLEET=threshold, **USUAL_CLIPS):
                    row[name] = error(ratings, SPLITS.get(data, 2), epsilon)
            row["bias"] = bias_error(ratings, SPLITS.get(data, 2))
            found[f"{data}, epsilon {epsilon:g}"] = row
            print(data, epsilon, row, flush=True)
    return found


def thinned(ratings: Ratings, per_person: float) -> Ratings:
    """Return a random part of the ratings with about this mean number per person, with those who have any."""
    kept = np.random.default_rng(0).random(ratings.n_ratings) < per_person * ratings.n_users / ratings.n_ratings
    part = ratings.rows(np.flatnonzero(kept))
    return choose_people(part, np.bincount(part.users, minlength=part.n_users) > 0)


def compare_short_profiles() -> dict[str, Any]:
    """Both plans where people have few ratings, with the usual clips and with lowered ones; one validation part."""
    found = {}
    for data, means in PER_PERSON.items():
        whole = load(data)
        for named, mean, epsilon in itertools.product((True, False), means, CLIP_BUDGETS):
            ratings = thinned(whole if named else replace(whole, titles=None, attributes=None, catalogue=None), mean)
            per_item = ratings.n_ratings * run_mu(epsilon, 1e-6) / ratings.n_items
            row: dict[str, float] = {
                "strength": round(plan.fleet_strength(ratings.n_users, run_mu(epsilon, 1e-6))),
                "ratings · μ per item": round(per_item, 1),
            }
            for (name, threshold), lowered in itertools.product(PLANS.items(), (False, True)):
                clips = {} if lowered else USUAL_CLIPS
                with patch.multiple(plan, LARGE_FLEET=threshold, MEDIUM_FLEET=threshold, **clips):
                    row[name + ", lowered" * lowered] = error(ratings, 1, epsilon)
            row["bias"] = bias_error(ratings, 1)
            about = f"{ratings.ratings_per_person:.1f} ratings" + ", ids alone" * (not named)
            found[f"{data}, {about}, epsilon {epsilon:g}"] = row
            print(data, about, epsilon, row, flush=True)
    return found


def compare_clips() -> dict[str, Any]:
    """Clips of curvature blocks, on ML-100K."""
    ratings, found = load("ml-100k"), {}
    for epsilon in CLIP_BUDGETS:
        row = {}
        for clip in CLIPS:
            with patch.object(plan, "CURVATURE_CLIP", clip):
                row[f"{clip:g}"] = error(ratings, SPLITS["ml-100k"], epsilon)
        found[f"ml-100k, epsilon {epsilon:g}"] = row
        print(epsilon, row, flush=True)
    return found


def compare_without_noise() -> dict[str, Any]:
    """Both plans of fleets without noise, by the number of devices: people drawn at random, three times."""
    found = {}
    for data, sizes in SIZES.items():
        ratings = load(data)
        for size in sizes:
            row: dict[str, float] = {}
            for name, threshold in (("small", math.inf), ("large", 0)):
                with patch.object(plan, "FEWEST_FOR_COLUMNS", threshold):
                    drawn = (np.random.default_rng(seed).permutation(ratings.n_users)[:size] for seed in range(3))
                    people = [choose_people(ratings, np.isin(np.arange(ratings.n_users), one)) for one in drawn]
                    row[name] = round(float(np.mean([error(one, 1, math.inf) for one in people])), 4)
            found[f"{data}, {size} devices"] = row
            print(data, size, row, flush=True)
    return found


def compare_counts() -> dict[str, Any]:
    """Shares of counts of the whole budget, for few people drawn at random, beside the most popular items."""
    found = {}
    for data in ("ml-100k", "ml-1m"):
        ratings = load(data)
        for size, epsilon in itertools.product(FEW, CLIP_BUDGETS):
            draws = [np.random.default_rng(seed).permutation(ratings.n_users)[:size] for seed in range(DRAWS)]
            people = [choose_people(ratings, np.isin(np.arange(ratings.n_users), one)) for one in draws]
            cases = [Case(one, epsilon, split) for split, one in enumerate(people)]
            popular = [case.task().baselines()["popularity"]["ndcg_at_10"] for case in cases]
            row: dict[str, Any] = {
                "devices · μ": round(size * run_mu(epsilon, 1e-6), 1),
                "strength": round(plan.fleet_strength(size, run_mu(epsilon, 1e-6)), 1),
                "most popular": round(float(np.mean(popular)), 4),
            }
            row |= {f"{share:g}": counts_measured(cases, share) for share in SHARES}
            found[f"{data}, {size} devices, epsilon {epsilon:g}"] = row
            print(data, size, epsilon, row, flush=True)
    return found


def counts_measured(cases: list[Case], share: float) -> dict[str, float]:
    """Mean RMSE and NDCG@10 where counts have this share of the budget; the others keep their proportions."""

    def changed(block: plan.Block, _: bool) -> plan.Block:
        weight = share if block.name == plan.COUNTS else block.share * (1 - share) / (1 - usual)
        return plan.Block(block.name, block.shape, block.clip, weight)

    chosen = plan.choose_plan(cases[0].ratings.n_users, 1, 1, run_mu(cases[0].epsilon, 1e-6))
    usual = next(block.share for block in chosen.blocks if block.name == plan.COUNTS)
    runs = [case.run(replanned(changed)) for case in cases]
    return {
        "rmse": round(float(np.mean([task.metrics(predictor)["rmse"] for task, predictor in runs])), 4),
        "ndcg": round(float(np.mean([task.list_metrics(predictor)["ndcg_at_10"] for task, predictor in runs])), 4),
    }


def compare_factor_columns() -> dict[str, Any]:
    """Numbers of factor columns of each factor round, on ML-1M: all devices train, and 1,500 people are measured."""
    ratings, found = load("ml-1m"), {}
    for epsilon in VAST_BUDGETS:
        case = Case(ratings, epsilon, 0, VAST_PEOPLE)
        row: dict[str, float] = {}
        if epsilon < math.inf:
            row["strength"] = round(plan.fleet_strength(ratings.n_users, run_mu(epsilon, 1e-6)))
        for count in FACTOR_COLUMNS:
            with patch.multiple(plan, FACTOR_COLUMNS=count, VAST_FACTOR_COLUMNS=count):
                task, predictor = case.run(nothing)
            row[str(count)] = round(task.metrics(predictor)["rmse"], 4)
        found[f"ml-1m, epsilon {epsilon:g}"] = row
        print(epsilon, row, flush=True)
    return found


PARTS = {
    "factor columns": compare_factor_columns,
    "plans": compare_plans,
    "short profiles": compare_short_profiles,
    "curvature clips": compare_clips,
    "without noise": compare_without_noise,
    "counts": compare_counts,
}


def main() -> None:
    """Compare what is asked for, or all, and keep it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=list(PARTS))
    record = json.loads(RECORD.read_text("utf-8")) if RECORD.exists() else {}
    for part in parser.parse_args().part or PARTS:
        record[part] = PARTS[part]()
        RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
