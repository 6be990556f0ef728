"""What federated evaluation says beside the test part, and what it costs.

    python benchmarks/masked_evaluation.py [--data ml-100k] [--epsilon 8] [--splits 3]

Each split trains twice, without evaluation blocks and with the share of the budget that network runs use. Kept are the
test RMSE of both, what the run measured itself after every round beside the RMSE of the same linear predictions on the
test part, and for comparison what residuals of the training ratings themselves say (leave-one-out on each device).
"""

import argparse
import sys
from typing import Any

import numpy as np
from measure import load_data, train_all_rounds, write_record

from hushrec.engines.cpu.masked import CpuMaskedEngine
from hushrec.evaluate import rmse
from hushrec.models import gp
from hushrec.protocols.masked.evaluation import NETWORK_SHARE
from hushrec.simulation.run import task_problem
from hushrec.simulation.settings import Settings


def left_out_rmse(problem: Any, table: Any) -> float:
    """RMSE of leave-one-out residuals on the ratings that the run learned from."""
    found = []
    for user in range(problem.n_users):
        own = slice(problem.starts[user], problem.starts[user + 1])
        rows, residuals = table.rows[problem.items[own]], problem.values[own] - table.offsets[problem.items[own]]
        taste = gp.taste_posterior(rows, residuals, 1 / table.variances[problem.items[own]])
        found.append(gp.held_out_residuals(rows, residuals, *taste))
    return float(np.sqrt(np.mean(np.concatenate(found) ** 2)))


def one_split(ratings: Any, epsilon: float, seed: int) -> dict[str, Any]:
    """Train without and with evaluation blocks."""
    off = Settings(protocol="masked", epsilon=epsilon, split_seed=seed, seed=seed)
    on = Settings(protocol="masked", epsilon=epsilon, split_seed=seed, seed=seed, evaluation=NETWORK_SHARE)
    task = off.make_task(ratings)
    plain = train_all_rounds(task, off)
    test, problem = task.split.test, task_problem(task, on)
    engine, tested, left_out = CpuMaskedEngine(problem), [], []
    for _ in range(problem.terms.max_rounds):
        engine.run_round()
        table = engine.learner.table()
        linear = engine.learning.predictor(table, task_ratings(problem), final=False)
        tested.append(rmse(linear.predict(ratings.users[test], ratings.items[test]), ratings.values[test]))
        left_out.append(left_out_rmse(problem, table))
    return {
        "rmse_without": task.metrics(plain.predictor())["rmse"],
        "rmse_with": task.metrics(engine.predictor())["rmse"],
        "measured": [row._asdict() for row in engine.learner.measured],
        "test_rmse_linear": tested[:-1],
        "left_out_rmse": left_out[:-1],
    }


def task_ratings(problem: Any) -> Any:
    """Everybody's ratings, as a predictor takes them."""
    from hushrec.models.gaussian_process import Ratings

    return Ratings(problem.starts, problem.items, problem.values)


def main() -> None:
    """Measure every split, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--splits", type=int, default=3)
    chosen = parser.parse_args()
    ratings = load_data(chosen.data)
    splits = [one_split(ratings, chosen.epsilon, seed) for seed in range(chosen.splits)]
    means = {name: float(np.mean([split[name] for split in splits])) for name in ("rmse_without", "rmse_with")}
    command = "python " + " ".join(sys.argv)
    result = {"command": command, "epsilon": chosen.epsilon, "share": NETWORK_SHARE, "means": means, "splits": splits}
    write_record(f"masked-evaluation-{chosen.data}", result)


if __name__ == "__main__":
    main()
