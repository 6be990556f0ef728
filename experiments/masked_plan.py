"""Which plan, and which clip of curvature blocks: the runs that chose both constants of `protocols/masked/plan.py`.

    python experiments/masked_plan.py

RMSE on validation parts of the training data, never on a test part: `LARGE_FLEET`, from which devices · μ² on the plan
has audience and factor columns, and `CURVATURE_CLIP`. Kept as experiments/records/masked-plan.json.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from hushrec.budget.gaussian import run_mu
from hushrec.data.sources import load
from hushrec.engines import train_all_rounds
from hushrec.protocols.masked import plan
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings

PLANS = {"small": math.inf, "large": 0.0}  # what LARGE_FLEET makes of any fleet
BUDGETS = {"ml-100k": (4.0, 8.0, 16.0), "netflix-10k": (1.0, 2.0, 4.0), "ml-1m": (2.0, 4.0)}
CLIPS, CLIP_BUDGETS = (7.0, 20.0, 60.0), (1.0, 8.0)
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


def main() -> None:
    """Compare plans on every set, and clips on ML-100K."""
    record: dict[str, Any] = {"plans": {}, "curvature clips": {}}
    large_fleet, clip = plan.LARGE_FLEET, plan.CURVATURE_CLIP
    for data, epsilons in BUDGETS.items():
        ratings = load(data)
        for epsilon in epsilons:
            row: dict[str, float] = {"strength": round(plan.fleet_strength(ratings.n_users, run_mu(epsilon, 1e-6)))}
            for name, threshold in PLANS.items():
                plan.LARGE_FLEET = threshold
                row[name] = error(ratings, SPLITS[data], epsilon)
            record["plans"][f"{data}, epsilon {epsilon:g}"] = row
            print(data, epsilon, row, flush=True)
    plan.LARGE_FLEET = large_fleet
    ratings = load("ml-100k")
    for epsilon in CLIP_BUDGETS:
        found = {}
        for plan.CURVATURE_CLIP in CLIPS:
            found[f"{plan.CURVATURE_CLIP:g}"] = error(ratings, SPLITS["ml-100k"], epsilon)
        record["curvature clips"][f"ml-100k, epsilon {epsilon:g}"] = found
        print(epsilon, found, flush=True)
    plan.CURVATURE_CLIP = clip
    RECORD.write_text(json.dumps(record, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
