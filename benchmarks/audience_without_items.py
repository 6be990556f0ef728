"""What model `audience` loses without an items file: AUC with titles and attributes, without them, and of popularity.

python benchmarks/audience_without_items.py [--data ml-100k] [--splits 3] [--epsilon 8,4,1]
"""

import argparse
import sys
from dataclasses import replace
from typing import Any

import numpy as np
from measure import load_data, train_all_rounds, write_record

from hushrec.simulation.settings import Settings


def auc_of(ratings: Any, settings: Settings) -> float:
    """Test AUC after all rounds."""
    task = settings.make_task(ratings)
    engine = train_all_rounds(task, settings)
    return float(task.metrics(engine.predictor())["auc"])


def main() -> None:
    """Measure every budget and split, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--epsilon", default="8,4,1")
    chosen = parser.parse_args()
    ratings, table = load_data(chosen.data), {}
    bare = replace(ratings, titles=None, attributes=None, catalogue=None)
    for epsilon in map(float, chosen.epsilon.split(",")):
        common = [
            Settings(protocol="masked", model="audience", epsilon=epsilon, split_seed=seed, seed=seed)
            for seed in range(chosen.splits)
        ]
        table[f"epsilon {epsilon:g}"] = {
            "items file": round(np.mean([auc_of(ratings, settings) for settings in common]), 4),
            "no items file": round(np.mean([auc_of(bare, settings) for settings in common]), 4),
        }
        print(table, flush=True)
    popular = [settings.make_task(ratings).baselines()["popularity"]["auc"] for settings in common]
    found = {"test_auc": table, "most popular": round(float(np.mean(popular)), 4)}
    command = "python " + " ".join(sys.argv)
    write_record(f"audience-without-items-{chosen.data}", {"command": command, "splits": chosen.splits, **found})


if __name__ == "__main__":
    main()
