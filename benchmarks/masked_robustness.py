"""What `masked` loses where things are not as they should be: test RMSE beside the same run without the trouble.

    python benchmarks/masked_robustness.py [--data ml-100k] [--splits 3] [--epsilon 8,1]

Noise sized for two thirds of the devices, of whom one in ten may be corrupt; a third of the devices really absent from
every round; no items file; one item in five without a training rating, whose test ratings are measured by themselves:
as the run predicts them, as if these items had joined the catalogue after it (`protocols/masked/new_items.py`), and by
models without taste.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from measure import load_data, train_all_rounds, write_record

from hushrec.data.splits import Split
from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.evaluate import rmse
from hushrec.models.baselines import rating_baselines
from hushrec.models.predictor import Predictor
from hushrec.protocols.masked.gp.learning import with_new_items
from hushrec.simulation.settings import Settings
from hushrec.simulation.tasks import RatingTask

TROUBLES = {
    "none": {},
    "noise for two thirds, a tenth corrupt": {"survivors": 0.667, "corrupt": 0.1},
    "a third of the devices absent": {"dropout": 0.333},
}
BASELINES = {
    "global_mean": "the mean of all ratings",
    "user_mean": "each person's own mean",
    "bias": "the bias model",
}
COLD = 0.2  # part of the items whose training ratings are taken away


def trained(task: RatingTask, settings: Settings) -> CpuMaskedEngine:
    """The run after all rounds."""
    engine = train_all_rounds(task, settings)
    assert isinstance(engine, CpuMaskedEngine)
    return engine


def measured(ratings: Any, epsilon: float, seed: int) -> dict[str, float]:
    """Test RMSE of one split, by trouble."""
    common: dict[str, Any] = {"protocol": "masked", "epsilon": epsilon, "split_seed": seed, "seed": seed}
    found = {}
    for name, options in TROUBLES.items():
        settings = Settings(**common, **options)
        task = settings.make_task(ratings)
        found[name] = task.metrics(trained(task, settings).predictor())["rmse"]
    settings = Settings(**common)
    bare = settings.make_task(replace(ratings, titles=None, attributes=None, catalogue=None))
    found["no items file"] = bare.metrics(trained(bare, settings).predictor())["rmse"]
    return found | cold_items(settings.make_task(ratings), settings)


def cold_items(task: RatingTask, settings: Settings) -> dict[str, float]:
    """Test RMSE of items that had training ratings, and of those that were drawn to have none, by what predicts."""
    cold = np.random.default_rng(settings.seed).random(task.ratings.n_items) < COLD
    is_cold = cold[task.ratings.items]
    train, test = task.split.train, task.split.test
    engine = trained(replace(task, split=Split(train[~is_cold[train]], test)), settings)
    users, items, values = task.ratings.users, task.ratings.items, task.values
    rows, others, kept = test[is_cold[test]], test[~is_cold[test]], train[~is_cold[train]]
    fitted = rating_baselines(users[kept], items[kept], values[kept], task.ratings.n_users, task.ratings.n_items)

    def error(predict: Callable[[Any, Any], Any], rows: np.ndarray) -> float:
        return rmse(task.scale.from_unit(predict(users[rows], items[rows])), values[rows])

    return {
        "items that are not cold": error(engine.predictor().predict, others),
        "cold items": error(engine.predictor().predict, rows),
        "cold items, as new ones": error(as_new(engine, cold).predict, rows),
        **{
            f"cold items, by {shown}": rmse(fitted[name](users[rows], items[rows]), values[rows])
            for name, shown in BASELINES.items()
        },
    }


def as_new(engine: CpuMaskedEngine, cold: np.ndarray) -> Predictor:
    """What predicts where cold items are left out of the table of the run, and join it after."""
    order = np.argsort(cold, kind="stable")
    published, known = vars(engine.learner.table()), int(np.count_nonzero(~cold))
    by_item = [name for name, array in published.items() if len(array) == len(cold)]
    first = published | {name: published[name][order][:known] for name in by_item}
    wider = with_new_items(first, engine.learner.item_columns.taste[order])
    wider |= {name: wider[name][np.argsort(order)] for name in by_item}
    ratings = engine.predictor().ratings  # type: ignore[attr-defined]
    return engine.learning.predictor(engine.learning.table_from(wider), ratings, final=True)


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
