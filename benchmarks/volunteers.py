"""What volunteers are worth: test RMSE of everybody else with and without the public ratings of some people.

    python benchmarks/volunteers.py [--data ml-100k] [--splits 3] [--volunteers 50] [--epsilon 1]

So many people are drawn at random and leave the private fleet. The others train twice on the same split, with noise of
the same seed: once by themselves, once with the drawn people's ratings as public ones (`hushrec train --public`).
"""

import argparse
import sys
from typing import Any

import numpy as np
from measure import load_data, write_record
from people import choose_people

from hushrec.data.sources import with_public
from hushrec.simulation.training import train


def measured(ratings: Any, volunteers: int, epsilon: float, seed: int) -> dict[str, float]:
    """RMSE of the others without and with the volunteers, and of the bias model."""
    drawn = np.isin(np.arange(ratings.n_users), np.random.default_rng(seed).permutation(ratings.n_users)[:volunteers])
    others, public = choose_people(ratings, ~drawn), choose_people(ratings, drawn)
    settings = {"epsilon": epsilon, "split_seed": seed, "seed": seed}
    alone = train(others, **settings)
    together = train(with_public(others, public), **settings)
    return {
        "alone": alone.metrics["rmse"],
        "with volunteers": together.metrics["rmse"],
        "bias model": alone.record["baselines"]["bias"]["rmse"],
    }


def main() -> None:
    """Measure every split, and keep the record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="ml-100k")
    parser.add_argument("--splits", type=int, default=3)
    parser.add_argument("--volunteers", type=int, default=50)
    parser.add_argument("--epsilon", type=float, default=1.0)
    chosen = parser.parse_args()
    ratings = load_data(chosen.data)
    runs = [measured(ratings, chosen.volunteers, chosen.epsilon, seed) for seed in range(chosen.splits)]
    write_record(
        f"volunteers-{chosen.data}",
        {
            "command": "python " + " ".join(sys.argv),
            "volunteers": chosen.volunteers,
            "epsilon": chosen.epsilon,
            "splits": chosen.splits,
            "test_rmse": {name: round(float(np.mean([run[name] for run in runs])), 4) for name in runs[0]},
        },
    )


if __name__ == "__main__":
    main()
