"""Which plan, and which clip of curvature blocks: the runs that chose both constants of `protocols/masked/plan.py`.

    python experiments/masked_plan.py [--part plans] [--part "curvature clips"] [--part "without noise"]

RMSE on validation parts of the training data, never on a test part: `LARGE_FLEET`, from which devices · μ² on the plan
has audience and factor columns, `FEWEST_FOR_COLUMNS`, the same for the number of devices alone, and `CURVATURE_CLIP`.
Kept as experiments/records/masked-plan.json, part by part.
"""

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from hushrec.budget.gaussian import run_mu
from hushrec.data.sources import load
from hushrec.engines import train_all_rounds
from hushrec.protocols.masked import plan
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))
from people import choose_people

PLANS = {"small": math.inf, "large": 0.0}  # what LARGE_FLEET makes of any fleet
BUDGETS = {"ml-100k": (4.0, 8.0, 16.0), "netflix-10k": (1.0, 2.0, 4.0), "ml-1m": (2.0, 4.0)}
CLIPS, CLIP_BUDGETS = (7.0, 20.0, 60.0), (1.0, 8.0)
SIZES = {"ml-100k": (25, 50, 100, 200, 400, 943), "ml-1m": (100, 200, 400)}
SPLITS = {"ml-100k": 3, "netflix-10k": 1, "ml-1m": 1}
RECORD = Path(__file__).parent / "records" / "masked-plan.json"


def error(ratings: Any, splits: int, epsilon: float) -> float:
    """Mean RMSE on the validation parts, with the constants as they stand."""
    found = []
    for split in range(splits):
        settings = Settings(protocol="masked", epsilon=epsilon, split_seed=split, seed=split)
        task = settings.make_task(ratings).validation(split)
        engine = train_all_rounds("cpu", task_problem(task, settings))
        found.append(task.metrics(engine.predictor())["rmse"])
    return round(float(np.mean(found)), 4)


def compare_plans() -> dict[str, Any]:
    """Both plans at the budgets between which the better one changes, on every set."""
    found = {}
    for data, epsilons in BUDGETS.items():
        ratings = load(data)
        for epsilon in epsilons:
            row: dict[str, float] = {"strength": round(plan.fleet_strength(ratings.n_users, run_mu(epsilon, 1e-6)))}
            for name, threshold in PLANS.items():
                with patch.object(plan, "LARGE_FLEET", threshold):
                    row[name] = error(ratings, SPLITS[data], epsilon)
            found[f"{data}, epsilon {epsilon:g}"] = row
            print(data, epsilon, row, flush=True)
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


PARTS = {"plans": compare_plans, "curvature clips": compare_clips, "without noise": compare_without_noise}


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
