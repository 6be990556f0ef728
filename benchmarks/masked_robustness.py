"""What `masked` loses where things are not as they should be: test RMSE beside the same run without the trouble.

    python benchmarks/masked_robustness.py [--data ml-100k] [--splits 3] [--epsilon 8,1]

Noise sized for two thirds of the devices, of whom one in ten may be corrupt; a third of the devices really absent from
every round; no items file; one item in five without a training rating, whose test ratings are measured by themselves.
"""

import argparse
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from measure import load_data, write_record

from hushrec.data.splits import Split
from hushrec.engines import train_all_rounds
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings
from hushrec.simulation.tasks import RatingTask

TROUBLES = {
    "none": {},
    "noise for two thirds, a tenth corrupt": {"survivors": 0.667, "corrupt": 0.1},
    "a third of the devices absent": {"dropout": 0.333},
}
COLD = 0.2  # part of the items whose training ratings are taken away


def error_of(task: RatingTask, settings: Settings, tests: dict[str, np.ndarray] | None = None) -> dict[str, float]:
    """Test RMSE after all rounds; of parts of the test rows where they are given."""
    engine = train_all_rounds("cpu", task_problem(task, settings))
    parts = {"": task.split.test} if tests is None else tests
    return {
        name: replace(task, split=Split(task.split.train, rows)).metrics(engine.predictor())["rmse"]
        for name, rows in parts.items()
    }


def measured(ratings: Any, epsilon: float, seed: int) -> dict[str, float]:
    """Test RMSE of one split, by trouble."""
    common: dict[str, Any] = {"protocol": "masked", "epsilon": epsilon, "split_seed": seed, "seed": seed}
    found = {}
    for name, options in TROUBLES.items():
        settings = Settings(**common, **options)
        found[name] = error_of(settings.make_task(ratings), settings)[""]
    settings = Settings(**common)
    bare = replace(ratings, titles=None, attributes=None, catalogue=None)
    found["no items file"] = error_of(settings.make_task(bare), settings)[""]
    task = settings.make_task(ratings)
    cold = np.random.default_rng(seed).random(task.ratings.n_items) < COLD
    is_cold = cold[task.ratings.items]
    train, test = task.split.train, task.split.test
    warm = replace(task, split=Split(train[~is_cold[train]], test))
    tests = {"items that are not cold": test[~is_cold[test]], "cold items": test[is_cold[test]]}
    found |= error_of(warm, settings, tests)
    level = float(task.values[warm.split.train].mean())
    errors = task.values[tests["cold items"]] - level
    return found | {"cold items, by the mean of all ratings": float(np.sqrt(np.mean(errors**2)))}


def main() -> None:
    """Measure every budget and split, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--epsilon", default="8,1")
    chosen = parser.parse_args()
    ratings, table = load_data(chosen.data), {}
    for epsilon in map(float, chosen.epsilon.split(",")):
        runs = [measured(ratings, epsilon, seed) for seed in range(chosen.splits)]
        table[f"epsilon {epsilon:g}"] = {
            name: round(float(np.mean([run[name] for run in runs])), 4) for name in runs[0]
        }
        print(table, flush=True)
    write_record(
        f"masked-robustness-{chosen.data}",
        {"command": "python " + " ".join(sys.argv), "splits": chosen.splits, "test_rmse": table},
    )


if __name__ == "__main__":
    main()
